/* Histograms and norms of gradients and weights: all elements once, whoever has them, and no bit of the run changes. */
#include "train/histograms.h"

#include <math.h>

#include "format/event_reader.h"
#include "train/run_config.h"
#include "train/story.h"

/* Sets metrics.tensorboard to a folder in the story's directory. */
static char *set_board(story *s, const char *name)
{
    char *path = test_path(s->directory, name);

    story_set(s, "metrics.tensorboard", path);
    return path;
}

/* Adds up the elements and squared norms of all units. */
static void add_up(const read_events *events, const char *what, int step, double *elements, double *squares)
{
    char histograms[40], norms[40];

    snprintf(histograms, sizeof histograms, "%s/", what);
    snprintf(norms, sizeof norms, "%s norm/", what);
    *elements = *squares = 0;
    for (int i = 0; i < events->count; i++) {
        const read_event *e = &events->items[i];
        double counted = 0;

        if (e->step != step)
            continue;
        if (strncmp(e->tag, norms, strlen(norms)) == 0)
            *squares += e->number * e->number;
        if (strncmp(e->tag, histograms, strlen(histograms)) != 0)
            continue;
        CHECK_EQ(e->kind, 'h');
        for (int b = 0; b < e->bucket_count; b++) {
            CHECK(b == 0 || e->limits[b] > e->limits[b - 1]);
            counted += e->buckets[b];
        }
        CHECK(counted == e->num && e->min <= e->max && e->max <= e->limits[e->bucket_count - 1]);
        *elements += e->num;
    }
}

/* Every element is counted once, on any number of ranks, however parameters are sharded, padded or copied. */
STORY_TEST(histograms_have_every_gradient_and_weight_once)
{
    static const struct {
        const char *strategy, *key, *value, *usual;
        int world, units;
    } cases[] = {{"fsdp2", "parallelism.prefetch", "0", "0", 1, 3},
                 {"fsdp2", "parallelism.prefetch", "0", "0", 3, 3},
                 {"fsdp2", "training.max_norm", "0", "1", 2, 3}, /* steps in the backward */
                 {"fsdp1", "parallelism.prefetch", "0", "0", 3, 3},
                 {"fsdp1", "parallelism.fsdp1_use_orig_params", "true", "", 3, 3},
                 {"hsdp", "parallelism.data_parallel_replicate_degree", "2", "1", 4, 3},
                 {"zero1", "parallelism.prefetch", "0", "0", 3, 3},
                 {"ddp", "parallelism.prefetch", "0", "0", 3, 1}};
    fsdp_model_config model;
    double parameters;

    CHECK_OK(fsdp__train_model_config(s->config, &model));
    parameters = (double)fsdp_model_config_parameters(&model);
    story_set(s, "metrics.histogram_freq", "3");
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i += test_brief() ? 4 : 1) {
        char name[20], *folder;
        double elements, squares;
        read_events events;
        int units = 0;

        snprintf(name, sizeof name, "board%zu", i);
        folder = set_board(s, name);
        story_set(s, "parallelism.strategy", cases[i].strategy);
        story_set(s, cases[i].key, cases[i].value);
        story_go(s, cases[i].world);
        story_set(s, cases[i].key, cases[i].usual);
        events = events_read_folder(folder, NULL, 0);
        for (int step = 1; step <= STORY_STEPS; step++) {
            double norm = events_find(&events, "train/grad_norm", step, true)->number;

            add_up(&events, "gradient", step, &elements, &squares);
            CHECK(elements == (step % 3 == 0 ? parameters : 0));
            if (elements > 0)
                CHECK_NEAR(sqrt(squares), norm, 1e-5 * norm);
            add_up(&events, "weight", step, &elements, &squares);
            CHECK(elements == (step % 3 == 0 ? parameters : 0));
        }
        for (int e = 0; e < events.count; e++)
            units += events.items[e].step == 3 && strncmp(events.items[e].tag, "weight/", 7) == 0;
        CHECK_EQ(units, cases[i].units);
        events_free(&events);
    }
}

