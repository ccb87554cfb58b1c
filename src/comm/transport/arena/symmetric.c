/* symmetric.c - joins an arena, and leaves it. */
#include "comm/transport/arena/symmetric.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/health/arena_watch.h"
#include "comm/transport/arena/devices.h"
#include "comm/world.h"

void fsdp__symmetric_abort(void *transport, const char *text)
{
    fsdp__symmetric *symmetric = transport;

    fsdp__arena_abort(symmetric->arena, FSDP_COMM, fsdp__arena_global(symmetric->arena, symmetric->rank), text);
}

void fsdp__symmetric_close(void *transport)
{
    fsdp__symmetric *symmetric = transport;

    /* Leave first, so that peers who wait for this rank stop. Those who still read its memory may: its pages stay. */
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

/* Compares the builds of all ranks. All compare with the same rank, so all find the same disagreement. */
static fsdp_status check_builds(fsdp__arena *arena)
{
    const fsdp__arena_rank *ranks = arena->control->ranks;
    char host[FSDP__HOST_BYTES], text[FSDP__ABORT_BYTES];

    for (int r = 1; r < arena->control->world; r++) {
        if (memcmp(ranks[0].build, ranks[r].build, FSDP__BUILD_BYTES) == 0)
            continue;
        fsdp__host_name(host);
        snprintf(text, sizeof text, "rank %d runs fsdp %s, and rank %d fsdp %s (machine '%s'): " FSDP__ONE_BUILD,
                 fsdp__arena_global(arena, 0), ranks[0].build, fsdp__arena_global(arena, r), ranks[r].build, host);
        fsdp__arena_abort(arena, FSDP_MISMATCH, -1, text);
        return FSDP_FAIL(FSDP_MISMATCH, "%s", text);
    }
    return FSDP_OK;
}

static fsdp_status open_all(fsdp__symmetric *symmetric, bool wait, fsdp__symmetric_group **world)
{
    fsdp__traffic traffic = {0};

    FSDP_TRY(fsdp__symmetric_memory_open(symmetric));
    FSDP_TRY(fsdp__symmetric_group_world(symmetric, world));
    /* Set this before the first meeting: peers who wait there check only that ranks which have joined are alive. */
    atomic_store(&symmetric->arena->control->ranks[symmetric->rank].state, FSDP__RANK_JOINED);
    if (!wait)
        return FSDP_OK;
    FSDP_TRY(fsdp__rendezvous(*world, &traffic));
    return check_builds(symmetric->arena);
}

fsdp_status fsdp__symmetric_open(fsdp_context *context, fsdp__arena *arena, int rank, bool all_readable, bool wait,
                                 fsdp__symmetric **out, fsdp__symmetric_group **world)
{
    fsdp__symmetric *symmetric = fsdp__calloc(1, sizeof *symmetric);
    fsdp_status status;

    *out = NULL;
    *world = NULL;
    if (!symmetric)
        return FSDP_NO_MEMORY;
    symmetric->context = context;
    symmetric->arena = fsdp__arena_ref(arena);
    symmetric->rank = rank;
    symmetric->joins = arena->control->join_seconds > 0;
    fsdp__symmetric_set_timeout(
        symmetric, symmetric->joins ? arena->control->join_seconds * (int64_t)1000 : FSDP__TIMEOUT_MS, FSDP__TICK_MS);
    symmetric->all_readable = all_readable;
    pthread_mutex_init(&symmetric->mutex, NULL);
    status = open_all(symmetric, wait, world);
    if (status != FSDP_OK) {
        if (*world)
            fsdp__symmetric_group_free(*world);
        *world = NULL;
        fsdp__symmetric_close(symmetric);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    /* All have joined, or nobody waits for that: from here on the usual timeout holds. */
    symmetric->joins = false;
    fsdp__symmetric_set_timeout(symmetric, FSDP__TIMEOUT_MS, FSDP__TICK_MS);
    fsdp__context_attach(context, FSDP__SLOT_HEART, fsdp__arena_ref(arena), release_heart);
    fsdp__context_set_heart(context, &arena->control->ranks[rank].heart);
    *out = symmetric;
    return FSDP_OK;
}

fsdp_status fsdp__symmetric_attach(fsdp_context *context, const fsdp__comm_ops *ops, fsdp__arena *arena, int rank,
                                   bool all_readable, bool wait)
{
    fsdp__symmetric *symmetric;
    fsdp__symmetric_group *world;

    FSDP_TRY(fsdp__symmetric_open(context, arena, rank, all_readable, wait, &symmetric, &world));
    /* From here on the context owns them, even when this fails. */
    FSDP_TRY(fsdp__comm_attach(context, ops, symmetric, world, rank, arena->control->world));
    return FSDP_OK;
}
