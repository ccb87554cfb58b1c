/* run.c - a run of the program that is watched from outside. */
#include "faults/run.h"

enum {
    MOST = 64
};

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

run run_start(const char *directory, const char *const *argv)
{
    static int count;
    char *before = test_path(directory, "output");
    run r = {0};

    (void)unlink(before); /* what another run has printed */
    snprintf(r.tag, sizeof r.tag, "FSDP_TEST_TAG=run-%d-%d", (int)getpid(), count++);
    setenv("FSDP_TEST_TAG", strchr(r.tag, '=') + 1, 1);
    r.program = program_start(directory, argv);
    unsetenv("FSDP_TEST_TAG");
    return r;
}

static bool has_ended(const run *r)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)r->program.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

bool run_await_output(run *r, const char *text)
{
    for (int i = 0; i < PATIENCE_LOOKS; i++) {
        bool ended = has_ended(r), found;
        char *output;

        if (access(r->program.output_path, F_OK) == 0) {
            output = test_read_file(r->program.output_path, NULL);
            found = strstr(output, text) != NULL;
            if (found || ended)
                return found;
        }
        if (ended)
            return false;
        pause_a_moment();
    }
    TEST_FAIL("it never printed '%s'", text);
    return false;
}

pid_t run_await_process(run *r, const char *entry)
{
    pid_t mine[MOST];

    for (int i = 0; i < PATIENCE_LOOKS; i++) {
        bool ended = has_ended(r);
        int count = find_processes(r->tag, mine, MOST);

        for (int m = 0; m < count; m++)
            if (process_has(mine[m], entry))
                return mine[m];
        if (ended)
            return 0;
        pause_a_moment();
    }
    TEST_FAIL("no process with %s", entry);
    return 0;
}

void run_await_nothing(run *r)
{
    pid_t left[MOST];

    for (int i = 0; i < PATIENCE_LOOKS; i++) {
        if (find_processes(r->tag, left, MOST) == 0)
            return;
        pause_a_moment();
    }
    TEST_FAIL("process %d is left", (int)left[0]);
}

void run_wait(run *r)
{
    program_wait(&r->program);
}
