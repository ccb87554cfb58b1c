/* fsdp train --max-restarts: ranks that are killed, what is said, and the curve that comes of it. */
#include "cli/fixture.h"

#include "base/alloc.h"
#include "base/file.h"
#include "comm/health/process.h"

typedef struct run {
    program p;
    char mark[64];
    char *metrics_path;
} run;

enum {
    MOST_OPTIONS = 16
};

/* A run that nobody waits for the end of. Its folder of checkpoints and its metrics are named `name`. */
static run start(fixture *f, const char *name, const char *const *more)
{
    const char *argv[MOST_OPTIONS + 12] = {PROGRAM,
                                           "train",
                                           f->config,
                                           "--training.steps=1000000",
                                           "--checkpoint.interval=10",
                                           "--checkpoint.keep_latest_k=0",
                                           "--metrics.log_freq=1"};
    char folder[400], metrics[400], *output = test_path(f->directory, "output");
    int count = 7;
    run r = {.metrics_path = NULL};

    snprintf(folder, sizeof folder, "--checkpoint.folder=%s/%s", f->directory, name);
    snprintf(metrics, sizeof metrics, "--metrics.jsonl=%s/%s.jsonl", f->directory, name);
    r.metrics_path = strdup(strchr(metrics, '=') + 1);
    argv[count++] = folder;
    argv[count++] = metrics;
    while (*more)
        argv[count++] = *more++;
    snprintf(r.mark, sizeof r.mark, "RESTARTED_BY=%d-%s", (int)getpid(), name);
    setenv("RESTARTED_BY", strchr(r.mark, '=') + 1, 1);
    test_write_file(output, "", 0); /* that of a program before would be taken for this one's */
    r.p = program_start(f->directory, argv);
    return r;
}

static void release(run *r)
{
    free(r->metrics_path);
}

/* Up to the next comma of the last line of that step; free() it. */
static char *loss_at(const char *metrics, long step)
{
    const char *last = NULL, *loss;
    char line[40];

    snprintf(line, sizeof line, "{\"step\": %ld,", step);
    for (const char *at = metrics; (at = strstr(at, line)) != NULL; at++)
        last = at;
    loss = last ? strstr(last, "\"loss\": ") : NULL;
    return loss ? strndup(loss, strcspn(loss, ",")) : NULL;
}

/* Returns when it has trained this step. */
static void await_step(const run *r, long step)
{
    for (bool found = false; !found; usleep(5000)) {
        char *metrics = NULL, *loss = NULL;

        if (access(r->metrics_path, R_OK) == 0) {
            CHECK_OK(fsdp__file_read(r->metrics_path, SIZE_MAX, &metrics, &(size_t){0}));
            loss = loss_at(metrics, step);
        }
        found = loss != NULL;
        CHECK(found || waitpid(r->p.pid, NULL, WNOHANG) == 0);
        free(loss);
        fsdp__free(metrics);
    }
}

static void end(run *r)
{
    CHECK_EQ(kill(r->p.pid, SIGTERM), 0);
    program_wait(&r->p);
    CHECK_EQ(r->p.status, 128 + SIGTERM);
    CHECK_CONTAINS(r->p.output, "the same command continues from it");
}

static void kill_rank(const run *r, int rank)
{
    CHECK_EQ(kill(fixture_rank(r->mark, rank), SIGKILL), 0);
}

/* The launcher hears of it last: a peer has found the rank dead, and has ended. 0: it gets no signal with it. */
static void kill_rank_behind_its_back(const run *r, int rank, int peer, int signal)
{
    pid_t pid = fixture_rank(r->mark, peer);

    CHECK_EQ(kill(r->p.pid, SIGSTOP), 0);
    kill_rank(r, rank);
    while (!fsdp__process_is_dead(pid, 0))
        usleep(1000);
    CHECK_EQ(kill(r->p.pid, signal), 0);
    CHECK_EQ(kill(r->p.pid, SIGCONT), 0);
}

/* The losses of steps `first` to `last` are the same text. */
static void check_same_losses(const run *a, const run *b, long first, long last)
{
    char *one = test_read_file(a->metrics_path, NULL), *other = test_read_file(b->metrics_path, NULL);

    for (long step = first; step <= last; step++) {
        char *left = loss_at(one, step), *right = loss_at(other, step);

        CHECK(left && right);
        CHECK_STRING(left, right);
        free(left);
        free(right);
    }
}

