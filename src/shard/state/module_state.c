/* module_state.c - the groups of one call of a front door. */
#include "shard/state/module_state.h"
#include "nn/module_path.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/probe.h"
#include "comm/group_calls.h"
#include "shard/reduce/bucket_order.h"
#include "shard/state/allocate.h"

/* ---- life cycle ---- */

fsdp_status fsdp__module_state_create(const fsdp__door *door, fsdp_module *const *modules, int count,
                                      const fsdp_shard_options *options, fsdp__module_state **out)
{
    fsdp__module_state *state = fsdp__calloc(1, sizeof *state);

    FSDP__TRY_NEW(state);
    state->refs = 1;
    state->door = door;
    state->policy = options->mp_policy;
    state->offload = options->offload_policy;
    state->reshard = options->reshard_after_forward;
    state->overlap = options->overlap;
    state->reduce_grads = state->reshard_after_backward = state->unshard_in_backward = true;
    state->reduction.all_reduce = true;
    state->slice_ranks = options->reshard_after_forward_ranks;
    if (state->slice_ranks)
        state->reshard = state->slice_ranks == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS;
    state->reshard_after_forward = state->reshard != FSDP_RESHARD_NEVER;
    state->modules = fsdp__calloc((size_t)count, sizeof *state->modules);
    state->ran = fsdp__calloc((size_t)count, sizeof *state->ran);
    if (!state->modules || !state->ran) {
        fsdp__module_state_free(state);
        return FSDP_NO_MEMORY;
    }
    memcpy(state->modules, modules, (size_t)count * sizeof *modules);
    state->module_count = count;
    *out = state;
    return FSDP_OK;
}

void fsdp__module_state_free(fsdp__module_state *state)
{
    for (int64_t i = 0; i < state->group_count; i++)
        fsdp__param_group_free(state->groups[i], state->comm);
    (void)fsdp__landed_hook_set(&state->reduction.landed, NULL, NULL);
    FSDP__FREE_ALL(state->groups, state->companions, state->hosts, state->modules, state->ran, state->order_marks,
                   state->name, state);
}

fsdp_status fsdp__module_state_add_group(fsdp__module_state *state, fsdp_mesh *mesh, bool share,
                                         fsdp__param_group **out)
{
    fsdp__param_group *group;
    fsdp__residence *r;

    FSDP_TRY(fsdp__grow(&state->groups, state->group_count, &state->group_capacity, sizeof *state->groups));
    FSDP__TRY_NEW(group = fsdp__calloc(1, sizeof *group));
    r = &group->residence;
    r->mesh = fsdp__mesh_info_of(mesh);
    r->offload = state->offload.cpu;
    r->pin = !state->offload.pageable;
    r->splits = state->policy.split_shards;
    r->share = share && fsdp_process_group_can_share(r->mesh.shard_pg, FSDP_MEMORY_SHARED) &&
               fsdp_process_group_can_share(r->mesh.shard_pg, FSDP_MEMORY_SYMMETRIC);
    group->state = state;
    group->owner = fsdp__module_owner(state->modules[0]);
    group->cut = &fsdp__cut_by_parameter;
    group->of_root = true; /* until it has joined a root */
    state->groups[state->group_count++] = group;
    *out = group;
    return FSDP_OK;
}

fsdp__param *fsdp__module_state_find(const fsdp__module_state *state, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < state->group_count; i++)
        for (int64_t p = 0; p < state->groups[i]->param_count; p++)
            if (state->groups[i]->params[p].sharded == tensor)
                return &state->groups[i]->params[p];
    return NULL;
}

const char fsdp__module_state_key = 0;

fsdp__module_state *fsdp__module_state_of(const fsdp_module *module)
{
    return fsdp__module_hooks_arg(module, &fsdp__module_state_key);
}

bool fsdp__module_state_is_meta(const fsdp__module_state *state)
{
    return state->group_count > 0 && state->groups[0]->residence.kind == FSDP__RESIDENCE_NONE;
}

fsdp_device *fsdp__module_state_device(const fsdp__module_state *state)
{
    return state->group_count > 0 ? state->groups[0]->residence.device : NULL;
}

