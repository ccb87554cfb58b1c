/* symmetric.c - joins an arena, and leaves it. */
#include "comm/transport/arena/symmetric.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/transport/arena/devices.h"
#include "comm/transport/arena/lent.h"
#include "comm/world.h"

const fsdp__collective_ops fsdp__symmetric_collectives = {
    .all_gather = fsdp__symmetric_all_gather,
    .reduce_scatter = fsdp__symmetric_reduce_scatter,
    .all_reduce = fsdp__symmetric_all_reduce,
    .broadcast = fsdp__symmetric_broadcast,
    .all_to_all = fsdp__symmetric_all_to_all,
    .barrier = fsdp__symmetric_barrier,
    .all_gather_coalesced = fsdp__symmetric_all_gather_coalesced,
    .reduce_scatter_coalesced = fsdp__symmetric_reduce_scatter_coalesced,
};
const fsdp__memory_ops fsdp__symmetric_memory = {
    .alloc = fsdp__symmetric_alloc,
    .free = fsdp__symmetric_free,
    .alloc_shared = fsdp__symmetric_alloc_shared,
    .free_shared = fsdp__symmetric_free_shared,
};
const fsdp__reader_ops fsdp__symmetric_readers = {
    .read_begin = fsdp__symmetric_read_begin,
    .read_end = fsdp__symmetric_read_end,
    .read_done = fsdp__symmetric_read_done,
    .reads_ended = fsdp__symmetric_reads_ended,
    .readers_done = fsdp__symmetric_readers_done,
    .await_readers = fsdp__symmetric_await_readers,
};
const fsdp__health_ops fsdp__symmetric_health = {
    .note = fsdp__symmetric_note,
    .host_waits = fsdp__symmetric_host_waits,
    .set_timeout = fsdp__symmetric_set_timeout,
};

void fsdp__symmetric_abort(void *transport, const char *text)
{
    fsdp__symmetric *symmetric = transport;

    fsdp__board_abort(symmetric->arena->board, FSDP_COMM, fsdp__board_global(symmetric->arena->board, symmetric->rank),
                      text);
}

void fsdp__symmetric_close(void *transport)
{
    fsdp__symmetric *symmetric = transport;
    fsdp__board *board = symmetric->arena->board;

    /* Leave first, so that peers who wait for this rank stop. Those who still read its memory may: its pages stay. */
    if (atomic_load(&fsdp__row_at(board, symmetric->rank)->state) == FSDP__RANK_JOINED)
        fsdp__board_leave(board, symmetric->rank);
    pthread_mutex_destroy(&symmetric->health.mutex);
    fsdp__symmetric_close_devices(symmetric);
    fsdp__symmetric_memory_close(symmetric);
    fsdp__arena_unref(symmetric->arena);
    fsdp__free(symmetric);
}

void fsdp__symmetric_note(void *g, const fsdp__call *call, fsdp__moment moment)
{
    fsdp__symmetric_group *group = g;

    if (moment == FSDP__CALL_DONE)
        fsdp__lent_settle(group);
    fsdp__health_note(&group->world->health, group->index, group->name, group->tag, call, moment);
}

void fsdp__symmetric_host_waits(void *g, const fsdp_stream *worker, bool waits)
{
    fsdp__symmetric_group *group = g;

    fsdp__health_program_waits(&group->world->health, group->index, worker, waits);
}

void fsdp__symmetric_set_timeout(void *transport, int64_t timeout_ms, int64_t tick_ms)
{
    fsdp__health_set_timeout(&((fsdp__symmetric *)transport)->health, timeout_ms, tick_ms);
}

static void release_heart(void *arena)
{
    fsdp__arena_unref(arena);
}

/* Compares the builds of all ranks. All compare with the same rank, so all find the same disagreement. */
static fsdp_status check_builds(fsdp__board *board)
{
    const char *first = fsdp__row_at(board, 0)->build;
    char host[FSDP__HOST_BYTES], text[FSDP__ABORT_BYTES];

    for (int r = 1; r < board->world; r++) {
        const char *other = fsdp__row_at(board, r)->build;

        if (memcmp(first, other, FSDP__BUILD_BYTES) == 0)
            continue;
        fsdp__host_name(host);
        snprintf(text, sizeof text, "rank %d runs fsdp %s, and rank %d fsdp %s (machine '%s'): " FSDP__ONE_BUILD,
                 fsdp__board_global(board, 0), first, fsdp__board_global(board, r), other, host);
        fsdp__board_abort(board, FSDP_MISMATCH, -1, text);
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
    atomic_store(&fsdp__row_at(symmetric->arena->board, symmetric->rank)->state, FSDP__RANK_JOINED);
    if (!wait)
        return FSDP_OK;
    FSDP_TRY(fsdp__rendezvous(*world, &traffic));
    return check_builds(symmetric->arena->board);
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
    symmetric->health = (fsdp__health){
        .context = context, .board = arena->board, .rank = rank, .joins = arena->control->join_seconds > 0};
    pthread_mutex_init(&symmetric->health.mutex, NULL);
    fsdp__symmetric_set_timeout(
        symmetric, symmetric->health.joins ? arena->control->join_seconds * (int64_t)1000 : FSDP__TIMEOUT_MS,
        FSDP__TICK_MS);
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
    symmetric->health.joins = false;
    fsdp__symmetric_set_timeout(symmetric, FSDP__TIMEOUT_MS, FSDP__TICK_MS);
    fsdp__context_attach(context, FSDP__SLOT_HEART, fsdp__arena_ref(arena), release_heart);
    fsdp__context_set_heart(context, &fsdp__row_at(arena->board, rank)->heart);
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
    FSDP_TRY(fsdp__comm_attach(context, ops, symmetric, world, rank, arena->board->world));
    return FSDP_OK;
}
