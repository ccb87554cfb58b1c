/* retype.c - changes the dtype of groups: checks them, brings them to rest, makes new memory beside the old, and
 * exchanges the two. */
#include "shard/state/retype.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "shard/group/halves.h"
#include "shard/reduce/gradients.h"
#include "shard/state/allocate.h"
#include "shard/state/write.h"

/* Holds what a group had before, kept until its new memory is there. */
typedef struct before {
    fsdp__param_group group;
    fsdp__param *params;
    fsdp_tensor **made; /* for each parameter two in the new dtype: gradient, itself on meta; or NULL */
    bool aside;         /* the group no longer has any of that */
} before;

typedef struct retyping {
    fsdp_dtype dtype;
    struct retyped_state {
        fsdp__module_state *state;
        int64_t seen; /* number of its modules that were seen */
    } * states;
    int64_t state_count, state_capacity;
    fsdp__param_group **groups; /* to be changed; those with bytes come first */
    int64_t group_count, group_capacity, allocated;
    before *before; /* one for each group */
} retyping;

/* ---- which groups ---- */

static fsdp_status collect_state(void *arg, fsdp_module *module, const char *name)
{
    retyping *r = arg;
    fsdp__module_state *state = fsdp__module_state_of(module);
    int64_t i = 0;

    (void)name;
    if (!state)
        return FSDP_OK;
    while (i < r->state_count && r->states[i].state != state)
        i++;
    if (i == r->state_count) {
        FSDP_TRY(fsdp__grow(&r->states, i, &r->state_capacity, sizeof *r->states));
        r->states[r->state_count++] = (struct retyped_state){.state = state};
    }
    r->states[i].seen++;
    return FSDP_OK;
}

static bool is_to_change(const retyping *r, const fsdp__param_group *group)
{
    bool differs = false;

    for (int64_t i = 0; i < group->param_count; i++)
        differs = differs || group->params[i].orig_dtype != r->dtype;
    return differs;
}

static fsdp_status collect_groups(retyping *r, bool meta)
{
    for (int64_t i = 0; i < r->state_count; i++)
        for (int64_t g = 0; g < r->states[i].state->group_count; g++) {
            fsdp__param_group *group = r->states[i].state->groups[g];

            if ((group->residence.kind == FSDP__RESIDENCE_NONE) != meta || !is_to_change(r, group))
                continue;
            FSDP_TRY(fsdp__grow(&r->groups, r->group_count, &r->group_capacity, sizeof *r->groups));
            r->groups[r->group_count++] = group;
        }
    return FSDP_OK;
}

