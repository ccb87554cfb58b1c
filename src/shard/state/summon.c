/* summon.c - puts whole parameters into the caller's hands: makes them from the shards, and writes them back.
 *
 * They are tensors of their own, beside what the engine gathers: in the dtype of the shards, writable, and apart from
 * the memory that peers read. A group is one all-gather, its gradients included. Everything that can run out on one
 * rank is taken before, and agreed; fields name the whole tensors once all groups have them. */
#include "shard/state/methods.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "comm/group_calls.h"
#include "shard/reduce/low_gradients.h"
#include "shard/reduce/owner.h"
#include "shard/state/allocate.h"

typedef struct summoning {
    const fsdp_module *module;
    fsdp_summon_options options;
    fsdp_status status; /* of all groups so far */
    int64_t summoned;   /* number of groups that a summon has ended for */
    /* These are the current group's, two for each parameter: one for itself and one for its gradient. */
    fsdp_tensor **gathered; /* gathered on the shards' device; NULL: there is none */
    fsdp_sharded_buffer *buffers;
    int64_t buffer_count;
    fsdp_tensor *vectors[2]; /* of a flat group: what those tensors lie in */
    fsdp_tensor *flat_grad;  /* of a flat group: this rank's part of the gradients' vector */
} summoning;

/* ---- groups ----
 *
 * There is no list of groups, since making one could fail on one rank. A group is visited as often as the tree leads to
 * it. */

typedef void (*visit_group)(summoning *s, fsdp__param_group *group);

typedef struct visiting {
    summoning *s;
    visit_group visit;
} visiting;

static fsdp_status visit_state(void *arg, fsdp__module_state *state)
{
    const visiting *v = arg;

    for (int64_t i = 0; i < state->group_count; i++)
        v->visit(v->s, state->groups[i]);
    return FSDP_OK;
}

static void visit_all(summoning *s, const fsdp_module *module, visit_group visit)
{
    fsdp__module_state *state = fsdp__module_state_of(module);

    if (state)
        (void)fsdp__module_state_each(state, visit_state, &(visiting){s, visit});
    for (int64_t i = 0; i < module->parts->child_count && !s->options.no_recurse; i++)
        visit_all(s, module->parts->children[i].module, visit);
}

/* ---- checks ---- */

static fsdp_status check_group(const fsdp__param_group *group, bool with_grads)
{
    const fsdp__module_state *state = group->state;
    const fsdp__root *root = state->root;
    char text[256];

    (void)fsdp__param_text(group->params, text, sizeof text);
    if (group->residence.kind == FSDP__RESIDENCE_NONE)
        return FSDP_FAIL(
            FSDP_STATE,
            "cannot summon parameter %s: it is still on the meta device: call fsdp_module_materialize first", text);
    if (state->training != FSDP__IDLE || fsdp__module_state_in_use(state) || root->forward_root || root->in_backward)
        return FSDP_FAIL(FSDP_STATE, "cannot summon parameter %s: a %s is running", text,
                         root->in_backward ? "backward" : "forward");
    if (with_grads && group->vector.sharded)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot summon parameter %s with its gradient: wrap with original parameters", text);
    return fsdp__param_group_check_summon(group, "summon");
}

static void check(summoning *s, fsdp__param_group *group)
{
    group->asked = false;
    if (s->status == FSDP_OK)
        s->status = check_group(group, s->options.with_grads);
}

static fsdp_status check_options(const fsdp_summon_options *options)
{
    if (options->rank0_only && !options->no_writeback)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot summon on rank 0 only and write back: the other ranks would have "
                                           "nothing to write: set no_writeback");
    return FSDP_OK;
}

/* ---- one group ---- */

/* Makes a tensor for the whole of a parameter, or for this rank's part of it where a team has cut it, which it says. */
static fsdp_status make_tensor(fsdp_device *device, const fsdp__param *p, fsdp_memory_kind kind, fsdp_tensor **out)
{
    FSDP_TRY(fsdp_tensor_create(device, p->orig_dtype, p->unsharded->ndim, p->unsharded->shape, kind, out));
    return p->parallel ? fsdp_tensor_set_distribution(*out, p->parallel) : FSDP_OK;
}

