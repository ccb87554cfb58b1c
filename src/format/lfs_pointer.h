/* lfs_pointer.h - the few lines that stand for a file in a clone that was made without Git LFS. */
#pragma once

#include <stddef.h>

#include "fsdp/status.h"

/* Fails where these are the bytes of a pointer. */
fsdp_status fsdp__lfs_pointer_refuse(const char *path, const void *data, size_t bytes);