size_t fsdp__module_state_unsharded_bytes(const fsdp__module_state *state)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < state->group_count; i++)
        bytes += state->groups[i]->residence.unsharded_bytes;
    return bytes;
}

/* Returns whether a backward reduces its gradients. */
static bool syncs_gradients(const fsdp__module_state *state)
{
    return state->reduce_grads && state->no_sync == 0;
}

void fsdp__module_state_forget_ran(fsdp__module_state *state)
{
    memset(state->ran, 0, (size_t)state->module_count * sizeof *state->ran);
    state->ran_count = 0;
}

void fsdp__module_state_notify(const fsdp__module_state *state, fsdp_shard_event event)
{
    static const char *const events[] = {
        [FSDP_EVENT_UNSHARD] = "unshard",
        [FSDP_EVENT_WAIT] = "wait",
        [FSDP_EVENT_RESHARD] = "reshard",
        [FSDP_EVENT_PRE_FORWARD] = "pre_forward",
        [FSDP_EVENT_POST_FORWARD] = "post_forward",
        [FSDP_EVENT_PRE_BACKWARD] = "pre_backward",
        [FSDP_EVENT_REDUCE] = "reduce",
        [FSDP_EVENT_POST_BACKWARD] = "post_backward",
    };
    static const char *const trainings[] = {
        [FSDP__IDLE] = "idle",
        [FSDP__FORWARD] = "forward",
        [FSDP__PRE_BACKWARD] = "pre_backward",
        [FSDP__POST_BACKWARD] = "post_backward",
    };

    FSDP__TELL(SHARD_CHANGED, .context = state->comm->context, .object = state, .name = state->name, .kind = (int)event,
               .word = events[event], .phase = trainings[state->training], .number = (uint64_t)state->group_count,
               .ns = fsdp__clock_ns());
}

/* ---- companions ---- */

static const char *use_of_hosts(const fsdp__module_state *state)
{
    const char *use = NULL;

    for (int64_t i = 0; i < state->host_count && !use; i++)
        use = fsdp__module_state_use(state->hosts[i]);
    return use;
}

const char *fsdp__module_state_use(const fsdp__module_state *state)
{
    if (state->training == FSDP__FORWARD && !state->leaving)
        return "forward";
    return state->training == FSDP__PRE_BACKWARD ? "backward" : use_of_hosts(state);
}

bool fsdp__module_state_in_use(const fsdp__module_state *state)
{
    return fsdp__module_state_use(state) != NULL;
}

bool fsdp__module_state_is_alone(const fsdp__module_state *state)
{
    return state->parent && fsdp__module_state_in_use(state->parent);
}

fsdp_status fsdp__module_state_each(fsdp__module_state *state,
                                    fsdp_status (*visit)(void *arg, fsdp__module_state *state), void *arg)
{
    FSDP_TRY(visit(arg, state));
    for (int64_t i = 0; i < state->companion_count; i++)
        FSDP_TRY(fsdp__module_state_each(state->companions[i], visit, arg));
    return FSDP_OK;
}

fsdp__module_state *fsdp__module_state_next_child(const fsdp__module_state *state, int64_t *at)
{
    while (*at < state->companion_count && state->companions[*at]->parent != state)
        ++*at;
    return *at < state->companion_count ? state->companions[(*at)++] : NULL;
}

/* ---- transitions ---- */

/* Sets, or removes, the label that says what the group's collectives are for, in case ranks disagree. */
static void set_label(const fsdp__module_state *state, fsdp_process_group *pg, bool on)
{
    const char *name = state->name && !*state->name ? "the root" : state->name;

    fsdp__process_group_set_label(pg, on ? name : NULL);
}

/* Returns whether any group's state is between `least` and `most`. */
static bool any_group(const fsdp__module_state *state, fsdp_sharded_state least, fsdp_sharded_state most)
{
    bool any = false;

    for (int64_t i = 0; i < state->group_count; i++)
        any = any || (state->groups[i]->sharded_state >= least && state->groups[i]->sharded_state <= most);
    return any;
}

