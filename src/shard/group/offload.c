/* offload.c - brings shards from the host to the device, before a gather. */
#include "shard/group/offload.h"

#include "device/device.h"

static bool is_gathered_as_it_lies(const fsdp__param *param)
{
    return param->param_dtype == param->orig_dtype && fsdp__param_is_one_run(param) && !param->extension.pre;
}

fsdp_status fsdp__offload_take_staging(fsdp__offload *offload, const fsdp__residence *residence,
                                       const fsdp__param *params, int64_t count, bool *fresh)
{
    bool direct = true;
    fsdp_status status;

    for (int64_t i = 0; i < count; i++)
        direct = direct && is_gathered_as_it_lies(&params[i]);
    if (direct)
        return FSDP_OK;
    FSDP_TRY(fsdp__region_of_device(residence->device, residence->shard_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER,
                                    &offload->staging));
    status = fsdp__region_fill(offload->staging);
    if (status != FSDP_OK)
        fsdp__offload_drop_staging(offload);
    *fresh = true;
    return status;
}

void fsdp__offload_drop_staging(fsdp__offload *offload)
{
    fsdp__region_unref(offload->staging);
    offload->staging = NULL;
}

void *fsdp__offload_place(const fsdp__offload *offload, const fsdp__residence *residence, const fsdp__param *param)
{
    size_t at = (size_t)param->piece.at * fsdp_dtype_size(param->param_dtype);

    if (offload->staging)
        return (char *)offload->staging->data + param->shard_offset;
    return (char *)residence->unsharded->data + param->unsharded_offset + at;
}

fsdp_status fsdp__offload_send(const fsdp__offload *offload, const fsdp__residence *residence,
                               const fsdp__param *params, int64_t count, fsdp_stream *stream)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < count && status == FSDP_OK; i++) {
        const fsdp__param *p = &params[i];
        const void *from = p->sharded->storage->data;
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);

        status = fsdp__copy_to_device(stream, fsdp__offload_place(offload, residence, p), from, bytes);
    }
    /* Even after a failure: some copies may be queued. */
    FSDP_KEEP_FIRST(status, fsdp_event_record(offload->read, stream));
    return status;
}

fsdp_status fsdp__offload_await_read(const fsdp__offload *offload, const fsdp__residence *residence)
{
    return fsdp_stream_wait_event(fsdp_device_stream(residence->shard_device), offload->read);
}

void fsdp__offload_close(fsdp__offload *offload)
{
    fsdp__offload_drop_staging(offload);
    fsdp_event_free(offload->read);
    offload->read = NULL;
}
