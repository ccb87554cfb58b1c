/* regions.c - a list, changed and read by the program alone. */
#include "comm/regions.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "comm/sharded_buffer.h"

fsdp__region *fsdp__region_new(void)
{
    return fsdp__calloc(1, sizeof(fsdp__region));
}

void fsdp__regions_add(fsdp_process_group *group, fsdp__region *region, uint64_t sequence, const void *start,
                       size_t bytes)
{
    uint64_t name = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, group->name, strlen(group->name));

    *region = (fsdp__region){group->comm->regions, start, bytes, fsdp__hash_bytes(name, &sequence, sizeof sequence)};
    group->comm->regions = region;
}

void fsdp__regions_remove(fsdp__comm *comm, const void *start)
{
    fsdp__region **link = &comm->regions, *found;

    while (*link && (*link)->start != start)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    fsdp__free(found);
}

void fsdp__regions_free(fsdp__comm *comm)
{
    while (comm->regions)
        fsdp__regions_remove(comm, comm->regions->start);
}

static bool holds(const fsdp__region *region, const char *at, size_t bytes)
{
    return at >= region->start && bytes <= region->bytes && (size_t)(at - region->start) <= region->bytes - bytes;
}

void fsdp__regions_find(const fsdp__comm *comm, fsdp__call *call)
{
    const fsdp__region *region = comm->regions;

    call->shared = true;
    call->places = 0;
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);
        uint64_t place[3];

        if (bytes == 0)
            continue;
        if (!region || !holds(region, b->unsharded, bytes)) /* most often where the buffer before lies */
            for (region = comm->regions; region && !holds(region, b->unsharded, bytes);)
                region = region->next;
        call->shared = call->shared && region;
        if (!region)
            continue;
        place[0] = (uint64_t)i;
        place[1] = region->name;
        place[2] = (uint64_t)((const char *)b->unsharded - region->start);
        call->places = fsdp__hash_bytes(call->places, place, sizeof place);
    }
}
