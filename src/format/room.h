/* room.h - whether files of given sizes can be written where a folder is. */
#ifndef FORMAT_ROOM_H
#define FORMAT_ROOM_H

#include "format/file_list.h"

/* Free space for all of them; the file system's and the process's limit for the largest. */
fsdp_status fsdp__room_check(const char *folder, const fsdp__file_list *files);

#endif
