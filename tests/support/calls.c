/* calls.c - the program's own calls, which come before those of the C library. */
#include "support/calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "support/test.h"

static struct stat failing;
static _Atomic int64_t room = -1;
static atomic_bool fstat_fails, readdir_fails, devices_differ;

void test_fail_fstat(const char *path)
{
    if (path)
        CHECK_EQ(stat(path, &failing), 0);
    fstat_fails = path != NULL;
}

void test_fail_readdir(bool fails)
{
    readdir_fails = fails;
}

void test_renumber_devices(bool other)
{
    devices_differ = other;
}

void test_limit_room(int64_t bytes)
{
    room = bytes;
}

int statvfs(const char *path, struct statvfs *info)
{
    int (*real)(const char *, struct statvfs *);

    *(void **)&real = dlsym(RTLD_NEXT, "statvfs");
    if (real(path, info) != 0)
        return -1;
    if (room >= 0) {
        info->f_bavail = info->f_bfree = (fsblkcnt_t)room;
        info->f_frsize = 1;
    }
    return 0;
}

int stat(const char *path, struct stat *info)
{
    int result = fstatat(AT_FDCWD, path, info, 0);

    info->st_dev += devices_differ;
    return result;
}

int fstat(int fd, struct stat *info)
{
    struct stat found;

    if (fstatat(fd, "", &found, AT_EMPTY_PATH) != 0)
        return -1;
    if (fstat_fails && fsdp__same_file(&found, &failing)) {
        errno = EIO;
        return -1;
    }
    *info = found;
    info->st_dev += devices_differ;
    return 0;
}

struct dirent *readdir(DIR *directory)
{
    struct dirent *(*real)(DIR *);

    *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (!readdir_fails)
        return real(directory);
    errno = EIO;
    return NULL;
}
