/* test_last_wait.c - children that cannot end, or whose end nobody hears of: they are named, and not waited for. */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "fsdp/launch.h"
#include "launch/guardian.h"
#include "support/frost.h"
#include "support/test.h"

enum {
    LONG_MS = 1000000 /* of grace: no test takes as long */
};

/* Rank 1 ends as soon as there is "PATH.go"; the others have to be killed. */
static fsdp_status launch_deaf(const char *path, fsdp_launch_report *report)
{
    const char *argv[] = {"sh", "-c",
                          "trap '' TERM; test $RANK = 1 || exec sleep 1000; "
                          "while ! test -e \"$0.go\"; do sleep 0.01; done; exit 4",
                          path, NULL};

    return fsdp_launch(&(fsdp_launch_options){.ranks = 3, .argv = argv, .grace_ms = 100}, report);
}

/* No process of ours is left, not even a dead one. */
static void check_nothing_left(void)
{
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
}

/* ---- ranks ---- */

/* A shell hands its environment on in an order of its own. */
static bool is_rank(int pid, int rank)
{
    static char text[1 << 16];
    char path[32], name[16];
    FILE *file;
    size_t bytes;
    bool is = false;

    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    snprintf(name, sizeof name, "RANK=%d", rank);
    file = fopen(path, "re");
    if (!file)
        return false;
    bytes = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[bytes] = '\0';
    for (size_t at = 0; at < bytes && !is; at += strlen(text + at) + 1)
        is = strcmp(text + at, name) == 0;
    return is;
}

/* Returns the process of a rank of the launcher; 0: not yet. */
static pid_t find_rank(pid_t launcher, int rank)
{
    char path[64];
    FILE *children;
    pid_t found = 0;
    int child;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
    children = fopen(path, "re");
    while (children && found == 0 && fscanf(children, "%d", &child) == 1)
        found = is_rank(child, rank) ? child : 0;
    if (children)
        (void)fclose(children);
    return found;
}

/* Who holds a rank, and until what has been closed. */
typedef struct keeper {
    pid_t pid;
    int until[2];
} keeper;

/* Starts a process that finds a rank of this one's, does something with it, and lets "PATH.go" be. */
static keeper start_keeper(int rank, const char *path, bool (*hold)(pid_t rank))
{
    keeper k;
    char go[1200], byte;
    pid_t launcher = getpid(), found;

    snprintf(go, sizeof go, "%s.go", path);
    CHECK_EQ(pipe2(k.until, O_CLOEXEC), 0);
    k.pid = fork();
    if (k.pid != 0)
        return k;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(k.until[1]);
    while ((found = find_rank(launcher, rank)) == 0)
        usleep(1000);
    launcher = hold(found) ? 0 : 77;
    test_write_file(go, "", 0);
    (void)!read(k.until[0], &byte, 1);
    _exit(launcher);
}

