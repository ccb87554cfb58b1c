/* replicate_forward.c - what a replicated module does between its backwards. */
#include "shard/doors/replicate_forward.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "device/steps.h"
#include "nn/module.h"

fsdp__param_group *fsdp__replica_of(const fsdp__module_state *state)
{
    return state->group_count == 1 && state->groups[0]->buckets ? state->groups[0] : NULL;
}

/* ---- buffers ---- */

/* Describes buffers of one dtype, one after the other. */
typedef struct packing {
    const fsdp__buckets *buckets;
    fsdp_dtype dtype; /* the dtype at hand */
    fsdp_tensor **buffers;
    int64_t count, capacity;
} packing;

static fsdp_status collect(void *arg, fsdp_module *module, const char *name)
{
    packing *p = arg;

    (void)name;
    for (int64_t i = 0; i < p->buckets->ignored_count; i++)
        if (p->buckets->ignored[i] == module)
            return FSDP_OK;
    for (int64_t i = 0; i < module->parts->buffer_count; i++) {
        fsdp_tensor *buffer = *module->parts->buffers[i].slot;
        bool there = !buffer || fsdp_device_is_meta(fsdp_tensor_device(buffer)) || buffer->dtype != p->dtype;

        for (int64_t k = 0; k < p->count && !there; k++)
            there = p->buffers[k] == buffer;
        if (there)
            continue;
        FSDP_TRY(fsdp__grow(&p->buffers, p->count, &p->capacity, sizeof *p->buffers));
        /* Tables are the same on all ranks: what a graph saved of them stays right. */
        if (!module->parts->buffers[i].table)
            FSDP_TRY(fsdp_tensor_begin_write(buffer));
        p->buffers[p->count++] = buffer;
    }
    return FSDP_OK;
}

