/* tree_settings.c - calls that say how groups are gathered and reduced. */
#include "fsdp/fsdp1.h"
#include "shard/tree_calls.h"
#include "shard/tree_plain.h"

static uint32_t with(uint32_t states, uint32_t some, bool on)
{
    return on ? states | some : states & ~some;
}

void tree_play_sync(tree_player *player, const tree_call *call)
{
    bool on = call->kind == TREE_SYNC_ON;

    player->held = player->held || !on;
    player->sync = with(player->sync, tree_states_of(player, call), on);
    player->all_reduce = with(player->all_reduce, tree_states_of(player, call), on);
    if (!player->plain)
        CHECK_OK(
            fsdp_module_set_requires_gradient_sync(player->modules[tree_node_of(player, call)], on, call->recurse));
}

void tree_play_all_reduce(tree_player *player, const tree_call *call)
{
    bool on = call->kind == TREE_ALL_REDUCE_ON;

    if (player->plan->orders && player->plan->replicated && !on)
        return; /* what is not reduced across adds up in the leaf: other sums */
    player->held = player->held || !on;
    player->all_reduce = with(player->all_reduce, tree_states_of(player, call), on);
    if (!player->plain)
        CHECK_OK(fsdp_module_set_requires_all_reduce(player->modules[tree_node_of(player, call)], on, call->recurse));
}

/* Of FSDP1 alone. */
void tree_play_no_sync(tree_player *player, const tree_call *call)
{
    bool begins = call->kind == TREE_NO_SYNC_BEGIN;

    if (!player->plan->fsdp1 || (begins ? player->no_sync > 1 : player->no_sync == 0))
        return;
    player->held = true;
    player->no_sync += begins ? 1 : -1;
    player->ran = true;
    if (!player->plain)
        CHECK_OK((begins ? fsdp_fsdp1_no_sync_begin : fsdp_fsdp1_no_sync_end)(tree_root(player)));
}

void tree_play_synchronize(tree_player *player, const tree_call *call)
{
    int node = tree_node_of(player, call);
    uint32_t states = tree_states_below(player->plan, node);

    if (player->plain)
        tree_plain_reduce(player, states, states);
    else
        CHECK_OK(fsdp_module_synchronize_gradients(player->modules[node]));
}

void tree_play_force_sum(tree_player *player, const tree_call *call)
{
    if (!player->plain)
        CHECK_OK(fsdp_module_set_force_sum_reduction(player->modules[tree_node_of(player, call)], call->on));
}

/* Of stage 1 the last alone reduces. */
static void set_microbatch(tree_player *player, bool last)
{
    uint32_t first = 0, kept = 0;

    for (int s = 0; s < player->plan->state_count; s++) {
        first |= (uint32_t)(player->plan->states[s].stage == 1) << s;
        kept |= (uint32_t)(player->plan->states[s].stage == 1 || player->plan->states[s].stage == 2) << s;
    }
    player->last = last;
    player->held = player->held || !last;
    player->sync = with(player->sync, first, last);
    player->all_reduce = with(player->all_reduce, first, last);
    player->reshards_backward = with(player->reshards_backward, kept, last);
    if (!player->plain)
        CHECK_OK(fsdp_module_set_is_last_microbatch(tree_root(player), last));
}

void tree_play_microbatch(tree_player *player, const tree_call *call)
{
    set_microbatch(player, call->kind == TREE_LAST_MICROBATCH);
}

/* Where calls are of any order it says of stages which microbatch comes. */
void tree_play_last(tree_player *player, const tree_call *call)
{
    bool last = call->kind == TREE_LAST_ON, staged = false;

    for (int s = 0; s < player->plan->state_count && player->plan->orders; s++)
        staged = staged || player->plan->states[s].stage > 0;
    if (staged) {
        set_microbatch(player, last);
        return;
    }
    player->last = last;
    if (!player->plain)
        CHECK_OK(fsdp_module_set_is_last_backward(tree_root(player), last));
}

void tree_play_set_reshard(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[tree_node_of(player, call)];

    for (int s = 0; s < player->plan->state_count; s++)
        if (call->kind == TREE_SET_RESHARD_FORWARD && tree_states_of(player, call) >> s & 1)
            player->reshard[s] = call->on ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_NEVER;
    if (call->kind == TREE_SET_RESHARD_BACKWARD)
        player->reshards_backward = with(player->reshards_backward, tree_states_of(player, call), call->on);
    if (!player->plain)
        CHECK_OK((call->kind == TREE_SET_RESHARD_FORWARD
                      ? fsdp_module_set_reshard_after_forward
                      : fsdp_module_set_reshard_after_backward)(module, call->on, call->recurse));
}

