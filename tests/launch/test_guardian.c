/* test_guardian.c - the process that ends groups when nobody is left who could. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/guardian.h"
#include "support/test.h"

/* A process that leads a group of its own and waits, and does not hold the connection, as no program does. */
static pid_t start_group(int guardian_fd)
{
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        (void)close(guardian_fd);
        for (;;)
            pause();
    }
    CHECK_EQ(setpgid(pid, pid), 0);
    return pid;
}

static int ended_by(pid_t pid)
{
    int status = 0;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
}

TEST(groups_that_are_watched_end_with_the_connection)
{
    fsdp__guardian guardian;
    pid_t groups[3], forgotten;

    CHECK_OK(fsdp__guardian_start(4, &guardian));
    CHECK(guardian.pid > 0);
    CHECK(guardian.fd > STDERR_FILENO);
    forgotten = start_group(guardian.fd);
    fsdp__guardian_watch(guardian.fd, forgotten);
    for (int i = 0; i < 3; i++)
        fsdp__guardian_watch(guardian.fd, groups[i] = start_group(guardian.fd));
    fsdp__guardian_forget(guardian.fd, forgotten);
    fsdp__guardian_end(&guardian);
    CHECK_EQ(guardian.pid, 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ended_by(groups[i]), SIGKILL);
    CHECK_EQ(waitpid(forgotten, NULL, WNOHANG), 0); /* it lives */
    kill(forgotten, SIGTERM);
    CHECK_EQ(ended_by(forgotten), SIGTERM);
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}

TEST(a_guardian_that_was_stopped_still_ends_what_it_watches)
{
    fsdp__guardian guardian;
    pid_t group;

    CHECK_OK(fsdp__guardian_start(1, &guardian));
    fsdp__guardian_watch(guardian.fd, group = start_group(guardian.fd));
    kill(guardian.pid, SIGSTOP);
    CHECK_EQ(waitid(P_PID, (id_t)guardian.pid, &(siginfo_t){0}, WSTOPPED | WNOWAIT), 0);
    (void)alarm(60); /* ends a test that would wait forever */
    fsdp__guardian_end(&guardian);
    (void)alarm(0);
    CHECK_EQ(guardian.pid, 0);
    CHECK_EQ(ended_by(group), SIGKILL);
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}

TEST(a_guardian_that_was_killed_ends_nobody)
{
    fsdp__guardian guardian;
    pid_t group = start_group(-1);

    CHECK_OK(fsdp__guardian_start(1, &guardian));
    kill(guardian.pid, SIGTERM); /* it does not listen to that */
    fsdp__guardian_watch(guardian.fd, group);
    kill(guardian.pid, SIGKILL);
    CHECK_EQ(waitid(P_PID, (id_t)guardian.pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    fsdp__guardian_forget(guardian.fd, group); /* and no SIGPIPE */
    fsdp__guardian_end(&guardian);
    fsdp__guardian_end(&guardian); /* none: nothing */
    CHECK_EQ(waitpid(group, NULL, WNOHANG), 0);
    kill(group, SIGKILL);
    CHECK_EQ(ended_by(group), SIGKILL);
}

TEST(what_cannot_be_allocated_is_an_error)
{
    fsdp__guardian guardian = {0};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__guardian_start(2, &guardian);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__guardian_end(&guardian);
    }
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}
