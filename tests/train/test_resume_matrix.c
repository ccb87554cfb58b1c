/* A checkpoint of any number of ranks, in any strategy, is gone on from by any other: the same weights, optimizer state
 * and place in the data, to the bit. */

#include "train/run.h"
#include "train/story.h"

static const int worlds[] = {1, 2, 3, 4, 8};
static const char *const strategies[] = {"fsdp2", "fsdp1", "original", "ddp", "zero1", "zero2", "zero3", "hsdp"};
static const char *const dtypes[] = {"float32", "bfloat16"};

enum {
    WORLDS = sizeof worlds / sizeof *worlds,
    STRATEGIES = sizeof strategies / sizeof *strategies,
    CASES = WORLDS * STRATEGIES * 2, /* of one side */
    DRAWN = 24,
    DRAWN_LONG = 400 /* under a sanitizer, where all take hours */
};

/* One side of a case, of CASES. */
typedef struct side {
    int world;
    const char *strategy, *dtype;
} side;

static side side_of(unsigned number)
{
    return (side){worlds[number % WORLDS], strategies[number / WORLDS % STRATEGIES],
                  dtypes[number / WORLDS / STRATEGIES % 2]};
}

static void set_side(story *s, const side *what)
{
    bool original = strcmp(what->strategy, "original") == 0, hsdp = strcmp(what->strategy, "hsdp") == 0;
    char copies[12];

    /* One rank has no copies. */
    snprintf(copies, sizeof copies, "%d", !hsdp ? 1 : what->world % 2 == 0 ? 2 : what->world);
    story_set(s, "parallelism.strategy", original ? "fsdp1" : hsdp && what->world == 1 ? "fsdp2" : what->strategy);
    story_set(s, "parallelism.fsdp1_use_orig_params", original ? "true" : "");
    story_set(s, "parallelism.data_parallel_replicate_degree", copies);
    /* DDP computes in the dtype of its parameters. */
    story_set(s, "training.mixed_precision_param", strcmp(what->strategy, "ddp") == 0 ? "float32" : what->dtype);
}

static void pass(unsigned from_number, unsigned to_number)
{
    side from = side_of(from_number), to = side_of(to_number);
    story_passage p = {.left = {.step = -1}};

    p.story = story_new();
    if (from.world == 8 || to.world == 8)
        story_set(p.story, "training.global_batch_size", STORY_BATCH_OF_8);
    story_set(p.story, "checkpoint.folder", p.story->folder);
    set_side(p.story, &from);
    test_run_ranks(from.world, story_leave, &p);
    set_side(p.story, &to);
    test_run_ranks(to.world, story_find, &p);
    if (p.left.model != p.found.model || p.left.optimizer != p.found.optimizer || p.left.step != p.found.step ||
        p.left.window != p.found.window || p.left.optimizer == 0)
        TEST_FAIL(
            "%d ranks, %s, %s -> %d ranks, %s, %s: weights %s, optimizer state %s, step %d -> %d, window %d -> %d",
            from.world, from.strategy, from.dtype, to.world, to.strategy, to.dtype,
            p.left.model == p.found.model ? "the same" : "differ",
            p.left.optimizer == p.found.optimizer ? "the same" : "differs", (int)p.left.step, (int)p.found.step,
            (int)p.left.window, (int)p.found.window);
}

TEST(any_side_goes_on_from_any)
{
    int drawn = test_long() ? DRAWN_LONG : test_brief() ? DRAWN / 4 : DRAWN;
    uint64_t draw = 12345;

    if (test_long() && !TEST_SANITIZED) {
        for (unsigned from = 0; from < CASES; from++)
            for (unsigned to = 0; to < CASES; to++)
                pass(from, to);
        return;
    }
    for (int i = 0; i < drawn; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        pass((unsigned)(draw >> 33) % CASES, (unsigned)(draw >> 45) % CASES);
    }
}
