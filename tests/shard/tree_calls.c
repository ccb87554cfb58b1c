/* tree_calls.c - each call, on ranks and on plain trees. */
#include "shard/tree_calls.h"

#include <math.h>

#include "shard/tree_plain.h"

static fsdp_module *root_of(const tree_player *player)
{
    return player->modules[0];
}

/* A state that there is: every one has members, or it is not drawn. */
static int state_of(const tree_player *player, const tree_call *call)
{
    int s = call->target % player->plan->state_count;

    return player->plan->states[s].member_count > 0 ? s : 0;
}

static int node_of_state(const tree_player *player, const tree_call *call)
{
    return player->plan->states[state_of(player, call)].members[0];
}

/* -1: it chose another's name, or one that is not there. */
static int param_of(const tree_player *player, const tree_call *call)
{
    int p = player->plan->param_count > 0 ? call->target % player->plan->param_count : 0;

    return player->params[p] ? p : -1;
}

/* States that a setting goes for. */
static uint32_t states_of(const tree_player *player, const tree_call *call)
{
    return call->recurse ? tree_states_below(player->plan, node_of_state(player, call)) : 1u << state_of(player, call);
}

/* ---- forward ---- */

/* Part `rank` of batch `number`. */
static fsdp_tensor *make_input(const tree_player *player, int number, int rank)
{
    float values[TREE_ROWS * 7];
    int width = player->plan->width, rows = tree_rows(player->plan, number, rank);
    fsdp_tensor *x;

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < width; j++)
            values[i * width + j] = (float)(((rank * TREE_ROWS + i) * 31 + j * 17 + number * 7) % 23) / 11.0f - 1.0f;
    x = CHECK_PTR(fsdp_from_data(test_device(player->context), FSDP_F32, FSDP_SHAPE(rows, width), values));
    if (player->plan->inputs)
        CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    return x;
}

/* NULL when it was told to fail. */
static fsdp_tensor *run_forward(tree_player *player, int node, int number, int rank, fsdp_tensor *x)
{
    fsdp_tensor *y;

    player->feed.number = number;
    player->feed.rank = rank;
    player->feed.trains = player->plan->inputs;
    y = tree_run_node(player->modules[node], number, rank, x);
    y = y ? fsdp_cast(y, FSDP_F32) : NULL;
    return y ? fsdp_mean(fsdp_mul(y, y)) : NULL;
}

static void log_loss(tree_player *player, int rank, const fsdp_tensor *loss)
{
    double value;

    CHECK_OK(fsdp_tensor_item(loss, &value));
    tree_log_value(player, rank, "loss", value);
    if (player->feed.trains)
        CHECK(!fsdp_grad_enabled(player->context) || fsdp_tensor_requires_grad(loss));
    tree_log_value(player, rank, "whether there is anything to train", player->feed.trains);
}

static void forward(tree_player *player, int node, int number, tree_slot *slot)
{
    tree_drop_slot(slot);
    for (int i = 0; i < player->ranks; i++) {
        int rank = player->first_rank + i;
        fsdp_tensor *x = make_input(player, number, rank), *loss;

        loss = CHECK_PTR(run_forward(player, node, number, rank, x));
        slot->losses[i] = fsdp_tensor_ref(loss);
        slot->inputs[i] = fsdp_tensor_ref(x);
        slot->trains = slot->trains || player->feed.trains;
        log_loss(player, rank, loss);
    }
    player->ran = true;
}

static void play_forward(tree_player *player, const tree_call *call)
{
    bool part = call->kind == TREE_FORWARD_PART && player->ran;

    forward(player, part ? node_of_state(player, call) : 0, call->number, &player->slots[call->slot]);
}

static void play_evaluate(tree_player *player, const tree_call *call)
{
    fsdp_no_grad_begin(player->context);
    for (int i = 0; i < player->ranks; i++) {
        int rank = player->first_rank + i;

        log_loss(player, rank,
                 CHECK_PTR(run_forward(player, 0, call->number, rank, make_input(player, call->number, rank))));
    }
    fsdp_no_grad_end(player->context);
    player->ran = true;
}

