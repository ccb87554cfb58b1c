/* param_group.c - the life cycle of one group's unsharded parameters: unshard, wait, leave, reshard. residence.c
 * decides where the bytes live, gradients.c handles gradients, and the state decides when each of these happens. */
#include "shard/group/param_group.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "comm/group_calls.h"

fsdp_status fsdp__param_group_add(fsdp__param_group *group, fsdp_tensor *tensor, fsdp__param **out)
{
    FSDP_TRY(fsdp__grow(&group->params, group->param_count, &group->param_capacity, sizeof *group->params));
    *out = &group->params[group->param_count++];
    fsdp__param_init(*out, tensor);
    return FSDP_OK;
}

/* Returns how many parameters lie in each buffer: one, or all. */
static int64_t per_buffer(const fsdp__param_group *group)
{
    return group->param_count / group->buffer_count;
}

int64_t fsdp__param_buffer_index(const fsdp__param *param)
{
    return (param - param->group->params) / per_buffer(param->group);
}

int64_t fsdp__param_group_in_buffer(const fsdp__param_group *group, int64_t buffer, fsdp__param **out)
{
    *out = group->params + buffer * per_buffer(group);
    return per_buffer(group);
}

int64_t fsdp__param_group_holders(fsdp__param_group *group, fsdp__param **out)
{
    *out = group->vector.sharded ? &group->vector : group->params;
    return group->vector.sharded ? 1 : group->param_count;
}

fsdp_status fsdp__param_group_check_summon(const fsdp__param_group *group, const char *what)
{
    char text[256];

    if (!group->summoned_by)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE, "cannot %s parameter %s: it is summoned; call fsdp_module_end_summon first", what,
                     fsdp__param_text(group->params, text, sizeof text));
}

fsdp_status fsdp__check_compression(fsdp_dtype dtype)
{
    if (dtype != FSDP_DTYPE_NONE && dtype != FSDP_BF16 && dtype != FSDP_F16)
        return FSDP_FAIL(FSDP_INVALID, "gradients can be compressed to bfloat16 or float16, not to %s",
                         fsdp_dtype_name(dtype));
    return FSDP_OK;
}

fsdp_dtype fsdp__param_sent_dtype(const fsdp__param *param)
{
    fsdp_dtype compress = param->group->compress;
    bool narrower = fsdp_dtype_size(compress) < fsdp_dtype_size(param->reduce_dtype);

    return compress && narrower ? compress : param->reduce_dtype;
}

fsdp_process_group *fsdp__param_group_reduce_pg(const fsdp__param_group *group)
{
    return group->reduce_pg ? group->reduce_pg : group->residence.mesh.shard_pg;
}

void fsdp__param_group_close(fsdp__param_group *group)
{
    fsdp__exposed_drop(&group->gathers);
    fsdp__encoded_close(&group->encoded);
    fsdp__residence_close(&group->residence);
    fsdp__offload_close(&group->offload);
    fsdp_event_free(fsdp__take(&group->gathered));
}

static void publish(fsdp__param_group *group, bool unsharded)
{
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_publish(&group->params[i], unsharded);
}

/* ---- memory of the unsharded parameters ---- */

static fsdp_status take_memory(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__residence *r = &group->residence;

    FSDP_TRY(fsdp__spares_take(&comm->spares, r->unsharded_bytes, comm->stream, &r->unsharded));
    group->fresh = !r->unsharded;
    if (!group->fresh) {
        r->unsharded->owner = group->owner;
        fsdp__device_reown(r->device, r->unsharded->data, r->unsharded_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER,
                           group->owner);
        return FSDP_OK;
    }
    return fsdp__region_make(r->device, r->unsharded_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, &r->unsharded);
}

/* Gives the memory back. The root's is no spare: its next gather would take new memory beside that. */
static void give_memory(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__region *region = fsdp__take(&group->residence.unsharded);

    if (group->of_root)
        fsdp__region_unref(region);
    else
        fsdp__spares_give(&comm->spares, region);
}

