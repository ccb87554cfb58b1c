/* network_memory.c - makes a region on each machine, or none on any. */
#include "comm/transport/network/network_calls.h"

#include "comm/transport/arena/arena_memory.h"

static fsdp_status alloc(void *transport, size_t bytes, void **out)
{
    return fsdp__arena_alloc(((fsdp__network_view *)transport)->local, bytes, out);
}

static void free_own(void *transport, void *pointer)
{
    fsdp__arena_free(((fsdp__network_view *)transport)->local, pointer);
}

static void free_shared(void *g, void *pointer)
{
    fsdp__arena_free_shared(((fsdp__network_group *)g)->local, pointer);
}

/* Tells what became of the region here, and learns what became of it elsewhere. */
static fsdp_status compare_results(fsdp__network_group *group, const fsdp__call *call, fsdp_status mine,
                                   fsdp__traffic *traffic)
{
    fsdp__header own = {.own_status = (int32_t)mine};
    FSDP__SCOPED(fsdp__meeting_release) fsdp__meeting meeting = {0};

    FSDP_TRY(fsdp__meeting_begin(&meeting, group, call, &own, NULL));
    FSDP_TRY(fsdp__meeting_end(&meeting, traffic));
    for (int p = 0; mine == FSDP_OK && p < group->columns; p++)
        if (fsdp__meeting_header(&meeting, p)->own_status != FSDP_OK)
            return FSDP_FAIL((fsdp_status)fsdp__meeting_header(&meeting, p)->own_status,
                             "rank %d: cannot allocate %zu bytes shared by group '%s'", group->column[p], call->bytes,
                             group->name);
    return FSDP_OK;
}

static fsdp_status alloc_shared(void *g, const fsdp__call *call, fsdp__traffic *traffic, void **out)
{
    fsdp__network_group *group = g;
    fsdp_status mine, status;
    bool held;

    mine = fsdp__arena_alloc_shared(group->local, call, traffic, out);
    if (fsdp__network_is_local(group))
        return mine;
    held = fsdp_hold_error(mine != FSDP_OK);
    status = compare_results(group, call, mine, traffic);
    fsdp_release_error(held);
    if (mine != FSDP_OK)
        return mine;
    if (status != FSDP_OK) {
        free_shared(group, *out);
        *out = NULL;
    }
    return status;
}

const fsdp__memory_ops fsdp__network_memory = {
    .alloc = alloc,
    .free = free_own,
    .alloc_shared = alloc_shared,
    .free_shared = free_shared,
};
