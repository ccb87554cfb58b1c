/* tree_values.c - calls that read and write values, whole and in parts, and those that are refused. */
#include "shard/tree_calls.h"
#include "support/ranks.h"

/* Bits of a summon's number. */
enum {
    SUMMON_WRITE = 1,
    SUMMON_HOST = 2,
    SUMMON_GRADIENTS = 4
};

/* Any node that there is. */
static int node_of(const tree_player *player, const tree_call *call)
{
    int node = call->target % player->plan->node_count;

    return player->plan->nodes[node].reached ? node : 0;
}

static fsdp_module *module_of(const tree_player *player, const tree_call *call)
{
    return player->modules[node_of(player, call)];
}

static bool is_below(const tree_plan *plan, int node, int below)
{
    bool is = node == below;

    for (int i = 0; i < plan->nodes[node].child_count && !is; i++)
        is = is_below(plan, plan->nodes[node].children[i], below);
    return is;
}

/* ---- reading ---- */

/* As a gather has it, in the dtype that is computed with. */
void tree_play_read_whole(tree_player *player, const tree_call *call)
{
    (void)call;
    for (int p = 0; p < player->plan->param_count; p++) {
        fsdp_tensor *whole = tree_field(player, p);

        if (!tree_in_window(player, p))
            continue;
        if (player->plain)
            whole = fsdp_cast(whole, tree_compute_dtype(player->plan, p));
        tree_log_whole(player, "whole parameter", p, CHECK_PTR(whole));
    }
}

static void read_full(tree_player *player, const char *what, int param, const fsdp_tensor *tensor)
{
    fsdp_tensor *full;

    CHECK_OK(fsdp_full_tensor(tensor, &full));
    tree_log_full(player, what, param, full);
    fsdp_tensor_unref(full);
}

void tree_play_read_full(tree_player *player, const tree_call *call)
{
    (void)call;
    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p])
            read_full(player, "full parameter", p, player->params[p]);
}

void tree_play_read_gradients(tree_player *player, const tree_call *call)
{
    (void)call;
    for (int p = 0; p < player->plan->param_count && !player->unsettled; p++) {
        fsdp_tensor *gradient = player->params[p] ? tree_gradient(player, p) : NULL;

        tree_log_all(player, "presence of the full gradient", p, gradient != NULL);
        if (gradient)
            read_full(player, "full gradient", p, gradient);
        fsdp_tensor_unref(gradient);
    }
}

/* Where element i of a box lies in the whole tensor. */
static int64_t element_of(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        index += (offset[d] + i % size[d]) * stride;
        i /= size[d];
        stride *= shape[d];
    }
    return index;
}

/* Where element i of an unsharded parameter lies in all of it: a team may have cut it. */
static int64_t place_of(const tree_player *player, int param, const fsdp_tensor *tensor, int64_t i)
{
    const tree_param *p = &player->plan->params[param];
    int64_t offset[FSDP_MAX_DIMS] = {0};

    if (player->meshes.team && p->way > 0)
        (void)fsdp_shard_range(p->shape[p->way - 1], player->plan->team, fsdp_mesh_coordinate(player->meshes.team, 0),
                               &offset[p->way - 1]);
    return element_of(p->ndim, p->shape, offset, fsdp_tensor_shape(tensor), i);
}

/* What is written lies around zero: weights that all are positive make roundings grow from node to node. */
static void read_and_write(tree_player *player, int number, int param)
{
    fsdp_tensor *tensor = tree_field(player, param), *gradient = fsdp_tensor_grad(tensor);
    float *values;

    CHECK(tree_is_plain(player, param, tensor));
    tree_log_whole(player, "summoned parameter", param, tensor);
    if (number & SUMMON_GRADIENTS)
        tree_log_all(player, "presence of a summoned gradient", param, gradient != NULL);
    if (gradient && (number & SUMMON_GRADIENTS))
        tree_log_whole(player, "summoned gradient", param, gradient);
    if (!(number & SUMMON_WRITE))
        return;
    values = tree_read(tensor);
    for (int64_t i = 0; i < fsdp_tensor_numel(tensor); i++)
        values[i] = values[i] / 2 + (float)(place_of(player, param, tensor, i) % 7 - 3) / 16;
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    free(values);
}