static fsdp_status unshard(void *unused, fsdp__module_state *state)
{
    (void)unused;
    if (any_group(state, FSDP_SHARDED, FSDP_SHARDED_POST_FORWARD))
        fsdp__module_state_notify(state, FSDP_EVENT_UNSHARD);
    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp__param_group *group = state->groups[i];
        fsdp_status status;

        set_label(state, fsdp__param_group_gather_pg(group), true);
        status = fsdp__param_group_unshard(group, state->comm);
        set_label(state, fsdp__param_group_gather_pg(group), false);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status fsdp__module_state_unshard(fsdp__module_state *state)
{
    return fsdp__module_state_each(state, unshard, NULL);
}

fsdp_status fsdp__module_state_unshard_in_backward(fsdp__module_state *state)
{
    if (state->unshard_in_backward)
        FSDP_TRY(unshard(NULL, state));
    for (int64_t i = 0; i < state->companion_count; i++) {
        fsdp__module_state *companion = state->companions[i];

        if (companion->parent == state)
            FSDP_TRY(fsdp__module_state_unshard_in_backward(companion));
        else if (state->unshard_in_backward)
            FSDP_TRY(fsdp__module_state_unshard(companion));
    }
    return FSDP_OK;
}

/* Returns whether a gather is under way that nobody has waited for. */
static bool is_gathering(const fsdp__module_state *state)
{
    return any_group(state, FSDP_GATHERING, FSDP_GATHERING);
}

bool fsdp__module_state_is_ahead(const fsdp__module_state *state)
{
    bool ahead = false;

    for (int64_t i = 0; i < state->group_count; i++)
        ahead = ahead || (state->groups[i]->sharded_state == FSDP_GATHERING && !state->groups[i]->requested);
    return ahead;
}

static fsdp_status await(void *unused, fsdp__module_state *state)
{
    bool gathering = is_gathering(state);

    (void)unused;
    for (int64_t i = 0; i < state->group_count; i++)
        FSDP_TRY(fsdp__param_group_wait(state->groups[i], state->comm));
    if (gathering)
        fsdp__module_state_notify(state, FSDP_EVENT_WAIT);
    return FSDP_OK;
}

fsdp_status fsdp__module_state_wait(fsdp__module_state *state)
{
    return fsdp__module_state_each(state, await, NULL);
}

void fsdp__module_state_leave(fsdp__module_state *state)
{
    if (fsdp__module_state_in_use(state))
        return;
    for (int64_t i = 0; i < state->companion_count; i++)
        fsdp__module_state_leave(state->companions[i]);
    for (int64_t i = 0; i < state->group_count; i++)
        fsdp__param_group_leave(state->groups[i]);
}

static void reshard(fsdp__module_state *state, void (*how)(fsdp__param_group *, fsdp__comm_context *))
{
    bool unsharded = any_group(state, FSDP_SHARDED_POST_FORWARD, FSDP_UNSHARDED);

    for (int64_t i = 0; i < state->group_count; i++)
        how(state->groups[i], state->comm);
    if (unsharded)
        fsdp__module_state_notify(state, FSDP_EVENT_RESHARD);
}

static void reshard_all(fsdp__module_state *state, void (*how)(fsdp__param_group *, fsdp__comm_context *))
{
    if (use_of_hosts(state))
        return;
    reshard(state, how);
    for (int64_t i = 0; i < state->companion_count; i++)
        if (!fsdp__module_state_in_use(state->companions[i]))
            reshard_all(state->companions[i], how);
}

void fsdp__module_state_reshard(fsdp__module_state *state)
{
    reshard_all(state, fsdp__param_group_reshard);
}

void fsdp__module_state_drop_gather(fsdp__module_state *state)
{
    bool dropped = is_gathering(state) && !use_of_hosts(state);

    for (int64_t i = 0; i < state->group_count && dropped; i++)
        if (state->groups[i]->sharded_state == FSDP_GATHERING)
            fsdp__param_group_reshard(state->groups[i], state->comm);
    if (dropped)
        fsdp__module_state_notify(state, FSDP_EVENT_RESHARD);
}

static fsdp_status reshard_after_forward(fsdp__module_state *state)
{
    bool unsharded = any_group(state, FSDP_GATHERING, FSDP_UNSHARDED);

    if (state->slice_ranks == 0) {
        reshard(state, fsdp__param_group_reshard);
        return FSDP_OK;
    }
    for (int64_t i = 0; i < state->group_count; i++)
        FSDP_TRY(fsdp__param_group_reshard_to_slice(state->groups[i], state->comm));
    if (unsharded)
        fsdp__module_state_notify(state, FSDP_EVENT_RESHARD);
    return FSDP_OK;
}

fsdp_status fsdp__module_state_reshard_after_forward(fsdp__module_state *state)
{
    if (fsdp__module_state_in_use(state))
        return FSDP_OK;
    if (state->reshard_after_forward && !state->keeps_unsharded)
        FSDP_TRY(reshard_after_forward(state));
    for (int64_t i = 0; i < state->companion_count; i++)
        FSDP_TRY(fsdp__module_state_reshard_after_forward(state->companions[i]));
    return FSDP_OK;
}

void fsdp__module_state_reshard_after_backward(fsdp__module_state *state)
{
    if (fsdp__module_state_in_use(state))
        return;
    if (state->reshard_after_backward && !(state->keeps_unsynced && !syncs_gradients(state)))
        reshard(state, fsdp__param_group_reshard);
    for (int64_t i = 0; i < state->companion_count; i++)
        fsdp__module_state_reshard_after_backward(state->companions[i]);
}

void fsdp__module_state_give_up(fsdp__module_state *state)
{
    reshard_all(state, fsdp__param_group_give_up);
}

void fsdp__module_state_give_up_own(fsdp__module_state *state)
{
    reshard(state, fsdp__param_group_give_up);
}

static fsdp_status reduce(fsdp__module_state *state, const fsdp__reduce_settings *settings)
{
    bool any = false;

    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp__param_group *group = state->groups[i];
        bool reduced = false;
        fsdp_status status;

        set_label(state, fsdp__param_group_reduce_pg(group), true);
        if (group->buckets)
            status = fsdp__buckets_reduce(group, state->comm, settings, &reduced);
        else
            status = fsdp__param_group_reduce(group, state->comm, settings, &reduced);
        set_label(state, fsdp__param_group_reduce_pg(group), false);
        FSDP_TRY(status);
        any = any || reduced;
    }
    if (any)
        fsdp__module_state_notify(state, FSDP_EVENT_REDUCE);
    return FSDP_OK;
}

