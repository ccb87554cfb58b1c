/* allocate.c - turns a choice of parameters into groups with memory, and back. */
#include "shard/state/allocate.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "device/kernels.h"
#include "shard/group/cast.h"
#include "shard/group/halves.h"
#include "shard/reduce/buckets.h"
#include "shard/reduce/gradients.h"
#include "shard/reduce/owner.h"
#include "shard/state/module_state.h"

/* ---- shards ---- */

/* Makes a flat group's one parameter, still without the group's memory. */
static fsdp_status make_flat_parameter(fsdp__param_group *group)
{
    fsdp__param *v = &group->vector;

    if (!group->flat.as_one)
        return FSDP_OK;
    FSDP_TRY(fsdp__flat_tensor(group, fsdp_tensor_device(group->params[0].sharded), v->extent.rows, &v->sharded));
    return fsdp__flat_parameter_own(group);
}

static void free_flat_parameter(fsdp__param_group *group)
{
    fsdp__flat_parameter_disown(group);
    fsdp_tensor_unref(fsdp__take(&group->vector.sharded));
}

static void unwrap(fsdp__param *param)
{
    fsdp__param_disown(param);
    fsdp__param_unwrap(param);
}

fsdp_status fsdp__param_group_shard_parameters(fsdp__param_group *group)
{
    fsdp_status status;

    fsdp__param_group_lay_out(group);
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        p->group = group;
        status = fsdp__param_own_sharded(p);
        if (status == FSDP_OK) {
            status = fsdp__param_shard(p, &group->residence.mesh);
            if (status == FSDP_OK)
                continue;
            fsdp__param_disown(p);
        }
        while (i-- > 0)
            unwrap(&group->params[i]);
        return status;
    }
    status = make_flat_parameter(group);
    if (status != FSDP_OK)
        fsdp__param_group_unwrap_parameters(group);
    return status;
}

void fsdp__param_group_unwrap_parameters(fsdp__param_group *group)
{
    free_flat_parameter(group);
    for (int64_t i = 0; i < group->param_count; i++)
        unwrap(&group->params[i]);
}

/* ---- building ---- */

static fsdp_status refuse_write(void *arg, fsdp__storage *storage)
{
    fsdp__param_group *group = arg;
    char text[128];

    for (int64_t i = 0; group && i < group->param_count; i++)
        if (group->params[i].unsharded->storage == storage)
            return FSDP_FAIL(FSDP_STATE,
                             "cannot write to the gathered tensor of parameter %s: the write would reach no rank: "
                             "reshard its module and write to the shard",
                             fsdp__param_text(&group->params[i], text, sizeof text));
    return FSDP_FAIL(FSDP_STATE, "cannot write to a gathered parameter whose module is gone");
}

static fsdp_status make_unsharded(fsdp__param_group *group, fsdp__param *param)
{
    size_t bytes = (size_t)fsdp__param_numel(param) * fsdp_dtype_size(param->param_dtype);
    int64_t shape[FSDP_MAX_DIMS];
    int ndim = fsdp__param_whole_shape(param, shape);
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    FSDP_TRY(fsdp__storage_create(group->residence.device, bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, false, &storage));
    storage->guard = (fsdp__storage_guard){.before_write = refuse_write, .arg = group};
    storage->renewed_by = group;      /* backwards gather the shards as they are then */
    storage->strict = group->buckets; /* replicas are plain parameters: autograd refuses what was written since */
    FSDP_TRY(fsdp__tensor_create_view(storage, param->param_dtype, ndim, shape, NULL, 0, &param->unsharded));
    if (param->parallel) /* for operations on distributed tensors */
        FSDP_TRY(fsdp_tensor_set_distribution(param->unsharded, param->parallel));
    FSDP_TRY(fsdp_tensor_set_requires_grad(param->unsharded, fsdp_tensor_requires_grad(param->sharded)));
    return fsdp__param_own_unsharded(param);
}

/* Makes everything that concerns this rank alone: objects, and the storages that the shards will move to. */
static fsdp_status prepare_objects(fsdp__param_group *group, fsdp_device *device, fsdp__storage ***storages)
{
    *storages = fsdp__calloc((size_t)group->param_count + 1, sizeof **storages); /* the last is a flat parameter's */
    FSDP__TRY_NEW(*storages);
    FSDP_TRY(fsdp__residence_open(&group->residence, fsdp__choose_residence(group, device), device));
    fsdp__cast_before_write(group); /* what a writer has cast was in other memory */
    FSDP_TRY(fsdp__halves_check(group));
    FSDP_TRY(fsdp__encoded_open(group));
    FSDP_TRY(fsdp_event_create(device, &group->gathered));
    FSDP_TRY(fsdp_event_create(device, &group->offload.read));
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);

        FSDP_TRY(make_unsharded(group, p));
        FSDP_TRY(fsdp__storage_create(group->residence.shard_device, bytes, FSDP_MEMORY_PARAMETER_SHARD, false,
                                      &(*storages)[i]));
    }
    if (!group->vector.sharded)
        return FSDP_OK;
    return fsdp__storage_create(group->residence.shard_device,
                                (size_t)group->vector.chunk_numel * fsdp_dtype_size(group->vector.orig_dtype),
                                FSDP_MEMORY_PARAMETER_SHARD, false, &(*storages)[group->param_count]);
}