static void add_buffer(summoning *s, fsdp_sharded_buffer shape, void *shard, const fsdp_tensor *whole)
{
    fsdp_sharded_buffer *buffer = &s->buffers[s->buffer_count++];

    *buffer = shape;
    buffer->shard = shard;
    buffer->unsharded = fsdp_tensor_data(whole);
    buffer->shard_dtype = buffer->unsharded_dtype = whole->dtype;
}

/* Makes the tensor that the whole of `part` is gathered into. */
static fsdp_status make_gathered(summoning *s, const fsdp__param *p, const fsdp_tensor *part, fsdp_memory_kind kind,
                                 fsdp_tensor **out)
{
    const fsdp_tensor *vector = s->vectors[kind == FSDP_MEMORY_GRADIENT], *like = p->unsharded;

    if (!part)
        return FSDP_OK;
    if (vector)
        return fsdp__tensor_create_view(vector->storage, vector->dtype, like->ndim, like->shape, NULL,
                                        p->placement.first, out);
    FSDP_TRY(make_tensor(p->group->residence.shard_device, p, kind, out));
    add_buffer(s, fsdp__param_buffer(p), fsdp_tensor_data(part), *out);
    return FSDP_OK;
}

/* Makes this rank's part of the gradients' vector, since the gradients lie apart. */
static fsdp_status make_flat_grad(const fsdp__param_group *group, fsdp_tensor **out)
{
    fsdp_device *device = group->residence.shard_device;

    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        const fsdp_tensor *grad = fsdp_tensor_grad(p->sharded);
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *place = NULL;

        if (!grad)
            continue;
        if (!*out) {
            FSDP_TRY(
                fsdp_tensor_create(device, p->orig_dtype, 1, &group->vector.chunk_numel, FSDP_MEMORY_WORKSPACE, out));
            FSDP_TRY(fsdp_tensor_fill_(*out, 0));
        }
        FSDP_TRY(fsdp__view_narrow(*out, 0, p->part.in_shard, p->part.inner, &place));
        FSDP_TRY(fsdp__tensor_copy(place, grad, false));
    }
    return FSDP_OK;
}

/* Makes one buffer for all parameters of a flat group, and one for their gradients. */
static fsdp_status make_vectors(summoning *s, const fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    const fsdp__param *v = &group->vector;

    if (s->options.with_grads)
        FSDP_TRY(make_flat_grad(group, &s->flat_grad));
    for (int i = 0; i < (s->flat_grad ? 2 : 1); i++) {
        FSDP_TRY(fsdp_tensor_create(r->shard_device, v->orig_dtype, 1, &v->extent.rows,
                                    i == 0 ? FSDP_MEMORY_UNSHARDED_PARAMETER : FSDP_MEMORY_GRADIENT, &s->vectors[i]));
        add_buffer(s, fsdp__param_buffer(v), i == 0 ? fsdp__residence_shard(r, v) : fsdp_tensor_data(s->flat_grad),
                   s->vectors[i]);
    }
    return FSDP_OK;
}

/* Makes what the caller gets, which may be on another device than the gathered tensor. */
static fsdp_status make_kept(const fsdp__param *p, fsdp_tensor *gathered, fsdp_device *device, fsdp_tensor **out)
{
    if (!gathered || gathered->storage->device != device)
        return gathered ? make_tensor(device, p, gathered->storage->kind, out) : FSDP_OK;
    *out = fsdp_tensor_ref(gathered);
    return FSDP_OK;
}