static void play_drop(tree_player *player, const tree_call *call)
{
    tree_drop_slot(&player->slots[call->slot]);
}

/* ---- backward ---- */

static bool can_walk(const tree_slot *slot)
{
    return slot->losses[0] && !slot->walked && slot->trains;
}

/* Whether a plain tree computes with something else than its parameters themselves. */
static bool keeps_copies(const tree_plan *plan)
{
    return tree_is_low_precision(plan) || tree_is_coded(plan);
}

/* Gradients that were added up in 16 bits, or were partly reduced when a group of several modules had gone back. */
static void note_accumulation(tree_player *player)
{
    bool waiting = false;

    for (int r = 0; r < player->ranks; r++)
        for (int p = 0; p < TREE_MAX_PARAMS; p++)
            waiting = waiting || (player->unreduced[r][p] && player->plan->params[p].owner >= 0);
    if (player->plain && waiting && keeps_copies(player->plan))
        player->run->otherwise = true;
}

static void backward(tree_player *player, tree_slot *slot, bool keep)
{
    if (!can_walk(slot))
        return;
    note_accumulation(player);
    if (player->plain)
        tree_plain_backward(player, slot, keep);
    else
        CHECK_OK(fsdp_backward_from(&slot->losses[0], NULL, 1, keep));
    slot->walked = !keep;
    player->unsettled = !player->last;
    for (int i = 0; i < player->ranks; i++)
        if (fsdp_tensor_grad(slot->inputs[i]))
            tree_log_tensor(player, player->first_rank + i, "gradient of the input", fsdp_tensor_grad(slot->inputs[i]));
    tree_observe(player);
}

static void play_backward(tree_player *player, const tree_call *call)
{
    backward(player, &player->slots[call->slot], call->kind == TREE_BACKWARD_KEEP);
}

/* ---- whole and sharded ---- */

static void play_unshard(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (player->plain)
        return;
    CHECK_OK(call->kind == TREE_UNSHARD         ? fsdp_module_unshard(module)
             : call->kind == TREE_UNSHARD_ASYNC ? fsdp_module_unshard_async(module)
                                                : fsdp_module_wait_unshard(module));
}

static void play_reshard(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (!player->plain)
        CHECK_OK(call->kind == TREE_RESHARD ? fsdp_module_reshard(module) : fsdp_module_reshard_all(module));
}

/* ---- gradients and the optimizer ---- */

static void zero_grad(tree_player *player)
{
    fsdp_module_zero_grad(root_of(player));
    if (player->plain)
        tree_drop_unreduced(player, true);
}

static void play_zero_grad(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->unsettled)
        zero_grad(player);
}

/* A plain tree keeps what its forward has made of parameters for the backward, where a sharded one gathers new values.
 */
static bool can_write(const tree_player *player)
{
    bool alive = false;

    for (int s = 0; s < TREE_SLOTS; s++)
        alive = alive || (player->slots[s].losses[0] && !player->slots[s].walked);
    return !player->unsettled && !(alive && keeps_copies(player->plan));
}

/* The factor of a clip follows from a norm that is summed over ranks. */
static void play_step(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->optimizer || !can_write(player))
        return;
    CHECK_OK(fsdp_optimizer_step(player->optimizer));
    if (player->plain && player->clipped && player->plan->world > 1)
        player->run->otherwise = true;
    player->clipped = false;
    tree_observe(player);
}

static void play_clip(tree_player *player, const tree_call *call)
{
    static const double norms[] = {0, 0.1, 0.5, 2.0}, types[] = {2, 2, 1, 3, INFINITY};
    double norm;

    if (!player->optimizer || player->unsettled)
        return;
    CHECK_OK(
        fsdp_clip_grad_norm_type(player->optimizer, norms[call->number % 4], types[call->target % 5], false, &norm));
    player->clipped = norms[call->number % 4] > 0;
    tree_log_all(player, "norm", -1, norm);
}

static void play_freeze(tree_player *player, const tree_call *call)
{
    int p = param_of(player, call);

    if (p >= 0)
        CHECK_OK(fsdp_tensor_set_requires_grad(player->params[p], !fsdp_tensor_requires_grad(player->params[p])));
}