static fsdp_status prepare(fsdp__param_group *group, fsdp_device *device, fsdp__storage ***storages)
{
    fsdp_context *context = fsdp_device_context(device);
    fsdp__taker before = fsdp__context_enter(context, group->owner);
    fsdp_status status = prepare_objects(group, device, storages);

    fsdp__context_set_taker(context, before);
    return status;
}

/* Copies the shard's values one after the other; until the group is allocated they lie in runs. */
static fsdp_status copy_runs(const fsdp__residence *r, const fsdp__param *p, void *dst, const void *values)
{
    bool together = fsdp_tensor_is_contiguous(p->sharded);
    const fsdp__copy_args args = {.src = values,
                                  .dst = dst,
                                  .src_dtype = p->sharded->dtype,
                                  .dst_dtype = p->orig_dtype,
                                  .ndim = 2,
                                  .shape = {p->part.outer, p->part.inner},
                                  .src_strides = {together ? p->part.inner : p->part.stride, 1},
                                  .dst_strides = {p->part.inner, 1}};

    return args.shape[0] * args.shape[1] > 0 ? fsdp__launch_copy(fsdp_device_stream(r->device), &args) : FSDP_OK;
}

/* Gives `storage` its place in the group's memory, with the values that the shard of `p` had if it had any. */
static fsdp_status fill_shard(const fsdp__residence *r, const fsdp__param *p, fsdp__storage *storage)
{
    const void *values = fsdp_tensor_data(p->sharded);

    fsdp__residence_lend_shard(r, p, storage);
    storage->version = p->sharded->storage->version + 1;
    storage->unwritten = !values || p->sharded->storage->unwritten;
    if (storage->unwritten) /* it was on the meta device until now, or has got no values since */
        return FSDP_OK;
    if (fsdp__residence_is_offloaded(r))
        return fsdp_tensor_read(p->sharded, p->orig_dtype, storage->data);
    if (!fsdp_tensor_is_contiguous(p->sharded) || p->sharded->dtype != p->orig_dtype)
        return copy_runs(r, p, storage->data, values);
    return fsdp__copy_on_device(fsdp_device_stream(r->device), storage->data, values, storage->bytes);
}

static fsdp_status fill_shards(const fsdp__param_group *group, fsdp__storage *const *storages)
{
    const fsdp__residence *r = &group->residence;
    const fsdp__param *v = &group->vector;

    FSDP_TRY(group->cut->clear(group, fsdp_device_stream(r->shard_device), fsdp__residence_shard(r, v), v->orig_dtype));
    for (int64_t i = 0; i < group->param_count; i++)
        FSDP_TRY(fill_shard(r, &group->params[i], storages[i]));
    if (v->sharded)
        fsdp__residence_lend_shard(r, v, storages[group->param_count]);
    return FSDP_OK;
}

static bool has_no_values(const fsdp__param_group *group)
{
    bool none = false;

    for (int64_t i = 0; i < group->param_count; i++)
        none = none || (fsdp__param_shard_numel(&group->params[i]) > 0 && group->params[i].sharded->storage->unwritten);
    return none;
}

/* Moves the shards to their new storages. */
static void move_shards(fsdp__param_group *group, fsdp__storage **storages)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp_tensor *shard = group->params[i].sharded;

        fsdp__storage_unref(shard->storage);
        shard->storage = storages[i];
        shard->dtype = group->params[i].orig_dtype;
        shard->offset = 0;
        fsdp__shape_contiguous_strides(shard->ndim, shard->shape, shard->strides);
        storages[i] = NULL;
    }
    if (!group->vector.sharded)
        return;
    storages[group->param_count]->unwritten = has_no_values(group);
    fsdp__storage_unref(group->vector.sharded->storage);
    group->vector.sharded->storage = storages[group->param_count];
    storages[group->param_count] = NULL;
}

static void undo(fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp_tensor_unref(fsdp__take(&group->params[i].unsharded));
    fsdp__param_group_close(group);
}