/* From the text behind it. */
static long number_behind(const char *output, const char *text)
{
    const char *at = strstr(output, text);

    CHECK(at != NULL);
    return strtol(at + strlen(text), NULL, 10);
}

FIXTURE_TEST(a_rank_that_was_killed_costs_nothing_but_time)
{
    run r = start(f, "killed", (const char *const[]){"-n", "2", "--max-restarts=1", NULL}), undisturbed;
    long step;

    fixture_await(&r.p, "saved:  step 20 ");
    kill_rank(&r, 1);
    fixture_await(&r.p, "resume: from step ");
    r.p.output = test_read_file(r.p.output_path, NULL);
    CHECK_CONTAINS(r.p.output, "fsdp: rank 1 was killed by signal 9 (Killed), after step ");
    step = number_behind(r.p.output, "; restart 1 of 1: 2 ranks from step-");
    CHECK(step >= 20);
    CHECK_EQ(number_behind(r.p.output, "resume: from step "), step);
    await_step(&r, step + 60);
    end(&r);
    undisturbed = start(f, "undisturbed", (const char *const[]){"-n", "2", NULL});
    await_step(&undisturbed, step + 60);
    end(&undisturbed);
    check_same_losses(&r, &undisturbed, 1, step + 60);
    release(&r);
    release(&undisturbed);
}

/* The newest checkpoint in the folder that is named `name`. What is being made ready has a longer name. */
static long newest_step(const fixture *f, const char *name)
{
    char *folder = test_path(f->directory, name), *rest;
    DIR *all = opendir(folder);
    struct dirent *e;
    long newest = 0;

    while (all && (e = readdir(all)) != NULL) {
        long step = strncmp(e->d_name, "step-", 5) == 0 ? strtol(e->d_name + 5, &rest, 10) : 0;

        if (step > newest && *rest == '\0')
            newest = step;
    }
    if (all)
        closedir(all);
    return newest;
}

/* Kills the launcher, and all ranks, while they write. */
static void kill_all(run *r, int ranks)
{
    pid_t all[16];

    for (int rank = 0; rank < ranks; rank++)
        all[rank] = fixture_rank(r->mark, rank);
    CHECK_EQ(kill(r->p.pid, SIGKILL), 0);
    for (int rank = 0; rank < ranks; rank++)
        kill(all[rank], SIGKILL);
    for (int rank = 0; rank < ranks; rank++)
        while (!fsdp__process_is_dead(all[rank], 0))
            usleep(1000);
    program_wait(&r->p);
}

static void check_near_losses(const run *a, const run *b, long last)
{
    char *one = test_read_file(a->metrics_path, NULL), *other = test_read_file(b->metrics_path, NULL);

    for (long step = 1; step <= last; step++) {
        char *left = loss_at(one, step), *right = loss_at(other, step);

        CHECK(left && right);
        CHECK_NEAR(atof(strchr(left, ' ')), atof(strchr(right, ' ')), 1e-4);
        free(left);
        free(right);
    }
}

/* Something is always being written: four sequences a step, on ranks that share layers and sequences, and on others. */
#define HEADS "--model.n_heads=4", "--model.n_kv_heads=2", "--checkpoint.interval=1"
#define TEAM(tp, cp) "--parallelism.tensor_parallel_degree=" #tp, "--parallelism.context_parallel_degree=" #cp

FIXTURE_TEST(teams_that_were_killed_while_they_saved_go_on_in_other_layouts)
{
    static const char *const pieces[][9] = {
        {"-n", "4", "--checkpoint.async_mode=async", HEADS, TEAM(2, 2), NULL},
        {"-n", "2", "--checkpoint.async_mode=disabled", HEADS, TEAM(2, 1), NULL},
        {"-n", "2", "--checkpoint.async_mode=async", HEADS, TEAM(1, 2), NULL},
    };
    run undisturbed, r = {.metrics_path = NULL};
    long step = 0;

    for (int i = 0; i < 3; i++) {
        if (i > 0)
            release(&r);
        r = start(f, "teams", pieces[i]);
        if (i > 0)
            fixture_await(&r.p, "resume: from step ");
        await_step(&r, step + 5);
        kill_all(&r, pieces[i][1][0] - '0');
        if (i > 0)
            CHECK_EQ(number_behind(r.p.output, "resume: from step "), step);
        step = newest_step(f, "teams");
    }
    undisturbed = start(f, "undisturbed", (const char *const[]){HEADS, NULL});
    await_step(&undisturbed, step);
    end(&undisturbed);
    check_near_losses(&r, &undisturbed, step);
    release(&r);
    release(&undisturbed);
}

