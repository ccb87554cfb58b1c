/* What a run prints of how far it is: lines in units that fit, and a bar where a terminal can draw one. */
#include <regex.h>
#include <sys/ioctl.h>

#include "base/text.h"
#include "cli/fixture.h"

static void check_matches(const char *text, const char *pattern)
{
    regex_t expression;

    CHECK_EQ(regcomp(&expression, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
    if (regexec(&expression, text, 0, NULL, 0) != 0)
        TEST_FAIL("no line '%s' in:\n%s", pattern, text);
    regfree(&expression);
}

FIXTURE_TEST(lines_have_units_that_fit_and_plurals_where_they_belong)
{
    program p = RUN(0, "train", f->config, "--training.steps=1", "--training.local_batch_size=1");

    check_matches(p.output,
                  "^ranks:  1, [0-9]+ threads? each; 3 units; this one holds [0-9.,M]+ parameters, [0-9]+\\.[0-9]KiB$");
    check_matches(p.output, "\\(1 rank x 1 microbatch x 1 sequence x 32\\)$");
    check_matches(p.output, "^train:  1 step$");
    check_matches(
        p.output,
        "^step:  1  loss: [0-9.]+  norm: [0-9.]+  [0-9.]+[MK]iB  [0-9,]+ tok/s  [0-9.]+ [MG]FLOP/s  lr: [0-9.e-]+  "
        "left: 0:00  time: [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}$");
    check_matches(p.output, "^done:   1 step, 32 tokens");
    p = RUN(0, "train", f->config, "--training.steps=2", "-n", "2", "--parallelism.wrap_policy=root");
    check_matches(p.output, "^ranks:  2, .*; 1 unit; this");
    check_matches(p.output, "^train:  2 steps$");
    check_matches(p.output, "\\(2 ranks x 1 microbatch x 4 sequences x 32\\)$");
    p = RUN(0, "train", f->config, "--training.steps=1", "-n", "4", "--parallelism.data_parallel_replicate_degree=2");
    check_matches(p.output, "^ranks:  4 \\(2 copies of the model, sharded over 2 each\\), ");
    p = RUN(0, "inspect", f->model);
    check_matches(p.output, "^total: .* bytes \\([0-9.]+KiB\\) in 1 file$");
}

/* Nobody has asked for the loss of the step after which it stops. */
FIXTURE_TEST(the_last_loss_is_that_of_the_last_step)
{
    char expected[40];
    program p;

    for (int every = 1; every <= 100; every += 99) {
        char log_freq[40];

        snprintf(log_freq, sizeof log_freq, "--metrics.log_freq=%d", every);
        p = RUN(0, "train", f->config, "--metrics.jsonl=", "--export.path=", "--validation.share=0.1",
                "--validation.freq=2", "--training.early_stop=2", "--training.early_stop_min_delta=10", log_freq, "-n",
                "2");
        if (every == 1) {
            const char *last = CHECK_PTR(strstr(p.output, "step:  6  loss: "));

            snprintf(expected, sizeof expected, " -> %.6s\n", last + strlen("step:  6  loss: "));
        }
        CHECK_CONTAINS(p.output, "done:   6 steps, ");
        CHECK_CONTAINS(p.output, expected);
    }
}

/* A run that goes on has the optimizer's state as well: what it holds of the parameters is what it held before. */
FIXTURE_TEST(what_a_rank_holds_of_parameters_is_the_same_where_a_run_goes_on)
{
    static const char pattern[] = "; this one holds ";
    char *folder = test_path(f->directory, "steps"), line[200];
    program p;

    p = RUN(0, "train", f->config, "--training.steps=1", "-n", "2", "--checkpoint.folder", folder, "--export.path=");
    snprintf(line, sizeof line, "%.*s", (int)strcspn(CHECK_PTR(strstr(p.output, pattern)), "\n"),
             strstr(p.output, pattern));
    p = RUN(0, "train", f->config, "--training.steps=2", "-n", "2", "--checkpoint.folder", folder, "--export.path=");
    CHECK_CONTAINS(p.output, line);
    check_matches(p.output, "; this one holds [0-9.,M]+ parameters, [0-9.]+KiB, and [0-9.]+KiB of optimizer state$");
}

FIXTURE_TEST(what_checkpoints_were_asked_for_is_told)
{
    static const char *const cases[][3] = {
        {"none", "2", "^train:  1 step$"},
        {"none", "op", "^train:  1 step; no block has a checkpoint: .*selective_ac_option is of mode selective$"},
        {"full", "op", "^train:  1 step; 2 of 2 blocks keep their input for the backward$"},
        {"selective", "2", "^train:  1 step; 1 of 2 blocks keep their input for the backward$"},
        {"selective", "3", "^train:  1 step; 0 of 2 blocks keep their input for the backward$"},
        {"cheap", "2",
         "^train:  1 step; 2 of 2 blocks keep their input, attention and all products but the last for the backward$"},
        {"selective", "op", "^train:  1 step; 2 of 2 blocks keep their input, attention and every second product"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program p = RUN(0, "train", f->config, "--training.steps=1", "--export.path=", "--activation_checkpoint.mode",
                        cases[i][0], "--activation_checkpoint.selective_ac_option", cases[i][1]);

        check_matches(p.output, cases[i][2]);
    }
}

FIXTURE_TEST(a_run_that_has_nothing_left_to_do_says_why)
{
    static const char *const cases[][2] = {
        {"--export.path=", "^stop:   2 validations in a row without an improvement"},
        {"--export.path=", "^resume: from step 6 of .*: it was stopped early \\(training.early_stop is 2\\)$"},
        {"--training.steps=5", "^resume: .*: all steps are done .*, and the model is exported$"},
    };
    char folder[600];

    snprintf(folder, sizeof folder, "--checkpoint.folder=%s-checkpoints", f->model);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program p = RUN(0, "train", f->config, folder, "--validation.share=0.1", "--validation.freq=2",
                        "--training.early_stop=2", "--training.early_stop_min_delta=10", cases[i][0]);

        check_matches(p.output, cases[i][1]);
    }
}

/* Columns of the widest piece between two returns of the carriage, from `from` on. */
static size_t widest(const char *from)
{
    size_t most = 0;

    for (const char *at = from; *at;) {
        size_t length = strcspn(at, "\r");
        const char *clear = memmem(at, length, "\033[K", 3);
        size_t columns = clear ? (size_t)(clear - at) : length;

        most = columns > most ? columns : most;
        at += length + (at[length] == '\r');
    }
    return most;
}

/* Runs a command of the shell, in which $0 is the program, $1 the config, $2 a terminal of `columns` and $3 the model.
 * The terminal becomes one of `then` columns at the first sign of a bar. What it got is malloc'ed; `*drawn_before`: how
 * much of it may be of the first width. */
static char *run_on_terminal(fixture *f, const char *command, int columns, int then, size_t *drawn_before)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char *text = calloc(1 << 20, 1);
    size_t used = 0;
    ssize_t got;
    program p;

    CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    CHECK_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
    p = program_start(f->directory, (const char *const[]){"sh", "-c", command, PROGRAM, f->config, ptsname(terminal),
                                                          f->model, NULL});
    *drawn_before = 0;
    while ((got = read(terminal, text + used, 4096)) > 0) { /* fails when the program has closed it */
        used += (size_t)got;
        if (!*drawn_before && strchr(text, '\r')) {
            size.ws_col = (unsigned short)then;
            CHECK_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
            *drawn_before = used + 8192; /* what it had written, and what the terminal had taken */
        }
    }
    close(terminal);
    program_wait(&p);
    CHECK_EQ(p.status, 0);
    return text;
}

static char *train_on_terminal(fixture *f, const char *steps, int columns, int then, size_t *drawn_before)
{
    char command[160];

    snprintf(command, sizeof command,
             "exec \"$0\" train \"$1\" --training.steps=%s --metrics.log_freq=1 --export.path= 2>\"$2\"", steps);
    return run_on_terminal(f, command, columns, then, drawn_before);
}

FIXTURE_TEST(the_bar_fits_the_terminal)
{
    static const int columns[] = {80, 41, 20, 5};
    size_t before;

    setenv("TERM", "xterm", 1);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        char *text = train_on_terminal(f, "20", columns[i], columns[i], &before);

        CHECK_CONTAINS(text, "\r");
        CHECK_CONTAINS(text, columns[i] > 10 ? "1/20  0:" : "1/20");
        CHECK_EQ(strstr(text, "[=") != NULL, columns[i] > 40);
        CHECK(widest(text) < (size_t)columns[i]);
        free(text);
    }
}

