/* forward_order.h - records in which order the forwards of an outermost module come to the sharded modules
 * below it. The next forward is expected to use the same order. That is a guess, and the same guess on all ranks, since
 * all of them run the same forwards. */
#pragma once

#include "shard/state/module_state.h"

typedef struct fsdp__forward_order {
    fsdp__module_state **now, **before; /* first uses in the running forward, and in the one before; NULL: freed */
    int64_t now_count, now_capacity, before_count, before_capacity;
} fsdp__forward_order;

/* Begins a forward of the outermost module. */
void fsdp__forward_order_begin(fsdp__forward_order *order);
/* Records that the forward comes to `state`. `*next` is the state expected after that; NULL if `state` was used before
 * in this forward, or if nothing is expected. */
fsdp_status fsdp__forward_order_enter(fsdp__forward_order *order, fsdp__module_state *state, fsdp__module_state **next);
/* Returns the state that came after `state` in the forward before and has not been used in this one; NULL if there is
 * none. */
fsdp__module_state *fsdp__forward_order_after(const fsdp__forward_order *order, const fsdp__module_state *state);
/* Removes `state` from both lists. */
void fsdp__forward_order_forget(fsdp__forward_order *order, const fsdp__module_state *state);
void fsdp__forward_order_release(fsdp__forward_order *order);
