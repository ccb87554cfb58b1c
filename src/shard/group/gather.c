/* gather.c - gathers shards: as they are, or in the dtype that they were cast to. */
#include "shard/group/gather.h"

#include "base/alloc.h"
#include "shard/group/cast.h"
#include "shard/group/halves.h"
#include "shard/group/param_group.h"

/* The gather follows all that the device's stream has been given, where nothing more exact is known. A spare region,
 * and shared memory that is cast into, have waits of their own. */
fsdp_status fsdp__gather_order(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__residence *r = &group->residence;
    /* The gather reads a cast that a different stream has made, as it does before the first forward. */
    bool other = r->has_cast && r->cast_stream != comm->stream;
    /* The gather casts into memory of this rank's own, which the device's stream has read. */
    bool own = r->kind == FSDP__RESIDENCE_CAST && !r->has_cast && !fsdp__residence_is_shared(r);
    /* `fresh`: the gather writes memory that is new from the device, in the order of the device's stream. */
    bool follows = group->fresh || other || own;

    if (r->kind == FSDP__RESIDENCE_CAST)
        FSDP_TRY(fsdp__residence_await_readers(r, comm->stream));
    if (follows)
        FSDP_TRY(fsdp__comm_context_follow_compute(comm, r->device));
    /* `written`: the shards were written, by a step or with their first values, since a gather last waited for that.
     * The caller may have given an event after which they are, perhaps of another stream. */
    if (group->written && (!follows || fsdp__residence_is_offloaded(r) || comm->after_optim))
        FSDP_TRY(fsdp__comm_context_follow_writes(comm, r->shard_device));
    group->written = group->fresh = false;
    return FSDP_OK;
}

fsdp_sharded_buffer fsdp__gather_buffer(const fsdp__param_group *group, int64_t index)
{
    const fsdp__param *p = &group->buffers[index];
    fsdp_sharded_buffer buffer = fsdp__param_buffer(p);

    buffer.unsharded = (char *)group->residence.unsharded->data + p->unsharded_offset;
    buffer.unsharded_dtype = p->param_dtype;
    return buffer;
}

/* Sets where a buffer's shard lies. */
static void set_shard(const fsdp__param_group *group, const fsdp__param *p, fsdp_sharded_buffer *buffer)
{
    const fsdp__residence *r = &group->residence;

    buffer->shard_dtype = p->orig_dtype;
    if (fsdp__residence_is_offloaded(r)) {
        buffer->shard = fsdp__offload_place(group, p);
    } else if (fsdp__param_keeps_cast(p)) {
        buffer->shard = fsdp__cast_of(r, p);
        buffer->shard_dtype = p->param_dtype;
    } else {
        buffer->shard = p->sharded ? p->sharded->storage->data : fsdp__residence_shard(r, p);
    }
}

static fsdp_status gather(fsdp__param_group *group, fsdp__comm_context *comm)
{
    FSDP__FREED fsdp_sharded_buffer *buffers = fsdp__calloc((size_t)group->buffer_count, sizeof *buffers);

    FSDP__TRY_NEW(buffers);
    FSDP_TRY(fsdp__offload_take_staging(group, &group->fresh));
    for (int64_t i = 0; i < group->buffer_count; i++) {
        buffers[i] = fsdp__gather_buffer(group, i);
        set_shard(group, &group->buffers[i], &buffers[i]);
    }
    FSDP_TRY(fsdp__halves_follow(group, group->written ? comm->after_optim : NULL));
    FSDP_TRY(fsdp__halves_split(group));
    FSDP_TRY(fsdp__gather_order(group, comm));
    FSDP_TRY(fsdp__offload_send(group, comm->stream));
    FSDP_TRY(fsdp__cast_shards(group, comm->stream));
    return fsdp__all_gather(&group->all_gather, comm, group->residence.mesh.shard_pg, buffers, group->buffer_count,
                            &group->packed);
}

static void arrive(fsdp__param_group *group, fsdp__comm_context *comm)
{
    (void)comm;
    fsdp__offload_drop_staging(group);
}

static fsdp_status before_write(fsdp__param_group *group)
{
    fsdp__cast_before_write(group);
    return fsdp__offload_await_read(group);
}

const fsdp__gather_way fsdp__gather_shards = {.gather = gather, .arrive = arrive, .before_write = before_write};
