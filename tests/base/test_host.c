/* The machine's name: the system's own, whatever its length, and a word for none. */
#include <sched.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/host.h"
#include "support/test.h"

TEST(it_is_what_uname_says)
{
    char name[FSDP__HOST_BYTES];
    struct utsname system;

    memset(name, 'x', sizeof name);
    CHECK_EQ(uname(&system), 0);
    fsdp__host_name(name);
    CHECK_STRING(name, system.nodename[0] ? system.nodename : "?");
}

/* 0: as it should be, 1: not, 77: a process may not rename its machine here. */
static int look_as(const char *called, const char *expected)
{
    char name[FSDP__HOST_BYTES];
    pid_t child = fork();
    int status;

    if (child == 0) {
        if (unshare(CLONE_NEWUTS) != 0 || sethostname(called, strlen(called)) != 0)
            _exit(77);
        memset(name, 'x', sizeof name);
        fsdp__host_name(name);
        _exit(strcmp(name, expected) != 0);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

TEST(the_longest_fits_and_none_has_a_word)
{
    char longest[FSDP__HOST_BYTES];
    int status;

    memset(longest, 'h', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    status = look_as(longest, longest);
    if (status == 77)
        skip();
    CHECK_EQ(status, 0);
    CHECK_EQ(look_as("", "?"), 0);
}
