/* shard/order_build.h - where models live: residences of memory, and models built and freed in them. */
#ifndef TESTS_SHARD_ORDER_BUILD_H
#define TESTS_SHARD_ORDER_BUILD_H

#include "shard/order_calls.h"

typedef struct order_residence {
    const char *name;
    bool copy;
    fsdp_overlap overlap;
    bool behind; /* the device runs behind the host */
} order_residence;

enum {
    ORDER_RESIDENCES = 6
};
/* With bf16 parameters shared memory is CAST. */
extern const order_residence order_residences[ORDER_RESIDENCES];

struct order_run {
    const order_program *program;
    const order_residence *residence; /* NULL: plain */
    order_log logs[ORDER_MAX_WORLD];
    int at[ORDER_MAX_WORLD]; /* call that each rank is in */
};

void order_build(order_player *player, const order_run *run, int index);
/* Losses may outlive the model they came from. */
void order_tear_down(order_model *m, bool losses_last);
void play_rebuild(order_player *player, const order_call *call);

#endif
