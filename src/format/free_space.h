/* free_space.h - checks whether files of given sizes can be written where a folder is. */
#pragma once

#include "format/file_list.h"

/* Returns what the files take, each in whole blocks. */
uint64_t fsdp__room_needed(const fsdp__file_list *files, uint64_t block);
/* Gives the bytes that are free where a folder is; INFINITY: the file system does not know. */
fsdp_status fsdp__room_free(const char *folder, double *out);
/* Checks the free space for all of them, and the file system's and the process's limits for the largest. */
fsdp_status fsdp__room_check(const char *folder, const fsdp__file_list *files);