static void play_write(tree_player *player, const tree_call *call)
{
    int p = param_of(player, call);

    if (p >= 0 && can_write(player))
        CHECK_OK(fsdp_tensor_fill_(player->params[p], call->number / 10.0 - 0.3));
}

/* ---- settings ---- */

static void play_sync(tree_player *player, const tree_call *call)
{
    bool on = call->kind == TREE_SYNC_ON;

    player->sync = on ? player->sync | states_of(player, call) : player->sync & ~states_of(player, call);
    player->all_reduce =
        on ? player->all_reduce | states_of(player, call) : player->all_reduce & ~states_of(player, call);
    if (!player->plain)
        CHECK_OK(
            fsdp_module_set_requires_gradient_sync(player->modules[node_of_state(player, call)], on, call->recurse));
}

static void play_all_reduce(tree_player *player, const tree_call *call)
{
    bool on = call->kind == TREE_ALL_REDUCE_ON;

    player->all_reduce =
        on ? player->all_reduce | states_of(player, call) : player->all_reduce & ~states_of(player, call);
    if (!player->plain)
        CHECK_OK(fsdp_module_set_requires_all_reduce(player->modules[node_of_state(player, call)], on, call->recurse));
}

static void play_force_sum(tree_player *player, const tree_call *call)
{
    if (!player->plain)
        CHECK_OK(fsdp_module_set_force_sum_reduction(player->modules[node_of_state(player, call)], call->on));
}

static void play_last(tree_player *player, const tree_call *call)
{
    player->last = call->kind == TREE_LAST_ON;
    if (!player->plain)
        CHECK_OK(fsdp_module_set_is_last_backward(root_of(player), player->last));
}

/* Of stage 1 the last alone reduces. */
static void play_microbatch(tree_player *player, const tree_call *call)
{
    bool last = call->kind == TREE_LAST_MICROBATCH;
    uint32_t first = 0;

    for (int s = 0; s < player->plan->state_count; s++)
        if (player->plan->states[s].stage == 1)
            first |= 1u << s;
    player->last = last;
    player->sync = last ? player->sync | first : player->sync & ~first;
    player->all_reduce = last ? player->all_reduce | first : player->all_reduce & ~first;
    if (!player->plain)
        CHECK_OK(fsdp_module_set_is_last_microbatch(root_of(player), last));
}

static void play_set_reshard(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (!player->plain)
        CHECK_OK((call->kind == TREE_SET_RESHARD_FORWARD
                      ? fsdp_module_set_reshard_after_forward
                      : fsdp_module_set_reshard_after_backward)(module, call->on, call->recurse));
}

/* Off only where no backward reads what is not there then. */
static void play_set_unshard_backward(tree_player *player, const tree_call *call)
{
    bool on =
        call->on || player->plan->checkpoints || !tree_is_unread_in_backward(player->plan, state_of(player, call));

    if (!player->plain)
        CHECK_OK(fsdp_module_set_unshard_in_backward(player->modules[node_of_state(player, call)], on));
}

static void play_set_divide(tree_player *player, const tree_call *call)
{
    static const float factors[] = {0, 2, 3};
    float factor = factors[call->number % 3];

    player->divide[state_of(player, call)] = factor;
    if (!player->plain)
        CHECK_OK(fsdp_module_set_gradient_divide_factor(player->modules[node_of_state(player, call)], factor));
}

/* Any states, in any order: of those that there are, some in a row. */
static void play_prefetch(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)], *list[3];
    int count = call->number % 4;

    for (int i = 0; i < count; i++)
        list[i] = player->modules[node_of_state(player, &(tree_call){.target = call->target + 1 + i + call->slot})];
    if (!player->plain && player->ran && !player->plan->states[state_of(player, call)].conditional)
        CHECK_OK((call->kind == TREE_PREFETCH_FORWARD
                      ? fsdp_module_set_modules_to_forward_prefetch
                      : fsdp_module_set_modules_to_backward_prefetch)(module, list, count));
}

