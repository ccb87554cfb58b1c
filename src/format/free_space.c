/* free_space.c - checks whether files of given sizes can be written where a folder is. */
#include "format/free_space.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"

enum {
    FAT_MAGIC = 0x4d44
};
#define FAT_LIMIT_BYTES 0xffffffffu
/* A file system that names a larger block than this, as NFS does, means the size of its messages. */
#define MOST_BLOCK_BYTES ((uint64_t)64 << 10)

static fsdp_status check_largest(const char *folder, const fsdp__listed_file *file)
{
    uint64_t limit = fsdp__file_size_limit();
    struct statfs system;

    if (file->bytes > limit)
        return FSDP_FAIL(FSDP_IO, "'%s' has %llu bytes, and a file may have %llu: raise the limit (ulimit -f)",
                         file->name, (unsigned long long)file->bytes, (unsigned long long)limit);
    if (statfs(folder, &system) == 0 && system.f_type == FAT_MAGIC && file->bytes > FAT_LIMIT_BYTES)
        return FSDP_FAIL(FSDP_IO,
                         "'%s' has %s, and its file system (FAT) holds files of less than 4 GiB: name a folder on "
                         "another",
                         file->name, FSDP__SIZE(file->bytes));
    return FSDP_OK;
}

uint64_t fsdp__room_needed(const fsdp__file_list *files, uint64_t block)
{
    uint64_t needed = 0;

    for (int64_t i = 0; i < files->count; i++)
        needed += FSDP__ROUND_UP(files->files[i].bytes, block);
    return needed;
}

/* Finds the bytes that are free where a folder is, and of how many bytes a block is. */
static fsdp_status examine(const char *folder, double *free, uint64_t *block)
{
    struct statvfs system;

    if (statvfs(folder, &system) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot examine '%s': %s", folder, strerrordesc_np(errno));
    /* Some network and user-space file systems do not know their size. Root may use what is kept for it. */
    *free = system.f_blocks == 0
                ? INFINITY
                : (double)(geteuid() == 0 ? FSDP__MAX(system.f_bfree, system.f_bavail) : system.f_bavail) *
                      (double)system.f_frsize;
    *block = FSDP__MIN(FSDP__MAX((uint64_t)system.f_frsize, 1), MOST_BLOCK_BYTES);
    return FSDP_OK;
}

fsdp_status fsdp__room_free(const char *folder, double *out)
{
    return examine(folder, out, &(uint64_t){0});
}

fsdp_status fsdp__room_check(const char *folder, const fsdp__file_list *files)
{
    double needed, available = 0;
    uint64_t block = 1;

    for (int64_t i = 0; i < files->count; i++)
        FSDP_TRY(check_largest(folder, &files->files[i]));
    FSDP_TRY(examine(folder, &available, &block));
    needed = (double)fsdp__room_needed(files, block);
    if (needed > available)
        return FSDP_FAIL(FSDP_IO, "it needs %s, and its file system has %s free: make room, or name another folder",
                         fsdp__size_text_beside(needed, available, FSDP__ROOM(40)),
                         fsdp__size_text_beside(available, needed, FSDP__ROOM(40)));
    return FSDP_OK;
}
