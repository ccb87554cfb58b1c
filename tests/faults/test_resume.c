/* A run that is cut off, or told to end, goes on with the same command as if nothing had been: real processes, killed
 * at any moment. */
#include <sched.h>
#include <sys/stat.h>

#include "faults/run.h"

enum {
    MOST_ARGUMENTS = 16
};

/* A command that trains twelve steps, saving after each. */
typedef struct command {
    const char *argv[MOST_ARGUMENTS];
    int argc;
    char folder[300], export[300], ranks[16];
} command;

static void add(command *c, const char *argument)
{
    CHECK(c->argc < MOST_ARGUMENTS - 1);
    c->argv[c->argc++] = argument;
}

/* `name` tells the folders of its checkpoints and of its export; NULL: it keeps none. */
static command command_of(const fixture *f, const char *name, int ranks)
{
    static const char *const options[] = {"--training.steps=12", "--training.global_batch_size=12",
                                          "--training.local_batch_size=1", "--metrics.log_freq=1"};
    command c = {.argc = 0};

    add(&c, PROGRAM);
    add(&c, "train");
    add(&c, f->config);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        add(&c, options[i]);
    snprintf(c.folder, sizeof c.folder, "--checkpoint.folder=%s/%s-checkpoints", f->directory, name ? name : "");
    snprintf(c.export, sizeof c.export, "--export.path=%s/%s", f->directory, name ? name : "whole");
    snprintf(c.ranks, sizeof c.ranks, "-n%d", ranks);
    return c;
}

/* The strings in it stay where they are from here on. */
static void finish(command *c, const char *interval, bool saves)
{
    if (saves) {
        add(c, c->folder);
        add(c, interval);
    }
    add(c, c->export);
    add(c, c->ranks);
}

static char *weights_of(const fixture *f, const char *name, size_t *bytes)
{
    char *folder = test_path(f->directory, name), *path = test_path(folder, "model.safetensors");
    char *data = test_read_file(path, bytes);

    return data;
}

/* Both exports are the same to the bit. */
static void check_same(const fixture *f, const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    char *first = weights_of(f, a, &a_bytes), *second = weights_of(f, b, &b_bytes);

    CHECK_EQ(a_bytes, b_bytes);
    CHECK_BYTES(second, first, a_bytes);
}

static void go(const fixture *f, const command *c)
{
    program_run(f->directory, 0, c->argv);
}

static void train_whole(const fixture *f, int ranks)
{
    command whole = command_of(f, NULL, ranks);

    finish(&whole, NULL, false);
    go(f, &whole);
}

static void wait_a_moment(unsigned *draw)
{
    *draw = *draw * 1103515245u + 12345u;
    nanosleep(&(struct timespec){.tv_nsec = (long)(*draw >> 16) % 30 * 1000000}, NULL);
}

/* ---- killed ---- */

/* Killed again and again, the launcher or a rank, until it comes to its end. */
FIXTURE_TEST(killed_at_any_moment_it_goes_on)
{
    unsigned draw = 7;

    train_whole(f, 2);
    for (int round = 0; round < (test_long() ? 40 : 2); round++) {
        char name[24];
        command c;
        int kills = 0, status = -1;

        snprintf(name, sizeof name, "killed%d", round);
        c = command_of(f, name, 2);
        if (round % 2)
            add(&c, "--checkpoint.async_mode=async");
        finish(&c, "--checkpoint.interval=1", true);
        while (status != 0 && kills < 40) {
            run r = run_start(f->directory, c.argv);
            pid_t target = r.program.pid;

            (void)run_await_output(&r, "saved:");
            if (kills % 2)
                target = run_await_process(&r, draw & 1 << 17 ? "RANK=0" : "RANK=1");
            wait_a_moment(&draw);
            if (target > 0)
                (void)kill(target, SIGKILL);
            run_wait(&r);
            run_await_nothing(&r);
            status = r.program.status;
            if (status != 0 && status != 128 + SIGKILL)
                TEST_FAIL("status %d:\n%s", status, r.program.output);
            kills += status != 0;
        }
        CHECK_EQ(status, 0);
        check_same(f, "whole", name);
    }
}

FIXTURE_TEST(killed_on_two_ranks_it_goes_on_with_three)
{
    command two = command_of(f, "moved", 2), three = command_of(f, "moved", 3);
    run r;

    finish(&two, "--checkpoint.interval=1", true);
    finish(&three, "--checkpoint.interval=1", true);
    r = run_start(f->directory, two.argv);
    CHECK(run_await_output(&r, "saved:  step 3 in "));
    (void)kill(r.program.pid, SIGKILL);
    run_wait(&r);
    run_await_nothing(&r);
    r = run_start(f->directory, three.argv);
    run_wait(&r);
    CHECK_EQ(r.program.status, 0);
    CHECK_CONTAINS(r.program.output, "resume: from step ");
    CHECK_CONTAINS(r.program.output, ", of 2 ranks\n");
    CHECK_CONTAINS(r.program.output, "model written to ");
    CHECK_NULL(strstr(r.program.output, "in place of"));
    r = run_start(f->directory, three.argv); /* nothing is left to do but the export */
    run_wait(&r);
    CHECK_EQ(r.program.status, 0);
    CHECK_CONTAINS(r.program.output, "resume: from step 12 of ");
    CHECK_CONTAINS(r.program.output,
                   ", of 3 ranks: all steps are done (training.steps is 12), and the model is exported");
    CHECK_CONTAINS(r.program.output, ", in place of an earlier one\n");
}

/* ---- told to end ---- */

