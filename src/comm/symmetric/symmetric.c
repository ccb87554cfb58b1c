/* symmetric.c - joining an arena, and leaving it. */
#include "comm/symmetric/symmetric.h"

#include "base/alloc.h"
#include "comm/symmetric/devices.h"
#include "comm/symmetric/watch.h"
#include "comm/world.h"

enum {
    TIMEOUT_MS = 300000
};

void fsdp__symmetric_abort(void *transport, const char *text)
{
    fsdp__symmetric *symmetric = transport;

    fsdp__arena_abort(symmetric->arena, FSDP_COMM, symmetric->rank, text);
}

void fsdp__symmetric_close(void *transport)
{
    fsdp__symmetric *symmetric = transport;

    /* First, so that peers who wait for this rank stop; those who still read its memory may: its pages stay. */
    if (atomic_load(&symmetric->arena->control->ranks[symmetric->rank].state) == FSDP__RANK_JOINED)
        fsdp__arena_leave(symmetric->arena, symmetric->rank);
    fsdp__symmetric_close_devices(symmetric);
    fsdp__symmetric_memory_close(symmetric);
    fsdp__arena_unref(symmetric->arena);
    fsdp__free(symmetric);
}

static void release_heart(void *arena)
{
    fsdp__arena_unref(arena);
}

fsdp_status fsdp__symmetric_attach(fsdp_context *context, const fsdp__comm_ops *ops, fsdp__arena *arena, int rank,
                                   bool all_readable, bool wait)
{
    fsdp__symmetric *symmetric = fsdp__calloc(1, sizeof *symmetric);
    fsdp__symmetric_group *world = NULL;
    fsdp__traffic traffic = {0};
    fsdp_status status = FSDP_OK;

    if (!symmetric)
        return FSDP_NO_MEMORY;
    symmetric->context = context;
    symmetric->arena = fsdp__arena_ref(arena);
    symmetric->rank = rank;
    fsdp__symmetric_set_timeout(symmetric, TIMEOUT_MS, FSDP__TICK_MS);
    symmetric->all_readable = all_readable;
    pthread_mutex_init(&symmetric->mutex, NULL);
    FSDP_TRY_GOTO(status, fsdp__symmetric_memory_open(symmetric), out);
    FSDP_TRY_GOTO(status, fsdp__symmetric_group_world(symmetric, &world), out);
    /* Before the first meeting: peers who wait there ask only after ranks that have joined whether they live. */
    atomic_store(&arena->control->ranks[rank].state, FSDP__RANK_JOINED);
    if (wait)
        FSDP_TRY_GOTO(status, fsdp__rendezvous(world, &traffic), out);
    fsdp__context_attach(context, FSDP__SLOT_HEART, fsdp__arena_ref(arena), release_heart);
    fsdp__context_set_heart(context, &arena->control->ranks[rank].heart);
    /* From here on they are the context's, also when this fails. */
    status = fsdp__comm_attach(context, ops, symmetric, world, rank, arena->control->world);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
out:
    if (world)
        fsdp__symmetric_group_free(world);
    fsdp__symmetric_close(symmetric);
    return status;
}