/* That of a run with a loss scale is the longest. */
FIXTURE_TEST(lines_fit_a_terminal_and_the_bar_has_loss_and_speed)
{
    size_t before;
    char *text;

    setenv("TERM", "xterm", 1);
    text = run_on_terminal(f,
                           "exec \"$0\" train \"$1\" --training.steps=3 --metrics.log_freq=1 --export.path= "
                           "--training.mixed_precision_param=float16 >\"$2\"",
                           80, 80, &before);
    CHECK_CONTAINS(text, "step:  3  loss: ");
    CHECK_CONTAINS(text, "  scale: ");
    for (const char *line = strstr(text, "step: "); line; line = strstr(line + 1, "step: "))
        CHECK(strcspn(line, "\r\n") < 80 - 8); /* room for longer numbers */
    free(text);
    text = run_on_terminal(f, "exec \"$0\" train \"$1\" --training.steps=20 --export.path= 2>\"$2\"", 80, 80, &before);
    check_matches(text, "\\] 1/20  0:[0-9]{2} left  loss [0-9.]+  [0-9,]+ tok/s");
    free(text);
}

FIXTURE_TEST(the_bar_follows_the_size_of_the_terminal)
{
    size_t before;
    char *text;

    setenv("TERM", "xterm", 1);
    text = train_on_terminal(f, "800", 80, 20, &before);
    CHECK(widest(text) > 40);
    CHECK(strlen(text) > before);
    CHECK(widest(text + before) < 20 + 80); /* the first piece may be the end of an old one */
    CHECK(widest(strchr(text + before, '\r') + 1) < 20);
    free(text);
}

