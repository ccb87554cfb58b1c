/* offload.c - brings shards from the host to the device, before a gather. */
#include "shard/group/offload.h"

#include "device/device.h"
#include "shard/group/param_group.h"

static bool is_gathered_as_it_lies(const fsdp__param *param)
{
    return param->param_dtype == param->orig_dtype && fsdp__param_is_one_run(param) && !param->extension.pre;
}

fsdp_status fsdp__offload_take_staging(fsdp__param_group *group, bool *fresh)
{
    const fsdp__residence *r = &group->residence;
    bool direct = true;

    if (!fsdp__residence_is_offloaded(r))
        return FSDP_OK;
    for (int64_t i = 0; i < group->param_count; i++)
        direct = direct && is_gathered_as_it_lies(&group->params[i]);
    if (direct)
        return FSDP_OK;
    *fresh = true;
    return fsdp__region_make(r->device, r->shard_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, &group->offload.staging);
}

void fsdp__offload_drop_staging(fsdp__param_group *group)
{
    fsdp__region_unref(group->offload.staging);
    group->offload.staging = NULL;
}

void *fsdp__offload_place(const fsdp__param_group *group, const fsdp__param *param)
{
    const fsdp__residence *r = &group->residence;
    size_t at = (size_t)param->part.at * fsdp_dtype_size(param->param_dtype);

    if (group->offload.staging)
        return (char *)group->offload.staging->data + param->shard_offset;
    if (!fsdp__residence_is_offloaded(r) || !r->unsharded)
        return NULL;
    return (char *)r->unsharded->data + param->unsharded_offset + at;
}

fsdp_status fsdp__offload_send(const fsdp__param_group *group, fsdp_stream *stream)
{
    fsdp_status status = FSDP_OK;

    if (!fsdp__residence_is_offloaded(&group->residence))
        return FSDP_OK;
    for (int64_t i = 0; i < group->param_count && status == FSDP_OK; i++) {
        const fsdp__param *p = &group->params[i];
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);

        status = fsdp__copy_to_device(stream, fsdp__offload_place(group, p), p->sharded->storage->data, bytes);
    }
    /* Record it even after a failure: some copies may be queued. */
    FSDP_KEEP_FIRST(status, fsdp_event_record(group->offload.read, stream));
    return status;
}

fsdp_status fsdp__offload_await_read(const fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;

    return fsdp__residence_is_offloaded(r)
               ? fsdp_stream_wait_event(fsdp_device_stream(r->shard_device), group->offload.read)
               : FSDP_OK;
}

void fsdp__offload_close(fsdp__offload *offload)
{
    fsdp__region_unref(offload->staging);
    fsdp_event_free(offload->read);
    *offload = (fsdp__offload){0};
}
