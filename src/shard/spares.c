/* spares.c - memory for gathers that run beside the computing.
 *
 * Where the device's stream runs behind the host, a group that is resharded may still be read, and the next gather is
 * to run beside that. So it gets other memory as long as no more than two groups besides the root have some; the third
 * waits for the first one's last reader, and takes its place: where groups have unequal sizes it gets new memory, and
 * waits for all that the device's stream has been given. Inline, memory goes back at once. */
#include "shard/shard.h"

fsdp_status fsdp__tree_take_spare(fsdp__shard_tree *tree, size_t bytes, fsdp__region **out)
{
    fsdp__spare_region oldest = tree->spares[0];
    int root_out = tree->root && tree->root->group.layout == FSDP__LAYOUT_COPY && tree->root->group.whole;

    *out = NULL;
    if (tree->spare_count == 0 || tree->regions_out - root_out + tree->spare_count < FSDP__SPARE_REGIONS)
        return FSDP_OK;
    if (oldest.region->bytes == bytes)
        FSDP_TRY(fsdp_stream_wait_event(tree->stream, oldest.free));
    tree->spares[0] = tree->spares[1];
    tree->spares[1] = (fsdp__spare_region){.free = oldest.free};
    tree->spare_count--;
    if (oldest.region->bytes == bytes)
        *out = oldest.region;
    else
        fsdp__region_unref(oldest.region); /* of another size: back to the device, in the order of its stream */
    return FSDP_OK;
}

void fsdp__tree_give_spare(fsdp__shard_tree *tree, fsdp_device *device, fsdp__region *region)
{
    fsdp__spare_region *spare = &tree->spares[tree->spare_count];

    if (fsdp__stream_is_inline(fsdp_device_stream(device)) || tree->spare_count == FSDP__SPARE_REGIONS ||
        fsdp_event_record(spare->free, fsdp_device_stream(device)) != FSDP_OK) {
        fsdp__region_unref(region);
        return;
    }
    spare->region = region;
    tree->spare_count++;
}

void fsdp__tree_drop_spares(fsdp__shard_tree *tree)
{
    while (tree->spare_count > 0) {
        fsdp__spare_region *spare = &tree->spares[--tree->spare_count];

        fsdp__region_unref(spare->region);
        spare->region = NULL;
    }
}
