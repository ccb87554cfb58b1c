/* lfs_pointer.c - recognises pointers of Git LFS by their first line. */
#include "format/lfs_pointer.h"

#include <string.h>

fsdp_status fsdp__lfs_pointer_refuse(const char *path, const void *data, size_t bytes)
{
    static const char first[] = "version https://git-lfs.github.com/";

    if (bytes < sizeof first - 1 || memcmp(data, first, sizeof first - 1) != 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is a pointer of Git LFS: fetch the file with 'git lfs pull'",
                     path);
}
