/* tree_player.c - players: built and freed, and what they log. */
#include "shard/tree_player.h"

#include "device/device.h"
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/doors/fully_shard.h"
#include "shard/parts.h"
#include "shard/reduce/owner.h"
#include "shard/tree_apply.h"
#include "shard/tree_plain.h"
#include "shard/tree_wrap.h"

/* ---- building ---- */

static int collect_ignored(const tree_player *player, fsdp_tensor **ignored)
{
    int count = 0;

    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p] && player->plan->params[p].ignored)
            ignored[count++] = player->params[p];
    return count;
}

/* Every other one from the end. */
static fsdp_status place(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    const tree_player *player = arg;

    (void)name;
    for (int p = 0; p < player->plan->param_count; p++)
        if (player->params[p] == parameter)
            out->dim = player->plan->params[p].dim - (p % 2 ? player->plan->params[p].ndim : 0);
    return FSDP_OK;
}

static bool extends(void *arg, const char *name, const fsdp_tensor *parameter)
{
    (void)arg;
    (void)name;
    return fsdp_tensor_ndim(parameter) > 1;
}

static fsdp_shard_options options_of(tree_player *player, int state)
{
    const tree_state *s = &player->plan->states[state];
    const residence *where = player->run->residence;
    fsdp_mp_policy policy = s->policy;

    policy.split_shards = residence_splits(where, player->plan->seed) && tree_splits(player->plan, state);
    return (fsdp_shard_options){.reshard_after_forward = s->reshard,
                                .mesh = player->meshes.data,
                                .reshard_after_forward_ranks = s->slice,
                                .zero_stage = s->stage,
                                .ignored_params = player->ignored,
                                .ignored_param_count = collect_ignored(player, player->ignored),
                                .mp_policy = policy,
                                .overlap = residence_overlap(where, player->plan->seed),
                                .placement = place,
                                .placement_arg = player,
                                .gather_extension = coded_extension(s->code),
                                .extends = extends,
                                .no_shared_memory = where->copy,
                                .offload_policy = residence_offload(where, player->plan->seed)};
}

/* FULL_SHARD or SHARD_GRAD_OP as the plan's resharding says, or these inside a replica. The root stays whole after its
 * forward unless it is told to reshard. */
static void wrap_unit(tree_player *player, int state)
{
    const tree_state *s = &player->plan->states[state];
    const residence *where = player->run->residence;
    fsdp_module *module = player->modules[s->members[0]];
    bool never = s->reshard == FSDP_RESHARD_NEVER, mesh = player->meshes.data != NULL;
    uint64_t seed = player->plan->seed;
    const fsdp_fsdp1_options options = {.mesh = player->meshes.data,
                                        .strategy = mesh ? (never ? FSDP_HYBRID_SHARD_ZERO2 : FSDP_HYBRID_SHARD)
                                                         : (never ? FSDP_SHARD_GRAD_OP : FSDP_FULL_SHARD),
                                        .use_orig_params = !player->plan->as_one,
                                        .backward_prefetch = (fsdp_backward_prefetch)(seed % 3),
                                        .forward_prefetch = seed / 3 % 2,
                                        .mixed_precision = {.param_dtype = s->policy.param_dtype,
                                                            .reduce_dtype = s->policy.reduce_dtype,
                                                            .keep_low_precision_grads = player->plan->low_sums,
                                                            .cast_forward_inputs = !s->policy.keep_forward_inputs,
                                                            .keep_root_forward_inputs = true},
                                        .cpu_offload = residence_offload(where, seed),
                                        .overlap = residence_overlap(where, seed),
                                        .ignored_params = player->ignored,
                                        .ignored_param_count = collect_ignored(player, player->ignored),
                                        .no_shared_memory = where->copy};

    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    if (s->reshard == FSDP_RESHARD_ALWAYS)
        CHECK_OK(fsdp_module_set_reshard_after_forward(module, true, false));
    CHECK_OK(fsdp_module_set_conditional(module, s->marked));
}

static void shard_state(tree_player *player, int state)
{
    const tree_state *s = &player->plan->states[state];
    fsdp_shard_options options = options_of(player, state);
    const fsdp__flat flat = {.align = player->plan->seed % 2 ? 16 : 0};
    fsdp_module *modules[TREE_MAX_CHILDREN];

    for (int m = 0; m < s->member_count; m++)
        modules[m] = player->modules[s->members[s->backwards ? s->member_count - 1 - m : m]];
    if (player->plan->flat)
        options.placement = NULL;
    if (player->plan->parts > 0)
        CHECK_OK(shard_in_parts(modules, s->member_count, &options, player->plan->parts));
    else
        CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, modules, s->member_count, &options,
                                   player->plan->flat ? &flat : NULL));
    CHECK_OK(fsdp_module_set_conditional(modules[0], s->marked));
}

