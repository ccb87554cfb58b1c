/* test_process.c - what the system says of a process that runs, sleeps, is stopped, and has ended. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/health/process.h"
#include "support/test.h"

/* Returns when the process is in the state. */
static void await_state(int pid, char state)
{
    while (fsdp__process_state(pid, pid) != state)
        usleep(1000);
}

TEST(a_process_is_seen_from_outside)
{
    pid_t pid = fork();
    uint64_t started;

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive a test that fails */
        for (;;)
            pause();
    }
    started = fsdp__process_start_ticks(pid);
    CHECK(started > 0);
    await_state(pid, 'S');
    CHECK(fsdp__process_cpu_ns(pid) >= 0);
    CHECK_EQ(kill(pid, SIGSTOP), 0);
    await_state(pid, 'T');
    CHECK_EQ(fsdp__process_is_dead(pid, started), false);
    CHECK_EQ(fsdp__process_is_dead(pid, 0), false);
    CHECK_EQ(fsdp__process_is_dead(pid, started + 1), true); /* another one with its number */
    CHECK_EQ(kill(pid, SIGKILL), 0);
    await_state(pid, 'Z');
    CHECK_EQ(fsdp__process_is_dead(pid, started), true); /* nobody has asked for its status */
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    CHECK_EQ(fsdp__process_is_dead(pid, started), true);
    CHECK_EQ(fsdp__process_state(pid, pid), 0);
    CHECK_EQ(fsdp__process_start_ticks(pid), 0);
    CHECK_EQ(fsdp__process_cpu_ns(pid), -1);
}

TEST(this_process_runs)
{
    int64_t thread_ns = fsdp__thread_cpu_ns(), process_ns = fsdp__process_cpu_ns(getpid());

    CHECK_EQ(fsdp__process_state(getpid(), gettid()), 'R');
    while (fsdp__thread_cpu_ns() < thread_ns + 2000000)
        continue;
    CHECK(fsdp__process_cpu_ns(getpid()) > process_ns);
    CHECK_EQ(fsdp__process_is_dead(0, 0), false); /* no process */
}

TEST(children_that_live_are_counted)
{
    static const char *const nobody[] = {"no such program", NULL};
    char own[64] = "";
    const char *names[] = {"no such program", own, NULL};
    FILE *file = fopen("/proc/self/comm", "re");
    int before = fsdp__process_children(getpid());
    pid_t pid;

    CHECK_EQ(before, 0);
    CHECK(file && fgets(own, sizeof own, file));
    fclose(file);
    own[strcspn(own, "\n")] = '\0';
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) { /* this test is the next above it, and nobody is called so */
        if (fsdp__process_above(names) != getppid() || fsdp__process_above(nobody) != 0)
            _exit(1);
        for (;;)
            pause();
    }
    CHECK_EQ(fsdp__process_children(getpid()), 1);
    await_state(pid, 'S');
    CHECK_EQ(kill(pid, SIGKILL), 0);
    await_state(pid, 'Z');
    CHECK_EQ(fsdp__process_children(getpid()), 0);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    CHECK_EQ(fsdp__process_children(pid), -1);
}
