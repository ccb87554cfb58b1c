/* test_places.c - ranks are numbered by machine. */
#include "comm/transport/network/numbering.h"
#include "comm/transport/order.h"
#include "support/test.h"

/* As a carrier numbers them: `lowest` has the lowest rank of each one's machine. */
static fsdp_status make(const int *lowest, int ranks, int mine, fsdp__places *out)
{
    fsdp__network_world all[16] = {{0}};

    for (int r = 0; r < ranks; r++) {
        all[r].machine = lowest[r];
        snprintf(all[r].host, sizeof all[r].host, "host%d", lowest[r]);
    }
    return fsdp__places_make(all, ranks, mine, out);
}

TEST(ranks_follow_their_machines)
{
    static const int round_robin[] = {0, 1, 2, 0, 1, 2}, carriers[] = {0, 3, 1, 4, 2, 5};
    fsdp__places places;

    CHECK_OK(make(round_robin, 6, 4, &places));
    CHECK_EQ(places.machines, 3);
    CHECK_EQ(places.machine_ranks, 2);
    CHECK_EQ(places.rank, 3);
    for (int r = 0; r < 6; r++) {
        CHECK_EQ(places.carriers[r], carriers[r]);
        CHECK_EQ(places.of_carrier[carriers[r]], r);
        CHECK_EQ(fsdp__machine_of(&places, r), r / 2);
    }
    CHECK_STRING(places.hosts[0], "host0");
    CHECK_STRING(places.hosts[2], "host2");
    fsdp__places_release(&places);
}

TEST(unequal_machines_are_refused)
{
    static const int unequal[] = {0, 0, 2, 0, 2}, wrong[] = {0, 2, 2};
    fsdp__places places;

    CHECK_ERROR(make(unequal, 5, 0, &places), FSDP_INVALID, "machine 'host0' has 3 ranks, machine 'host2' has 2");
    CHECK_ERROR(make(wrong, 3, 0, &places), FSDP_COMM, "rank 1 says that its machine begins with rank 2");
}

TEST(whole_equal_blocks_are_added_first)
{
    CHECK_EQ(fsdp__order_block((const int[]){0, 1, 2, 3}, 4, 2), 2);
    CHECK_EQ(fsdp__order_block((const int[]){0, 2, 4, 6}, 4, 4), 2);
    CHECK_EQ(fsdp__order_block((const int[]){1, 2, 5, 6, 9, 10}, 6, 4), 2);
    CHECK_EQ(fsdp__order_block((const int[]){0, 1, 2}, 3, 2), 0);    /* unequal */
    CHECK_EQ(fsdp__order_block((const int[]){0, 2, 4}, 3, 2), 0);    /* one each */
    CHECK_EQ(fsdp__order_block((const int[]){0, 1, 2}, 3, 4), 0);    /* one machine */
    CHECK_EQ(fsdp__order_block((const int[]){0, 1, 2, 4}, 4, 3), 0); /* three and one */
    CHECK_EQ(fsdp__order_block((const int[]){0, 1, 2, 3}, 4, 0), 0); /* not told */
}