/* Whether some rank's forward leaves out parameters. */
static bool leaves_out(const tree_plan *plan)
{
    bool unused = tree_is_uneven(plan);

    for (int p = 0; p < plan->param_count; p++)
        unused = unused || (tree_is_original(plan, p) && plan->params[p].role == TREE_UNUSED);
    return unused;
}

/* Other residences, other buckets. */
static void replicate(const tree_player *player)
{
    const residence *where = player->run->residence;
    uint64_t seed = player->plan->seed;
    const fsdp_replicate_options options = {.bucket_cap_mb = (double)(seed % 4) * 1e-4,
                                            .find_unused_parameters = !player->plan->orders || leaves_out(player->plan),
                                            .gradient_as_bucket_view = where->copy,
                                            .overlap = residence_overlap(where, seed),
                                            .no_shared_memory = where->copy};

    CHECK_OK(fsdp_replicate(player->modules[0], &options));
}

/* From the bottom up. */
static void shard(tree_player *player)
{
    const tree_plan *plan = player->plan;

    if (plan->replicated) {
        replicate(player);
        return;
    }
    if (plan->wrap != FSDP_WRAP_NONE) {
        tree_shard_by_policy(player, options_of);
        return;
    }
    for (int i = plan->node_count - 1; i >= 0; i--)
        if (plan->nodes[i].state >= 0 && plan->states[plan->nodes[i].state].members[0] == i)
            (plan->fsdp1 ? wrap_unit : shard_state)(player, plan->nodes[i].state);
}

static void set_recompute(const tree_player *player)
{
    for (int i = 0; i < player->plan->node_count; i++)
        if (player->modules[i])
            CHECK_OK(fsdp_module_set_recompute(player->modules[i], player->plan->nodes[i].recompute));
}

static void build(tree_player *player)
{
    bool real = player->plan->real || player->plain;
    fsdp_device *device = test_device(player->context);

    tree_modules_create(player->context, real ? device : fsdp_meta(player->context), &player->feed, player->modules);
    for (int i = 0; i < player->plan->node_count; i++)
        for (int k = 0; k < player->plan->nodes[i].param_count; k++) {
            int p = player->plan->nodes[i].params[k];

            if (tree_is_original(player->plan, p))
                player->params[p] = fsdp_tensor_ref(((tree_module *)player->modules[i])->params[k]);
        }
    if (real)
        CHECK_OK(fsdp_module_initialize(player->modules[0], player->plan->seed));
    if (player->meshes.team)
        tree_cut(player->plan, player->modules, player->meshes.team);
    CHECK_OK(fsdp_module_parameters(player->modules[0], &player->named));
    if (!player->plain) {
        set_recompute(player);
        shard(player);
    }
    if (real)
        return;
    CHECK_OK(fsdp_module_materialize(player->modules[0], device));
    CHECK_OK(fsdp_module_initialize(player->modules[0], player->plan->seed));
}

/* What is said of windows at the beginning. Of FSDP1 a unit that every rank has whole stays so. */
static void begin_windows(tree_player *player)
{
    const tree_plan *plan = player->plan;

    player->reshards_backward = plan->fsdp1 && plan->replicas == plan->world ? 0 : UINT32_MAX;
    for (int s = 0; s < plan->state_count; s++) {
        const tree_state *state = &plan->states[s];

        player->reshard[s] = state->reshard;
        if (state->slice)
            player->reshard[s] = state->slice == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS;
        if (state->stage == 1 || state->stage == 2)
            player->reshard[s] = FSDP_RESHARD_NEVER;
    }
}

