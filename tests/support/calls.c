/* calls.c - calls of the system that fail on demand: the program's own come before those of the C library. */
#include "support/calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/file.h"
#include "support/test.h"

static struct stat failing;
static atomic_bool fstat_fails, readdir_fails;

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

int fstat(int fd, struct stat *info)
{
    struct stat found;

    if (fstatat(fd, "", &found, AT_EMPTY_PATH) != 0)
        return -1;
    if (!fstat_fails || !fsdp__same_file(&found, &failing)) {
        *info = found;
        return 0;
    }
    errno = EIO;
    return -1;
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