/* Counts the unsharded parameters as gathered, in every residence, and gives their storages bytes. */
static fsdp_status begin_unsharded(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__residence *r = &group->residence;

    if (r->kind == FSDP__RESIDENCE_COPY) {
        FSDP_TRY(take_memory(group, comm));
        comm->spares.out += !group->of_root;
    } else if (!fsdp__residence_is_whole(r)) {
        fsdp__device_account(r->device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)r->unsharded_bytes,
                             true);
    }
    /* With these, views of the storages that a graph has saved have bytes again. */
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__storage_adopt(group->params[i].unsharded->storage,
                            (char *)r->unsharded->data + group->params[i].unsharded_offset, NULL, NULL);
        fsdp__param_name_memory(&group->params[i]);
    }
    return FSDP_OK;
}

static void let_go_packed(fsdp__param_group *group)
{
    fsdp__region_unref(fsdp__take(&group->packed));
}

static void end_unsharded(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__residence *r = &group->residence;

    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_drop(group->params[i].unsharded->storage);
    group->way->arrive(group, comm);
    if (r->kind == FSDP__RESIDENCE_COPY) {
        comm->spares.out -= !group->of_root;
        let_go_packed(group);
        give_memory(group, comm);
    } else if (!fsdp__residence_is_whole(r)) {
        fsdp__device_account(r->device, group->owner, FSDP_MEMORY_UNSHARDED_PARAMETER, -(int64_t)r->unsharded_bytes,
                             true);
    }
}

/* ---- gathering ---- */

/* Returns the way of the next gather, or of the running one. */
static const fsdp__gather_way *way_of(const fsdp__param_group *group)
{
    return group->slice.kept ? &fsdp__gather_slices : group->way;
}

fsdp_process_group *fsdp__param_group_gather_pg(const fsdp__param_group *group)
{
    const fsdp__gather_way *way = way_of(group);

    return way->pg ? way->pg(group) : group->residence.mesh.shard_pg;
}

static fsdp_status gather(fsdp__param_group *group, fsdp__comm_context *comm)
{
    FSDP_TRY(way_of(group)->gather(group, comm));
    return fsdp_event_record(group->gathered, comm->stream);
}

/* Begins to count the time of a gather; what one rank alone has whole is not gathered. */
static fsdp_status begin_time(fsdp__param_group *group, const fsdp__comm_context *comm, bool issues,
                              fsdp__stretch *stretch)
{
    *stretch = (fsdp__stretch){.wait = NULL};
    if (fsdp_process_group_size(fsdp__param_group_gather_pg(group)) == 1)
        return FSDP_OK;
    return fsdp__exposed_begin(&group->gathers, fsdp_device_stream(group->residence.device), comm->stream, issues,
                               stretch);
}

static fsdp_status end_time(fsdp__param_group *group, fsdp__comm_context *comm, const fsdp__stretch *stretch,
                            fsdp_status status)
{
    int64_t before = group->gathers.ns;

    FSDP_KEEP_FIRST(status, fsdp__exposed_end(&group->gathers, stretch, status == FSDP_OK));
    comm->gather_ns += group->gathers.ns - before;
    return status;
}

fsdp_status fsdp__param_group_add_up_gathers(fsdp__param_group *group, fsdp__comm_context *comm)
{
    int64_t before = group->gathers.ns;
    fsdp_status status = fsdp__exposed_sum(&group->gathers);

    comm->gather_ns += group->gathers.ns - before;
    group->gathers.asked = true;
    return status;
}

static fsdp_status gather_timed(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__stretch stretch;

    FSDP_TRY(begin_time(group, comm, true, &stretch));
    return end_time(group, comm, &stretch, gather(group, comm));
}

static fsdp_status unshard(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp_status status;

    FSDP_TRY(fsdp__param_group_check_summon(group, "gather"));
    if (group->residence.kind == FSDP__RESIDENCE_NONE)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot unshard parameters on the meta device: call fsdp_module_materialize first");
    group->gives_back = false;
    FSDP_TRY(begin_unsharded(group, comm));
    status = gather_timed(group, comm);
    if (status != FSDP_OK) {
        (void)fsdp_stream_synchronize(comm->stream); /* it may still use what is freed now */
        end_unsharded(group, comm);
        return status;
    }
    /* From here on this rank is a reader, even before it has looked: a peer may finish its whole use, and write, before
     * this rank's device starts to read. */
    fsdp__residence_begin_read(&group->residence);
    group->sharded_state = FSDP_GATHERING;
    return FSDP_OK;
}

