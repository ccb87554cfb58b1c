/* shard/order_sketch.h - what drawing knows of a model. It is the semantics that the test asserts:
 *   - the fields of a group name whole tensors from an unshard to its reshard, to a forward or backward that reshards
 *     it, to a write to one of its shards, to a reset; never else;
 *   - a backward adds to what is unreduced and at its end reduces all that is unreduced in groups that sync;
 *   - a write, a step, a zero_grad or a freeze is on the shards, whatever the fields name. */
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
    bool unsettled; /* a backward that was not the last has not been followed by one that was */
    bool saved, optimizer, clipped;
    uint32_t windows;           /* groups between an unshard and its reshard */
    uint32_t sync;              /* groups that reduce */
    uint32_t reshards_backward; /* groups */
    fsdp_reshard reshard[ORDER_MAX_GROUPS];
    uint32_t frozen, unreduced, reduced, optimized; /* parameters */
    order_slot slots[ORDER_SLOTS];
} order_sketch;

typedef struct order_draw {
    uint64_t random;
    order_program *program;
    int limit;      /* of the program's calls */
    bool root_only; /* targets are the root */
    order_sketch sketches[ORDER_MODELS];
} order_draw;

static const order_plan *order_plan_of(const order_draw *d, const order_call *c)
{
    return &d->program->plans[c->model];
}

static order_sketch *order_sketch_of(order_draw *d, const order_call *c)
{
    return &d->sketches[c->model];
}

static int pick(order_draw *d, int count)
{
    return order_below(&d->random, count);
}

static const order_target *target_of(const order_draw *d, const order_call *c)
{
    return &order_plan_of(d, c)->targets[c->target];
}

static void order_sketch_begin(order_sketch *sketch, const order_plan *plan)
{
    *sketch = (order_sketch){.last = true, .sync = plan->all_groups, .reshards_backward = plan->all_groups};
    memcpy(sketch->reshard, plan->reshard, sizeof plan->reshard);
}

/* ---- choosing ---- */

/* Half of the calls are made on the root. */
static void any_target(order_draw *d, order_call *c)
{
    c->target = d->root_only || pick(d, 2) ? 0 : pick(d, order_plan_of(d, c)->target_count);
}

static bool sharded_target(order_draw *d, order_call *c)
{
    any_target(d, c);
    return target_of(d, c)->group >= 0;
}

static void any_param(order_draw *d, order_call *c)
{
    const order_plan *plan = order_plan_of(d, c);

    c->param = pick(d, plan->param_count);
    c->windowed = order_params_of(plan, order_sketch_of(d, c)->windows) >> c->param & 1;
}

/* A loss in one of the states of the mask. */
static bool slot_in(order_draw *d, order_call *c, uint32_t states)
{
    const order_sketch *s = order_sketch_of(d, c);

    c->slot = pick(d, ORDER_SLOTS);
    for (int i = 0; i < ORDER_SLOTS; i++, c->slot = (c->slot + 1) % ORDER_SLOTS)
        if (states >> s->slots[c->slot].state & 1)
            return true;
    return false;
}

static bool alive_slot(order_draw *d, order_call *c)
{
    return slot_in(d, c, 1u << ORDER_SLOT_ALIVE | 1u << ORDER_SLOT_KEPT);
}

static bool free_slot(order_draw *d, order_call *c)
{
    return slot_in(d, c, 1u << ORDER_SLOT_EMPTY) || slot_in(d, c, 1u << ORDER_SLOT_WALKED);
}

/* ---- effects ---- */

static bool reshards_after_forward(const order_sketch *s, int group)
{
    return s->reshard[group] == FSDP_RESHARD_ALWAYS || (s->reshard[group] == FSDP_RESHARD_AUTO && group != 0);
}

static void pass_forward(order_draw *d, const order_call *c)
{
    const order_plan *plan = order_plan_of(d, c);
    order_sketch *s = order_sketch_of(d, c);
    uint32_t groups = c->target == 0 ? plan->all_groups : 1u << plan->targets[c->target].group;

    for (int g = 0; g < plan->group_count; g++)
        if (groups >> g & 1 && reshards_after_forward(s, g))
            s->windows &= ~(1u << g);
    s->ran = true;
}

static void write_params(order_draw *d, const order_call *c, uint32_t params)
{
    order_sketch_of(d, c)->windows &= ~order_groups_of(order_plan_of(d, c), params);
}

static void reset(order_sketch *s)
{
    s->windows = 0;
    s->unreduced = 0;
}

#endif