FIXTURE_TEST(it_stops_when_no_restart_is_left)
{
    run r = start(f, "stops", (const char *const[]){"-n", "2", "--max-restarts=1", NULL});

    fixture_await(&r.p, "saved:  step 10 ");
    kill_rank(&r, 0);
    fixture_await(&r.p, "resume: from step ");
    kill_rank_behind_its_back(&r, 1, 0, 0);
    program_wait(&r.p);
    CHECK_EQ(r.p.status, 128 + SIGKILL);
    CHECK_CONTAINS(r.p.output, "fsdp: rank 1 was killed by signal 9 (Killed); not started again: 1 restart of 1");
    release(&r);
}

/* Whichever: all ranks save and end, the others as of SIGTERM, and nobody starts them again. */
FIXTURE_TEST(a_rank_that_was_told_to_end_is_not_started_again)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};

    for (int i = 0; i < 3; i++) {
        run r = start(f, "told", (const char *const[]){"-n", "2", "--max-restarts=5", NULL});

        fixture_await(&r.p, "saved:  step ");
        CHECK_EQ(kill(fixture_rank(r.mark, i % 2), signals[i]), 0);
        program_wait(&r.p);
        CHECK(r.p.status == 128 + signals[i] || r.p.status == 128 + SIGTERM);
        CHECK_CONTAINS(r.p.output, "the same command continues from it; not started again: a rank was told to end");
        release(&r);
    }
}

/* The launcher hears of both at once: a rank has failed, and the user wants the run to end. */
FIXTURE_TEST(what_has_failed_is_not_started_again_when_the_user_interrupts)
{
    run r = start(f, "both", (const char *const[]){"-n", "2", "--max-restarts=5", NULL});

    await_step(&r, 2);
    kill_rank_behind_its_back(&r, 1, 0, SIGINT);
    program_wait(&r.p);
    CHECK_EQ(r.p.status, 128 + SIGKILL);
    CHECK_CONTAINS(r.p.output, "fsdp: rank 1 was killed by signal 9 (Killed); not started again: it was interrupted");
    release(&r);
}

/* The same of ranks that somebody else has told to end: what they have ended of is the result, as it is of any failure
 * before an interruption. */
FIXTURE_TEST(ranks_that_were_told_to_end_before_the_user_interrupts_have_ended_of_that)
{
    run r = start(f, "told-before", (const char *const[]){"-n", "2", NULL});
    pid_t ranks[2];

    fixture_await(&r.p, "saved:  step ");
    for (int i = 0; i < 2; i++)
        ranks[i] = fixture_rank(r.mark, i);
    CHECK_EQ(kill(r.p.pid, SIGSTOP), 0);
    CHECK_EQ(kill(ranks[0], SIGTERM), 0);
    while (!fsdp__process_is_dead(ranks[0], 0) || !fsdp__process_is_dead(ranks[1], 0))
        usleep(1000);
    CHECK_EQ(kill(r.p.pid, SIGINT), 0);
    CHECK_EQ(kill(r.p.pid, SIGCONT), 0);
    program_wait(&r.p);
    CHECK_EQ(r.p.status, 128 + SIGTERM);
    CHECK_CONTAINS(r.p.output, "fsdp: rank 0 failed: interrupted after step ");
    release(&r);
}

/* A rank of four gets a signal that ends the run, and of those that are started again another one. The step that the
 * third start goes on from, of which `says` is told. */
static long end_twice(run *r, int signal, const char *says)
{
    long step;

    fixture_await(&r->p, "saved:  step 10 ");
    CHECK_EQ(kill(fixture_rank(r->mark, 3), signal), 0);
    fixture_await(&r->p, "restart 1 of 2: 4 ranks from step-");
    fixture_await(&r->p, "resume: from step ");
    CHECK_EQ(kill(fixture_rank(r->mark, 2), signal), 0);
    fixture_await(&r->p, says);
    r->p.output = test_read_file(r->p.output_path, NULL);
    step = number_behind(r->p.output, says);
    return step;
}

