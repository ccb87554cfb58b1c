/* gather_memory.c - memory for gathers that run beside the computing. */
#include "shard/group/gather_memory.h"

fsdp_status fsdp__spares_open(fsdp__spares *spares, fsdp_device *device)
{
    for (int i = 0; i < FSDP__SPARE_REGIONS; i++)
        if (!spares->regions[i].free)
            FSDP_TRY(fsdp_event_create(device, &spares->regions[i].free));
    return FSDP_OK;
}

void fsdp__spares_close(fsdp__spares *spares)
{
    fsdp__spares_drop(spares);
    for (int i = 0; i < FSDP__SPARE_REGIONS; i++)
        fsdp_event_free(spares->regions[i].free);
}

fsdp_status fsdp__spares_take(fsdp__spares *spares, size_t bytes, fsdp_stream *stream, fsdp__region **out)
{
    fsdp__spare_region oldest = spares->regions[0];

    *out = NULL;
    if (spares->count == 0 || spares->out + spares->count < FSDP__SPARE_REGIONS)
        return FSDP_OK;
    if (oldest.region->bytes == bytes)
        FSDP_TRY(fsdp_stream_wait_event(stream, oldest.free));
    spares->regions[0] = spares->regions[1];
    spares->regions[1] = (fsdp__spare_region){.free = oldest.free};
    spares->count--;
    if (oldest.region->bytes == bytes)
        *out = oldest.region;
    else
        fsdp__region_unref(oldest.region); /* of another size: goes back to the device, in the order of its stream */
    return FSDP_OK;
}

void fsdp__spares_give(fsdp__spares *spares, fsdp__region *region)
{
    fsdp_stream *compute = fsdp_device_stream(region->device);
    fsdp__spare_region *spare = &spares->regions[spares->count];

    if (fsdp__stream_is_inline(compute) || spares->count == FSDP__SPARE_REGIONS ||
        fsdp_event_record(spare->free, compute) != FSDP_OK) {
        fsdp__region_unref(region);
        return;
    }
    spare->region = region;
    spares->count++;
}

void fsdp__spares_drop(fsdp__spares *spares)
{
    while (spares->count > 0) {
        fsdp__spare_region *spare = &spares->regions[--spares->count];

        fsdp__region_unref(spare->region);
        spare->region = NULL;
    }
}
