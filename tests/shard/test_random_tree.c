/* The random-tree test: a module tree drawn from a seed, sharded in a drawn way, and a few training steps of drawn
 * calls give what the plain tree gives on the batches of all ranks: losses, gradients and which there are, parameters.
 * The same bits where sums are made in the same order, and in every residence of memory always; and after equal steps
 * the same bytes live.
 *
 * A tree that fails is reduced, and printed with its seed. In the environment:
 *     FSDP_TREE_SEED=n     runs only tree n, in every residence
 *     FSDP_TREE_FROM=n     begins with tree n
 *     FSDP_TREE_COUNT=n    runs so many
 *     FSDP_TREE_TRACE=1    prints calls as rank 0 makes them
 * What a tree may have stands in tree_plan.h: a new option is drawn in tree_draw.c, taken up in tree_player.c and shown
 * in tree_print.c; a new call is a kind, drawn there and carried out in tree_calls.c.
 * Links: optim */
#include "shard/residences.h"
#include "shard/tree_draw.h"
#include "shard/tree_print.h"
#include "shard/tree_trial.h"

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text ? atoi(text) : otherwise;
}

static bool tree_number_passes(int seed, uint32_t which)
{
    static tree_plan plan;
    char text[4096];

    tree_draw((uint64_t)seed, &plan);
    if (tree_passes(&plan, which, text, sizeof text))
        return true;
    fprintf(stderr, "%s\nin this tree, FSDP_TREE_SEED=%d repeats it:\n", text, seed);
    tree_print(stderr, &plan);
    tree_reduce(&plan, which);
    if (!tree_passes(&plan, which, text, sizeof text)) {
        fprintf(stderr, "%s\nreduced to this:\n", text);
        tree_print(stderr, &plan);
    }
    return false;
}

/* All residences, or one in shared memory and one that copies. */
static uint32_t residences_of(int seed)
{
    return test_long() ? (1u << RESIDENCES) - 1 : 1u << seed % 3 | 8u << seed / 3 % 3;
}

enum {
    SHORT = 75,
    BRIEF = 25,
    LONG = TEST_SANITIZED ? 500 : 5000
};

static void every_tree_trains_as_the_plain_one(void **state)
{
    int only = number_from("FSDP_TREE_SEED", 0), from = number_from("FSDP_TREE_FROM", 1);
    int count = number_from("FSDP_TREE_COUNT", test_long() ? LONG : test_brief() ? BRIEF : SHORT), failed = 0;

    (void)state;
    if (only) {
        CHECK(tree_number_passes(only, (1u << RESIDENCES) - 1));
        return;
    }
    for (int seed = from; seed < from + count; seed++)
        failed += !tree_number_passes(seed, residences_of(seed));
    if (failed)
        TEST_FAIL("%d of %d trees failed", failed, count);
}

TEST_MAIN(cmocka_unit_test(every_tree_trains_as_the_plain_one))
