/* shard/order_build.h - models built and freed in every residence. */
#ifndef TESTS_SHARD_ORDER_BUILD_H
#define TESTS_SHARD_ORDER_BUILD_H

#include "shard/order_calls.h"
#include "shard/residences.h"

struct order_run {
    const order_program *program;
    const residence *residence; /* NULL: plain */
    run_log logs[ORDER_MAX_WORLD];
    int at[ORDER_MAX_WORLD]; /* call that each rank is in */
};

void order_build(order_player *player, const order_run *run, int index);
/* Losses may outlive the model they came from. */
void order_tear_down(order_model *m, bool losses_last);
void play_rebuild(order_player *player, const order_call *call);

#endif