static fsdp_status make_param(summoning *s, fsdp__param *p, fsdp_tensor *gathered[2])
{
    const fsdp__param_group *group = p->group;
    fsdp_device *device = s->options.offload_to_cpu ? fsdp_cpu(group->state->comm->context) : group->residence.device;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *grad = NULL;

    FSDP__TRY_MADE(device);
    FSDP_TRY(make_gathered(s, p, p->sharded, FSDP_MEMORY_UNSHARDED_PARAMETER, &gathered[0]));
    if (s->options.with_grads)
        FSDP_TRY(make_gathered(s, p, fsdp_tensor_grad(p->sharded), FSDP_MEMORY_GRADIENT, &gathered[1]));
    if (s->options.rank0_only && group->residence.mesh.rank != 0)
        return FSDP_OK;
    FSDP_TRY(make_kept(p, gathered[0], device, &p->summoned));
    FSDP_TRY(make_kept(p, gathered[1], device, &grad));
    FSDP_TRY(fsdp_tensor_set_requires_grad(p->summoned, fsdp_tensor_requires_grad(p->sharded)));
    if (grad)
        FSDP_TRY(fsdp_tensor_set_grad(p->summoned, grad));
    if (!s->options.no_writeback)
        FSDP_TRY(fsdp__param_own_summoned(p));
    return FSDP_OK;
}

static fsdp_status make(summoning *s, fsdp__param_group *group)
{
    FSDP_TRY(fsdp__comm_context_finish_reduction(group->state->comm));
    fsdp__module_state_give_up(group->state);
    s->gathered = fsdp__calloc(2 * (size_t)group->param_count + 1, sizeof *s->gathered);
    s->buffers = fsdp__calloc(2 * (size_t)group->param_count + 1, sizeof *s->buffers);
    FSDP__TRY_NEW(s->gathered && s->buffers);
    if (group->buffers == &group->vector)
        FSDP_TRY(make_vectors(s, group));
    for (int64_t i = 0; i < group->param_count; i++)
        FSDP_TRY(make_param(s, &group->params[i], &s->gathered[2 * i]));
    return FSDP_OK;
}

/* Copies between a device and the host; does nothing if both tensors are the same. */
static fsdp_status move(const fsdp_tensor *from, fsdp_tensor *to)
{
    return !from || !to || from == to ? FSDP_OK : fsdp__tensor_copy_across(to, from);
}

static fsdp_status gather(summoning *s, const fsdp__param_group *group)
{
    fsdp_process_group *pg = group->residence.mesh.shard_pg;
    fsdp_status status;

    fsdp__process_group_set_label(pg, "fsdp_module_summon_full_params");
    status =
        fsdp_all_gather_coalesced(pg, s->buffers, s->buffer_count, fsdp_device_stream(group->residence.shard_device));
    fsdp__process_group_set_label(pg, NULL);
    FSDP_TRY(status);
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp_tensor *kept = group->params[i].summoned;

        if (!kept)
            continue;
        FSDP_TRY(move(s->gathered[2 * i], kept));
        FSDP_TRY(move(s->gathered[2 * i + 1], fsdp_tensor_grad(kept)));
    }
    return FSDP_OK;
}

/* Takes a group. After a failure it still agrees with the ranks of every group: some may not have heard of it. */
static void take(summoning *s, fsdp__param_group *group)
{
    if (group->asked)
        return;
    group->asked = true;
    s->buffer_count = 0;
    if (s->status == FSDP_OK)
        s->status = make(s, group);
    s->status = fsdp__param_groups_agree(&group, 1, s->status);
    if (s->status == FSDP_OK)
        s->status = gather(s, group);
    for (int64_t i = 0; s->gathered && i < 2 * group->param_count; i++)
        fsdp_tensor_unref(s->gathered[i]);
    FSDP__FREE_ALL(s->gathered, s->buffers);
    fsdp_tensor_unref(s->vectors[0]);
    fsdp_tensor_unref(s->vectors[1]);
    fsdp_tensor_unref(s->flat_grad);
    s->gathered = NULL;
    s->buffers = NULL;
    s->vectors[0] = s->vectors[1] = s->flat_grad = NULL;
}

/* ---- the call ---- */

static void publish(summoning *s, fsdp__param_group *group)
{
    group->summoned_by = s->module;
    group->writes_back = !s->options.no_writeback;
    group->summoned_grads = s->options.with_grads;
    for (int64_t i = 0; i < group->param_count; i++)
        if (group->params[i].summoned)
            fsdp__param_set_fields(&group->params[i], group->params[i].summoned);
}

