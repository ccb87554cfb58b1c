/* call_fstat.c - fstat that fails on demand, in a file of its own: a test may have another one instead. */
#include "support/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/file.h"
#include "support/test.h"

static struct stat failing;
static atomic_bool fstat_fails;

void test_fail_fstat(const char *path)
{
    if (path)
        CHECK_EQ(stat(path, &failing), 0);
    fstat_fails = path != NULL;
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