void tree_player_begin(tree_player *player, fsdp_context *context, tree_run *run, int model, tree_meshes meshes)
{
    const tree_plan *plan = model > 0 ? run->plan->second : run->plan;
    int rank = fsdp_context_rank(context);

    *player = (tree_player){.plan = plan,
                            .run = run,
                            .context = context,
                            .meshes = meshes,
                            .plain = run->residence == NULL,
                            .model = model,
                            .first_rank = plan->team > 1 ? rank / plan->team : rank,
                            .place = rank,
                            .ranks = run->residence ? 1 : plan->world,
                            .last = true,
                            .sync = UINT32_MAX,
                            .all_reduce = UINT32_MAX,
                            .wide = !run->residence && !tree_adds_otherwise(plan) &&
                                    fsdp__device_wide_gradients(test_device(context))};
    player->feed = (tree_feed){.plan = plan,
                               .player = player,
                               .plain = player->plain,
                               .team = meshes.team ? fsdp_mesh_process_group(meshes.team, 0) : NULL,
                               .failing = -1};
    begin_windows(player);
    build(player);
    CHECK_OK(tree_optimizer_create(player, plan->adamw, 0, 1, &player->optimizers[0]));
    for (int p = 0; p < plan->param_count; p++)
        player->optimized[p] =
            player->params[p] && !plan->params[p].ignored && fsdp_tensor_requires_grad(player->params[p]);
}

void tree_drop_slot(tree_slot *slot)
{
    for (int i = 0; i < TREE_MAX_WORLD; i++) {
        fsdp_tensor_unref(slot->losses[i]);
        fsdp_tensor_unref(slot->inputs[i]);
    }
    *slot = (tree_slot){0};
}

void tree_adds_otherwise_now(const tree_player *player)
{
    player->run->otherwise = FSDP__MIN(player->run->otherwise, player->at);
}

void tree_drop_unreduced(tree_player *player, bool ignored)
{
    for (int r = 0; r < TREE_MAX_WORLD; r++)
        for (int p = 0; p < TREE_MAX_PARAMS; p++) {
            if (player->plan->params[p].ignored && !ignored)
                continue;
            fsdp_tensor_unref(player->unreduced[r][p]);
            player->unreduced[r][p] = NULL;
            free(player->partial[r][p]);
            player->partial[r][p] = NULL;
        }
}

void tree_drop_checkpoint(tree_checkpoint *checkpoint)
{
    for (int p = 0; p < TREE_MAX_PARAMS; p++)
        free(checkpoint->values[p]);
    *checkpoint = (tree_checkpoint){0};
}

void tree_player_end(tree_player *player)
{
    for (int s = 0; s < TREE_SLOTS; s++)
        tree_drop_slot(&player->slots[s]);
    tree_drop_unreduced(player, true);
    tree_drop_wides(player);
    for (int i = 0; i < TREE_OPTIMIZERS; i++)
        fsdp_optimizer_free(player->optimizers[i]);
    fsdp_state_dict_free(player->optimizer_state);
    fsdp_state_dict_free(player->state);
    fsdp_checkpoint_saver_free(player->saver); /* it may have one under way */
    tree_drop_checkpoint(&player->checkpoints[0]);
    tree_drop_checkpoint(&player->checkpoints[1]);
    fsdp_parameters_release(&player->named);
    for (int p = 0; p < TREE_MAX_PARAMS; p++) {
        fsdp_tensor_unref(player->params[p]);
        free(player->saved[p]);
    }
    fsdp_module_unref(player->modules[0]);
    fsdp_event_free(player->written);
}

void tree_player_rebuild(tree_player *player, bool losses_last)
{
    tree_slot slots[TREE_SLOTS] = {0};
    int at = player->at;

    for (int s = 0; s < TREE_SLOTS && losses_last; s++) {
        slots[s] = player->slots[s];
        player->slots[s] = (tree_slot){0};
    }
    tree_player_end(player);
    tree_player_begin(player, player->context, player->run, player->model, player->meshes);
    player->at = at;
    for (int s = 0; s < TREE_SLOTS; s++)
        tree_drop_slot(&slots[s]);
}

/* ---- asking ---- */

fsdp_tensor *tree_field(const tree_player *player, int param)
{
    char name[16];

    snprintf(name, sizeof name, "p%d", param);
    return CHECK_PTR(fsdp_module_parameter(player->modules[player->plan->params[param].node], name));
}

fsdp_tensor *tree_gradient(const tree_player *player, int param)
{
    fsdp_tensor *shard = player->params[param], *view;
    const fsdp__param *p = player->plan->as_one ? fsdp__param_of(shard) : NULL;
    const fsdp_tensor *all = p ? fsdp_tensor_grad(p->group->vector.sharded) : NULL;

    if (!p) /* also of a plain tree */
        return fsdp_tensor_ref(fsdp_tensor_grad(shard));
    if (!all)
        return NULL;
    CHECK_OK(fsdp__tensor_create_view(all->storage, all->dtype, shard->ndim, shard->shape, NULL,
                                      all->offset + p->part.in_shard, &view));
    CHECK_OK(fsdp_tensor_set_distribution(view, fsdp_tensor_distribution(shard)));
    return view;
}