fsdp_status fsdp__param_group_unshard(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp__taker before;
    fsdp_status status;

    if (group->sharded_state == FSDP_GATHERING || group->sharded_state == FSDP_UNSHARDED)
        return FSDP_OK; /* a prefetch came first */
    before = fsdp__context_enter(comm->context, group->owner);
    status = unshard(group, comm);
    fsdp__context_set_taker(comm->context, before);
    return status;
}

static fsdp_status arrive(fsdp__param_group *group, fsdp__comm_context *comm)
{
    fsdp_process_group *pg = fsdp__param_group_gather_pg(group);
    fsdp__stretch stretch;
    fsdp_status status;

    FSDP_TRY(begin_time(group, comm, false, &stretch));
    fsdp__process_group_host_waits(pg, comm->stream, true); /* inline, the gather has run: this returns at once */
    status = fsdp_stream_wait_event(fsdp_device_stream(group->residence.device), group->gathered);
    fsdp__process_group_host_waits(pg, comm->stream, false);
    status = end_time(group, comm, &stretch, status);
    if (status == FSDP_OK) {
        let_go_packed(group);
        status = fsdp__stream_check(comm->stream);
        way_of(group)->arrive(group, comm);
    }
    return status;
}

fsdp_status fsdp__param_group_wait(fsdp__param_group *group, fsdp__comm_context *comm)
{
    if (group->sharded_state < FSDP_GATHERING)
        return FSDP_OK;
    if (group->sharded_state == FSDP_GATHERING) {
        fsdp_status status = arrive(group, comm);

        if (status != FSDP_OK) {
            fsdp__param_group_reshard(group, comm); /* what lies there is not the parameters */
            return status;
        }
        group->sharded_state = FSDP_UNSHARDED;
    }
    group->requested = false;
    fsdp__residence_begin_read(&group->residence); /* again, if it stayed unsharded from an earlier use */
    publish(group, true);
    return FSDP_OK;
}

void fsdp__param_group_leave(fsdp__param_group *group)
{
    if (group->sharded_state != FSDP_UNSHARDED || group->explicit)
        return;
    publish(group, false);
    fsdp__residence_end_read(&group->residence);
    group->stays_unsharded = true;
}

/* Ends a use. Fields come first, so listeners of the reshard see shards. The end of the read is counted behind the last
 * kernel of the device's stream, so that peers do not write earlier. */
static void end_use(fsdp__param_group *group, fsdp__comm_context *comm, fsdp_sharded_state after)
{
    publish(group, false);
    fsdp__residence_end_read(&group->residence);
    end_unsharded(group, comm);
    /* Slices may lie in rows that come from other machines. */
    group->gives_back = group->residence.kind == FSDP__RESIDENCE_CAST && !group->slice.pg;
    group->sharded_state = after;
}

void fsdp__param_group_reshard(fsdp__param_group *group, fsdp__comm_context *comm)
{
    group->explicit = group->requested = group->stays_unsharded = false;
    if (group->sharded_state == FSDP_SHARDED)
        return;
    if (group->sharded_state == FSDP_SHARDED_POST_FORWARD) {
        fsdp__slice_drop(group);
        group->sharded_state = FSDP_SHARDED;
        return;
    }
    /* A prefetch that nobody waited for must complete before its memory is freed. */
    if (group->sharded_state == FSDP_GATHERING &&
        fsdp_stream_wait_event(fsdp_device_stream(group->residence.device), group->gathered) != FSDP_OK)
        (void)fsdp_event_synchronize(group->gathered);
    fsdp__slice_drop(group); /* of a gather that nobody waited for, or that failed */
    end_use(group, comm, FSDP_SHARDED);
}

fsdp_status fsdp__param_group_reshard_to_slice(fsdp__param_group *group, fsdp__comm_context *comm)
{
    if (!group->slice.pg || group->sharded_state != FSDP_UNSHARDED) {
        fsdp__param_group_reshard(group, comm);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__slice_keep(group));
    group->explicit = false;
    group->stays_unsharded = true; /* or a part of it: all ranks must know of a write, too */
    end_use(group, comm, FSDP_SHARDED_POST_FORWARD);
    return FSDP_OK;
}

void fsdp__param_group_give_up(fsdp__param_group *group, fsdp__comm_context *comm)
{
    bool unsharded = group->stays_unsharded || group->sharded_state != FSDP_SHARDED;

    fsdp__param_group_reshard(group, comm);
    group->stays_unsharded = unsharded;
}
