/* order_draw.c - one function a call, and the choice between them. */
#include "shard/order_draw.h"

/* ---- forward and backward ---- */

bool draw_forward(order_draw *d, order_call *c)
{
    const order_plan *plan = order_plan_of(d, c);
    order_sketch *s = order_sketch_of(d, c);

    if (!free_slot(d, c))
        return false;
    if (c->target < 0)
        c->target = 0;
    c->number = pick(d, 8);
    s->slots[c->slot] =
        (order_slot){.state = ORDER_SLOT_ALIVE,
                     .target = c->target,
                     .params = (c->target == 0 ? plan->forward_params : target_of(d, c)->params) & ~s->frozen};
    pass_forward(d, c);
    return true;
}

/* A block that is sharded on its own, or with others. */
static bool part_target(order_draw *d, order_call *c)
{
    c->target = 1 + pick(d, order_plan_of(d, c)->blocks);
    return order_sketch_of(d, c)->ran && target_of(d, c)->group >= 0;
}

bool draw_forward_part(order_draw *d, order_call *c)
{
    return part_target(d, c) && draw_forward(d, c);
}

bool draw_evaluate(order_draw *d, order_call *c)
{
    if (!dice_chance(&d->random, 20) || !part_target(d, c))
        c->target = 0;
    c->number = pick(d, 8);
    pass_forward(d, c);
    return true;
}

/* A group of several modules is reduced as each of them has gone back: what was unreduced before goes with the first,
 * what comes now may go with a later one. */
static bool reduces_in_parts(const order_draw *d, const order_call *c, uint32_t unreduced)
{
    const order_plan *plan = order_plan_of(d, c);

    return (plan->grouping == ORDER_GROUP_PAIR_BLOCKS && unreduced & plan->group_params[1]) ||
           (plan->grouping == ORDER_GROUP_PAIR_ENDS && unreduced & plan->group_params[plan->group_count - 1]);
}

/* What the call reduces is no longer unreduced, and what it completes no longer partial. */
static void reduce(order_sketch *s, const order_call *c)
{
    uint32_t scattered = s->unreduced & c->params, completed;

    s->unreduced &= ~scattered;
    s->partial |= scattered;
    completed = s->partial & c->completes;
    s->partial &= ~completed;
    s->reduced |= completed;
}

/* Of FSDP1's units those that stay whole until a backward reduces them. */
static uint32_t keep_unsynced(const order_plan *plan, const order_sketch *s)
{
    uint32_t keep = 0;

    for (int g = 0; g < plan->group_count && plan->flat; g++)
        if (plan->reshard[g] == FSDP_RESHARD_NEVER)
            keep |= 1u << g;
    return keep & ~syncing(s);
}

static void walk_back(order_draw *d, order_call *c, order_slot_state after)
{
    const order_plan *plan = order_plan_of(d, c);
    order_sketch *s = order_sketch_of(d, c);

    c->params = order_params_of(plan, syncing(s));
    c->completes = d->program->replicas > 0 ? order_params_of(plan, syncing(s) & s->all_reduce) : c->params;
    if (s->slots[c->slot].params == 0)
        return; /* it will be refused */
    if (reduces_in_parts(d, c, (s->unreduced | s->partial) & c->params))
        d->program->exact = false;
    s->unreduced |= s->slots[c->slot].params;
    reduce(s, c);
    s->windows &= ~(s->reshards_backward & ~keep_unsynced(plan, s));
    s->requested = 0;
    s->unsettled = !s->last;
    s->slots[c->slot].state = after;
}

bool draw_backward(order_draw *d, order_call *c)
{
    if (!alive_slot(d, c))
        return false;
    walk_back(d, c, ORDER_SLOT_WALKED);
    return true;
}

bool draw_backward_keep(order_draw *d, order_call *c)
{
    if (!alive_slot(d, c))
        return false;
    walk_back(d, c, ORDER_SLOT_KEPT);
    return true;
}

bool draw_drop(order_draw *d, order_call *c)
{
    if (!alive_slot(d, c))
        return false;
    order_sketch_of(d, c)->slots[c->slot].state = ORDER_SLOT_EMPTY;
    return true;
}

