/* lfs_pointer.h - the few lines that Git LFS leaves in place of a file: what a clone without it has. */
#ifndef FORMAT_LFS_POINTER_H
#define FORMAT_LFS_POINTER_H

#include <stddef.h>

#include "fsdp/status.h"

/* An error where these are the bytes of a pointer. */
fsdp_status fsdp__lfs_pointer_refuse(const char *path, const void *data, size_t bytes);

#endif
