/* What stands out while a run trains is said once, in its log and its metrics, and changes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/group/param_group.h"
#include "shard/state/module_state.h"
#include "support/dice.h"
#include "train/config.h"
#include "train/run_steps.h"
#include "train/story.h"
#include "watch/signs.h"

static char *metrics_of(story *s)
{
    char *path = test_path(s->directory, "m.jsonl"), *text;
    size_t bytes;

    text = test_read_file(path, &bytes);
    return text;
}

static void begin(story *s)
{
    char *path = test_path(s->directory, "m.jsonl");

    story_set(s, "metrics.jsonl", path);
    story_set(s, "metrics.histogram_freq", "2");
}

STORY_TEST(a_healthy_run_is_warned_of_nothing)
{
    double losses[STORY_STEPS + 1];
    char *text;

    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    begin(s);
    story_go(s, 2);
    text = metrics_of(s);
    CHECK_EQ(test_count(text, "\"warning\""), 0);
    CHECK_EQ(test_count(text, "{\"step\": "), STORY_STEPS);
    CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
}

/* Every rank's part counts, however it is sharded. */
STORY_TEST(steps_that_are_too_large_are_said_once)
{
    static const char *const strategies[] = {"fsdp2", "zero1", "ddp"};

    begin(s);
    test_set_keys(s->config, "optimizer.name=sgd optimizer.lr=50 training.max_norm=0 training.on_nan=continue");
    for (int i = 0; i < 3; i++) {
        char *text;

        story_set(s, "parallelism.strategy", strategies[i]);
        story_go(s, 1 + i);
        text = metrics_of(s);
        CHECK_EQ(test_count(text, "\"of\": \"large updates\", \"text\": \"A step changes the weights of "), i + 1);
        CHECK_EQ(test_count(s->log, "step 2: A step changes the weights of "), 1);
    }
}

/* ---- a rank that is slow ---- */

typedef struct slow_world {
    story *story;
    int rank;   /* that is slow; -1: none */
    char *told; /* rank 0's warnings */
    size_t room;
} slow_world;

static void note_warning(void *arg, fsdp_log_level level, const char *line)
{
    slow_world *w = arg;
    size_t used = strlen(w->told);

    if (level == FSDP_LOG_WARNING)
        snprintf(w->told + used, w->room - used, "%s\n", line);
}

/* Sleeps in every eighth kernel. */
static fsdp_status hold_up(void *arg, fsdp__probe_event *event)
{
    const struct timespec a_while = {.tv_nsec = 4000000};
    int *kernels = arg;

    (void)event;
    if (++*kernels % 8 == 0)
        (void)nanosleep(&a_while, NULL);
    return FSDP_OK;
}

/* Trains for as long as two stretches and what is between them take; a slow rank sleeps in some of its kernels. */
static void train_in_slow_world(fsdp_context *context, void *arg)
{
    slow_world *w = arg;
    fsdp__subscriber *subscriber = NULL;
    fsdp_train_run *run = NULL;
    int kernels = 0;

    CHECK_OK(fsdp_train_run_create(context, w->story->config, &run));
    if (fsdp_context_rank(context) == 0)
        fsdp_context_set_log(context, FSDP_LOG_WARNING, note_warning, w);
    if (fsdp_context_rank(context) == w->rank) {
        subscriber = fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN), hold_up, &kernels);
        CHECK_PTR(subscriber);
    }
    for (int step = 0; step < 120; step++)
        CHECK_OK(fsdp_train_step(run, NULL));
    fsdp__unsubscribe(subscriber);
    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
    fsdp_train_run_free(run);
}

/* Ranks that train, one of which takes longer for what it computes. */
STORY_TEST(the_slow_rank_of_a_real_run_is_named)
{
    static const struct {
        const char *strategy;
        int world, rank;
    } cases[] = {{"fsdp2", 3, 2}, {"ddp", 4, 1}};
    char told[4096];

    story_set(s, "training.steps", "120");
    story_set(s, "metrics.log_freq", "10");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += test_long() ? 1 : 2) {
        slow_world w = {s, cases[i].rank, told, sizeof told};
        const char *text;
        int rank;

        told[0] = '\0';
        story_set(s, "parallelism.strategy", cases[i].strategy);
        test_run_ranks(cases[i].world, train_in_slow_world, &w);
        text = strstr(told, "is slow: it computes ");
        CHECK_PTR(text);
        CHECK_EQ(test_count(told, "is slow: "), 1);
        CHECK_EQ(sscanf(strstr(told, "Rank "), "Rank %d is slow: it computes ", &rank), 1);
        CHECK_EQ(rank, cases[i].rank);
        CHECK_CONTAINS(text, ", and they wait ");
    }
}