/* ---- whole and sharded ---- */

bool draw_unshard(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    order_sketch_of(d, c)->windows |= 1u << target_of(d, c)->group;
    order_sketch_of(d, c)->requested &= ~(1u << target_of(d, c)->group);
    return true;
}

bool draw_unshard_async(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    order_sketch_of(d, c)->requested |= 1u << target_of(d, c)->group;
    return true;
}

/* Of what was not asked for it does nothing. */
bool draw_wait_unshard(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c) || !(order_sketch_of(d, c)->requested >> target_of(d, c)->group & 1))
        return false;
    order_sketch_of(d, c)->requested &= ~(1u << target_of(d, c)->group);
    order_sketch_of(d, c)->windows |= 1u << target_of(d, c)->group;
    return true;
}

bool draw_reshard(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    order_sketch_of(d, c)->requested &= ~(1u << target_of(d, c)->group);
    order_sketch_of(d, c)->windows &= ~(1u << target_of(d, c)->group);
    return true;
}

bool draw_reshard_all(order_draw *d, order_call *c)
{
    any_target(d, c);
    order_sketch_of(d, c)->windows &= ~target_of(d, c)->groups_in;
    order_sketch_of(d, c)->requested &= ~target_of(d, c)->groups_in;
    return true;
}

bool draw_in_window(order_draw *d, order_call *c)
{
    return order_sketch_of(d, c)->windows != 0;
}

bool draw_always(order_draw *d, order_call *c)
{
    (void)d;
    (void)c;
    return true;
}

bool draw_settled(order_draw *d, order_call *c)
{
    return !order_sketch_of(d, c)->unsettled;
}

/* ---- gradients and the optimizer ---- */

bool draw_zero_grad(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);

    if (s->unsettled)
        return false;
    any_target(d, c);
    if (order_plan_of(d, c)->as_one && target_of(d, c)->group < 0)
        return false; /* a part of a unit has no gradient of its own */
    s->reduced &= ~target_of(d, c)->params;
    s->unreduced &= ~target_of(d, c)->params;
    s->partial &= ~target_of(d, c)->params;
    return true;
}

bool draw_optimizer_zero_grad(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);

    if (s->unsettled || !s->optimizer)
        return false;
    c->params = s->optimized;
    s->reduced &= ~s->optimized;
    s->unreduced &= ~s->optimized;
    s->partial &= ~s->optimized;
    s->clipped = false;
    return true;
}

bool draw_step(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);

    if (s->unsettled || !s->optimizer)
        return false;
    write_params(d, c, s->optimized & s->reduced);
    if (s->clipped && d->program->world > 1)
        d->program->exact = false; /* the factor follows from a norm that is summed over ranks in f32 */
    s->clipped = false;
    return true;
}

bool draw_clip(order_draw *d, order_call *c)
{
    static const float norms[] = {0, 0, 0.5f, 2.0f};
    order_sketch *s = order_sketch_of(d, c);

    if (s->unsettled || !s->optimizer)
        return false;
    c->value = norms[pick(d, 4)];
    s->clipped = c->value > 0;
    return true;
}

bool draw_unscale(order_draw *d, order_call *c)
{
    const order_sketch *s = order_sketch_of(d, c);

    return !s->unsettled && s->optimizer;
}

bool draw_new_optimizer(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);
    uint32_t trained = order_plan_of(d, c)->all_params & ~s->frozen;

    if (s->windows || !trained)
        return false;
    c->number = pick(d, 2); /* SGD or AdamW */
    s->optimized = trained;
    s->optimizer = true;
    s->clipped = false;
    return true;
}

bool draw_freeze(order_draw *d, order_call *c)
{
    any_target(d, c);
    order_sketch_of(d, c)->frozen |= target_of(d, c)->params;
    return true;
}

bool draw_unfreeze(order_draw *d, order_call *c)
{
    any_target(d, c);
    order_sketch_of(d, c)->frozen &= ~target_of(d, c)->params;
    return true;
}