static fsdp_status collect(retyping *r, fsdp_module *root)
{
    FSDP_TRY(fsdp__module_walk(root, collect_state, r));
    FSDP_TRY(collect_groups(r, false));
    r->allocated = r->group_count;
    FSDP_TRY(collect_groups(r, true));
    r->before = fsdp__calloc((size_t)r->group_count + 1, sizeof *r->before);
    return r->before ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- whether they may change ---- */

static fsdp_status fail(const fsdp__param *param, const char *why)
{
    char text[256];

    return FSDP_FAIL(FSDP_STATE, "cannot change the dtype of parameter %s: %s",
                     fsdp__param_text(param, text, sizeof text), why);
}

/* Returns whether anybody holds the unsharded parameter besides the group and the fields that name it. */
static bool is_held(const fsdp__param *p)
{
    int64_t own = 1;

    if (!p->unsharded)
        return false;
    for (int64_t i = 0; i < p->field_count; i++)
        own += *p->fields[i].field == p->unsharded;
    return p->unsharded->refs > own || p->unsharded->storage->refs > 1 || fsdp__has_grad_hooks(p->unsharded);
}

static fsdp_status check_param(const retyping *r, const fsdp__param *p)
{
    const fsdp_mp_policy *policy = &p->group->state->policy;
    fsdp_dtype dtype = policy->param_dtype ? policy->param_dtype : r->dtype;

    if (p->group->cut->no_retype)
        return fail(p, p->group->cut->no_retype);
    if (!fsdp_dtype_is_floating(p->orig_dtype))
        return fail(p,
                    "its bytes are codes, and its group is changed as a whole; change the dtype before it is sharded");
    if (p->unsharded && (fsdp__param_unreduced(p) || p->partial_used))
        return fail(p, "gradients wait to be reduced; call fsdp_module_synchronize_gradients, or drop them");
    if (is_held(p))
        return fail(p, "a graph or the caller holds the gathered one; run its backward, or let go of it, first");
    for (int64_t i = 0; i < p->field_count; i++) {
        const fsdp__module_state *user = p->fields[i].user;

        if (user && (user->policy.param_dtype ? user->policy.param_dtype : r->dtype) != dtype)
            return fail(p, "it is tied, and would be gathered in two dtypes; give both calls the same param_dtype");
    }
    return FSDP_OK;
}

static fsdp_status check_group(const retyping *r, const fsdp__param_group *group)
{
    const fsdp__module_state *state = group->state;
    const fsdp_device *device = r->groups[0]->residence.device;

    if (state->training != FSDP__IDLE || fsdp__module_state_in_use(state) || state->root->forward_root ||
        state->root->in_backward)
        return fail(group->params, "a forward or backward is running");
    FSDP_TRY(fsdp__param_group_check_summon(group, "change the dtype of"));
    if (group->residence.device && group->residence.device != device)
        return fail(group->params, "it is on another device than parameters before; change theirs by themselves");
    for (int64_t i = 0; i < group->param_count; i++)
        FSDP_TRY(check_param(r, &group->params[i]));
    return FSDP_OK;
}

static fsdp_status check(const retyping *r)
{
    for (int64_t i = 0; i < r->state_count; i++) {
        const fsdp__module_state *state = r->states[i].state;
        int64_t modules = 0;

        for (int64_t m = 0; m < state->module_count; m++)
            modules += state->modules[m] != NULL;
        if (r->states[i].seen < modules && state->group_count > 0)
            return fail(state->groups[0]->params, "it is sharded together with a module elsewhere; give one that has "
                                                  "both");
    }
    for (int64_t i = 0; i < r->group_count; i++)
        FSDP_TRY(check_group(r, r->groups[i]));
    return FSDP_OK;
}

/* ---- at rest ---- */

/* Makes sure that nothing uses the memory that will be freed. Reductions land, and hooks may see their gradients. */
static fsdp_status come_to_rest(const retyping *r)
{
    for (int64_t i = 0; i < r->state_count; i++)
        FSDP_TRY(fsdp__comm_context_finish_reduction(r->states[i].state->comm));
    for (int64_t i = 0; i < r->state_count; i++) {
        fsdp__module_state *state = r->states[i].state;
        fsdp__comm_context *comm = state->comm;

        if (fsdp__module_state_is_meta(state))
            continue;
        fsdp__module_state_reshard(state);
        if (comm->stream)
            FSDP_TRY(fsdp_stream_synchronize(comm->stream));
        fsdp__comm_context_drop_memory(comm);
        comm->most_received = 0;
    }
    return FSDP_OK;
}

/* ---- made anew ---- */

static fsdp_status convert_gradient(const retyping *r, const fsdp__residence *residence, const fsdp_tensor *grad,
                                    fsdp_tensor **out)
{
    FSDP_TRY(fsdp__residence_shard_gradient(residence, r->dtype, grad->ndim, grad->shape, out));
    return fsdp__tensor_copy(*out, grad, false);
}

static fsdp_status convert(const retyping *r, const fsdp__param_group *group, const before *b)
{
    FSDP_TRY(fsdp__halves_join(r->groups[b - r->before]));
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp_tensor *shard = group->params[i].sharded, *grad = fsdp_tensor_grad(shard);

        if (grad)
            FSDP_TRY(convert_gradient(r, &group->residence, grad, &b->made[2 * i]));
        if (fsdp_device_is_meta(fsdp_tensor_device(shard)))
            FSDP_TRY(fsdp__tensor_convert(shard, r->dtype, &b->made[2 * i + 1]));
    }
    return FSDP_OK;
}

static void set_aside(fsdp__param_group *group, before *b)
{
    fsdp__residence *residence = &group->residence;

    b->group = *group;
    memcpy(b->params, group->params, (size_t)group->param_count * sizeof *b->params);
    b->aside = true;
    residence->kind = FSDP__RESIDENCE_NONE;
    residence->device = residence->shard_device = NULL;
    residence->shards = residence->unsharded = residence->cast = residence->low = NULL;
    group->encoded = (fsdp__encoded){0};
    group->offload = (fsdp__offload){0};
    group->gathered = NULL;
    b->group.gathers = (fsdp__exposed){0}; /* the group goes on counting */
    for (int64_t i = 0; i < group->param_count; i++)
        group->params[i].unsharded = NULL;
}