/* ---- long runs, of which only the reports are: nothing is computed ---- */

enum {
    RANKS = 4,
    UNITS = 3,
    LOG_FREQ = 10
};

/* What is wrong with a run's steps; all 0: nothing. */
typedef struct illness {
    double slow;           /* how often as long as the others rank 3 computes */
    double data, exchange; /* ms a step that is waited for batches, and for bytes */
    bool stays;            /* the loss */
    double norm;           /* how often as large as usual the gradient's is; NAN: it is 0 */
    double growth;         /* of the norm, by each step */
} illness;

typedef struct long_run {
    fsdp_train_config *config;
    fsdp_context *context;
    fsdp_train_run *run;
    fsdp__param_group *unit; /* for whose gathers it waits */
    double *all[RANKS];      /* as ranks exchange them; those of rank 0 are the run's */
    double norm;
    uint64_t dice;
    char log[4096];
} long_run;

static void note_line(void *arg, fsdp_log_level level, const char *line)
{
    long_run *r = arg;
    size_t used = strlen(r->log);

    if (level == FSDP_LOG_WARNING)
        snprintf(r->log + used, sizeof r->log - used, "%s\n", line);
}

/* Makes a dry run. Ranks on "cuda" exchange bytes, those on "cpu" share memory. */
static long_run *begin_long(const char *device)
{
    const char *const keys[][2] = {{"model.preset", "llama-1m"},
                                   {"model.n_layers", "2"},
                                   {"training.seq_len", "8"},
                                   {"training.local_batch_size", "1"},
                                   {"training.device", device}};
    fsdp_wrap_unit units[UNITS] = {{.name = ""}, {.name = "model.layers.0"}, {.name = "model.layers.1"}};
    long_run *r = calloc(1, sizeof *r);
    fsdp_train_report report;

    r->config = test_empty_config();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_OK(fsdp_train_config_set(r->config, keys[i][0], keys[i][1]));
    CHECK_OK(fsdp_context_create_fake(0, RANKS, &r->context));
    CHECK_OK(fsdp__train_run_create_dry(r->context, r->config, NULL, &r->run));
    CHECK_OK(fsdp_train_step(r->run, &report)); /* which names the units */
    r->run->step = 0;
    memset(r->run->losses + r->run->microbatches, 0, FSDP__RANK_TIMES * sizeof(double));
    r->unit = fsdp__module_state_of(fsdp_module_child(r->run->model, "model.layers.1"))->groups[0];
    CHECK_OK(
        fsdp__histograms_create(r->context, &(fsdp_wrap_units){.count = UNITS, .items = units}, &r->run->histograms));
    CHECK_OK(fsdp__notice_begin(r->run));
    r->all[0] = r->run->losses;
    for (int rank = 1; rank < RANKS; rank++)
        r->all[rank] = calloc((size_t)r->run->microbatches + FSDP__RANK_TIMES, sizeof(double));
    r->norm = 1;
    r->dice = 7;
    fsdp_context_set_log(r->context, FSDP_LOG_WARNING, note_line, r);
    return r;
}

static void end_long(long_run *r)
{
    for (int rank = 1; rank < RANKS; rank++)
        free(r->all[rank]);
    fsdp_train_run_free(r->run);
    fsdp_context_free(r->context);
    free(r);
}

/* Returns a number near 1. */
static double about_one(long_run *r)
{
    return 0.9 + 0.002 * dice_below(&r->dice, 101);
}

/* Tells of the times of a step: each rank waits for the last one, and now and then one has a pause. */
static void take_time(long_run *r, const illness *sick, fsdp_train_report *report)
{
    double busy[RANKS], last = 0, pause = report->step % 997 == 0 ? 3000 : 0;

    for (int rank = 0; rank < RANKS; rank++) {
        busy[rank] = 70 * about_one(r) + sick->data;
        if (rank == 3 && sick->slow > 0)
            busy[rank] *= sick->slow;
        if (rank == report->step / 997 % RANKS)
            busy[rank] += pause;
        last = fmax(last, busy[rank]);
    }
    report->step_ms = last + 3 + sick->exchange;
    report->gather_ms = report->step_ms - 1 - busy[0];
    report->reduce_ms = 1;
    report->data_ms = 1 + sick->data + (busy[0] > 1000 ? pause : 0);
    r->unit->gathers.ns += (int64_t)(sick->exchange * 1e6);
    for (int rank = 1; rank < RANKS && report->step > 5; rank++) {
        fsdp__rank_times *t = (fsdp__rank_times *)(void *)(r->all[rank] + r->run->microbatches);

        t->steps++;
        t->step += report->step_ms;
        t->gather += report->step_ms - 1 - busy[rank];
        t->reduce += 1;
        t->data += 1 + sick->data;
    }
}

