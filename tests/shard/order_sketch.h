/* shard/order_sketch.h - what drawing knows of a model. It is the semantics that the test asserts:
 *   - the fields of a group name whole tensors from an unshard, or the wait for one, to its reshard, to a forward or
 *     backward that reshards it, to a write to one of its shards, to a reset; never else;
 *   - a backward adds to what is unreduced and at its end reduces all that is unreduced in groups that sync, and
 *     completes all that is partial in groups that also all-reduce;
 *   - a write, a step, a zero_grad or a freeze is on the shards, whatever the fields name;
 *   - the backward of a forward before a write gathers what was written; that of a replicated model is an error, and
 *     not drawn. */
#ifndef TESTS_SHARD_ORDER_SKETCH_H
#define TESTS_SHARD_ORDER_SKETCH_H

#include "shard/order_program.h"

typedef enum order_slot_state {
    ORDER_SLOT_EMPTY,
    ORDER_SLOT_ALIVE,
    ORDER_SLOT_KEPT, /* walked with its graph kept */
    ORDER_SLOT_WALKED,
} order_slot_state;

typedef struct order_slot {
    order_slot_state state;
    int target;
    uint32_t params; /* that will get a gradient */
} order_slot;

typedef struct order_sketch {
    bool ran;       /* the root has, so the tree is known */
    bool last;      /* is_last_backward */
    int no_sync;    /* begun, and not ended */
    bool unsettled; /* a backward that was not the last has not been followed by one that was */
    bool saved, optimizer, clipped;
    uint32_t windows;           /* groups between an unshard and its reshard */
    uint32_t requested;         /* groups that are unsharded, not waited for, and not used since for sure */
    uint32_t sync;              /* groups that reduce */
    uint32_t all_reduce;        /* groups that reduce over the replicas, too */
    uint32_t reshards_backward; /* groups */
    fsdp_reshard reshard[ORDER_MAX_GROUPS];
    uint32_t frozen, unreduced, partial, reduced, optimized; /* parameters */
    order_slot slots[ORDER_SLOTS];
} order_sketch;

typedef struct order_draw {
    uint64_t random;
    order_program *program;
    int limit;      /* of the program's calls */
    bool root_only; /* targets are the root */
    order_sketch sketches[ORDER_MODELS];
} order_draw;

const order_plan *order_plan_of(const order_draw *d, const order_call *c);
order_sketch *order_sketch_of(order_draw *d, const order_call *c);
int pick(order_draw *d, int count);
const order_target *target_of(const order_draw *d, const order_call *c);
void order_sketch_begin(order_sketch *sketch, const order_plan *plan);

/* ---- choosing ---- */

/* Half of the calls are made on the root. */
void any_target(order_draw *d, order_call *c);
bool sharded_target(order_draw *d, order_call *c);
void any_param(order_draw *d, order_call *c);
/* A loss in one of the states of the mask. */
bool slot_in(order_draw *d, order_call *c, uint32_t states);
bool alive_slot(order_draw *d, order_call *c);
bool free_slot(order_draw *d, order_call *c);

/* ---- effects ---- */

/* Groups that a backward reduces. */
uint32_t syncing(const order_sketch *s);
void pass_forward(order_draw *d, const order_call *c);
void write_params(order_draw *d, const order_call *c, uint32_t params);
void reset(order_sketch *s);

#endif
