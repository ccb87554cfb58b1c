/* tree_optimizers.c - calls of optimizers: one, or two with some of the parameters each, and a scaler. */
#include <math.h>

#include "shard/tree_calls.h"
#include "support/ranks.h"

/* What has no number is the one parameter of a unit. */
static bool is_for(const tree_player *player, const fsdp_tensor *tensor, int part, int parts)
{
    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p] == tensor)
            return !player->plan->params[p].ignored && p % parts == part;
    return part == 0;
}

/* Gradients that all ranks have in common. */
fsdp_status tree_optimizer_create(const tree_player *player, bool adamw, int part, int parts, fsdp_optimizer **out)
{
    const fsdp_sgd_options sgd = {.lr = 0.002, .momentum = 0.9};
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters all, trained;
    fsdp_status status;

    adam.lr = 0.003;
    adam.eps = 1e-2; /* a gradient that is nothing but rounding moves little */
    CHECK_OK(fsdp_module_parameters(player->modules[0], &all));
    trained = (fsdp_parameters){.items = calloc((size_t)all.count + 1, sizeof *all.items)};
    for (int64_t i = 0; i < all.count; i++)
        if (is_for(player, all.items[i].tensor, part, parts) && fsdp_tensor_requires_grad(all.items[i].tensor))
            trained.items[trained.count++] = all.items[i];
    if (trained.count == 0)
        status = FSDP_OK;
    else
        status = adamw ? fsdp_adamw_create(&trained, &adam, out) : fsdp_sgd_create(&trained, &sgd, out);
    free(trained.items);
    fsdp_parameters_release(&all);
    return status;
}

/* Of two the one that the number says. */
static int one_of(const tree_player *player, int number)
{
    return player->optimizers[1] ? number % TREE_OPTIMIZERS : 0;
}

static fsdp_optimizer *optimizer_of(const tree_player *player, const tree_call *call)
{
    return player->unsettled ? NULL : player->optimizers[one_of(player, call->number)];
}

void tree_drop_waiting(tree_player *player, int param)
{
    for (int r = 0; r < TREE_MAX_WORLD; r++) {
        fsdp_tensor_unref(player->unreduced[r][param]);
        player->unreduced[r][param] = NULL;
        free(player->partial[r][param]);
        player->partial[r][param] = NULL;
    }
}

/* ---- steps ---- */

/* What it will write to is sharded again. */
static void before_step(tree_player *player, int which)
{
    for (int p = 0; p < player->plan->param_count; p++) {
        fsdp_tensor *gradient = player->optimized[p] == 1 + which ? tree_gradient(player, p) : NULL;

        if (gradient)
            tree_shard_again(player, 1u << player->plan->params[p].owner);
        fsdp_tensor_unref(gradient);
    }
}

/* The factor of a clip follows from a norm that is summed over ranks. */
void tree_play_step(tree_player *player, const tree_call *call)
{
    int only = call && player->optimizers[0] && player->optimizers[1] ? call->number / 2 % 3 - 1 : -1;

    if (player->unsettled || !tree_can_write(player))
        return;
    for (int i = 0; i < TREE_OPTIMIZERS; i++) {
        if (!player->optimizers[i] || (only >= 0 && only != i))
            continue;
        before_step(player, i);
        CHECK_OK(fsdp_optimizer_step(player->optimizers[i]));
    }
    if (player->plain && player->clipped && player->plan->world > 1)
        tree_adds_otherwise_now(player);
    player->clipped = player->clipped && only >= 0;
    tree_observe(player);
}

void tree_play_clip(tree_player *player, const tree_call *call)
{
    static const double norms[] = {0, 0.1, 0.5, 2.0}, types[] = {2, 2, 1, 3, INFINITY};
    fsdp_optimizer *optimizer = optimizer_of(player, &(tree_call){.number = call->number / 4});
    double norm;

    if (!optimizer)
        return;
    CHECK_OK(fsdp_clip_grad_norm_type(optimizer, norms[call->number % 4], types[call->target % 5], false, &norm));
    player->clipped = player->clipped || norms[call->number % 4] > 0;
    tree_log_all(player, "norm", -1, norm);
}

void tree_play_optimizer_zero_grad(tree_player *player, const tree_call *call)
{
    fsdp_optimizer *optimizer = optimizer_of(player, call);

    if (!optimizer)
        return;
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    for (int p = 0; p < player->plan->param_count && player->plain; p++)
        if (player->optimized[p] == 1 + one_of(player, call->number))
            tree_drop_waiting(player, p);
}

static bool trains(const tree_player *player, int param)
{
    return player->params[param] && fsdp_tensor_requires_grad(player->params[param]);
}

/* The old ones go. A unit that is one parameter has one optimizer. */
void tree_play_new_optimizer(tree_player *player, const tree_call *call)
{
    int count = call->kind == TREE_SPLIT_OPTIMIZER && !player->plan->as_one ? TREE_OPTIMIZERS : 1;
    bool any = false;

    for (int p = 0; p < player->plan->param_count; p++)
        any = any || trains(player, p);
    if (player->windows || !any)
        return;
    fsdp_state_dict_free(player->optimizer_state);
    player->optimizer_state = NULL;
    for (int i = 0; i < TREE_OPTIMIZERS; i++) {
        fsdp_optimizer_free(player->optimizers[i]);
        player->optimizers[i] = NULL;
        if (i < count)
            CHECK_OK(tree_optimizer_create(player, call->on != (i > 0), i, count, &player->optimizers[i]));
    }
    for (int p = 0; p < player->plan->param_count; p++)
        player->optimized[p] = trains(player, p) && !player->plan->params[p].ignored ? 1 + p % count : 0;
    player->clipped = false;
}

