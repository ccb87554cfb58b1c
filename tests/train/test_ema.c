/* training.ema_decay: what the average is, that training does not change, and that it goes on anywhere. */
#include <math.h>

#include "train/run.h"
#include "train/story.h"

static story *anew(const char *const (*keys)[2])
{
    story *s = story_new();

    story_set(s, "export.path", s->model);
    for (int i = 0; i < 6 && keys[i][0]; i++)
        story_set(s, keys[i][0], keys[i][1]);
    return s;
}

static char *weights_with(const char *const (*keys)[2], int world, size_t *bytes)
{
    story *s = anew(keys);

    story_go(s, world);
    return story_weights(s, bytes);
}

TEST(the_average_moves_by_a_share)
{
    static const char *const first[6][2] = {{"training.steps", "1"}, {"optimizer.lr", "1e-30"}};
    static const char *const last[6][2] = {{"training.steps", "1"}};
    static const char *const mean[6][2] = {
        {"training.steps", "1"}, {"training.ema_decay", "0.75"}, {"export.which", "ema"}};
    size_t bytes, at;
    char *p0 = weights_with(first, 2, &bytes), *p1 = weights_with(last, 2, &bytes);
    char *ema = weights_with(mean, 2, &bytes);
    uint64_t header;
    double moved = 0;

    memcpy(&header, p0, sizeof header);
    for (at = 8 + header; at < bytes; at += sizeof(float)) {
        float a, b, e;

        memcpy(&a, p0 + at, sizeof a);
        memcpy(&b, p1 + at, sizeof b);
        memcpy(&e, ema + at, sizeof e);
        CHECK_NEAR(e, a + 0.25 * (b - a), 1e-7);
        moved = fmax(moved, fabs(b - a));
    }
    CHECK(moved > 1e-3);
}

TEST(strategies_and_pieces_change_nothing)
{
    static const char *const keys[6][2] = {{"training.ema_decay", "0.9"}, {"export.which", "ema"}};
    static const char *const strategies[] = {"fsdp2", "ddp", "zero1", "fsdp1"};
    size_t bytes;
    char *whole = weights_with(keys, 3, &bytes);

    for (int i = 0; i < 4; i++) {
        story *s = anew(keys);

        story_set(s, "parallelism.strategy", strategies[i]);
        story_set(s, "checkpoint.folder", s->folder);
        story_stop(s, 3, 3);
        story_go_on(s, 3);
        story_check_weights(s, whole, bytes);
    }
}

/* All steps are done, and the export is of the average that the checkpoint has, whatever the number of ranks. */
TEST(other_ranks_export_the_same_average)
{
    static const char *const keys[6][2] = {{"training.ema_decay", "0.9"}, {"export.which", "ema"}};
    static const int worlds[] = {1, 2, 4, 8};
    size_t bytes;
    story *s = anew(keys);
    char *first;

    story_set(s, "training.global_batch_size", STORY_BATCH_OF_8);
    story_set(s, "checkpoint.folder", s->folder);
    story_go(s, 3);
    first = story_weights(s, &bytes);
    for (int i = 0; i < 4; i++) {
        story_go(s, worlds[i]);
        CHECK_EQ(s->resumed_step, STORY_STEPS);
        story_check_weights(s, first, bytes);
    }
}

TEST(training_does_not_change_by_it)
{
    static const char *const plain[6][2] = {{"validation.share", "0.2"}, {"validation.freq", "2"}};
    static const char *const averaged[6][2] = {{"validation.share", "0.2"},
                                               {"validation.freq", "2"},
                                               {"training.ema_decay", "0.9"},
                                               {"validation.which", "ema"}};
    static const char *const strategies[] = {"fsdp2", "ddp", "fsdp1", "zero1"};

    for (int i = 0; i < 4; i++) {
        char *weights[2];
        size_t bytes[2];

        for (int k = 0; k < 2; k++) {
            story *s = anew(k ? averaged : plain);

            story_set(s, "parallelism.strategy", strategies[i]);
            story_go(s, 2);
            weights[k] = story_weights(s, &bytes[k]);
        }
        CHECK_EQ(bytes[0], bytes[1]);
        CHECK_BYTES(weights[0], weights[1], bytes[0]);
    }
}

/* What there is of the weights and, behind them, of the average. */
static double *values_of(fsdp_train_run *run, size_t *count)
{
    double *values = NULL;

    *count = 0;
    for (int which = 0; which < 2; which++)
        for (int64_t i = 0; i < run->ema.average->count; i++) {
            const fsdp_state_dict_entry *entry = &run->ema.average->entries[i];
            const fsdp_tensor *tensor =
                which ? entry->tensor : fsdp_state_dict_find(run->ema.weights, entry->name)->tensor;
            size_t numel = (size_t)fsdp_tensor_numel(tensor);
            float *read = malloc((numel + 1) * sizeof *read);

            CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, read));
            values = realloc(values, (*count + numel + 1) * sizeof *values);
            for (size_t k = 0; k < numel; k++)
                values[(*count)++] = read[k];
            free(read);
        }
    return values;
}

/* A validation whose n-th allocation fails. */
typedef struct failing {
    const story *story;
    long n;
    bool hit;
} failing;

static void fail_at(fsdp_context *context, void *arg)
{
    failing *f = arg;
    fsdp_train_run *run = NULL;
    double *before, *after;
    fsdp_status status;
    size_t count;

    CHECK_OK(fsdp_train_run_create(context, f->story->config, &run));
    CHECK_OK(fsdp_train_step(run, NULL));
    before = values_of(run, &count);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->n);
    status = fsdp_train_validate(run, NULL);
    CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    after = values_of(run, &count);
    CHECK(memcmp(before, before + count / 2, count / 2 * sizeof *before) != 0);
    CHECK_BYTES(before, after, count * sizeof *before);
    free(before);
    free(after);
    fsdp_train_run_free(run);
    test_drop_workspace(context);
}

TEST(a_validation_that_fails_puts_the_weights_back)
{
    static const char *const keys[6][2] = {{"validation.share", "0.2"},
                                           {"validation.steps", "1"},
                                           {"training.ema_decay", "0.9"},
                                           {"validation.which", "ema"}};
    failing f = {.story = anew(keys), .n = 1, .hit = true};

    for (; f.hit; f.n += test_brief() ? 7 : 1)
        test_run_ranks(1, fail_at, &f);
}

TEST(an_average_that_is_not_there_is_refused)
{
    static const char *const none[6][2] = {{"export.which", "ema"}};
    static const char *const best[6][2] = {{"validation.share", "0.2"},
                                           {"training.ema_decay", "0.9"},
                                           {"validation.which", "ema"},
                                           {"export.which", "best"}};
    story *s = anew(none);

    story_run(s, 2);
    CHECK_CONTAINS(s->message, "export.which is ema, but there is no average of the weights: set training.ema_decay");
    s = anew(best);
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "validation.which is ema, but the weights of the best validation are to be exported");
}