bool tree_in_window(const tree_player *player, int param)
{
    int owner = player->plan->params[param].owner;

    return player->params[param] && owner >= 0 && player->windows >> owner & 1;
}

/* ---- logging ---- */

float *tree_read(const fsdp_tensor *tensor)
{
    float *values = malloc((size_t)(fsdp_tensor_numel(tensor) + 1) * sizeof *values);

    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    return values;
}

/* Adds it to the log of one rank of all. Takes over `values`. */
static void add_to(tree_player *player, int place, const char *what, int param, float *values, int64_t count)
{
    const log_entry entry = {
        .call = player->at, .model = player->model, .param = param, .what = what, .count = count, .values = values};

    run_log_add(&player->run->logs[place], &entry);
}

/* The ranks of all that have what rank `rank` of the plan has. */
static int first_place(const tree_player *player, int rank)
{
    return !player->plain ? player->place : player->plan->team > 1 ? rank * player->plan->team : rank;
}

static int places(const tree_player *player)
{
    return player->plain && player->plan->team > 1 ? player->plan->team : 1;
}

static float *copy_of(const float *values, int64_t count)
{
    float *copy = malloc((size_t)(count + 1) * sizeof *copy);

    memcpy(copy, values, (size_t)count * sizeof *copy);
    return copy;
}

/* Takes over `values`. */
static void add(tree_player *player, int rank, const char *what, int param, float *values, int64_t count)
{
    for (int t = 1; t < places(player); t++)
        add_to(player, first_place(player, rank) + t, what, param, copy_of(values, count), count);
    add_to(player, first_place(player, rank), what, param, values, count);
}

static void add_one(tree_player *player, int rank, const char *what, int param, double value)
{
    float *copy = malloc(sizeof *copy);

    *copy = (float)value;
    add(player, rank, what, param, copy, 1);
}

void tree_log_all(tree_player *player, const char *what, int param, double value)
{
    for (int i = 0; i < player->ranks; i++)
        add_one(player, player->first_rank + i, what, param, value);
}

void tree_log_value(tree_player *player, int rank, const char *what, double value)
{
    add_one(player, rank, what, -1, value);
}

void tree_log_tensor(tree_player *player, int rank, const char *what, const fsdp_tensor *tensor)
{
    add(player, rank, what, -1, tree_read(tensor), fsdp_tensor_numel(tensor));
}

void tree_take_part(float *values, int ndim, int64_t *shape, int dim, int parts, int part)
{
    int64_t rows = shape[dim], inner = 1, outer = 1, first, count = fsdp_shard_range(rows, parts, part, &first);

    for (int d = 0; d < ndim; d++) {
        inner *= d > dim ? shape[d] : 1;
        outer *= d < dim ? shape[d] : 1;
    }
    for (int64_t o = 0; o < outer; o++)
        memmove(values + o * count * inner, values + (o * rows + first) * inner,
                (size_t)(count * inner) * sizeof *values);
    shape[dim] = count;
}

void tree_log_full(tree_player *player, const char *what, int param, const fsdp_tensor *tensor)
{
    for (int i = 0; i < player->ranks; i++)
        add(player, player->first_rank + i, what, param, tree_read(tensor), fsdp_tensor_numel(tensor));
}

/* What member `t` of a team has of a whole tensor, and with `rank` what it has of that when it is sharded; -1: all. */
static void add_part(tree_player *player, int place, const char *what, int param, const fsdp_tensor *tensor, int t,
                     int rank)
{
    const tree_param *p = &player->plan->params[param];
    int shards = player->plan->world / player->plan->replicas, ndim = fsdp_tensor_ndim(tensor);
    float *values = tree_read(tensor);
    int64_t shape[FSDP_MAX_DIMS], count = 1;

    memcpy(shape, fsdp_tensor_shape(tensor), sizeof *shape * (size_t)ndim);
    if (player->plan->team > 1 && p->way > 0)
        tree_take_part(values, ndim, shape, p->way - 1, player->plan->team, t);
    if (rank >= 0)
        tree_take_part(values, ndim, shape, p->dim, shards, rank % shards);
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    add_to(player, place, what, param, values, count);
}

