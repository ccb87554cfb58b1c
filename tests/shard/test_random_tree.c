/* The random-tree test: a module tree drawn from a seed, sharded in a drawn way, and a few training steps of drawn
 * calls give what the plain tree gives on the batches of all ranks: losses, gradients and which there are, parameters.
 * The same bits where sums are made in the same order, and in every residence of memory always; and after equal steps
 * the same bytes live.
 *
 * shard/tree_trial.h has the variables that repeat a tree. What a tree may have stands in tree_plan.h: a new option is
 * drawn in tree_draw.c, taken up in tree_player.c and shown in tree_print.c; a new call is a kind of tree_kinds.c.
 * Links: optim parallel */
#include "shard/residences.h"
#include "shard/tree_draw.h"
#include "shard/tree_trial.h"
#include "support/ranks.h"

/* All residences, or one in shared memory and one that copies. */
static uint32_t residences_of(uint64_t seed)
{
    return test_long() ? (1u << RESIDENCES) - 1 : 1u << seed % 3 | 8u << seed / 3 % 3;
}

TEST(every_tree_trains_as_the_plain_one)
{
    const tree_trial trial = {.name = "TREE",
                              .draw = tree_draw,
                              .residences = residences_of,
                              .shorter = 40,
                              .brief = 12,
                              .longer = TEST_SANITIZED ? 500 : 5000};

    tree_try(&trial);
}

/* Each rank is a team, which computes with parameters that it has cut in drawn ways: by outputs, by inputs, by rows of
 * the batch. */
TEST(every_tree_of_teams_trains_as_the_plain_one)
{
    const tree_trial trial = {.name = "TEAMS",
                              .draw = tree_draw_teams,
                              .residences = residences_of,
                              .shorter = 20,
                              .brief = 8,
                              .longer = TEST_SANITIZED ? 500 : 5000};

    if (test_machines_of(24) > 1 || getenv("FSDP_TEST_JOINED"))
        return; /* teams lie inside a machine */
    tree_try(&trial);
}

/* Otherwise a plan that fails would be reduced to one that cannot be, which fails of itself. */
TEST(a_reduced_plan_fails_as_the_whole_one_does)
{
    const char *whole = "rank 0, model A: gradient of parameter 3, element 7: -0.25, not 1e-08 (within 1e-06)\n"
                        "at call 31, in 'shared', as against 'plain'";

    CHECK(tree_fails_alike("rank 2, model A: gradient of parameter 0, element 12: 3, not 0.125 (within 0.01)\n"
                           "at call 2, in 'copied', as against 'shared'",
                           whole));
    CHECK(!tree_fails_alike("rank 0, model A: value of parameter 3, element 7: 0.25, not 1e-08 (within 1e-06)\n"
                            "at call 31, in 'shared', as against 'plain'",
                            whole));
    CHECK(!tree_fails_alike("rank 0: cannot shard '0.1': it has no parameters\nat call 1, in 'shared'", whole));
    CHECK(tree_fails_alike("rank 0: cannot shard '0.1': it has none\nat call 1, in 'shared'",
                           "rank 1: cannot shard '2': it has none\nat call 9, in 'copied'"));
    CHECK(!tree_fails_alike("rank 0: cannot", "rank 0: cannot shard"));
}