/* Adds up what one tag after the other says of a step. */
static double sum_of(const read_events *events, const char *what, int step, int *count)
{
    double sum = 0;

    *count = 0;
    for (int i = 0; i < events->count; i++)
        if (events->items[i].step == step && strncmp(events->items[i].tag, what, strlen(what)) == 0) {
            sum += events->items[i].number;
            ++*count;
        }
    return sum;
}

/* A step that is left out has no finite gradient, and its weights are as they were: said so, and nothing else. */
STORY_TEST(a_step_that_is_skipped_shows_what_is_not_finite)
{
    static const struct {
        const char *dtype;
        int world;
    } cases[] = {{"float32", 1}, {"float32", 3}, {"float16", 2}};
    fsdp_model_config model;
    double parameters;

    CHECK_OK(fsdp__train_model_config(s->config, &model));
    parameters = (double)fsdp_model_config_parameters(&model);
    story_set(s, "metrics.histogram_freq", "1");
    story_set(s, "training.on_nan", "skip");
    story_set(s, "optimizer.lr", "1e30");                                      /* the first step breaks the weights */
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i += test_brief() ? 2 : 1) { /* float32, float16 */
        double elements, squares;
        char name[20], *folder;
        read_events events;
        int count;

        snprintf(name, sizeof name, "board%zu", i);
        folder = set_board(s, name);
        story_set(s, "training.mixed_precision_param", cases[i].dtype);
        story_go(s, cases[i].world);
        events = events_read_folder(folder, NULL, 0);
        CHECK_NEAR(events_find(&events, "train/skipped", 2, true)->number, 1, 0);
        CHECK_NEAR(events_find(&events, "train/skipped", STORY_STEPS, true)->number, STORY_STEPS - 1, 0);
        for (int step = 1; step <= STORY_STEPS; step++) {
            double lost = sum_of(&events, "gradient not finite/", step, &count);

            add_up(&events, "gradient", step, &elements, &squares);
            CHECK_NEAR(elements + lost, parameters, 0);
            CHECK(step == 1 ? lost <= 0 : lost > 0);
            CHECK(isfinite(squares));
            add_up(&events, "weight", step, &elements, &squares);
            CHECK_NEAR(elements + sum_of(&events, "weight not finite/", step, &count), parameters, 0);
            if (step > 1) {
                CHECK_NEAR(sum_of(&events, "update ratio/", step, &count), 0, 0);
                CHECK_EQ(count, 3);
            }
        }
        CHECK_CONTAINS(s->log, "of the gradients are NaN or infinite, in ");
        CHECK(!strstr(s->log, "All gradients are 0"));
        events_free(&events);
    }
}

/* A run without them takes the same steps, to the bit. */
STORY_TEST(histograms_change_no_bit)
{
    double losses[STORY_STEPS + 1];

    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    set_board(s, "board");
    story_set(s, "metrics.histogram_freq", "1");
    story_go(s, 2);
    CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
}

TEST(bins_end_at_halves_of_octaves)
{
    fsdp__histogram h = {.min = -3};
    double limits[2 * FSDP__BINS], counts[2 * FSDP__BINS];
    static const float numbers[] = {-3, -2.5F, 0, 1, 1.25F, 1.5F, 6};

    for (size_t i = 0; i < FSDP__COUNT_OF(numbers); i++) {
        uint32_t bits;

        memcpy(&bits, &numbers[i], sizeof bits);
        h.bins[bits >> 22]++;
    }
    /* [-4, -3], (-3, -2], nothing, [0, 6e-39), nothing, [1, 1.5), [1.5, 2), nothing, [6, 8) */
    CHECK_EQ(fsdp__histogram_bins(&h, limits, counts), 9);
    CHECK(limits[0] == -3 && counts[0] == 1 && limits[1] == -2 && counts[1] == 1);
    CHECK(limits[2] == 0 && counts[2] == 0 && limits[3] < 1e-38 && counts[3] == 1);
    CHECK(limits[4] == 1 && counts[4] == 0 && limits[5] == 1.5 && counts[5] == 2);
    CHECK(limits[6] == 2 && counts[6] == 1 && limits[7] == 6 && counts[7] == 0 && limits[8] == 8 && counts[8] == 1);
    CHECK_EQ(fsdp__histogram_count(&h), 7);
}
