/* A rank that is stopped: what is said at once and in the end, and that nothing is lost if it goes on. */
#include "cli/fixture.h"

/* Starts two ranks and stops the second one when `begun` has been printed. */
static program start_and_stop_rank(fixture *f, const char *const *argv, const char *begun, pid_t *stopped)
{
    char mark[64], *output = test_path(f->directory, "output");
    program p;

    snprintf(mark, sizeof mark, "STOPPED_BY=%d", (int)getpid());
    setenv("STOPPED_BY", strchr(mark, '=') + 1, 1);
    test_write_file(output, "", 0); /* that of a program before would be taken for this one's */
    free(output);
    p = program_start(f->directory, argv);
    fixture_await(&p, begun);
    *stopped = fixture_rank(mark, 1);
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
    fixture *f = *state;
    char expected[128];
    pid_t stopped;
    program p = start_and_stop(f, "--training.steps=1000000", "--comm.timeout=1", &stopped);
    const char *last;

    program_wait(&p);
    CHECK_EQ(p.status, 1);
    snprintf(expected, sizeof expected, "[rank 0] rank 1 is stopped, and rank 0 waits for it in call ");
    CHECK_CONTAINS(p.output, expected);
    snprintf(expected, sizeof expected, "'kill -CONT %d' lets it go on", (int)stopped);
    CHECK_CONTAINS(p.output, expected);
    last = strstr(p.output, "fsdp: rank 0 has waited 1");
    CHECK(last != NULL);
    snprintf(expected, sizeof expected, " for rank 1, which is stopped (process %d), last in call ", (int)stopped);
    CHECK_CONTAINS(last, expected);
    CHECK_NULL(strstr(last + 1, "fsdp: "));
    program_free(&p);
}

FIXTURE_TEST(a_run_that_was_stopped_goes_on_as_if_nothing_had_been)
{
    fixture *f = *state;
    const char *const undisturbed[] = {PROGRAM, "train", f->config, "-n", "2", "--training.steps=300", NULL};
    program first = program_run(f->directory, 0, undisturbed), p;
    char *loss = strstr(first.output, "; loss ");
    pid_t stopped;

    CHECK(loss != NULL);
    loss = strndup(loss, strcspn(loss, "\n"));
    program_free(&first);
    p = start_and_stop(f, "--training.steps=300", "--comm.timeout=1000", &stopped);
    fixture_await(&p, "rank 1 is stopped");
    CHECK_EQ(kill(stopped, SIGCONT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    CHECK_CONTAINS(p.output, loss);
    free(loss);
    program_free(&p);
}

/* Of a command that would go on for minutes. */
static void check_ends_in_time(fixture *f, const char *const *argv, const char *begun)
{
    pid_t stopped;
    program p = start_and_stop_rank(f, argv, begun, &stopped);

    program_wait(&p);
    CHECK_EQ(p.status, 1);
    CHECK_CONTAINS(p.output, "fsdp: rank 0 has waited 1");
    CHECK_CONTAINS(p.output, " for rank 1, which is stopped");
    program_free(&p);
}

FIXTURE_TEST(eval_and_generate_wait_as_long_as_they_are_told)
{
    enum {
        TOKENS = 8 << 20
    };
    fixture *f = *state;
    uint16_t *tokens = calloc(TOKENS, sizeof *tokens); /* as they lie in a file without a header */
    char *data = test_path(f->directory, "long.bin");
    program trained;
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
    trained = program_run(f->directory, 0, train);
    program_free(&trained);
    check_ends_in_time(f, generate, "begun");
    free(tokens);
    free(data);
}

FIXTURE_TEST(a_timeout_that_is_none_is_refused)
{
    fixture *f = *state;
    const char *const commands[] = {"eval", "generate"};

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *const argv[] = {PROGRAM, commands[i], f->model, "--data=x", "--comm-timeout=soon", NULL};
        const char *const others[] = {PROGRAM, commands[i], f->model, "--tokens=1", "--comm-timeout=soon", NULL};
        program p = program_run(f->directory, 2, i == 0 ? argv : others);

        CHECK_CONTAINS(p.output, "--comm-timeout is 'soon'");
        program_free(&p);
    }
}
