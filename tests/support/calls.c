/* calls.c - readdir that fails on demand: the program's own comes before that of the C library. */
#include "support/calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_bool readdir_fails;

void test_fail_readdir(bool fails)
{
    readdir_fails = fails;
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
