/* test_ending.c - how a rank ended, in words and as a shell's status. */
#include <signal.h>
#include <sys/wait.h>

#include "base/limits.h"
#include "launch/launch.h"
#include "support/test.h"

TEST(endings_are_described)
{
    static const struct {
        int status, exit_status;
        const char *text;
    } cases[] = {
        {W_EXITCODE(3, 0), 3, "rank 2 exited with code 3"},
        {W_EXITCODE(0, SIGKILL), 137, "rank 2 was killed by signal 9 (Killed)"},
        {W_EXITCODE(0, SIGSEGV), 139, "rank 2 was killed by signal 11 (Segmentation fault)"},
        {W_EXITCODE(0, SIGBUS), 135,
         "rank 2 was killed by signal 7 (Bus error): a file of data or weights was cut short while it was read, or "
         "there is no room for shared memory"},
        {W_EXITCODE(0, SIGXFSZ), 153,
         "rank 2 was killed by signal 25 (File size limit exceeded): a file would have become larger than 'ulimit -f' "
         "allows"},
        {W_EXITCODE(0, SIGXCPU), 152,
         "rank 2 was killed by signal 24 (CPU time limit exceeded): 'ulimit -t' allows no more CPU time"},
    };
    char text[400];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp__describe_ending(2, cases[i].status, fsdp__oom_kills() + 1000, text, sizeof text);
        CHECK_STRING(text, cases[i].text);
        CHECK_EQ(fsdp__exit_status(cases[i].status), cases[i].exit_status);
        CHECK(!fsdp__ended_well(cases[i].status));
    }
    CHECK(fsdp__ended_well(0));
}

TEST(a_kill_is_told_from_want_of_memory)
{
    char text[400];

    CHECK(fsdp__oom_kills() >= 0);
    fsdp__describe_ending(0, W_EXITCODE(0, SIGKILL), fsdp__oom_kills() - 1, text, sizeof text);
    CHECK_CONTAINS(
        text, "rank 0 was killed by signal 9 (Killed): meanwhile the kernel has killed a process for lack of memory");
}