/* A rank that stands still is told with its process and the call that it was in: others each time. */
FIXTURE_TEST(a_rank_that_stops_again_is_the_same_failure)
{
    static const char *const more[] = {
        "-n", "4", "--max-restarts=2", "--min-ranks=1", "--training.local_batch_size=2", "--comm.timeout=2", NULL};
    run r = start(f, "stopped", more);
    long step = end_twice(&r, SIGSTOP, "restart 2 of 2: 2 ranks (that failure came back) from step-");

    await_step(&r, step + 40);
    end(&r);
    release(&r);
}

/* Four ranks of two sequences each are a batch of eight, which three ranks cannot split. */
FIXTURE_TEST(a_failure_that_comes_back_is_left_with_fewer_ranks)
{
    static const char *const more[] = {"-n", "4", "--max-restarts=2", "--min-ranks=1", "--training.local_batch_size=2",
                                       NULL};
    static const char *const two[] = {"-n", "2", "--training.local_batch_size=2", NULL};
    run r = start(f, "fewer", more), undisturbed;
    char command[1000];
    long step;

    step = end_twice(&r, SIGKILL, "restart 2 of 2: 2 ranks (that failure came back) from step-");
    await_step(&r, step + 40);
    end(&r);
    snprintf(command, sizeof command, "mkdir '%s/two' && cp -r '%s/fewer/step-%ld' '%s/two/'", f->directory,
             f->directory, step, f->directory);
    CHECK_EQ(system(command), 0);
    undisturbed = start(f, "two", two);
    await_step(&undisturbed, step + 40);
    end(&undisturbed);
    CHECK_CONTAINS(undisturbed.p.output, ", of 4 ranks");
    check_same_losses(&r, &undisturbed, step + 1, step + 40);
    release(&r);
    release(&undisturbed);
}

FIXTURE_TEST(where_no_fewer_ranks_will_do_that_is_said)
{
    static const char *const more[] = {"-n", "4", "--max-restarts=2", "--min-ranks=3", "--training.local_batch_size=2",
                                       NULL};
    run r = start(f, "no-fewer", more);
    long step;

    step = end_twice(&r, SIGKILL,
                     "restart 2 of 2: 4 ranks (that failure came back, and no smaller number of ranks divides the "
                     "batch) from step-");
    await_step(&r, step + 10);
    end(&r);
    release(&r);
}

FIXTURE_TEST(what_cannot_be_restarted_is_refused_at_once)
{
    char *folder = test_path(f->directory, "checkpoints"), option[500];

    snprintf(option, sizeof option, "--checkpoint.folder=%s", folder);
    SAYS(2, "--max-restarts continues from the newest checkpoint, but this run writes none: set checkpoint.folder",
         "train", f->config, "-n", "2", "--max-restarts=1");
    SAYS(2, "this run writes none: checkpoint.enable is false", "train", f->config, "-n", "2", "--max-restarts=1",
         option, "--checkpoint.enable=false");
    SAYS(2, "but checkpoint.load_step is 7: leave one of the two out", "train", f->config, "-n", "2",
         "--max-restarts=1", option, "--checkpoint.load_step=7");
    SAYS(2, "--min-ranks is for runs that are restarted", "train", f->config, "-n", "2", "--min-ranks=1", option);
    SAYS(2, "--max-restarts is '-1': expected an integer from 0", "train", f->config, "-n", "2", "--max-restarts=-1",
         option);
    SAYS(2, "--min-ranks is '3': expected an integer from 1 to 2", "train", f->config, "-n", "2", "--max-restarts=1",
         "--min-ranks=3", option);
    /* What only a rank finds, before its first step: once more, and no further. */
    SAYS(1, "; not started again: it is the same failure as before, and no step was taken in between", "train",
         f->config, "-n", "2", "--max-restarts=9", option, "--training.seq_len=64", "--model.max_seq_len=64",
         "--training.local_batch_size=100000");
    SAYS(0, "done:   5 steps", "train", f->config, "-n", "2", "--max-restarts=0", "--training.steps=5");
    SAYS(0, "done:   5 steps", "train", f->config, "-n", "2", "--max-restarts=1", "--training.steps=5", option);
}

FIXTURE_TEST(a_run_of_one_rank_is_restarted_too)
{
    run r = start(f, "one", (const char *const[]){"--max-restarts=1", NULL});

    fixture_await(&r.p, "saved:  step 10 ");
    kill_rank(&r, 0);
    fixture_await(&r.p, "restart 1 of 1: 1 rank from step-");
    fixture_await(&r.p, "resume: from step ");
    end(&r);
    release(&r);
}