static void go(long_run *r, int steps, const illness *sick)
{
    for (int i = 0; i < steps; i++) {
        int64_t step = ++r->run->step;
        double loss = sick->stays ? 6 : 2 + 4 * exp(-(double)step / 50);
        fsdp_train_report report = {.step = step, .lr = 1e-3, .loss = NAN};

        r->norm *= sick->growth > 0 ? sick->growth : 1;
        report.grad_norm = isnan(sick->norm) ? 0 : r->norm * about_one(r) * (sick->norm > 0 ? sick->norm : 1);
        take_time(r, sick, &report);
        fsdp__notice_step(r->run, &report);
        if (step % LOG_FREQ == 0) {
            report.loss = loss * (0.95 + 0.05 * about_one(r));
            fsdp__notice_ranks(r->run, (void *const *)r->all, RANKS);
            for (int rank = 1; rank < RANKS; rank++)
                memset(r->all[rank] + r->run->microbatches, 0, FSDP__RANK_TIMES * sizeof(double));
        }
        fsdp__notice_report(r->run, &report);
    }
}

/* Takes steps with an illness after `before` without, and checks that one line is said of it, within `soon` steps and
 * then never again. Returns the line's text. */
static const char *check_said(long_run *r, int before, const illness *sick, int soon)
{
    long long step = 0;
    int length = 0;

    go(r, before, &(illness){0});
    CHECK_STRING(r->log, "");
    go(r, soon, sick);
    CHECK_EQ(sscanf(r->log, "[rank 0] step %lld: %n", &step, &length), 1);
    CHECK(length > 0 && step > before && step <= before + soon);
    go(r, 500, sick);
    CHECK_EQ(test_count(r->log, "\n"), 1);
    return r->log + length;
}

/* When an illness begins: with the run, and late in it, at the beginning of a stretch and in the middle of one. */
static const int starts[] = {0, 10303, 10330};

TEST(a_long_healthy_run_is_warned_of_nothing)
{
    static const char *const devices[] = {"cpu", "cuda"};

    for (int i = 0; i < 2; i++) {
        long_run *r = begin_long(devices[i]);

        go(r, 20000, &(illness){0});
        CHECK_STRING(r->log, "");
        end_long(r);
    }
}

TEST(a_rank_that_becomes_slow_is_named_soon)
{
    for (int i = 0; i < 3; i++) {
        long_run *r = begin_long("cpu");
        const char *text = check_said(r, starts[i], &(illness){.slow = 2}, 150);
        double own, others, waits;

        CHECK_EQ(sscanf(text, "Rank 3 is slow: it computes %lf ms of a step, the others %lf ms, and they wait %lf ms",
                        &own, &others, &waits),
                 3);
        CHECK_NEAR(own, 140, 5);
        CHECK_NEAR(others, 70, 3);
        CHECK_NEAR(waits, 73, 6);
        end_long(r);
    }
}

TEST(data_that_become_slow_are_said_soon)
{
    for (int i = 0; i < 3; i++) {
        long_run *r = begin_long("cpu");
        const char *text = check_said(r, starts[i], &(illness){.data = 30}, 150);
        double share, ms;

        CHECK_EQ(sscanf(text, "%lf %% of its time it waits for data, %lf ms", &share, &ms), 2);
        CHECK_NEAR(ms, 31, 0.1);
        CHECK_NEAR(share, 100 * 31 / 109.0, 2);
        end_long(r);
    }
}

/* Ranks that share memory wait only for who is late. */
TEST(exchanges_that_become_slow_are_said_soon_with_their_unit)
{
    long_run *shared = begin_long("cpu");

    for (int i = 0; i < 3; i++) {
        long_run *r = begin_long("cuda");
        const char *text = check_said(r, starts[i], &(illness){.exchange = 40}, 150);
        double share;

        CHECK_EQ(sscanf(text, "%lf %% of its time it waits for gathers", &share), 1);
        CHECK_NEAR(share, 100 * 49 / 119.0, 2);
        CHECK_CONTAINS(text, "The longest of these waits is for model.layers.1, 40 ms a step.");
        end_long(r);
    }
    go(shared, 500, &(illness){.exchange = 40});
    CHECK_STRING(shared->log, "");
    end_long(shared);
}

