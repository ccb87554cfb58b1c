/* test_descriptors.c - every choice of closed ones among 0, 1 and 2, and what a launch makes of it. */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fsdp/launch.h"
#include "launch/descriptors.h"
#include "support/test.h"

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* Runs in a process of its own, which has no descriptors to report by. */
static int with_closed(unsigned closed, int (*body)(unsigned closed))
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        for (int fd = 0; fd <= 2; fd++)
            if (closed & 1u << fd)
                close(fd);
        _exit(body(closed));
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int take_and_give(unsigned closed)
{
    unsigned taken = 8;
    char byte;

    if (fsdp__take_standard_descriptors(&taken) != FSDP_OK || taken != closed)
        return 1;
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) != 0) /* open, and a program that is started has it too */
            return 2;
    if (closed & 1 && read(0, &byte, 1) != 0)
        return 3;
    if ((closed & 2 && write(1, "", 1) >= 0) || (closed & 4 && write(2, "", 1) >= 0))
        return 4;
    if (fsdp__take_standard_descriptors(&taken) != FSDP_OK || taken != 0)
        return 5;
    fsdp__give_standard_descriptors(closed);
    for (int fd = 0; fd <= 2; fd++)
        if (is_open(fd) == (closed >> fd & 1))
            return 6;
    return 0;
}

TEST(closed_descriptors_are_taken_and_given_back)
{
    for (unsigned closed = 0; closed < 8; closed++)
        CHECK_EQ(with_closed(closed, take_and_give), 0);
}

/* Ranks that print into whatever their descriptors 1 and 2 are, and communicate. */
static int launch(unsigned closed)
{
    const char *argv[] = {TEST_BINARY_DIR "/tests/program_ranks", "collectives", NULL};
    const char *script[] = {"sh", "-c", "echo text; echo text >&2; cat", NULL};

    if (fsdp_launch(&(fsdp_launch_options){.ranks = 2, .argv = argv}, NULL) != FSDP_OK)
        return 1;
    if (fsdp_launch(&(fsdp_launch_options){.ranks = 2, .argv = closed & 6 ? argv : script}, NULL) != FSDP_OK)
        return 2;
    for (int fd = 0; fd <= 2; fd++)
        if (is_open(fd) == (closed >> fd & 1))
            return 3;
    return 0;
}

TEST(ranks_are_launched_whatever_is_closed)
{
    for (unsigned closed = 1; closed < 8; closed += test_brief() ? 3 : 1)
        CHECK_EQ(with_closed(closed, launch), 0);
}