static run start_endless(const fixture *f, command *c, const char *interval)
{
    add(c, "--training.steps=1000000");
    finish(c, interval, true);
    return run_start(f->directory, c->argv);
}

FIXTURE_TEST(told_to_end_it_saves_first)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

    for (int i = 0; i < 3; i++) {
        int ranks = i == 1 ? 1 : 2;
        char name[16];
        command c;
        run r;

        snprintf(name, sizeof name, "told%d", i);
        train_whole(f, ranks);
        c = command_of(f, name, ranks);
        finish(&c, "--checkpoint.interval=1000", true);
        r = run_start(f->directory, c.argv);
        CHECK(run_await_output(&r, "step:  2 "));
        (void)kill(r.program.pid, signals[i]);
        run_wait(&r);
        run_await_nothing(&r);
        if (r.program.status != 0) { /* it may have been faster */
            CHECK_EQ(r.program.status, 128 + signals[i]);
            CHECK_CONTAINS(r.program.output, "saved:  step ");
            CHECK_EQ(test_count(r.program.output, ", which has a checkpoint: the same command continues from it"), 1);
            CHECK_EQ(test_count(r.program.output, "fsdp: interrupted "), 1);
        }
        go(f, &c);
        check_same(f, "whole", name);
    }
}

/* Whichever it is, all save and end as if they had all been told. */
FIXTURE_TEST(one_rank_alone_may_be_told_to_end)
{
    static const char *const ranks[] = {"RANK=0", "RANK=1", "RANK=2"};

    for (int i = 0; i < 3; i++) {
        command c = command_of(f, "alone", 3);
        pid_t rank;
        run r;

        r = start_endless(f, &c, "--checkpoint.interval=1000000");
        CHECK(run_await_output(&r, "step:  "));
        rank = run_await_process(&r, ranks[i]);
        CHECK(rank > 0);
        (void)kill(rank, SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
        CHECK_CONTAINS(r.program.output, "fsdp: interrupted after step ");
        CHECK_EQ(test_count(r.program.output, ", which has a checkpoint: the same command continues from it"), 1);
        CHECK_NULL(strstr(r.program.output, "was killed by signal"));
    }
}

/* Tells a run twice, and returns whether it has saved all the same. */
static bool tell_and_echo(const fixture *f, int ranks)
{
    command c = command_of(f, "echo", ranks);
    run r = start_endless(f, &c, "--checkpoint.interval=1");

    CHECK(run_await_output(&r, "saved:"));
    (void)kill(r.program.pid, SIGTERM);
    (void)sched_yield(); /* two that are pending are one */
    (void)kill(r.program.pid, SIGTERM);
    run_wait(&r);
    run_await_nothing(&r);
    CHECK_EQ(r.program.status, 128 + SIGTERM);
    return strstr(r.program.output, ", which has a checkpoint: the same command continues from it");
}

/* As `timeout` does it: the program, and then its group. Where one of the two is held up in between that is meant
 * twice: again. */
FIXTURE_TEST(told_once_and_its_group_it_saves_all_the_same)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        bool saved = false;

        for (int tries = 0; tries < 10 && !saved; tries++)
            saved = tell_and_echo(f, ranks);
        CHECK(saved);
    }
}

FIXTURE_TEST(told_twice_it_ends_at_once)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        command c = command_of(f, "twice", ranks);
        run r;

        r = start_endless(f, &c, "--checkpoint.interval=1");
        CHECK(run_await_output(&r, "saved:"));
        (void)kill(r.program.pid, SIGTERM);
        (void)kill(r.program.pid, SIGINT); /* another signal is no echo of the first */
        run_wait(&r);
        run_await_nothing(&r);
        CHECK(r.program.status == 128 + SIGTERM || r.program.status == 128 + SIGINT);
        CHECK_NULL(strstr(r.program.output, "nothing was kept"));
    }
}

/* While it still reads its config, which comes through a pipe. */
FIXTURE_TEST(asked_before_it_has_begun_it_writes_the_first_step)
{
    char *text, *pipe = test_path(f->directory, "pipe.yaml");
    size_t bytes;

    text = test_read_file(f->config, &bytes);
    CHECK_EQ(mkfifo(pipe, 0600), 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        command c = command_of(f, ranks == 1 ? "early1" : "early2", ranks);
        int to;
        run r;

        add(&c, "--training.steps=1000000");
        finish(&c, "--checkpoint.interval=1000000", true);
        for (int i = 0; c.argv[i]; i++)
            c.argv[i] = strcmp(c.argv[i], f->config) == 0 ? pipe : c.argv[i];
        r = run_start(f->directory, c.argv);
        to = open(pipe, O_WRONLY | O_CLOEXEC); /* when it is opened there, too */
        CHECK(to >= 0);
        (void)kill(r.program.pid, SIGUSR1);
        CHECK_EQ(write(to, text, bytes), (ssize_t)bytes);
        close(to);
        CHECK(run_await_output(&r, "saved:  step "));
        (void)kill(r.program.pid, SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
    }
}

FIXTURE_TEST(asked_for_a_checkpoint_it_writes_one)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        command c = command_of(f, ranks == 1 ? "asked1" : "asked2", ranks);
        run r;

        r = start_endless(f, &c, "--checkpoint.interval=1000000");
        CHECK(run_await_output(&r, "step:  1 "));
        (void)kill(r.program.pid, SIGUSR1);
        CHECK(run_await_output(&r, "saved:  step "));
        CHECK(run_await_output(&r, "step: 100 ")); /* it goes on */
        (void)kill(r.program.pid, SIGTERM);
        run_wait(&r);
        run_await_nothing(&r);
        CHECK_EQ(r.program.status, 128 + SIGTERM);
    }
}
