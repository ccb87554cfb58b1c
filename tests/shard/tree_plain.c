/* tree_plain.c - what unreduced gradients become. */
#include "shard/tree_plain.h"

#include <math.h>

#include "autograd/autograd.h"
#include "shard/rank_sum.h"
#include "support/ranks.h"

/* The tree's gradients and `gradients` change places. */
static void swap_gradients(const tree_player *player, fsdp_tensor **gradients)
{
    for (int p = 0; p < player->plan->param_count; p++) {
        fsdp_tensor *old;

        if (!player->params[p])
            continue;
        old = fsdp_tensor_ref(fsdp_tensor_grad(player->params[p]));
        CHECK_OK(fsdp_tensor_set_grad(player->params[p], gradients[p]));
        fsdp_tensor_unref(gradients[p]);
        gradients[p] = old;
    }
}

static void add_values(float *total, const fsdp_tensor *more)
{
    float *values = tree_read(CHECK_PTR(more));

    for (int64_t i = 0; i < fsdp_tensor_numel(more); i++)
        total[i] += values[i];
    free(values);
}

/* f16 has no room for sums: what is sent is divided before, by a power of two, and the sum by the rest. */
static float divisor_before(fsdp_dtype dtype, float divisor)
{
    float before = 1;

    while (dtype == FSDP_F16 && fmodf(divisor, before) == 0 && divisor / before > before)
        before *= 2;
    return before;
}

static void round_to(const tree_player *player, fsdp_dtype dtype, float *values, int64_t numel)
{
    fsdp_tensor *rounded;

    if (dtype == FSDP_F32)
        return;
    rounded = fsdp_from_data(test_device(player->context), FSDP_F32, FSDP_SHAPE(numel), values);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_cast(rounded, dtype)), FSDP_F32, values));
}

/* What a parameter's gradients are divided by, all in all. */
static float divisor_of(const tree_player *player, int param)
{
    float factor = player->divide[player->plan->params[param].owner];

    return factor > 0 ? factor : (float)player->plan->world;
}

static fsdp_tensor *sent_of(const tree_player *player, int rank, int param)
{
    fsdp_dtype dtype = tree_reduce_dtype(player->plan, param);
    float before = divisor_before(dtype, divisor_of(player, param));
    fsdp_tensor *gradient = player->unreduced[rank][param];

    if (before == 1)
        return fsdp_cast(gradient, dtype);
    return fsdp_cast(fsdp_scale(fsdp_cast(gradient, FSDP_F32), 1 / before), dtype);
}

static bool has_unreduced(const tree_player *player, int first, int ranks, int param)
{
    bool has = false;

    for (int r = first; r < first + ranks; r++)
        has = has || player->unreduced[r][param];
    return has;
}

/* Whether the states in `across` are reduced over replicas, too. */
static bool is_complete(const tree_plan *plan, uint32_t across, int param)
{
    return !(plan->grid || plan->replicas > 1) || across >> plan->params[param].owner & 1;
}

/* A replica's unreduced gradients, added to what was reduced inside it before. That is kept in the reduce dtype, where
 * there are other replicas to reduce it with, or more is to come. */
static void reduce_inside(tree_player *player, int replica, int param, bool complete)
{
    fsdp_dtype dtype = tree_reduce_dtype(player->plan, param);
    int shards = player->plan->world / player->plan->replicas, first = replica * shards;
    int64_t numel = fsdp_tensor_numel(player->params[param]);
    float *sum, *brought[TREE_MAX_WORLD] = {NULL}, *before = player->partial[replica][param];

    if (!has_unreduced(player, first, shards, param))
        return;
    for (int i = 0; i < shards; i++) {
        if (!player->unreduced[first + i][param])
            continue; /* it has not used the parameter */
        brought[i] = tree_read(CHECK_PTR(sent_of(player, first + i, param)));
        fsdp_tensor_unref(player->unreduced[first + i][param]);
        player->unreduced[first + i][param] = NULL;
    }
    sum = rank_sum(brought, shards, test_rank_block(player->plan->world, first, 1, shards), dtype, numel);
    if (player->plan->replicas > 1 || !complete)
        round_to(player, dtype, sum, numel);
    sum = rank_sum_joined(sum, before, numel);
    if (before)
        round_to(player, dtype, sum, numel);
    player->partial[replica][param] = sum;
}

/* Adds what was reduced inside the replicas to the parameter's gradient. */
static void reduce_across(tree_player *player, int param)
{
    fsdp_tensor *p = player->params[param], *before = fsdp_tensor_grad(p), *result;
    fsdp_dtype dtype = tree_reduce_dtype(player->plan, param);
    float divisor = divisor_of(player, param);
    int world = player->plan->world, replicas = player->plan->replicas;
    int64_t numel = fsdp_tensor_numel(p);
    float *total, *partials[TREE_MAX_WORLD];

    for (int r = 0; r < replicas; r++) {
        partials[r] = player->partial[r][param];
        player->partial[r][param] = NULL;
    }
    total = rank_sum(partials, replicas, test_rank_block(world, 0, world / replicas, replicas), dtype, numel);
    if (replicas > 1)
        round_to(player, dtype, total, numel);
    for (int64_t i = 0; i < numel; i++)
        total[i] /= divisor / divisor_before(dtype, divisor);
    CHECK_OK(fsdp_tensor_create(fsdp_tensor_device(p), fsdp_tensor_dtype(p), fsdp_tensor_ndim(p), fsdp_tensor_shape(p),
                                FSDP_MEMORY_GRADIENT, &result));
    if (before)
        add_values(total, before);
    if (player->plan->low_sums)
        round_to(player, tree_rest_dtype(player->plan, param), total, numel);
    CHECK_OK(fsdp_tensor_write(result, FSDP_F32, total));
    CHECK_OK(fsdp_tensor_set_grad(p, result));
    fsdp_tensor_unref(result);
    free(total);
}