/* Agrees on a status, and with `takes` on whether memory is taken that ranks share: all take theirs, or none does. */
static fsdp_status agree(fsdp__param_group *const *groups, int64_t count, fsdp_status status, bool takes)
{
    const fsdp__mesh_info *last = NULL;

    for (int64_t i = 0; i < count; i++) {
        bool shares = fsdp__residence_is_shared(&groups[i]->residence);

        status = fsdp__mesh_info_agree_after(&last, &groups[i]->residence.mesh, status, takes ? &shares : NULL);
    }
    return status;
}

fsdp_status fsdp__param_groups_agree(fsdp__param_group *const *groups, int64_t count, fsdp_status status)
{
    return agree(groups, count, status, false);
}

static bool any_replicas(fsdp__param_group *const *groups, int64_t count)
{
    bool any = false;

    for (int64_t i = 0; i < count; i++)
        any = any || groups[i]->residence.mesh.replicas > 1;
    return any;
}

/* Does everything that can fail. The model's tensors stay as they were. */
static fsdp_status make(fsdp__param_group *const *groups, int64_t count, fsdp_device *device, fsdp__storage ***storages)
{
    fsdp_status status = storages ? FSDP_OK : FSDP_NO_MEMORY;

    for (int64_t i = 0; i < count; i++) /* also after a failure, since the others do so */
        FSDP_KEEP_FIRST(status, fsdp__residence_find_common(&groups[i]->residence, device));
    for (int64_t i = 0; i < count && status == FSDP_OK; i++)
        status = prepare(groups[i], device, &storages[i]);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(fsdp_device_stream(device)); /* completes the values */
    /* Shared memory is taken by all ranks or by none, so all must be ready before any rank tries. */
    FSDP_TRY(agree(groups, count, status, true));
    for (int64_t i = 0; i < count && status == FSDP_OK; i++) {
        status = fsdp__residence_fill(&groups[i]->residence);
        if (status == FSDP_OK)
            status = fsdp__encoded_fill(&groups[i]->encoded);
    }
    /* A failure here is one of all ranks of a shard group, but other replicas do not know of it. */
    if (status != FSDP_OK && !any_replicas(groups, count))
        return status;
    for (int64_t i = 0; i < count && status == FSDP_OK; i++)
        status = fill_shards(groups[i], storages[i]);
    return fsdp__param_groups_agree(groups, count, status);
}

/* Notes that the values were written: in memory that ranks have in common, peers read what was just copied. */
static void note_values(fsdp__param_group *group)
{
    group->written = true;
    if (group->state && group->state->comm)
        group->state->comm->after_optim = NULL; /* this write comes after that event */
}

fsdp_status fsdp__param_groups_allocate(fsdp__param_group *const *groups, int64_t count, fsdp_device *device,
                                        fsdp_status (*before_write)(void *group, const fsdp__storage *storage))
{
    FSDP__FREED fsdp__storage ***storages =
        fsdp__calloc((size_t)count, sizeof *storages); /* by group, then by parameter */
    fsdp_status status = make(groups, count, device, storages);

    for (int64_t i = 0; i < count && status == FSDP_OK; i++) {
        move_shards(groups[i], storages[i]);
        note_values(groups[i]);
        fsdp__residence_set_writer(&groups[i]->residence, before_write, groups[i]);
        fsdp__cast_serve_writers(groups[i]);
        fsdp__halves_serve(groups[i]);
    }
    for (int64_t i = 0; i < count && status != FSDP_OK; i++)
        undo(groups[i]);
    for (int64_t i = 0; storages && i < count; i++) {
        for (int64_t p = 0; storages[i] && p <= groups[i]->param_count; p++)
            fsdp__storage_unref(storages[i][p]);
        fsdp__free(storages[i]);
    }
    return status;
}

void fsdp__param_group_free(fsdp__param_group *group, fsdp__comm_context *comm)
{
    if (group->residence.kind != FSDP__RESIDENCE_NONE)
        fsdp__param_group_reshard(group, comm); /* otherwise peers' writers wait for a reader that is gone */
    fsdp__halves_end(group);
    fsdp__param_group_drop_gradients(group);
    fsdp__param_group_leave_gradient_buffers(group);
    free_flat_parameter(group);
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param_disown(&group->params[i]);
        fsdp__param_release(&group->params[i]);
    }
    fsdp__free(group->params);
    for (int use = 0; use < FSDP__GRADIENT_USES; use++)
        fsdp__free(group->gradients[use].has_place);
    fsdp__buckets_free(group->buckets);
    fsdp__slice_close(&group->slice);
    fsdp__free(group->partial.places);
    (void)fsdp__offload_await_read(group); /* host memory goes in the order of its own stream */
    if (group->encoded.encoded)            /* perhaps by a forward that did not reach this group */
        (void)fsdp__encoded_await(&group->encoded, fsdp_device_stream(group->residence.device));
    fsdp__param_group_close(group);
    fsdp__mesh_info_release(&group->residence.mesh);
    fsdp__free(group);
}