TEST(a_loss_that_stays_is_said_after_its_patience_and_later_it_may_stay)
{
    long_run *r = begin_long("cpu"), *learned = begin_long("cpu");
    const char *text = check_said(r, 0, &(illness){.stays = true}, 100);

    CHECK_CONTAINS(text, "The loss has not fallen in 100 steps: it was ");
    go(learned, 100, &(illness){0});
    go(learned, 500, &(illness){.stays = true});
    CHECK_STRING(learned->log, "");
    end_long(r);
    end_long(learned);
}

TEST(norms_that_jump_grow_or_are_0_are_said_at_once)
{
    static const struct {
        int before, soon;
        illness sick;
        const char *format; /* of the line, with a number that is one of these */
        double least, most;
    } cases[] = {
        {30, 1, {.norm = 25}, "The gradient's norm is %lf at step 31, ", 22, 28},
        {10003, 1, {.norm = 25}, "The gradient's norm is %lf at step 10004, ", 22, 28},
        {30, 200, {.growth = 1.03}, "The gradients explode: the median of their norms was %lf and is ", 0.9, 1.1},
        {10003, 200, {.growth = 1.03}, "The gradients explode: the median of their norms was %lf and is ", 0.9, 1.1},
        {0, 1, {.norm = NAN}, "All gradients are 0 at step %lf: nothing learns.", 1, 1},
        {10003, 1, {.norm = NAN}, "All gradients are 0 at step %lf: nothing learns.", 10004, 10004},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long_run *r = begin_long("cpu");
        const char *text = check_said(r, cases[i].before, &cases[i].sick, cases[i].soon);
        double number = 0;

        CHECK_EQ(sscanf(text, cases[i].format, &number), 1);
        CHECK(number >= cases[i].least && number <= cases[i].most);
        end_long(r);
    }
}

/* Fills in a unit of 1000 weights, each 1, and their gradients, each 2^`exponent` or 0. */
static void fill_unit(fsdp__histograms *d, int64_t unit, int zeros, int not_finite, int exponent, double update)
{
    fsdp__histogram *gradient = &d->gradients[unit];
    int values = 1000 - zeros - not_finite;

    *gradient = (fsdp__histogram){.not_finite = not_finite, .sum_squares = values * ldexp(1, 2 * exponent)};
    gradient->bins[0] = zeros;
    gradient->bins[2 * (exponent + 127)] = values;
    d->weights[unit] = (fsdp__histogram){.sum_squares = 1000, .update_squares = 1000 * update * update};
}

TEST(what_becomes_of_a_unit_is_said_once)
{
    static const struct {
        int zeros, not_finite, exponent; /* of model.layers.0's gradients, of which there are 1000 */
        double update, scale;
        const char *text;
    } cases[] = {
        {0, 300, -10, 1e-3, 0, "10 % of the gradients are NaN or infinite, in model.layers.0."},
        {1000, 0, -10, 1e-3, 0, "All gradients are 0 in 1 of 3 units (model.layers.0): nothing"},
        {0, 0, -30, 1e-3, 0, "Gradients vanish: for an element those of model.layers.0 are"},
        {0, 0, -10, 1e-3, 0x1p-5, "100 % of the gradients are too small for float16's digits at the loss's scale of"},
        {0, 0, -10, 0.3, 0, "A step changes the weights of model.layers.0 by up to 30 % of their norm;"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long_run *r = begin_long("cpu");

        for (int step = 1; step <= 300; step++) {
            bool sick = step > 200;

            CHECK(r->log[0] == '\0' || step > 201);
            for (int64_t unit = 0; unit < UNITS; unit++)
                fill_unit(r->run->histograms, unit, 100, 0, -10, 1e-3);
            if (sick)
                fill_unit(r->run->histograms, 1, cases[i].zeros, cases[i].not_finite, cases[i].exponent,
                          cases[i].update);
            r->run->step = step;
            fsdp__notice_units(
                r->run, &(fsdp_train_report){.step = step, .grad_norm = 1, .loss_scale = sick ? cases[i].scale : 0});
        }
        CHECK_CONTAINS(r->log, "step 201: ");
        CHECK_CONTAINS(r->log, cases[i].text);
        CHECK_EQ(test_count(r->log, "\n"), 1);
        end_long(r);
    }
}