bool draw_freeze_one(order_draw *d, order_call *c)
{
    any_param(d, c);
    order_sketch_of(d, c)->frozen ^= 1u << c->param;
    c->number = order_sketch_of(d, c)->frozen >> c->param & 1;
    return true;
}

/* ---- settings ---- */

static uint32_t groups_of_setting(order_draw *d, order_call *c)
{
    c->recurse = d->root_only || pick(d, 2);
    return c->recurse ? target_of(d, c)->groups_in : 1u << target_of(d, c)->group;
}

/* Either sets the all-reduce, too. */
bool draw_sync_off(order_draw *d, order_call *c)
{
    uint32_t groups;

    if (!sharded_target(d, c))
        return false;
    groups = groups_of_setting(d, c);
    order_sketch_of(d, c)->sync &= ~groups;
    order_sketch_of(d, c)->all_reduce &= ~groups;
    return true;
}

bool draw_sync_on(order_draw *d, order_call *c)
{
    uint32_t groups;

    if (!sharded_target(d, c))
        return false;
    groups = groups_of_setting(d, c);
    order_sketch_of(d, c)->sync |= groups;
    order_sketch_of(d, c)->all_reduce |= groups;
    return true;
}

/* Of a replicated model gradients that are not reduced across add up in the leaf: other sums. */
bool draw_all_reduce_off(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c) || order_replicates(d->program))
        return false;
    order_sketch_of(d, c)->all_reduce &= ~groups_of_setting(d, c);
    return true;
}

bool draw_all_reduce_on(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    order_sketch_of(d, c)->all_reduce |= groups_of_setting(d, c);
    return true;
}

bool draw_no_sync_begin(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);

    if (!order_plan_of(d, c)->flat || s->no_sync > 1)
        return false;
    s->no_sync++;
    s->ran = true;
    return true;
}

bool draw_no_sync_end(order_draw *d, order_call *c)
{
    if (order_sketch_of(d, c)->no_sync == 0)
        return false;
    order_sketch_of(d, c)->no_sync--;
    return true;
}

bool draw_synchronize(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    c->params = c->completes = order_params_of(order_plan_of(d, c), target_of(d, c)->groups_in);
    reduce(order_sketch_of(d, c), c);
    return true;
}

/* Of staged groups it is said of the microbatch: those of stage 1 reduce in the last alone. */
static bool set_last(order_draw *d, order_call *c, bool last)
{
    const order_plan *plan = order_plan_of(d, c);
    order_sketch *s = order_sketch_of(d, c);
    uint32_t first = 0, kept = 0;

    c->target = 0;
    s->last = last;
    for (int g = 0; g < plan->group_count; g++) {
        first |= (uint32_t)(plan->zero_stage[g] == 1) << g;
        kept |= (uint32_t)(plan->zero_stage[g] == 1 || plan->zero_stage[g] == 2) << g;
    }
    s->sync = last ? s->sync | first : s->sync & ~first;
    s->all_reduce = last ? s->all_reduce | first : s->all_reduce & ~first;
    s->reshards_backward = last ? s->reshards_backward | kept : s->reshards_backward & ~kept;
    return true;
}

bool draw_last_off(order_draw *d, order_call *c)
{
    return set_last(d, c, false);
}

bool draw_last_on(order_draw *d, order_call *c)
{
    return set_last(d, c, true);
}

bool draw_set_reshard_forward(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);
    uint32_t groups;

    if (!sharded_target(d, c))
        return false;
    c->number = pick(d, 2);
    groups = groups_of_setting(d, c);
    for (int g = 0; g < order_plan_of(d, c)->group_count; g++)
        if (groups >> g & 1)
            s->reshard[g] = c->number ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_NEVER;
    return true;
}

bool draw_set_reshard_backward(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);
    uint32_t groups;

    if (!sharded_target(d, c))
        return false;
    c->number = pick(d, 2);
    groups = groups_of_setting(d, c);
    s->reshards_backward = c->number ? s->reshards_backward | groups : s->reshards_backward & ~groups;
    return true;
}