/* Whole parameters between two calls. Gradients of a unit that is one parameter are refused. */
void tree_play_summon(tree_player *player, const tree_call *call)
{
    int number = call->number & (player->unsettled || player->plan->as_one ? ~SUMMON_GRADIENTS : ~0);
    const fsdp_summon_options options = {.no_recurse = !call->recurse,
                                         .no_writeback = !(number & SUMMON_WRITE),
                                         .offload_to_cpu = number & SUMMON_HOST,
                                         .with_grads = number & SUMMON_GRADIENTS};
    fsdp_module *module = player->modules[tree_node_of(player, call)];
    uint32_t states = tree_states_of(player, call);

    tree_shard_again(player, states);
    if (player->plain && number & SUMMON_WRITE && !tree_can_write(player))
        tree_adds_otherwise_now(player);
    if (!player->plain)
        CHECK_OK(fsdp_module_summon_full_params(module, &options));
    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p] && states >> player->plan->params[p].owner & 1)
            read_and_write(player, number, p);
    if (!player->plain)
        CHECK_OK(fsdp_module_end_summon(module));
}

/* ---- gradients and the optimizer ---- */

/* A part of a unit that is one parameter has no gradient of its own. */
void tree_play_zero_grad_part(tree_player *player, const tree_call *call)
{
    int node = node_of(player, call);

    if (player->unsettled || (player->plan->as_one && player->plan->nodes[node].state < 0))
        return;
    fsdp_module_zero_grad(player->modules[node]);
    for (int p = 0; p < player->plan->param_count && player->plain; p++)
        if (player->params[p] && is_below(player->plan, node, player->plan->params[p].node))
            tree_drop_waiting(player, p);
}

/* A flat unit has zeros for what was trained in its forward, which nobody follows. */
void tree_play_freeze_part(tree_player *player, const tree_call *call)
{
    if (!player->plan->flat)
        CHECK_OK(fsdp_module_set_requires_grad(module_of(player, call), call->kind == TREE_UNFREEZE_PART));
}

void tree_play_freeze_field(tree_player *player, const tree_call *call)
{
    int p = tree_param_of(player, call);

    if (p >= 0 && !player->plan->flat)
        CHECK_OK(fsdp_tensor_set_requires_grad(tree_field(player, p), !fsdp_tensor_requires_grad(player->params[p])));
}

/* ---- writing ---- */

/* This rank's rows of values that depend on the place in the whole parameter. */
static float *values_for(const fsdp_tensor *tensor, int number)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    const int64_t *shape = distribution ? distribution->global_shape : fsdp_tensor_shape(tensor);
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS], numel = fsdp_tensor_numel(tensor);
    float *values = malloc((size_t)(numel + 1) * sizeof *values);

    fsdp_tensor_box(tensor, offset, size);
    for (int64_t i = 0; i < numel; i++)
        values[i] =
            (float)(element_of(fsdp_tensor_ndim(tensor), shape, offset, size, i) * 13 % 29 + number) / 100.0f - 0.5f;
    return values;
}

/* Through what the field names, or the shard that was there before the window. */
void tree_play_write_field(tree_player *player, const tree_call *call)
{
    int p = tree_param_of(player, call);
    fsdp_tensor *tensor;
    float *values;

    if (p < 0 || !tree_can_write(player))
        return;
    tensor = tree_in_window(player, p) ? player->params[p] : tree_field(player, p);
    values = values_for(tensor, call->number);
    if (call->kind == TREE_FILL_FIELD)
        CHECK_OK(fsdp_tensor_fill_(tensor, call->number / 10.0));
    else if (call->kind == TREE_WRITE_FIELD)
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    else
        CHECK_OK(fsdp_tensor_copy_(
            tensor, CHECK_PTR(fsdp_from_data(fsdp_tensor_device(tensor), FSDP_F32, fsdp_tensor_ndim(tensor),
                                             fsdp_tensor_shape(tensor), values))));
    free(values);
    tree_shard_again(player, 1u << player->plan->params[p].owner);
}

