/* slice.c - keeps 1/k of a gathered group between a forward and its backward. */
#include "shard/group/slice.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "shard/group/default_groups.h"
#include "shard/group/param_group.h"

fsdp_status fsdp__slice_open(fsdp__param_group *group, int k)
{
    fsdp__slice *slice = &group->slice;

    FSDP_TRY(fsdp__default_subgroup(&group->residence.mesh, k, &slice->pg));
    slice->ranks = k;
    slice->rank = fsdp_process_group_rank(slice->pg);
    return FSDP_OK;
}

void fsdp__slice_close(fsdp__slice *slice)
{
    fsdp_event_free(slice->made);
    *slice = (fsdp__slice){0};
}

/* ---- places ---- */

/* Returns the padded elements of one rank's slice of a parameter; k of them are the padded parameter. */
static int64_t chunk_of(const fsdp__param *param)
{
    return param->chunk_numel * param->group->residence.mesh.ranks / param->group->slice.ranks;
}

/* Returns the bytes in the slice's own region, where every parameter is rounded up. */
static size_t bytes_of(const fsdp__param *param)
{
    return fsdp__device_rounded((size_t)chunk_of(param) * fsdp_dtype_size(param->param_dtype));
}

static size_t all_bytes(const fsdp__param_group *group)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < group->param_count; i++)
        bytes += bytes_of(&group->params[i]);
    return bytes;
}

/* Gives where this rank's part of an unsharded parameter begins. Returns its bytes without padding. */
static size_t part_of(const fsdp__param *param, char **out)
{
    const fsdp__param_group *group = param->group;
    int64_t chunk = chunk_of(param), start = group->slice.rank * chunk;
    int64_t numel = FSDP__MAX(FSDP__MIN(fsdp__param_numel(param) - start, chunk), 0);
    size_t size = fsdp_dtype_size(param->param_dtype);

    *out = (char *)group->residence.unsharded->data + param->unsharded_offset + (size_t)start * size;
    return (size_t)numel * size;
}

/* ---- life cycle ---- */

static fsdp_status copy_parts(const fsdp__param_group *group)
{
    fsdp_stream *compute = fsdp_device_stream(group->residence.device);
    char *to = group->slice.region->data, *part;

    for (int64_t i = 0; i < group->param_count; i++) {
        size_t bytes = part_of(&group->params[i], &part);

        if (bytes > 0)
            FSDP_TRY(fsdp__copy_on_device(compute, to, part, bytes));
        to += bytes_of(&group->params[i]);
    }
    return fsdp_event_record(group->slice.made, compute);
}

static void let_go(fsdp__slice *slice)
{
    fsdp__region_unref(fsdp__take(&slice->region));
}

fsdp_status fsdp__slice_keep(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    fsdp__slice *slice = &group->slice;
    size_t bytes = all_bytes(group);
    fsdp_status status;

    if (r->kind != FSDP__RESIDENCE_COPY) {
        fsdp__device_account(r->device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)bytes, true);
        slice->kept = true;
        return FSDP_OK;
    }
    if (!slice->made)
        FSDP_TRY(fsdp_event_create(r->device, &slice->made));
    FSDP_TRY(fsdp__region_make(r->device, bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, &slice->region));
    status = copy_parts(group);
    slice->kept = status == FSDP_OK;
    if (status != FSDP_OK)
        let_go(slice);
    return status;
}

void fsdp__slice_drop(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;

    if (!group->slice.kept)
        return;
    group->slice.kept = false;
    if (r->kind != FSDP__RESIDENCE_COPY)
        fsdp__device_account(r->device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, -(int64_t)all_bytes(group),
                             true);
    let_go(&group->slice);
}

/* ---- the gather ---- */

static fsdp_process_group *slice_pg(const fsdp__param_group *group)
{
    return group->slice.pg;
}

static void describe(const fsdp__param_group *group, fsdp_sharded_buffer *buffers)
{
    bool moves = group->residence.kind == FSDP__RESIDENCE_COPY; /* otherwise all of it lies where this rank reads it */
    char *kept = group->slice.region ? group->slice.region->data : NULL;

    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        char *part;

        (void)part_of(p, &part);
        buffers[i] = (fsdp_sharded_buffer){.unsharded = p->unsharded->storage->data,
                                           .shard = kept ? kept : part,
                                           .numel = moves ? fsdp__param_numel(p) : 0,
                                           .chunk = chunk_of(p),
                                           .unsharded_dtype = p->param_dtype,
                                           .shard_dtype = p->param_dtype};
        kept += kept ? bytes_of(p) : 0;
    }
}

static fsdp_status gather(fsdp__param_group *group, fsdp__comm_context *comm)
{
    FSDP__FREED fsdp_sharded_buffer *buffers = fsdp__calloc((size_t)group->param_count, sizeof *buffers);
    bool fresh = group->fresh;

    group->fresh = false;
    FSDP__TRY_NEW(buffers);
    describe(group, buffers);
    if (fresh) /* nothing was written since the slices were kept */
        FSDP_TRY(fsdp__comm_context_follow_compute(comm, group->residence.device));
    if (group->slice.region)
        FSDP_TRY(fsdp_stream_wait_event(comm->stream, group->slice.made));
    return fsdp__all_gather(&group->all_gather, comm, group->slice.pg, buffers, group->param_count, &group->packed);
}

static void arrive(fsdp__param_group *group, fsdp__comm_context *comm)
{
    (void)comm;
    fsdp__slice_drop(group);
}

const fsdp__gather_way fsdp__gather_slices = {.pg = slice_pg, .gather = gather, .arrive = arrive};