static void play_set_max_inputs(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (!player->plain)
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 1 + call->number % 4, call->recurse));
}

/* Refused while gradients wait to be reduced. */
static void play_separate_channel(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (!player->plain && fsdp_module_set_separate_reduce_scatter_group(module, call->on, call->recurse) != FSDP_OK)
        CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
}

static fsdp_status caller_gathers(void *arg, const fsdp_custom_call *call)
{
    (void)arg;
    return fsdp_all_gather(call->group, call->send, call->recv, call->count, call->dtype, call->stream);
}

static fsdp_status caller_reduces(void *arg, const fsdp_custom_call *call)
{
    (void)arg;
    return fsdp_reduce_scatter(call->group, call->send, call->recv, call->count, call->dtype, call->op, call->stream);
}

/* The library rounds no sum to the reduce dtype; the caller's function does. */
static bool reduces_in_f32(const tree_plan *plan, int state)
{
    bool all = true;

    for (int i = 0; i < plan->param_count; i++)
        all = all && (plan->params[i].owner != state || tree_reduce_dtype(plan, i) == FSDP_F32);
    return all;
}

/* Gathers of memory that ranks share cannot be the caller's. */
static void play_custom(tree_player *player, const tree_call *call)
{
    static const fsdp_custom_collective gathers = {.run = caller_gathers}, reduces = {.run = caller_reduces};
    fsdp_module *module = player->modules[node_of_state(player, call)];

    if (player->plain)
        return;
    if (fsdp_module_set_custom_all_gather(module, call->on ? &gathers : NULL) != FSDP_OK)
        CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
    if (reduces_in_f32(player->plan, state_of(player, call)))
        CHECK_OK(fsdp_module_set_custom_reduce_scatter(module, call->on ? &reduces : NULL));
}

/* Now is behind whatever was written. */
static void play_post_optim(tree_player *player, const tree_call *call)
{
    fsdp_device *device = test_device(player->context);

    (void)call;
    if (player->plain)
        return;
    if (!player->written)
        CHECK_OK(fsdp_event_create(device, &player->written));
    CHECK_OK(fsdp_event_record(player->written, fsdp_device_stream(device)));
    CHECK_OK(fsdp_module_set_post_optim_event(root_of(player), player->written));
}

/* ---- failures ---- */

static void play_reset(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->ran)
        return;
    if (player->plain)
        tree_drop_unreduced(player, false);
    else
        CHECK_OK(fsdp_module_reset_iteration(root_of(player)));
}

static void play_fail_forward(tree_player *player, const tree_call *call)
{
    int rank = player->first_rank;
    fsdp_tensor *loss;

    if (tree_is_uneven(player->plan))
        return;
    player->feed.failing = call->target % player->plan->node_count;
    loss = run_forward(player, 0, call->number, rank, make_input(player, call->number, rank));
    player->feed.failing = -1;
    player->ran = true;
    tree_log_all(player, "failure of the forward", -1, loss == NULL);
    if (loss)
        return; /* the batch went another way */
    CHECK_CONTAINS(fsdp_last_error(), "told to fail");
    tree_drop_unreduced(player, false);
}

/* Then the iteration is reset and all gradients are dropped. */
static void play_fail_backward(tree_player *player, const tree_call *call)
{
    tree_slot *slot = &player->slots[call->slot];

    if (!can_walk(slot) || tree_is_uneven(player->plan))
        return;
    if (!player->plain) {
        player->feed.failing = call->target % player->plan->node_count;
        player->feed.fail_backward = true;
        if (fsdp_backward(slot->losses[0]) != FSDP_OK)
            CHECK_CONTAINS(fsdp_last_error(), "told to fail");
        player->feed.failing = -1;
        player->feed.fail_backward = false;
        CHECK_OK(fsdp_module_reset_iteration(root_of(player)));
    }
    tree_drop_slot(slot);
    zero_grad(player);
}

/* ---- all of them ---- */

