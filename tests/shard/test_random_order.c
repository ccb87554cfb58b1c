/* The random-order test: 5 to 40 public calls in any order, drawn from a seed, on one small network or two, give the
 * same in every residence of memory, inline and on worker streams, at any speed of the ranks; and in f32 what plain
 * networks give. It also knows what fields name: whole tensors, or shards.
 *
 * It is the random-tree test with other plans: tree_orders.c draws the networks, tree_program.c the calls.
 * Links: optim state launch parallel checkpoint */
#include "fsdp/launch.h"
#include "shard/residences.h"
#include "shard/tree_draw.h"
#include "shard/tree_trial.h"
#include "support/ranks.h"

/* All residences; of many sequences the first, another in shared memory and one that copies. */
static uint32_t residences_of(uint64_t seed)
{
    return test_long() ? (1u << RESIDENCES) - 1 : 1u | 2u << seed % 2 | 8u << seed / 2 % 3;
}

TEST(every_order_gives_the_same)
{
    const tree_trial trial = {.name = "ORDER",
                              .draw = tree_draw_orders,
                              .residences = residences_of,
                              .shorter = 30,
                              .brief = 10,
                              .longer = TEST_SANITIZED ? 2000 : 20000};

    tree_try(&trial);
}

/* Each rank is a team, which has cut the networks' parameters in drawn ways. */
TEST(every_order_of_teams_gives_the_same)
{
    const tree_trial trial = {.name = "TEAM_ORDERS",
                              .draw = tree_draw_team_orders,
                              .residences = residences_of,
                              .shorter = 15,
                              .brief = 5,
                              .longer = TEST_SANITIZED ? 1000 : 10000};

    if (test_machines_of(24) > 1 || getenv("FSDP_TEST_JOINED"))
        return; /* teams lie inside a machine */
    tree_try(&trial);
}

TEST_FILE_JOINED()