fsdp_status fsdp__module_state_reduce(fsdp__module_state *state)
{
    bool syncs = syncs_gradients(state);
    fsdp__module_state *child;

    if (syncs)
        FSDP_TRY(reduce(state, &state->reduction));
    for (int64_t i = 0; i < state->group_count && !syncs; i++)
        FSDP_TRY(fsdp__param_group_keep_gradients(state->groups[i]));
    for (int64_t at = 0; (child = fsdp__module_state_next_child(state, &at));)
        if (!child->tied)
            FSDP_TRY(fsdp__module_state_reduce(child));
    return FSDP_OK;
}

fsdp_status fsdp__module_state_reduce_pending(fsdp__module_state *state)
{
    fsdp__reduce_settings all = state->reduction;
    fsdp_status status;

    if (fsdp__module_state_is_meta(state))
        return FSDP_OK;
    all.all_reduce = true;
    all.landed = fsdp__landed_hook_ref(all.landed); /* it may remove itself */
    status = reduce(state, &all);
    fsdp__landed_hook_unref(all.landed);
    return status;
}

void fsdp__module_state_reset(fsdp__module_state *state)
{
    for (int64_t i = 0; i < state->group_count; i++)
        fsdp__param_group_drop_gradients(state->groups[i]);
    state->to_come = 0;
    state->training = FSDP__IDLE; /* first, so that the reshard finds companions out of use */
    fsdp__module_state_reshard(state);
    fsdp__module_state_forget_ran(state);
}