/* Off only where no backward reads what is not there then. */
void tree_play_set_unshard_backward(tree_player *player, const tree_call *call)
{
    bool on =
        call->on || player->plan->recomputes || !tree_is_unread_in_backward(player->plan, tree_state_of(player, call));

    if (!player->plain)
        CHECK_OK(fsdp_module_set_unshard_in_backward(player->modules[tree_node_of(player, call)], on));
}

void tree_play_set_divide(tree_player *player, const tree_call *call)
{
    static const float factors[] = {0, 2, 3};
    float factor = factors[call->number % 3];

    player->divide[tree_state_of(player, call)] = factor;
    if (!player->plain)
        CHECK_OK(fsdp_module_set_gradient_divide_factor(player->modules[tree_node_of(player, call)], factor));
}

/* Any states, in any order: of those that there are, some in a row. */
void tree_play_prefetch(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[tree_node_of(player, call)], *list[3];
    int count = call->number % 4;

    for (int i = 0; i < count; i++)
        list[i] = player->modules[tree_node_of(player, &(tree_call){.target = call->target + 1 + i + call->slot})];
    if (!player->plain && player->ran && !player->plan->states[tree_state_of(player, call)].conditional)
        CHECK_OK((call->kind == TREE_PREFETCH_FORWARD
                      ? fsdp_module_set_modules_to_forward_prefetch
                      : fsdp_module_set_modules_to_backward_prefetch)(module, list, count));
}

void tree_play_set_max_inputs(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[tree_node_of(player, call)];

    if (!player->plain)
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 1 + call->number % 4, call->recurse));
}

/* Refused while gradients wait to be reduced. */
void tree_play_separate_channel(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[tree_node_of(player, call)];

    if (!player->plain && fsdp_module_set_separate_reduce_scatter_group(module, call->on, call->recurse) != FSDP_OK)
        CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
}

/* It asks how long others have taken, from within. */
static fsdp_status caller_gathers(void *arg, const fsdp_custom_call *call)
{
    int64_t ns[2];

    FSDP_TRY(fsdp_module_exposed_time(arg, &ns[0], &ns[1]));
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
void tree_play_custom(tree_player *player, const tree_call *call)
{
    static const fsdp_custom_collective reduces = {.run = caller_reduces};
    const fsdp_custom_collective gathers = {.run = caller_gathers, .arg = tree_root(player)};
    fsdp_module *module = player->modules[tree_node_of(player, call)];

    if (player->plain)
        return;
    if (fsdp_module_set_custom_all_gather(module, call->on ? &gathers : NULL) != FSDP_OK)
        CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
    if (reduces_in_f32(player->plan, tree_state_of(player, call)))
        CHECK_OK(fsdp_module_set_custom_reduce_scatter(module, call->on ? &reduces : NULL));
}

/* Now is behind whatever was written. */
void tree_play_post_optim(tree_player *player, const tree_call *call)
{
    fsdp_device *device = test_device(player->context);

    (void)call;
    if (player->plain)
        return;
    if (!player->written)
        CHECK_OK(fsdp_event_create(device, &player->written));
    CHECK_OK(fsdp_event_record(player->written, fsdp_device_stream(device)));
    CHECK_OK(fsdp_module_set_post_optim_event(tree_root(player), player->written));
}

/* Any rank can ask for it at any time, of any state, and it never becomes less. */
void tree_play_exposed(tree_player *player, const tree_call *call)
{
    int64_t gather, reduce;

    if (player->plain || (player->place + call->number) % 4 == 0)
        return;
    CHECK_OK(fsdp_module_exposed_time(player->modules[tree_node_of(player, call)], &gather, &reduce));
    CHECK(gather >= 0 && reduce >= 0);
    CHECK_OK(fsdp_module_exposed_time(tree_root(player), &gather, &reduce));
    CHECK(gather >= player->exposed[0] && reduce >= player->exposed[1]);
    player->exposed[0] = gather;
    player->exposed[1] = reduce;
}
