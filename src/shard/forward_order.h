/* shard/forward_order.h - in which order the forwards of an outermost module come to what is sharded below it. The
 * order of a forward is expected of the next one: what comes next is a guess, the same on all ranks, for all of them
 * run the same forwards. */
#ifndef SHARD_FORWARD_ORDER_H
#define SHARD_FORWARD_ORDER_H

#include "shard/state.h"

typedef struct fsdp__forward_order {
    fsdp__module_state **now, **before; /* first uses in the forward that runs, and in the last one; NULL: freed */
    int64_t now_count, now_capacity, before_count, before_capacity;
} fsdp__forward_order;

/* A forward of the outermost module begins. */
void fsdp__forward_order_begin(fsdp__forward_order *order);
/* It comes to `state`. `*next`: what is expected after that; NULL where `state` has been come to before. */
fsdp_status fsdp__forward_order_enter(fsdp__forward_order *order, fsdp__module_state *state, fsdp__module_state **next);
/* What came after `state` in the forward before, and has not been come to in this one; NULL where nothing did. */
fsdp__module_state *fsdp__forward_order_after(const fsdp__forward_order *order, const fsdp__module_state *state);
/* `state` goes. */
void fsdp__forward_order_forget(fsdp__forward_order *order, const fsdp__module_state *state);
void fsdp__forward_order_release(fsdp__forward_order *order);

#endif
