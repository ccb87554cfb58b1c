/* order_sketch.c - the sketch: how calls change what is known of a model. */
#include "shard/order_sketch.h"

const order_plan *order_plan_of(const order_draw *d, const order_call *c)
{
    return &d->program->plans[c->model];
}

order_sketch *order_sketch_of(order_draw *d, const order_call *c)
{
    return &d->sketches[c->model];
}

int pick(order_draw *d, int count)
{
    return dice_below(&d->random, count);
}

const order_target *target_of(const order_draw *d, const order_call *c)
{
    return &order_plan_of(d, c)->targets[c->target];
}

void order_sketch_begin(order_sketch *sketch, const order_plan *plan)
{
    *sketch = (order_sketch){
        .last = true, .sync = plan->all_groups, .all_reduce = plan->all_groups, .reshards_backward = plan->all_groups};
    if (plan->whole)
        sketch->reshards_backward = 0;
    memcpy(sketch->reshard, plan->reshard, sizeof plan->reshard);
    for (int g = 0; g < plan->group_count; g++)
        if (plan->slice_ranks[g])
            sketch->reshard[g] = plan->slice_ranks[g] == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS;
    for (int g = 0; g < plan->group_count; g++)
        if (plan->zero_stage[g] == 1 || plan->zero_stage[g] == 2)
            sketch->reshard[g] = FSDP_RESHARD_NEVER;
}

/* ---- choosing ---- */

void any_target(order_draw *d, order_call *c)
{
    c->target = d->root_only || pick(d, 2) ? 0 : pick(d, order_plan_of(d, c)->target_count);
}

bool sharded_target(order_draw *d, order_call *c)
{
    any_target(d, c);
    return target_of(d, c)->group >= 0;
}

void any_param(order_draw *d, order_call *c)
{
    const order_plan *plan = order_plan_of(d, c);

    c->param = pick(d, plan->param_count);
    c->windowed = order_params_of(plan, order_sketch_of(d, c)->windows) >> c->param & 1;
}

bool slot_in(order_draw *d, order_call *c, uint32_t states)
{
    const order_sketch *s = order_sketch_of(d, c);

    c->slot = pick(d, ORDER_SLOTS);
    for (int i = 0; i < ORDER_SLOTS; i++, c->slot = (c->slot + 1) % ORDER_SLOTS)
        if (states >> s->slots[c->slot].state & 1)
            return true;
    return false;
}

bool alive_slot(order_draw *d, order_call *c)
{
    return slot_in(d, c, 1u << ORDER_SLOT_ALIVE | 1u << ORDER_SLOT_KEPT);
}

bool free_slot(order_draw *d, order_call *c)
{
    return slot_in(d, c, 1u << ORDER_SLOT_EMPTY) || slot_in(d, c, 1u << ORDER_SLOT_WALKED);
}

/* ---- effects ---- */

uint32_t syncing(const order_sketch *s)
{
    return s->no_sync > 0 ? 0 : s->sync;
}

static bool reshards_after_forward(const order_sketch *s, int group)
{
    return s->reshard[group] == FSDP_RESHARD_ALWAYS || (s->reshard[group] == FSDP_RESHARD_AUTO && group != 0);
}

void pass_forward(order_draw *d, const order_call *c)
{
    const order_plan *plan = order_plan_of(d, c);
    order_sketch *s = order_sketch_of(d, c);
    uint32_t groups = c->target == 0 ? plan->all_groups : 1u << plan->targets[c->target].group;

    for (int g = 0; g < plan->group_count; g++)
        if (groups >> g & 1 && reshards_after_forward(s, g))
            s->windows &= ~(1u << g);
    s->ran = true;
    s->requested = 0;
}

void write_params(order_draw *d, const order_call *c, uint32_t params)
{
    order_sketch *s = order_sketch_of(d, c);

    s->windows &= ~order_groups_of(order_plan_of(d, c), params);
    s->requested &= ~order_groups_of(order_plan_of(d, c), params);
    for (int i = 0; i < ORDER_SLOTS && params && order_replicates(d->program); i++)
        s->slots[i].state = ORDER_SLOT_EMPTY;
}

void reset(order_sketch *s)
{
    s->windows = s->requested = 0;
    s->unreduced = s->partial = 0;
}