/* Lays out the group in the new dtype. An extension that is asked for its bytes sees shards of that dtype. */
static void lay_out(const retyping *r, fsdp__param_group *group, const before *b)
{
    const fsdp_mp_policy *policy = &group->state->policy;

    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        p->orig_dtype = p->sharded->dtype = r->dtype;
        p->param_dtype = policy->param_dtype ? policy->param_dtype : r->dtype;
        p->reduce_dtype = policy->reduce_dtype ? policy->reduce_dtype : r->dtype;
    }
    fsdp__param_group_lay_out(group);
    for (int64_t i = 0; i < group->param_count; i++)
        group->params[i].sharded->dtype = b->params[i].orig_dtype;
}

static fsdp_status prepare(const retyping *r)
{
    for (int64_t i = 0; i < r->group_count; i++) {
        fsdp__param_group *group = r->groups[i];
        before *b = &r->before[i];

        b->params = fsdp__calloc((size_t)group->param_count, sizeof *b->params);
        b->made = fsdp__calloc((size_t)group->param_count, 2 * sizeof *b->made);
        FSDP__TRY_NEW(b->params && b->made);
        FSDP_TRY(convert(r, group, b));
        set_aside(group, b);
        lay_out(r, group, b);
    }
    return FSDP_OK;
}

/* ---- exchanged ---- */

static void put_back(fsdp__param_group *group, const before *b)
{
    fsdp__exposed gathers = group->gathers;

    *group = b->group;
    group->gathers = gathers;
    memcpy(group->params, b->params, (size_t)group->param_count * sizeof *b->params);
}

static void take(fsdp__param_group *group, before *b)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        if (b->made[2 * i])
            fsdp__tensor_take(fsdp_tensor_grad(p->sharded), b->made[2 * i]);
        if (b->made[2 * i + 1])
            fsdp__tensor_take(p->sharded, b->made[2 * i + 1]);
        fsdp_tensor_unref(b->params[i].unsharded);
    }
    fsdp__param_group_leave_gradient_buffers(group);
    fsdp__param_group_close(&b->group);
}

static void end(retyping *r, fsdp_status status)
{
    for (int64_t i = 0; r->before && i < r->group_count; i++) {
        before *b = &r->before[i];

        if (b->aside && status == FSDP_OK)
            take(r->groups[i], b);
        else if (b->aside)
            put_back(r->groups[i], b);
        for (int64_t p = 0; b->made && p < 2 * r->groups[i]->param_count; p++)
            fsdp_tensor_unref(b->made[p]);
        FSDP__FREE_ALL(b->made, b->params);
    }
    FSDP__FREE_ALL(r->before, r->groups, r->states);
}

/* ---- the call ---- */

/* Returns the first group at or below the module. This needs no memory, so all ranks get through. */
static const fsdp__param_group *first_group(const fsdp_module *module)
{
    const fsdp__module_state *state = fsdp__module_state_of(module);
    const fsdp__param_group *found = state && state->group_count > 0 ? state->groups[0] : NULL;

    for (int64_t i = 0; i < module->parts->child_count && !found; i++)
        found = first_group(module->parts->children[i].module);
    return found;
}

static fsdp_status change(const retyping *r, fsdp_device *device)
{
    fsdp_status status = come_to_rest(r);

    if (status == FSDP_OK)
        status = prepare(r);
    FSDP_TRY(fsdp__param_groups_agree(r->groups, r->group_count, status));
    if (r->allocated == 0)
        return FSDP_OK;
    return fsdp__param_groups_allocate(r->groups, r->allocated, device, fsdp__begin_write);
}

/* Agrees with the ranks of all groups that change; if none does, with those of one group. */
static fsdp_status agree(const retyping *r, const fsdp__param_group *first, fsdp_status status)
{
    if (r->group_count > 0 || !first)
        return fsdp__param_groups_agree(r->groups, r->group_count, status);
    return fsdp__mesh_info_agree(&first->residence.mesh, status);
}

fsdp_status fsdp__retype(fsdp_module *root, fsdp_dtype dtype, fsdp_status so_far)
{
    const fsdp__param_group *first = first_group(root);
    retyping r = {.dtype = dtype};
    fsdp_status status = collect(&r, root);

    if (first) /* a rank that could not collect knows no groups to agree about */
        status = fsdp__mesh_info_agree(&first->residence.mesh, status);
    if (status == FSDP_OK)
        status = agree(&r, first, so_far == FSDP_OK ? check(&r) : so_far);
    if (status == FSDP_OK && r.group_count > 0)
        status = change(&r, r.groups[0]->residence.device);
    end(&r, status);
    return status;
}