/* Of less than a MiB as of any other: a time that is one. */
FIXTURE_TEST(small_files_have_a_bar_too)
{
    size_t before;
    char *text;

    setenv("TERM", "xterm", 1);
    text = run_on_terminal(f,
                           "exec 3>\"$2\"; \"$0\" train \"$1\" --training.steps=1 && \"$0\" diff \"$3\" \"$3\" 2>&3 && "
                           "exec \"$0\" convert \"$3\" \"$3-other\" --ranks 2 2>&3 3>&-",
                           80, 80, &before);
    CHECK_CONTAINS(text, "] 1/1  0:00 left");
    CHECK(strchr(text, '-') == NULL);
    free(text);
}

FIXTURE_TEST(an_explanation_has_a_bar)
{
    size_t before;
    char *text;

    setenv("TERM", "xterm", 1);
    text = run_on_terminal(f, "exec \"$0\" explain llama-1m -n 64 2>\"$2\"", 80, 80, &before);
    CHECK_CONTAINS(text, "] 1/74  0:");
    CHECK(fsdp__ends_with(text, "\r\033[K")); /* it is gone in the end */
    free(text);
}

FIXTURE_TEST(a_dumb_terminal_gets_no_bar)
{
    static const char *const terminals[] = {"dumb", "", NULL};
    size_t before;

    for (size_t i = 0; i < sizeof terminals / sizeof terminals[0]; i++) {
        char *text;

        if (terminals[i])
            setenv("TERM", terminals[i], 1);
        else
            unsetenv("TERM");
        text = train_on_terminal(f, "20", 80, 80, &before);
        CHECK_STRING(text, "");
        free(text);
    }
}

/* A terminal stops groups in the background that write to it if it was asked to, and ranks are in such groups. */
FIXTURE_TEST(ranks_write_to_a_terminal_that_stops_others)
{
    static const char *const commands[] = {"-n 2", "--sweep=training.seed=1,2 --sweep-folder=\"$2-sweep\""};
    char command[400];
    size_t before;

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char *text;

        snprintf(command, sizeof command,
                 "exec setsid --ctty --wait sh -c 'stty tostop; exec \"$0\" train \"$1\" --training.steps=2 %s' "
                 "\"$0\" \"$1\" \"$3\" <\"$2\" >\"$2\" 2>&1",
                 commands[i]);
        text = run_on_terminal(f, command, 80, 80, &before);
        CHECK_CONTAINS(text, i == 0 ? "done:   2 steps" : "to compare them: ");
        free(text);
    }
}
