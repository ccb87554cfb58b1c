/* shared_memory.c - the list of regions, which the program alone changes and reads. */
#include "comm/shared_memory.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "comm/transport/sharded_buffer.h"

void fsdp__shared_memory_add(fsdp_process_group *group, fsdp__shared_memory *region, const fsdp__call *call,
                             const void *start)
{
    /* One creation may have made several groups, such as the rows of a mesh. */
    uint64_t name[3] = {group->ticket, (uint64_t)group->ranks[0], call->sequence};

    *region = (fsdp__shared_memory){.next = group->comm->shared,
                                    .start = start,
                                    .bytes = call->bytes,
                                    .device = call->device,
                                    .name = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, name, sizeof name)};
    group->comm->shared = region;
}

bool fsdp__shared_memory_remove(fsdp__comm *comm, const void *start)
{
    fsdp__shared_memory **link = &comm->shared, *found;

    while (*link && (*link)->start != start)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    fsdp__free(found);
    return found != NULL;
}

fsdp_device *fsdp__shared_memory_device(const fsdp__comm *comm, const void *start)
{
    const fsdp__shared_memory *region = comm->shared;

    while (region && region->start != start)
        region = region->next;
    return region ? region->device : NULL;
}

void fsdp__shared_memory_free(fsdp__comm *comm)
{
    while (comm->shared)
        (void)fsdp__shared_memory_remove(comm, comm->shared->start);
}

/* Returns the region that holds the byte at `at`; `first` is looked at first. */
static const fsdp__shared_memory *region_of(const fsdp__comm *comm, const fsdp__shared_memory *first, const char *at)
{
    if (first && at >= first->start && at < first->start + first->bytes)
        return first;
    for (first = comm->shared; first && !(at >= first->start && at < first->start + first->bytes);)
        first = first->next;
    return first;
}

int64_t fsdp__shared_memory_find(const fsdp__comm *comm, fsdp__call *call)
{
    const fsdp__shared_memory *region = NULL;

    call->shared = true;
    call->places = 0;
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);
        uint64_t place[3] = {(uint64_t)i};

        if (bytes == 0)
            continue;
        region = region_of(comm, region, b->unsharded); /* most often the region of the buffer before */
        call->shared = call->shared && region;
        if (!region)
            continue;
        place[1] = region->name;
        place[2] = (uint64_t)((const char *)b->unsharded - region->start);
        if (bytes > region->bytes - place[2])
            return i;
        call->places = fsdp__hash_bytes(call->places, place, sizeof place);
    }
    return -1;
}