static fsdp_status copy_all(const packing *p, fsdp_tensor *packed, bool out)
{
    int64_t at = 0;

    for (int64_t k = 0; k < p->count; k++) {
        const fsdp_tensor *like = p->buffers[k];
        fsdp_tensor *view;
        fsdp_status status;

        FSDP_TRY(fsdp__tensor_create_view(packed->storage, like->dtype, like->ndim, like->shape, NULL, at, &view));
        at += fsdp_tensor_numel(view);
        status = out ? fsdp__tensor_copy(p->buffers[k], view, false) : fsdp__tensor_copy(view, p->buffers[k], false);
        fsdp_tensor_unref(view);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status broadcast(const packing *p, const fsdp__mesh_info *mesh, int root)
{
    fsdp_device *device = p->count > 0 ? fsdp_tensor_device(p->buffers[0]) : NULL;
    int64_t numel = 0;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *packed = NULL;

    for (int64_t k = 0; k < p->count; k++)
        numel += fsdp_tensor_numel(p->buffers[k]);
    if (numel == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp_tensor_create(device, p->dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, &packed));
    FSDP_TRY(copy_all(p, packed, false));
    FSDP_TRY(fsdp_broadcast(mesh->replicate_pg, fsdp_tensor_data(packed), numel, p->dtype, root,
                            fsdp_device_stream(device)));
    return copy_all(p, packed, true);
}

static fsdp_status broadcast_buffers(const fsdp__module_state *state, const fsdp__mesh_info *mesh, int root)
{
    packing p = {.buckets = fsdp__replica_of(state)->buckets};
    fsdp_status status = FSDP_OK;

    if (mesh->replicas == 1)
        return FSDP_OK;
    for (int dtype = 0; dtype <= FSDP_BOOL && status == FSDP_OK; dtype++) {
        p.dtype = (fsdp_dtype)dtype;
        p.count = 0;
        for (int64_t m = 0; m < state->module_count && status == FSDP_OK; m++)
            status = fsdp__module_walk(state->modules[m], collect, &p);
        if (status == FSDP_OK)
            status = broadcast(&p, mesh, root);
    }
    fsdp__free(p.buffers);
    return status;
}

/* ---- parameters ---- */

/* Asks `root` which parameters have values there. Another rank may have memory without values. */
static fsdp_status ask_for_values(const fsdp__param_group *group, int root, unsigned char *has)
{
    fsdp_process_group *pg = group->residence.mesh.replicate_pg;
    bool mine = fsdp_process_group_rank(pg) == root;
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered all = {0};
    size_t count = (size_t)group->param_count;

    for (size_t i = 0; i < count; i++)
        has[i] = !group->params[i].sharded->storage->unwritten && fsdp_tensor_numel(group->params[i].sharded) > 0;
    FSDP_TRY(fsdp__gather(pg, has, mine ? count : 0, &all));
    memcpy(has, all.objects[root], count);
    return FSDP_OK;
}

static fsdp_status broadcast_parameters(const fsdp__param_group *group, int root)
{
    const fsdp__residence *r = &group->residence;
    FSDP__FREED unsigned char *has = NULL;

    if (r->kind == FSDP__RESIDENCE_NONE)
        return FSDP_OK;
    FSDP__TRY_NEW(has = fsdp__calloc((size_t)group->param_count, 1));
    FSDP_TRY(ask_for_values(group, root, has));
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp_tensor *t = group->params[i].sharded;

        if (!has[i])
            continue;
        FSDP_TRY(fsdp_tensor_begin_write(t));
        FSDP_TRY(fsdp_broadcast(r->mesh.replicate_pg, fsdp_tensor_data(t), fsdp_tensor_numel(t), t->dtype, root,
                                fsdp_device_stream(r->device)));
    }
    return FSDP_OK;
}

fsdp_status fsdp__replica_broadcast(const fsdp__module_state *state, int root)
{
    const fsdp__param_group *group = fsdp__replica_of(state);

    if (group->residence.mesh.replicas == 1)
        return FSDP_OK;
    FSDP_TRY(broadcast_parameters(group, root));
    return broadcast_buffers(state, &group->residence.mesh, root);
}

/* ---- forwards ---- */

/* Divides the buckets anew if that is due; their memory is asked for otherwise from then on. All ranks decide alike:
 * they have run the same backwards, and frozen the same parameters. */
static fsdp_status divide_anew(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    if (b->running) /* a forward inside a backward */
        return FSDP_OK;
    if (fsdp__buckets_are_outdated(group))
        FSDP_TRY(fsdp__buckets_assign(group));
    else if (b->rebuilt || b->backwards < (b->options.static_graph ? 2 : 1))
        return FSDP_OK;
    else
        FSDP_TRY(fsdp__buckets_rebuild(group));
    return fsdp__note_renewal(group->residence.device, group->owner);
}

fsdp_status fsdp__replica_check(const fsdp__module_state *state, bool recording)
{
    const fsdp__buckets *b = fsdp__replica_of(state)->buckets;

    if (recording && b->open && b->options.static_graph)
        return FSDP_FAIL(FSDP_STATE, "a second forward before the backward of the first: with static_graph each "
                                     "forward of a replicated module has its backward first");
    return FSDP_OK;
}

/* Exchanges what is due before a forward: the division into buckets, and the speaker's buffers. */
static fsdp_status exchange(const fsdp__module_state *state, bool recording)
{
    fsdp__param_group *group = fsdp__replica_of(state);

    if (recording)
        FSDP_TRY(divide_anew(group));
    group->buckets->open = recording;
    return group->buckets->buffers_due ? broadcast_buffers(state, &group->residence.mesh, group->buckets->speaker)
                                       : FSDP_OK;
}

fsdp_status fsdp__replica_prepare(fsdp__module_state *state, bool recording)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp__replica_of(state)->residence.device);
    fsdp__exposed *exposed = &state->comm->reductions;
    fsdp__stretch stretch;
    fsdp_status status;

    FSDP_TRY(fsdp__exposed_begin(exposed, stream, stream, true, &stretch));
    status = exchange(state, recording);
    FSDP_KEEP_FIRST(status, fsdp__exposed_end(exposed, &stretch, status == FSDP_OK));
    return status;
}

void fsdp__replica_settle(fsdp__module_state *state, bool syncs)
{
    fsdp__buckets *b = fsdp__replica_of(state)->buckets;

    b->buffers_due = !b->options.keep_buffers && syncs;
}

void fsdp__replica_end_forward(fsdp__module_state *state, bool recording)
{
    if (fsdp__replica_of(state))
        fsdp__replica_settle(state, state->reduce_grads && recording);
}