static void (*const kinds[TREE_KINDS])(tree_player *player, const tree_call *call) = {
    [TREE_FORWARD] = play_forward,
    [TREE_FORWARD_PART] = play_forward,
    [TREE_EVALUATE] = play_evaluate,
    [TREE_BACKWARD] = play_backward,
    [TREE_BACKWARD_KEEP] = play_backward,
    [TREE_DROP] = play_drop,
    [TREE_UNSHARD] = play_unshard,
    [TREE_UNSHARD_ASYNC] = play_unshard,
    [TREE_WAIT_UNSHARD] = play_unshard,
    [TREE_RESHARD] = play_reshard,
    [TREE_RESHARD_ALL] = play_reshard,
    [TREE_ZERO_GRAD] = play_zero_grad,
    [TREE_STEP] = play_step,
    [TREE_CLIP] = play_clip,
    [TREE_FREEZE] = play_freeze,
    [TREE_SYNC_OFF] = play_sync,
    [TREE_SYNC_ON] = play_sync,
    [TREE_ALL_REDUCE_OFF] = play_all_reduce,
    [TREE_ALL_REDUCE_ON] = play_all_reduce,
    [TREE_FORCE_SUM] = play_force_sum,
    [TREE_LAST_OFF] = play_last,
    [TREE_LAST_ON] = play_last,
    [TREE_MICROBATCH] = play_microbatch,
    [TREE_LAST_MICROBATCH] = play_microbatch,
    [TREE_SET_RESHARD_FORWARD] = play_set_reshard,
    [TREE_SET_RESHARD_BACKWARD] = play_set_reshard,
    [TREE_SET_UNSHARD_BACKWARD] = play_set_unshard_backward,
    [TREE_SET_DIVIDE] = play_set_divide,
    [TREE_PREFETCH_FORWARD] = play_prefetch,
    [TREE_PREFETCH_BACKWARD] = play_prefetch,
    [TREE_SET_MAX_INPUTS] = play_set_max_inputs,
    [TREE_POST_OPTIM] = play_post_optim,
    [TREE_SEPARATE_CHANNEL] = play_separate_channel,
    [TREE_CUSTOM] = play_custom,
    [TREE_WRITE] = play_write,
    [TREE_RESET] = play_reset,
    [TREE_FAIL_FORWARD] = play_fail_forward,
    [TREE_FAIL_BACKWARD] = play_fail_backward,
};

/* Between the forward and the backward of a checkpoint it would be an error. */
static bool changes_parameters(tree_kind kind)
{
    return kind == TREE_STEP || kind == TREE_WRITE || kind == TREE_FREEZE;
}

void tree_make_call(tree_player *player)
{
    const tree_call *call = &player->plan->calls[player->at];

    for (int s = 0; s < TREE_SLOTS && player->plan->checkpoints && changes_parameters(call->kind); s++)
        tree_drop_slot(&player->slots[s]);
    CHECK_OK(fsdp_scope_begin(player->context));
    kinds[call->kind](player, call);
    fsdp_scope_end(player->context, NULL);
}

/* All that is still to be reduced or walked goes, and groups reduce again. */
static void clear(tree_player *player)
{
    for (int s = 0; s < TREE_SLOTS; s++)
        tree_drop_slot(&player->slots[s]);
    play_sync(player, &(tree_call){.kind = TREE_SYNC_ON, .recurse = true});
    play_last(player, &(tree_call){.kind = TREE_LAST_ON});
    play_reshard(player, &(tree_call){.kind = TREE_RESHARD_ALL});
}

void tree_last_steps(tree_player *player)
{
    bool open = player->unsettled; /* reductions of a backward that was not the last */

    clear(player);
    for (int step = 0; step < TREE_LAST_STEPS; step++) {
        CHECK_OK(fsdp_scope_begin(player->context));
        forward(player, 0, 1, &player->slots[0]);
        backward(player, &player->slots[0], false);
        open = open && !player->slots[0].walked;
        player->unsettled = false; /* also where nothing is trained */
        play_step(player, NULL);
        zero_grad(player);
        tree_drop_slot(&player->slots[0]);
        fsdp_scope_end(player->context, NULL);
        player->run->live[player->first_rank][step] = open ? 0 : test_live_bytes(player->context);
    }
}