void tree_play_initialize(tree_player *player, const tree_call *call)
{
    int node = tree_node_of(player, call);

    if (!tree_can_write(player))
        return;
    CHECK_OK(fsdp_module_initialize(player->modules[node], (uint64_t)call->number));
    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p] && is_below(player->plan, node, player->plan->params[p].node))
            tree_shard_again(player, 1u << player->plan->params[p].owner);
}

/* Values and gradients are rounded, all at once. What waits to be reduced, a graph that holds whole parameters, and a
 * flat vector would be an error. */
void tree_play_convert(tree_player *player, const tree_call *call)
{
    fsdp_module *root = tree_root(player);
    bool may = !player->windows && !player->requested && !player->held && !player->unsettled && !player->plan->flat;

    (void)call;
    may = may && !tree_splits_any(player->plan); /* halves of another dtype are refused */
    for (int s = 0; s < TREE_SLOTS; s++)
        may = may && (!player->slots[s].losses[0] || player->slots[s].walked);
    for (int p = 0; p < player->plan->param_count; p++)
        may = may && player->plan->params[p].dtype == FSDP_F32;
    if (!may)
        return;
    CHECK_OK(fsdp_module_to(root, FSDP_BF16));
    CHECK_OK(fsdp_module_to(root, FSDP_F32));
    if (player->plain)
        player->run->rounded = true;
    tree_observe(player);
}

void tree_play_rebuild(tree_player *player, const tree_call *call)
{
    tree_player_rebuild(player, call->on);
}

/* ---- refused ---- */

void tree_play_refuse_shard(tree_player *player, const tree_call *call)
{
    if (!player->plain)
        CHECK_ERROR(fsdp_fully_shard(player->modules[tree_node_of(player, call)], NULL), FSDP_STATE, "only once");
}

void tree_play_refuse_unshard(tree_player *player, const tree_call *call)
{
    int node = node_of(player, call);

    if (!player->plain && player->plan->nodes[node].state < 0)
        CHECK_ERROR(fsdp_module_unshard(player->modules[node]), FSDP_STATE, "not given to fully_shard");
}

void tree_play_refuse_walked(tree_player *player, const tree_call *call)
{
    for (int s = 0; s < TREE_SLOTS; s++) {
        const tree_slot *slot = &player->slots[(call->slot + s) % TREE_SLOTS];

        for (int i = 0; i < player->ranks && slot->losses[0] && slot->walked; i++)
            CHECK_STATUS(fsdp_backward(slot->losses[i]), FSDP_STATE);
    }
}

/* The first parameter that is whole is named. */
void tree_play_refuse_state(tree_player *player, const tree_call *call)
{
    const char *first = NULL;
    fsdp_state_dict *state;

    (void)call;
    if (player->plain || !player->windows)
        return;
    for (int64_t i = 0; i < player->named.count && !first; i++)
        if (tree_in_window(player, tree_param_of_entry(player->named.items[i].name)))
            first = player->named.items[i].name;
    if (first)
        CHECK_ERROR(fsdp_state_dict_from_module(tree_root(player), &state), FSDP_STATE, first);
}

/* What is one parameter a unit is so in a window, too. */
void tree_play_refuse_optimizer(tree_player *player, const tree_call *call)
{
    fsdp_optimizer *optimizer;
    bool whole = false;

    for (int p = 0; p < player->plan->param_count; p++)
        whole = whole || (tree_in_window(player, p) && fsdp_tensor_requires_grad(player->params[p]));
    if (!player->plain && whole && !player->plan->as_one)
        CHECK_STATUS(tree_optimizer_create(player, call->on, 0, 1, &optimizer), FSDP_STATE);
}

void tree_play_refuse_write(tree_player *player, const tree_call *call)
{
    int p = tree_param_of(player, call);

    if (!player->plain && p >= 0 && tree_in_window(player, p))
        CHECK_STATUS(fsdp_tensor_fill_(tree_field(player, p), 7.0), FSDP_STATE);
}