/* ---- a scaler ---- */

static fsdp_grad_scaler *scaler_of(const tree_player *player)
{
    fsdp_grad_scaler_state state = fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler;

    state.scale = 2;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(player->context), &state, &scaler));
    return scaler;
}

void tree_play_unscale(tree_player *player, const tree_call *call)
{
    fsdp_optimizer *optimizer = optimizer_of(player, call);
    fsdp_grad_scaler *scaler;

    if (!optimizer)
        return;
    scaler = scaler_of(player);
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, optimizer));
    fsdp_grad_scaler_free(scaler);
}

/* Makes the first gradient of the optimizer infinite, which some ranks may have nothing of. */
static bool spoil(const tree_player *player, int which)
{
    for (int p = 0; p < player->plan->param_count; p++) {
        fsdp_tensor *gradient = player->optimized[p] == 1 + which ? tree_gradient(player, p) : NULL;
        int64_t numel = 1;

        for (int d = 0; d < player->plan->params[p].ndim; d++)
            numel *= player->plan->params[p].shape[d];
        if (gradient && numel > 0)
            CHECK_OK(fsdp_tensor_fill_(gradient, INFINITY));
        fsdp_tensor_unref(gradient);
        if (gradient && numel > 0)
            return true;
    }
    return false;
}

/* The other optimizer steps. */
void tree_play_skip_step(tree_player *player, const tree_call *call)
{
    int which = one_of(player, call->number);
    fsdp_grad_scaler *scaler;
    bool spoilt;

    if (player->unsettled || !tree_can_write(player) || !player->optimizers[which] ||
        !player->optimizers[one_of(player, which + 1)])
        return;
    scaler = scaler_of(player);
    spoilt = spoil(player, which);
    for (int i = 0; i < TREE_OPTIMIZERS; i++) {
        bool stepped;

        if (!player->optimizers[i])
            continue;
        if (i != which || !spoilt)
            before_step(player, i);
        CHECK_OK(fsdp_grad_scaler_step(scaler, player->optimizers[i], &stepped));
        CHECK_EQ(stepped, i != which || !spoilt);
    }
    CHECK_OK(fsdp_grad_scaler_update(scaler));
    CHECK(fsdp_grad_scaler_get_state(scaler).scale == (spoilt ? 1 : 2));
    fsdp_grad_scaler_free(scaler);
    if (player->plain && player->clipped && player->plan->world > 1)
        tree_adds_otherwise_now(player);
    tree_zero_grad(player);
    for (int i = 0; i < TREE_OPTIMIZERS; i++) /* what a clip has said of them is for the step that was left out */
        if (player->optimizers[i])
            CHECK_OK(fsdp_optimizer_zero_grad(player->optimizers[i]));
    player->clipped = false;
    tree_observe(player);
}

/* ---- state ---- */

static int by_name(const void *a, const void *b)
{
    const fsdp_state_dict_entry *const *first = a, *const *second = b;

    return strcmp((*first)->name, (*second)->name);
}

/* Moments, and counts of steps. Units that are one parameter have them in another order. */
static void log_state(tree_player *player)
{
    const fsdp_state_dict_entry *entries[3 * TREE_MAX_PARAMS];
    int64_t count = player->optimizer_state->count, steps;

    for (int64_t i = 0; i < count; i++)
        entries[i] = &player->optimizer_state->entries[i];
    qsort(entries, (size_t)count, sizeof entries[0], by_name);
    for (int64_t i = 0; i < count; i++) {
        if (fsdp_dtype_is_floating(fsdp_tensor_dtype(entries[i]->tensor))) {
            tree_log_full(player, "state of the optimizer", -1, entries[i]->tensor);
            continue;
        }
        CHECK_OK(fsdp_tensor_read(entries[i]->tensor, FSDP_I64, &steps));
        tree_log_all(player, "steps of the optimizer", -1, (double)steps);
    }
}

void tree_play_save_optimizer(tree_player *player, const tree_call *call)
{
    fsdp_optimizer *optimizer = optimizer_of(player, call);
    fsdp_state_dict *state;

    if (!optimizer)
        return;
    fsdp_state_dict_free(player->optimizer_state);
    player->optimizer_state = NULL;
    player->state_of = one_of(player, call->number);
    CHECK_OK(fsdp_optimizer_state_dict(optimizer, &state));
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &player->optimizer_state));
    fsdp_state_dict_free(state);
    log_state(player);
}

/* At any time, also between a backward and the step. */
void tree_play_load_optimizer(tree_player *player, const tree_call *call)
{
    const fsdp_full_state_options options = {.broadcast_from_rank0 = call->on};

    if (player->optimizer_state)
        CHECK_OK(fsdp_optimizer_load_full_state_dict(player->optimizers[player->state_of], player->optimizer_state,
                                                     &options));
}
