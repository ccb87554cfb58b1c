/* test_descriptors.c - standard input, output and error that are closed, full, or that nobody reads. */
#include <sys/stat.h>

#include "cli/fixture.h"

#define GPT2 REFERENCE "/models/tiny-gpt2"
#define TRAIN "train", f->config, "--training.steps=3"
/* Runs the program with a redirection of the shell's. */
#define REDIRECTED(expected, redirection, ...) \
    program_run(f->directory, (expected),      \
                (const char *const[]){"bash", "-c", "exec \"$@\" " redirection, "bash", PROGRAM, __VA_ARGS__, NULL})
#define CLOSED_OUTPUT "cannot write to standard output: Bad file descriptor"
#define FULL_OUTPUT "cannot write to standard output: No space left on device"

/* One message, and `part` is in it. */
static void check_said_once(const program *p, const char *part)
{
    const char *said = strstr(p->output, "fsdp: ");

    if (!said || !strstr(said, part) || strstr(said + 1, "fsdp: "))
        TEST_FAIL("not one message with '%s':\n%s", part, p->output);
}

static void check_trained(fixture *f)
{
    char *weights = test_path(f->model, "model.safetensors"), *metrics = test_read_file(f->metrics, NULL);

    CHECK(access(weights, F_OK) == 0);
    CHECK_CONTAINS(metrics, "\"step\": 3");
    CHECK(unlink(f->metrics) == 0);
}

FIXTURE_TEST(a_run_needs_no_standard_input)
{
    program p;

    for (int ranks = 1; ranks <= 3; ranks++) {
        char n[16];

        snprintf(n, sizeof n, "-n%d", ranks);
        p = REDIRECTED(0, "<&-", TRAIN, n);
        CHECK_CONTAINS(p.output, "model written to");
        check_trained(f);
    }
}

FIXTURE_TEST(a_closed_output_is_an_error_and_the_run_is_not_lost)
{
    program p;

    p = REDIRECTED(1, ">&-", TRAIN);
    check_said_once(&p, CLOSED_OUTPUT);
    check_trained(f);
    p = REDIRECTED(1, "<&- >&-", TRAIN, "-n", "2");
    check_said_once(&p, "rank 0 failed: " CLOSED_OUTPUT "\n"); /* and no last calls of ranks that all went well */
    check_trained(f);
    p = REDIRECTED(1, "<&- >&- 2>&-", TRAIN, "-n", "2");
    CHECK_STRING(p.output, "");
    check_trained(f);
    p = REDIRECTED(0, "2>&-", TRAIN, "-n", "2");
    CHECK_CONTAINS(p.output, "model written to");
    check_trained(f);
}

FIXTURE_TEST(a_full_output_is_an_error_and_the_run_is_not_lost)
{
    program p;

    p = REDIRECTED(1, ">/dev/full", TRAIN);
    check_said_once(&p, FULL_OUTPUT);
    check_trained(f);
    p = REDIRECTED(1, ">/dev/full", TRAIN, "-n", "2");
    check_said_once(&p, "rank 0 failed: " FULL_OUTPUT "\n");
    check_trained(f);
}

/* Standard output is a pipe whose reader has gone. */
FIXTURE_TEST(a_reader_that_goes_does_not_end_a_run)
{
    program p;

    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[16];

        snprintf(n, sizeof n, "-n%d", ranks);
        p = REDIRECTED(1, "> >(exec true) && true", TRAIN, n, "--training.steps=40", "--metrics.log_freq=1");
        check_said_once(&p, "cannot write to standard output: Broken pipe");
        check_trained(f);
    }
}

FIXTURE_TEST(every_command_says_that_it_could_not_print)
{
    const char *const commands[][6] = {
        {"--help"},
        {"--version"},
        {"train", "--help"},
        {"run", "--help"},
        {"inspect", GPT2},
        {"generate", GPT2, "--tokens", "1,2", "--max-new-tokens=2"},
        {"generate", GPT2, "--tokens=1,2", "--max-new-tokens=2", "-n", "2"},
        {"eval", GPT2, "--data=" REFERENCE "/tokens.bin", "--steps=1", "-n", "2"},
        {"train", "--model.preset=llama-1m", "--print-config"},
    };

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *argv[12] = {"bash", "-c", "exec \"$@\" >/dev/full", "bash", PROGRAM};
        program p;

        for (int a = 0; a < 6 && commands[i][a]; a++)
            argv[5 + a] = commands[i][a];
        p = program_run(f->directory, 1, argv);
        check_said_once(&p, "cannot write to standard output: ");
        argv[2] = "exec \"$@\" >&-";
        p = program_run(f->directory, 1, argv);
        check_said_once(&p, "cannot write to standard output: ");
    }
}

FIXTURE_TEST(what_a_user_starts_has_all_three)
{
    REDIRECTED(0, "<&- >&- 2>&-", "run", "-n", "3", "--", "sh", "-c",
               "cat && test -e /proc/self/fd/0 -a -e /proc/self/fd/1 -a -e /proc/self/fd/2");
}
