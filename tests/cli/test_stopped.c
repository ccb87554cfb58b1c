/* A rank that is stopped: what is said at once and in the end, and that nothing is lost if it goes on. */
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "cli/fixture.h"

/* Starts two ranks, and gives the second one when `begun` has been printed. */
static program start_two(fixture *f, const char *const *argv, const char *begun, pid_t *second)
{
    char mark[64], *output = test_path(f->directory, "output");
    program p;

    snprintf(mark, sizeof mark, "STOPPED_BY=%d", (int)getpid());
    setenv("STOPPED_BY", strchr(mark, '=') + 1, 1);
    test_write_file(output, "", 0); /* that of a program before would be taken for this one's */
    p = program_start(f->directory, argv);
    *second = fixture_await_rank(&p, mark, 1);
    fixture_await(&p, begun);
    return p;
}

static program start_and_stop_rank(fixture *f, const char *const *argv, const char *begun, pid_t *stopped)
{
    program p = start_two(f, argv, begun, stopped);

    CHECK_EQ(kill(*stopped, SIGSTOP), 0);
    return p;
}

static program start_and_stop(fixture *f, const char *steps, const char *timeout, pid_t *stopped)
{
    const char *const argv[] = {PROGRAM, "train", f->config, "-n", "2", steps, timeout, "--metrics.log_freq=1", NULL};

    return start_and_stop_rank(f, argv, "step: ", stopped);
}

FIXTURE_TEST(one_message_says_who_was_stopped)
{
    char expected[128];
    pid_t stopped;
    program p = start_and_stop(f, "--training.steps=1000000", "--comm.timeout=1", &stopped);
    const char *last;

    program_wait(&p);
    CHECK_EQ(p.status, 1);
    snprintf(expected, sizeof expected, "[rank 0] rank 1 is stopped, and rank 0 waits for it in call ");
    CHECK_CONTAINS(p.output, expected);
    snprintf(expected, sizeof expected, "'kill -CONT %d' lets it continue", (int)stopped);
    CHECK_CONTAINS(p.output, expected);
    last = CHECK_PTR(strstr(p.output, "fsdp: rank 0 has waited "));
    CHECK_CONTAINS(last, " (comm.timeout is 1 s) ");
    snprintf(expected, sizeof expected, " for rank 1, which is stopped (process %d), last in call ", (int)stopped);
    CHECK_CONTAINS(last, expected);
    CHECK_NULL(strstr(last + 1, "fsdp: "));
}

FIXTURE_TEST(a_run_that_was_stopped_goes_on_as_if_nothing_had_been)
{
    const char *const undisturbed[] = {PROGRAM, "train", f->config, "-n", "2", "--training.steps=300", NULL};
    program first = program_run(f->directory, 0, undisturbed), p;
    char *loss = strstr(first.output, "; loss ");
    pid_t stopped;

    CHECK(loss != NULL);
    loss = strndup(loss, strcspn(loss, "\n"));
    p = start_and_stop(f, "--training.steps=300", "--comm.timeout=1000", &stopped);
    fixture_await(&p, "rank 1 is stopped");
    CHECK_EQ(kill(stopped, SIGCONT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    CHECK_CONTAINS(p.output, loss);
    free(loss);
}

/* No signal lets a process go on that a debugger holds. */
FIXTURE_TEST(a_rank_that_a_debugger_holds_is_told_as_such)
{
    const char *const argv[] = {PROGRAM,
                                "train",
                                ((fixture *)f)->config,
                                "-n",
                                "2",
                                "--training.steps=1000000",
                                "--comm.timeout=1000",
                                "--metrics.log_freq=1",
                                NULL};
    pid_t held;
    program p = start_two(f, argv, "step: ", &held);
    bool holds = ptrace(PTRACE_ATTACH, held, NULL, NULL) == 0 && waitpid(held, NULL, __WALL) == held;

    if (holds) { /* not everywhere may one process hold another */
        fixture_await(&p, "rank 1 is stopped by a debugger, and rank 0 waits for it in call ");
        fixture_await(&p, ": only that lets it continue");
        CHECK_EQ(ptrace(PTRACE_DETACH, held, NULL, NULL), 0);
    }
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM);
}

/* Of a command that would go on for minutes. */
static void check_ends_in_time(fixture *f, const char *const *argv, const char *begun)
{
    pid_t stopped;
    program p = start_and_stop_rank(f, argv, begun, &stopped);

    program_wait(&p);
    CHECK_EQ(p.status, 1);
    CHECK_CONTAINS(p.output, " (comm.timeout is 1 s) in call ");
    CHECK_CONTAINS(p.output, " for rank 1, which is stopped");
}

FIXTURE_TEST(eval_and_generate_wait_as_long_as_they_are_told)
{
    enum {
        TOKENS = 8 << 20
    };
    uint16_t *tokens = calloc(TOKENS, sizeof *tokens); /* as they lie in a file without a header */
    char *data = test_path(f->directory, "long.bin");
    const char *const train[] = {PROGRAM, "train", f->config, "--training.steps=1", NULL};
    const char *const eval[] = {PROGRAM,
                                "eval",
                                REFERENCE "/models/tiny-llama",
                                "--data",
                                data,
                                "--format=tokens",
                                "-n",
                                "2",
                                "--seq-len=16",
                                "--batch-size=1",
                                "--comm-timeout=1",
                                NULL};
    const char *const generate[] = {
        PROGRAM, "generate",         f->model, "--prompt=begun", "--ignore-eos", "--max-new-tokens=16000000", "-n",
        "2",     "--comm-timeout=1", NULL};

    test_write_file(data, (const char *)tokens, TOKENS * sizeof *tokens);
    check_ends_in_time(f, eval, "data: ");
    program_run(f->directory, 0, train);
    check_ends_in_time(f, generate, "begun");
    free(tokens);
}

FIXTURE_TEST(a_timeout_that_is_none_is_refused)
{
    const char *const commands[] = {"eval", "generate"};

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *const argv[] = {PROGRAM, commands[i], f->model, "--data=x", "--comm-timeout=soon", NULL};
        const char *const others[] = {PROGRAM, commands[i], f->model, "--tokens=1", "--comm-timeout=soon", NULL};
        program p = program_run(f->directory, 2, i == 0 ? argv : others);

        CHECK_CONTAINS(p.output, "--comm-timeout is 'soon'");
    }
}
