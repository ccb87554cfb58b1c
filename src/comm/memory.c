/* memory.c - hands out memory that peers see, for a group. */
#include "comm/memory.h"

#include "base/alloc.h"
#include "base/probe.h"
#include "comm/group_calls.h"
#include "comm/issue.h"
#include "comm/shared_memory.h"
#include "comm/turns.h"

enum {
    HEADER_BYTES = 64, /* in front of symmetric memory, so that freeing it needs no memory */
    CALLS_IN_FLIGHT = 2
};

bool fsdp_process_group_can_share(const fsdp_process_group *group, fsdp_memory_sharing sharing)
{
    (void)sharing;
    return group && group->size > 1 && group->ops->memory &&
           (!group->ops->can_share || group->ops->can_share(group->transport_group));
}

/* Returns whether all peers have finished call number `issued`: they have when a later one is done here. Which calls
 * have run inline is known from the program's order; of calls on workers the last few are left in flight and older ones
 * are waited for, so that the same program always finds the same buffers free. */
static bool is_released(fsdp_process_group *group, uint64_t issued)
{
    if (group->known_done > issued)
        return true;
    if (group->issued <= issued + CALLS_IN_FLIGHT)
        return false;
    fsdp__comm_wait_done(group, issued + 1, NULL);
    return true;
}

static void release_held(fsdp__comm *comm)
{
    for (fsdp_process_group *group = comm->groups; group; group = group->next)
        for (fsdp__held_memory **link = &group->held; *link;) {
            fsdp__held_memory *held = *link;
            if (!is_released(group, held->issued)) {
                link = &held->next;
                continue;
            }
            *link = held->next;
            group->ops->memory->free(comm->transport, held);
        }
}

static fsdp_status alloc_symmetric(fsdp_process_group *group, size_t bytes, void **out)
{
    fsdp_status status = FSDP__ASK(ALLOCATION, .bytes = bytes);
    void *held = NULL;

    FSDP_TRY(fsdp_fail_prefix(status, "cannot allocate %zu bytes that peers see", bytes));
    if (bytes > SIZE_MAX - HEADER_BYTES)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot allocate %zu bytes that peers see", bytes);
    release_held(group->comm);
    FSDP_TRY(group->ops->memory->alloc(group->comm->transport, bytes + HEADER_BYTES, &held));
    *out = (char *)held + HEADER_BYTES;
    return FSDP_OK;
}

static fsdp_status alloc_shared(fsdp_process_group *group, fsdp_device *device, size_t bytes, void **out)
{
    fsdp__call call = {.name = FSDP__CALL_PROCESS_GROUP_ALLOC, .bytes = bytes, .device = device};
    fsdp__shared_memory *region;
    fsdp_status status;

    FSDP_TRY(fsdp__comm_enter(group, call.name));
    /* The call tells the others of the failure; if this rank returned here, they would wait in it. */
    region = fsdp__calloc(1, sizeof *region); /* without its address yet: all that can fail is done before ranks meet */
    if (!region || FSDP__ASK(ALLOCATION, .bytes = bytes) != FSDP_OK)
        call.own_status = FSDP_NO_MEMORY;
    release_held(group->comm);
    status = fsdp__comm_issue_alloc(group, &call, out);
    if (status != FSDP_OK) {
        fsdp__free(region);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    fsdp__shared_memory_add(group, region, &call, *out);
    return FSDP_OK;
}

fsdp_status fsdp_process_group_alloc(fsdp_process_group *group, fsdp_memory_sharing sharing, size_t bytes, void **out)
{
    if (!group || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot allocate shared memory: group and out are required");
    *out = NULL;
    if (group->size == 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "group '%s' has one rank, and nobody to share memory with: use any other memory, where "
                         "fsdp_process_group_can_share says no",
                         group->name);
    if (!fsdp_process_group_can_share(group, sharing))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "group '%s' of %d ranks (transport '%s') has no memory that peers see",
                         group->name, group->size, group->ops->name);
    return sharing == FSDP_MEMORY_SHARED ? alloc_shared(group, NULL, bytes, out) : alloc_symmetric(group, bytes, out);
}

fsdp_status fsdp__process_group_alloc_common(fsdp_process_group *group, fsdp_device *device, size_t bytes, void **out)
{
    *out = NULL;
    return alloc_shared(group, device, bytes, out);
}

void fsdp_process_group_free_memory(fsdp_process_group *group, fsdp_memory_sharing sharing, void *pointer, size_t bytes)
{
    fsdp__held_memory *held;

    (void)bytes;
    if (!group || !pointer)
        return;
    if (sharing == FSDP_MEMORY_SHARED) {
        if (fsdp__shared_memory_remove(group->comm, pointer))
            group->ops->memory->free_shared(group->transport_group, pointer);
        return;
    }
    held = (fsdp__held_memory *)((char *)pointer - HEADER_BYTES);
    /* Calls up to this one may have shown the memory to peers: see is_released. */
    held->issued = group->issued;
    held->next = group->held;
    group->held = held;
}

/* Hands over held memory. The world's own goes away with the heap, whose pages stay. */
void fsdp__memory_hand_over(fsdp_process_group *group)
{
    fsdp_process_group *world = group->comm->world;

    while (group->held && world && world != group) {
        fsdp__held_memory *held = group->held;
        group->held = held->next;
        held->issued = world->issued;
        held->next = world->held;
        world->held = held;
    }
}