void tree_log_whole(tree_player *player, const char *what, int param, const fsdp_tensor *tensor)
{
    if (!player->plain) {
        tree_log_full(player, what, param, tensor);
        return;
    }
    for (int i = 0; i < player->ranks; i++)
        for (int t = 0; t < places(player); t++)
            add_part(player, first_place(player, i) + t, what, param, tensor, t, -1);
}

/* Where a rank's part of a flat group begins follows from the others of it: all of it is shown. */
void tree_log_part(tree_player *player, const char *what, int param, const fsdp_tensor *tensor)
{
    const tree_param *p = &player->plan->params[param];

    if (player->plan->flat && !p->ignored) {
        fsdp_tensor *whole;

        CHECK_OK(fsdp_full_tensor(tensor, &whole));
        tree_log_full(player, what, param, whole);
        fsdp_tensor_unref(whole);
        return;
    }
    if (!player->plain) {
        tree_log_full(player, what, param, tensor);
        return;
    }
    for (int i = 0; i < player->ranks; i++)
        for (int t = 0; t < places(player); t++)
            add_part(player, first_place(player, i) + t, what, param, tensor, t, p->ignored ? -1 : i);
}

/* Of an ignored parameter: nobody reduces them. */
static void log_own_gradients(tree_player *player, int param)
{
    for (int r = 0; r < player->ranks; r++) {
        const fsdp_tensor *gradient = player->unreduced[r][param];

        add_one(player, r, "presence of the gradient", param, gradient != NULL);
        for (int t = 0; t < places(player) && gradient; t++)
            add_part(player, first_place(player, r) + t, "gradient", param, gradient, t, -1);
    }
}

/* Whether a tensor has the shape of an unsharded parameter: of a team's part of it, where a team has cut it. */
static bool is_unsharded(const tree_player *player, int param, const fsdp_tensor *tensor)
{
    const tree_param *p = &player->plan->params[param];
    bool is = fsdp_tensor_ndim(tensor) == p->ndim;

    for (int d = 0; d < p->ndim && is; d++) {
        int64_t first, rows = p->shape[d];

        if (player->plan->team > 1 && p->way == 1 + d)
            rows = fsdp_shard_range(rows, player->plan->team, fsdp_mesh_coordinate(player->meshes.team, 0), &first);
        is = fsdp_tensor_size(tensor, d) == rows;
    }
    return is;
}

bool tree_is_plain(const tree_player *player, int param, const fsdp_tensor *tensor)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);

    return player->meshes.team && player->plan->params[param].way != TREE_ALIKE
               ? d && fsdp_mesh_equal(d->mesh, player->meshes.team)
               : !d;
}

/* What the field names: 0 the shard, 1 a whole plain tensor, 2 something else. */
static int field_names(const tree_player *player, int param)
{
    const fsdp_tensor *field = tree_field(player, param);

    if (player->plain)
        return tree_in_window(player, param);
    if (field == player->params[param])
        return 0;
    return tree_is_plain(player, param, field) && is_unsharded(player, param, field) ? 1 : 2;
}

static void observe_gradient(tree_player *player, int param)
{
    fsdp_tensor *gradient;

    if (player->plain && player->plan->params[param].ignored) {
        log_own_gradients(player, param);
        return;
    }
    gradient = tree_gradient(player, param);
    tree_log_all(player, "presence of the gradient", param, gradient != NULL);
    if (gradient)
        tree_log_part(player, "gradient", param, gradient);
    fsdp_tensor_unref(gradient);
}

/* Reading makes shards whole, so of those that may be in halves the values are only read now and then. */
static bool shows_values(const tree_player *player, int param)
{
    int owner = player->plan->params[param].owner;

    return owner < 0 || player->at % 3 == 0 || !tree_splits(player->plan, owner);
}

void tree_observe(tree_player *player)
{
    for (int p = 0; p < player->plan->param_count; p++) {
        const fsdp_tensor *tensor = player->params[p];

        if (!tensor)
            continue;
        if (player->plan->orders)
            tree_log_all(player, "what the field names", p, field_names(player, p));
        if (shows_values(player, p))
            tree_log_part(player, "values", p, tensor);
        tree_log_all(player, "requires_grad", p, fsdp_tensor_requires_grad(tensor));
        if (!player->unsettled) /* else they are on their way */
            observe_gradient(player, p);
    }
}