/* The modules of a list as bits. */
bool draw_set_prefetch(order_draw *d, order_call *c)
{
    c->number = pick(d, 1 << order_plan_of(d, c)->target_count);
    return sharded_target(d, c);
}

bool draw_set_in_flight(order_draw *d, order_call *c)
{
    c->number = 1 + pick(d, 3);
    c->recurse = pick(d, 2);
    return sharded_target(d, c);
}

/* Not while gradients wait to be reduced. */
bool draw_set_channel(order_draw *d, order_call *c)
{
    c->number = pick(d, 2);
    return sharded_target(d, c) &&
           !(order_params_of(order_plan_of(d, c), groups_of_setting(d, c)) & order_sketch_of(d, c)->unreduced);
}

bool draw_set_divide(order_draw *d, order_call *c)
{
    static const float factors[] = {0, 2, 3};

    c->value = factors[pick(d, 3)];
    return sharded_target(d, c);
}

/* ---- values ---- */

bool draw_write(order_draw *d, order_call *c)
{
    any_param(d, c);
    c->number = pick(d, 100);
    write_params(d, c, 1u << c->param);
    return true;
}

bool draw_initialize(order_draw *d, order_call *c)
{
    if (!sharded_target(d, c))
        return false;
    c->number = pick(d, 4);
    write_params(d, c, target_of(d, c)->params);
    return true;
}

bool draw_save(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);

    s->saved = s->saved || s->windows == 0;
    return s->windows == 0;
}

bool draw_load(order_draw *d, order_call *c)
{
    if (!order_sketch_of(d, c)->saved)
        return false;
    write_params(d, c, order_plan_of(d, c)->all_params);
    return true;
}

/* ---- failures ---- */

bool draw_reset(order_draw *d, order_call *c)
{
    if (!order_sketch_of(d, c)->ran)
        return false;
    reset(order_sketch_of(d, c));
    return true;
}

bool draw_rebuild(order_draw *d, order_call *c)
{
    c->number = pick(d, 2); /* whether losses outlive it */
    order_sketch_begin(order_sketch_of(d, c), order_plan_of(d, c));
    return true;
}

bool draw_fail_forward(order_draw *d, order_call *c)
{
    c->number = pick(d, order_plan_of(d, c)->blocks);
    order_sketch_of(d, c)->ran = true;
    reset(order_sketch_of(d, c));
    return true;
}

bool draw_fail_backward(order_draw *d, order_call *c)
{
    order_sketch *s = order_sketch_of(d, c);
    order_slot *slot;
    uint32_t before;
    bool apart = order_replicates(d->program) && order_skips_any(d->program); /* some have sent buckets, others not */

    if (!alive_slot(d, c) || apart)
        return false;
    slot = &s->slots[c->slot];
    c->number = slot->target == 0 ? pick(d, order_plan_of(d, c)->blocks) : slot->target - 1;
    before = slot->target == 0 ? order_params_up_to(c->number) : slot->params;
    if (!(slot->params & before))
        return false; /* no gradient arrives there */
    slot->state = ORDER_SLOT_EMPTY;
    reset(s);
    s->reduced = 0;
    return true;
}

bool draw_refuse_shard(order_draw *d, order_call *c)
{
    return sharded_target(d, c);
}

bool draw_refuse_unshard(order_draw *d, order_call *c)
{
    c->target = pick(d, order_plan_of(d, c)->target_count);
    return target_of(d, c)->group < 0;
}

bool draw_refuse_walked(order_draw *d, order_call *c)
{
    return slot_in(d, c, 1u << ORDER_SLOT_WALKED);
}

bool draw_refuse_optimizer(order_draw *d, order_call *c)
{
    const order_sketch *s = order_sketch_of(d, c);

    /* What is one parameter a unit is so in a window, too. */
    return !order_plan_of(d, c)->as_one && order_params_of(order_plan_of(d, c), s->windows) & ~s->frozen;
}

bool draw_refuse_write(order_draw *d, order_call *c)
{
    any_param(d, c);
    return c->windowed;
}
