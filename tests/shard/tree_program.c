/* tree_program.c - drawing calls: one by one, or phrases of them. */
#include "base/compiler.h"
#include "shard/tree_calls.h"
#include "shard/tree_draw.h"
#include "support/dice.h"

enum {
    PHRASE_CALLS = 9
};
typedef tree_kind phrase[PHRASE_CALLS]; /* ended by TREE_KINDS */

/* What programs do. */
static const phrase usual[] = {
    {TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_ZERO_GRAD, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_CLIP, TREE_STEP, TREE_ZERO_GRAD, TREE_KINDS},
    {TREE_EVALUATE, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_ZERO_GRAD, TREE_KINDS},
    {TREE_FORWARD, TREE_EVALUATE, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_SYNC_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_SYNC_ON, TREE_FORWARD, TREE_BACKWARD, TREE_KINDS},
    {TREE_FORWARD, TREE_FORWARD, TREE_BACKWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD_KEEP, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FREEZE, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_FREEZE, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_UNSHARD, TREE_FORWARD, TREE_BACKWARD, TREE_RESHARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_UNSHARD, TREE_STEP, TREE_EVALUATE, TREE_KINDS},
    {TREE_PREFETCH_FORWARD, TREE_PREFETCH_BACKWARD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_SET_MAX_INPUTS, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_POST_OPTIM, TREE_FORWARD, TREE_KINDS},
    {TREE_ALL_REDUCE_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_ALL_REDUCE_ON, TREE_FORWARD, TREE_BACKWARD, TREE_KINDS},
    {TREE_UNSHARD_ASYNC, TREE_UNSHARD_ASYNC, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_SET_UNSHARD_BACKWARD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FAIL_FORWARD, TREE_RESET, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_FAIL_BACKWARD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
};

/* Orders that are likely to go wrong. */
static const phrase unusual[] = {
    {TREE_OPTIMIZER_ZERO_GRAD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_UNSHARD, TREE_READ_WHOLE, TREE_RESHARD, TREE_STEP, TREE_KINDS},
    {TREE_EVALUATE, TREE_FREEZE_PART, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_EVALUATE, TREE_ZERO_GRAD_PART, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_EVALUATE, TREE_NEW_OPTIMIZER, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_EVALUATE, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_UNSCALE, TREE_CLIP, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_FORWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_FORWARD, TREE_BACKWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD_KEEP, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_DROP, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_WRITE_FIELD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_SYNC_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_SYNC_ON, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_SYNC_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_ZERO_GRAD, TREE_SYNC_ON, TREE_FORWARD, TREE_BACKWARD, TREE_KINDS},
    {TREE_ALL_REDUCE_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_ALL_REDUCE_ON, TREE_FORWARD, TREE_BACKWARD, TREE_STEP,
     TREE_KINDS},
    {TREE_ALL_REDUCE_OFF, TREE_FORWARD, TREE_BACKWARD, TREE_SYNCHRONIZE, TREE_STEP, TREE_KINDS},
    {TREE_UNSHARD, TREE_FREEZE_FIELD, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_UNSHARD, TREE_ZERO_GRAD, TREE_STEP, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_UNSHARD, TREE_STEP, TREE_EVALUATE, TREE_KINDS},
    {TREE_UNSHARD_ASYNC, TREE_WAIT_UNSHARD, TREE_READ_WHOLE, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_UNSHARD_ASYNC, TREE_STEP, TREE_WAIT_UNSHARD, TREE_EVALUATE, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_SUMMON, TREE_STEP, TREE_EVALUATE, TREE_KINDS},
    {TREE_FORWARD, TREE_SUMMON, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_SAVE_OPTIMIZER, TREE_STEP, TREE_FORWARD, TREE_BACKWARD, TREE_LOAD_OPTIMIZER,
     TREE_KINDS},
    {TREE_SPLIT_OPTIMIZER, TREE_FORWARD, TREE_BACKWARD, TREE_CLIP, TREE_STEP, TREE_FORWARD, TREE_BACKWARD, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_CONVERT, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
    {TREE_CHECKPOINT, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_CHECKPOINT, TREE_CHECKPOINT_LOAD, TREE_FORWARD,
     TREE_KINDS},
    {TREE_FORWARD, TREE_FORWARD, TREE_BACKWARD_DROP, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_EXPOSED, TREE_BACKWARD, TREE_EXPOSED, TREE_STEP, TREE_KINDS},
    {TREE_FORWARD, TREE_BACKWARD, TREE_SKIP_STEP, TREE_FORWARD, TREE_BACKWARD, TREE_STEP, TREE_KINDS},
};

static tree_call *add_call(uint64_t *random, tree_plan *plan, tree_kind kind)
{
    tree_call call = {.kind = kind,
                      .target = dice_below(random, 3) ? dice_below(random, 1000) : 0,
                      .slot = dice_below(random, 3) ? 0 : dice_below(random, TREE_SLOTS),
                      .number = dice_below(random, 8),
                      .on = dice_below(random, 2),
                      .recurse = dice_below(random, 3)};

    if (plan->call_count == TREE_MAX_CALLS)
        plan->call_count--;
    plan->calls[plan->call_count] = call;
    return &plan->calls[plan->call_count++];
}

static tree_kind draw_kind(uint64_t *random, int who)
{
    int total = 0, at, kind = 0;

    for (int k = 0; k < TREE_KINDS; k++)
        total += tree_kinds[k].weights[who];
    for (at = dice_below(random, total); at >= tree_kinds[kind].weights[who]; kind++)
        at -= tree_kinds[kind].weights[who];
    return (tree_kind)kind;
}

static int draw_model(uint64_t *random, const tree_plan *plan)
{
    return plan->second && dice_chance(random, 35);
}

/* On one model, most on its root, with other calls between them now and then. */
static void add_unusual(uint64_t *random, tree_plan *plan)
{
    const tree_kind *kind = unusual[dice_below(random, (int)FSDP__COUNT_OF(unusual))];
    int model = draw_model(random, plan);

    for (; *kind != TREE_KINDS; kind++) {
        tree_call *call;

        if (dice_chance(random, 15))
            add_call(random, plan, draw_kind(random, TREE_DRAWS_ORDERS))->model = draw_model(random, plan);
        call = add_call(random, plan, *kind);
        call->model = model;
        if (dice_chance(random, 60))
            call->target = 0;
    }
}

void tree_draw_calls(uint64_t *random, int who, tree_plan *plan)
{
    bool orders = who == TREE_DRAWS_ORDERS;
    int limit = orders ? 5 + dice_below(random, 36) : 4 + dice_below(random, 20);

    while (plan->call_count < limit)
        if (orders && dice_chance(random, 25)) {
            add_unusual(random, plan);
        } else if (!orders && dice_chance(random, 40)) {
            const tree_kind *kind = usual[dice_below(random, (int)FSDP__COUNT_OF(usual))];

            while (*kind != TREE_KINDS)
                add_call(random, plan, *kind++);
        } else {
            add_call(random, plan, draw_kind(random, who))->model = orders ? draw_model(random, plan) : 0;
        }
}
