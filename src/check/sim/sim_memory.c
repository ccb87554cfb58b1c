/* sim_memory.c - the memory of the simulated device that kernels may reach. */
#include "check/sim/sim_memory.h"

#include "base/alloc.h"

fsdp_status fsdp__sim_range_add(fsdp_device *device, void *address, void *mapped, size_t bytes)
{
    fsdp__sim_state *state = device->state;
    fsdp__sim_range *r = fsdp__malloc(sizeof *r);

    FSDP__TRY_NEW(r);
    *r = (fsdp__sim_range){.address = address, .mapped = mapped, .bytes = bytes};
    pthread_mutex_lock(&state->mutex);
    r->next = state->ranges;
    state->ranges = r;
    pthread_mutex_unlock(&state->mutex);
    return FSDP_OK;
}

void *fsdp__sim_range_remove(fsdp_device *device, const void *address)
{
    fsdp__sim_state *state = device->state;
    fsdp__sim_range **link, *found;
    void *mapped = NULL;

    pthread_mutex_lock(&state->mutex);
    for (link = &state->ranges; *link && (*link)->address != address; link = &(*link)->next)
        continue;
    found = *link;
    if (found) {
        *link = found->next;
        mapped = found->mapped;
    }
    pthread_mutex_unlock(&state->mutex);
    fsdp__free(found);
    return mapped;
}

void *fsdp__sim_translate(const fsdp_device *device, const void *pointer, size_t bytes)
{
    fsdp__sim_state *state = device->state;
    uintptr_t at = (uintptr_t)pointer;
    void *mapped = NULL;

    pthread_mutex_lock(&state->mutex);
    for (const fsdp__sim_range *r = state->ranges; r && !mapped; r = r->next) {
        uintptr_t first = (uintptr_t)r->address;

        if (at >= first && at - first <= r->bytes && bytes <= r->bytes - (at - first))
            mapped = r->mapped + (at - first);
    }
    pthread_mutex_unlock(&state->mutex);
    return mapped;
}

static bool in_scratch(const fsdp_stream *stream, const void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer, first = (uintptr_t)stream->workspace;

    return first && at >= first && at - first <= stream->workspace_bytes &&
           bytes <= stream->workspace_bytes - (at - first);
}

void *fsdp__sim_reach(const fsdp_stream *stream, const void *pointer, size_t bytes)
{
    return in_scratch(stream, pointer, bytes) ? (void *)(uintptr_t)pointer
                                              : fsdp__sim_translate(stream->device, pointer, bytes);
}