/* Lets the rank go. Returns whether it was held: that may not be possible everywhere. */
static bool end_keeper(const keeper *k)
{
    int status;

    close(k->until[0]);
    close(k->until[1]);
    CHECK_EQ(waitpid(k->pid, &status, 0), k->pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

/* Asks nobody what becomes of it. */
static bool trace(pid_t rank)
{
    return ptrace(PTRACE_SEIZE, rank, NULL, NULL) == 0;
}

static bool trace_to_its_end(pid_t rank)
{
    return ptrace(PTRACE_SEIZE, rank, NULL, PTRACE_O_TRACEEXIT) == 0;
}

TEST(a_rank_that_has_ended_and_that_a_debugger_keeps_is_not_waited_for)
{
    char *directory = test_directory(), *path = test_path(directory, "errors");
    fsdp_launch_report report;
    const char *argv[] = {TEST_BINARY_DIR "/tests/program_ranks", "exit_when_told", path, NULL};
    const fsdp_launch_options options = {.ranks = 3, .argv = argv, .grace_ms = LONG_MS};
    keeper k = start_keeper(1, path, trace);

    CHECK_ERROR(fsdp_launch(&options, &report), FSDP_COMM, "rank 1 exited with code 3");
    CHECK_EQ(report.failed_rank, 1);
    CHECK_EQ(report.exit_code, 3);
    if (end_keeper(&k))
        CHECK(waitpid(-1, NULL, 0) > 0);
    check_nothing_left();
}

/* Neither SIGKILL nor time ends it: its debugger has stopped it on its way out. */
TEST(a_rank_that_was_killed_and_is_held_is_not_waited_for)
{
    char *directory = test_directory(), *path = test_path(directory, "errors");
    fsdp_launch_report report;
    keeper k = start_keeper(0, path, trace_to_its_end);

    CHECK_ERROR(launch_deaf(path, &report), FSDP_COMM, "rank 1 exited with code 4");
    CHECK_EQ(report.failed_rank, 1);
    CHECK_EQ(report.exit_code, 4);
    if (end_keeper(&k))
        CHECK(waitpid(-1, NULL, 0) > 0);
    check_nothing_left();
}

static frost cold; /* of the test that is running */

static bool freeze(pid_t rank)
{
    return frost_take(&cold, rank);
}

/* A control group of version 1 keeps what was killed, and it dies as soon as it thaws. */
TEST(a_rank_that_was_killed_and_is_frozen_is_not_waited_for)
{
    char *directory = test_directory(), *path = test_path(directory, "errors");
    fsdp_launch_report report;
    keeper k;

    cold = (frost)FROST_1;
    if (!frost_begin(&cold))
        skip();
    k = start_keeper(0, path, freeze);
    CHECK_ERROR(launch_deaf(path, &report), FSDP_COMM, "rank 1 exited with code 4");
    CHECK(end_keeper(&k));
    CHECK(frost_thaw(&cold));
    CHECK(waitpid(-1, NULL, 0) > 0);
    check_nothing_left();
    frost_end(&cold);
}

/* A test that is killed leaves neither its control group nor what it has frozen there. */
TEST(a_killed_test_leaves_no_control_group)
{
    static const frost versions[] = {FROST_1, FROST_2, FROST_2_BESIDE_1};
    int begun = 0;

    for (size_t i = 0; i < FSDP__COUNT_OF(versions); i++) {
        frost f = versions[i];
        pid_t test = fork();
        int status = 0;

        if (test == 0) {
            pid_t frozen;

            if (!frost_begin(&f))
                _exit(0);
            frozen = fork();
            if (frozen == 0)
                for (;;)
                    (void)pause();
            (void)frost_take(&f, frozen);
            (void)raise(SIGKILL);
        }
        snprintf(f.path, sizeof f.path, "%s/fsdp-test-%d", f.mount, (int)test);
        CHECK_EQ(waitpid(test, &status, 0), test);
        begun += WIFSIGNALED(status);
        for (int looks = 0; access(f.path, F_OK) == 0; looks++) {
            CHECK(looks < 12000); /* a minute */
            usleep(5000);
        }
    }
    test_skip_if(begun == 0, "no control group may be made here");
}

/* ---- the guardian ---- */

/* Ends a guardian that another process traces, and that somebody has `killed` or not. */
static void end_traced_guardian(bool killed)
{
    fsdp__guardian guardian;
    int until[2], traces[2], byte;
    pid_t tracer, pid;

    CHECK_OK(fsdp__guardian_start(1, &guardian));
    pid = guardian.pid;
    CHECK_EQ(pipe2(until, O_CLOEXEC) | pipe2(traces, O_CLOEXEC), 0);
    tracer = fork();
    if (tracer == 0) {
        close(until[1]);
        close(guardian.fd);
        if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0) /* from here on each signal stops it */
            (void)!write(traces[1], "", 1);
        close(traces[1]);
        (void)!read(until[0], &byte, 1);
        _exit(0);
    }
    close(traces[1]);
    if (read(traces[0], &byte, 1) == 1) { /* not everywhere may one process trace another */
        if (killed)
            CHECK_EQ(kill(pid, SIGKILL), 0);
        fsdp__guardian_end(&guardian);
        CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
        close(until[1]);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
    } else {
        fsdp__guardian_end(&guardian);
        close(until[1]);
    }
    CHECK_EQ(guardian.pid, 0);
    CHECK_EQ(waitpid(tracer, NULL, 0), tracer);
    close(until[0]);
    close(traces[0]);
    check_nothing_left();
}

TEST(a_guardian_that_a_debugger_has_is_not_waited_for)
{
    end_traced_guardian(true);  /* it has ended */
    end_traced_guardian(false); /* it cannot end */
}