static void give_up(summoning *s, fsdp__param_group *group)
{
    (void)s;
    for (int64_t i = 0; i < group->param_count && group->asked && !group->summoned_by; i++)
        fsdp_tensor_unref(fsdp__take(&group->params[i].summoned));
}

fsdp_status fsdp_module_summon_full_params(fsdp_module *module, const fsdp_summon_options *options)
{
    summoning s = {.module = module};
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (options)
        s.options = *options;
    s.status = check_options(&s.options);
    visit_all(&s, module, check);
    visit_all(&s, module, take);
    visit_all(&s, module, s.status == FSDP_OK ? publish : give_up);
    return s.status;
}

/* ---- the end ---- */

/* Writes this rank's part of `whole`. */
static fsdp_status write_part(const fsdp__param *p, fsdp_tensor *part, const fsdp_tensor *whole)
{
    const int64_t shape[2] = {p->part.outer, p->part.inner}, strides[2] = {p->part.stride, 1};
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *from = NULL, *to = NULL;

    FSDP_TRY(
        fsdp__tensor_create_view(whole->storage, whole->dtype, 2, shape, strides, whole->offset + p->part.at, &from));
    FSDP_TRY(fsdp__tensor_create_view(part->storage, part->dtype, 2, shape, NULL, part->offset, &to));
    return fsdp__tensor_copy_across(to, from);
}

/* Writes a gradient back: one that the caller has dropped is dropped, and one that the caller has made gets a place.
 * Unreduced gradients go only if a gradient has come or gone. */
static fsdp_status write_gradient(fsdp__param *p, const fsdp_tensor *whole)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *grad = fsdp_tensor_ref(fsdp_tensor_grad(p->sharded));
    bool had = grad != NULL;

    if (whole && !fsdp_tensor_is_contiguous(whole))
        return FSDP_FAIL(FSDP_INVALID, "the gradient of a summoned parameter is not contiguous");
    if (whole && !grad)
        FSDP_TRY(fsdp__residence_shard_gradient(&p->group->residence, p->orig_dtype, p->sharded->ndim,
                                                p->sharded->shape, &grad));
    if (whole)
        FSDP_TRY(write_part(p, grad, whole));
    if (had != (whole != NULL))
        FSDP_TRY(fsdp_tensor_set_grad(p->sharded, whole ? grad : NULL));
    return FSDP_OK;
}

static fsdp_status write_back(fsdp__param *p, const fsdp_tensor *whole)
{
    FSDP_TRY(write_part(p, p->sharded, whole));
    return p->group->summoned_grads ? write_gradient(p, fsdp_tensor_grad(whole)) : FSDP_OK;
}

/* Ends the summon for a group. All groups end, even if one of them could not be written. */
static void end(summoning *s, fsdp__param_group *group)
{
    if (group->summoned_by != s->module)
        return;
    s->summoned++;
    group->summoned_by = NULL;
    if (s->status == FSDP_OK && group->summoned_grads) /* they are written in the dtype that they are summoned in */
        s->status = fsdp__param_group_raise_gradients(group);
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];
        char text[256];

        if (!p->summoned)
            continue;
        fsdp__param_disown_summoned(p);
        fsdp__param_set_fields(p, p->sharded);
        if (s->status == FSDP_OK && group->writes_back) {
            s->status = write_back(p, p->summoned);
            if (s->status != FSDP_OK)
                s->status =
                    fsdp_fail_prefix(s->status, "writing back parameter %s", fsdp__param_text(p, text, sizeof text));
        }
        fsdp_tensor_unref(fsdp__take(&p->summoned));
    }
    if (s->status == FSDP_OK && group->summoned_grads)
        s->status = fsdp__param_group_lower_gradients(group);
}

fsdp_status fsdp_module_end_summon(fsdp_module *module)
{
    summoning s = {.module = module};
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    visit_all(&s, module, end);
    if (s.summoned == 0)
        return FSDP_FAIL(FSDP_STATE, "fsdp_module_summon_full_params was not called on this %s", module->type->name);
    return s.status;
}