/* What a replica has of a flat state is reduced as one: zeros where it has no gradient beside one that it has. */
static void add_zeros(tree_player *player, int replica, const bool *brings)
{
    for (int p = 0; p < player->plan->param_count; p++) {
        int owner = player->plan->params[p].owner;

        if (player->params[p] && owner >= 0 && brings[owner] && !player->partial[replica][p] &&
            fsdp_tensor_requires_grad(player->params[p]))
            player->partial[replica][p] = calloc((size_t)fsdp_tensor_numel(player->params[p]) + 1, sizeof(float));
    }
}

static void reduce_flat(tree_player *player, uint32_t states, uint32_t across)
{
    int shards = player->plan->world / player->plan->replicas;

    for (int r = 0; r < player->plan->replicas; r++) {
        bool brings[TREE_MAX_STATES] = {false};

        for (int p = 0; p < player->plan->param_count; p++) {
            int owner = player->plan->params[p].owner;

            if (player->params[p] && owner >= 0 && states >> owner & 1 && has_unreduced(player, r * shards, shards, p))
                brings[owner] = true;
        }
        for (int p = 0; p < player->plan->param_count; p++) {
            int owner = player->plan->params[p].owner;

            if (player->params[p] && owner >= 0 && brings[owner])
                reduce_inside(player, r, p, is_complete(player->plan, across, p));
        }
        add_zeros(player, r, brings);
    }
}

void tree_plain_reduce(tree_player *player, uint32_t states, uint32_t across)
{
    if (player->plan->flat)
        reduce_flat(player, states, across);
    for (int p = 0; p < player->plan->param_count; p++) {
        int owner = player->plan->params[p].owner;
        bool partial = false;

        if (!player->params[p] || owner < 0 || !(states >> owner & 1))
            continue;
        for (int r = 0; r < player->plan->replicas; r++) {
            reduce_inside(player, r, p, is_complete(player->plan, across, p));
            partial = partial || player->partial[r][p];
        }
        if (partial && is_complete(player->plan, across, p))
            reduce_across(player, p);
    }
}

/* ---- gradients as wide as they are reduced ---- */

static fsdp_status give_f32(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    (void)arg;
    return fsdp_tensor_create(fsdp_tensor_device(leaf), FSDP_F32, fsdp_tensor_ndim(leaf), fsdp_tensor_shape(leaf),
                              FSDP_MEMORY_GRADIENT, out);
}

/* The unreduced gradient of the rank that runs now. */
static fsdp_tensor *unreduced_of(const tree_player *player, int param)
{
    return player->walking ? fsdp_tensor_grad(player->params[param]) : player->unreduced[player->feed.rank][param];
}

fsdp_tensor *tree_plain_arrived(tree_player *player, int param, fsdp_tensor *w)
{
    tree_wide *made;

    if (!w || !player->wide || !tree_is_wide(player->plan, param) || !fsdp_tensor_requires_grad(player->params[param]))
        return w;
    made = CHECK_PTR(malloc(sizeof *made));
    *made = (tree_wide){player->wides, param, fsdp_tensor_ref(CHECK_PTR(fsdp_detach(w))), unreduced_of(player, param)};
    player->wides = made;
    CHECK_OK(fsdp_tensor_set_requires_grad(made->leaf, true));
    CHECK_OK(fsdp__set_grad_source(made->leaf, give_f32, NULL));
    CHECK_OK(fsdp__set_grad_dtype(made->leaf, FSDP_F32));
    fsdp__put_grad(made->leaf, made->before);
    return made->leaf;
}

void tree_drop_wides(tree_player *player)
{
    while (player->wides) {
        tree_wide *last = player->wides;

        player->wides = last->next;
        fsdp_tensor_unref(last->leaf);
        free(last);
    }
}

/* Of those that have arrived of a parameter, a backward reaches one: a plan of which it reaches more is no wide one. */
static void walk(tree_player *player, fsdp_tensor *loss, bool keep)
{
    player->walking = true;
    for (tree_wide *w = player->wides; w; w = w->next) {
        w->before = unreduced_of(player, w->param);
        fsdp__put_grad(w->leaf, w->before);
    }
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, keep));
    for (tree_wide *w = player->wides; w; w = w->next) {
        if (fsdp_tensor_grad(w->leaf) != w->before)
            CHECK_OK(fsdp_tensor_set_grad(player->params[w->param], fsdp_tensor_grad(w->leaf)));
        fsdp__put_grad(w->leaf, NULL);
    }
    player->walking = false;
}

void tree_plain_backward(tree_player *player, tree_slot *slot, bool keep)
{
    fsdp_tensor *reduced[TREE_MAX_PARAMS] = {NULL};

    swap_gradients(player, reduced);
    for (int i = 0; i < player->ranks; i++) {
        swap_gradients(player, player->unreduced[i]);
        walk(player, slot->losses[i], keep);
        swap_gradients(player, player->unreduced[i]);
    }
    swap_gradients(player, reduced);
    if (player->no_sync == 0)
        tree_plain_reduce(player, player->sync, player->all_reduce);
}
