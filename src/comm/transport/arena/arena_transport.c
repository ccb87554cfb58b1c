/* arena_transport.c - joins an arena, and leaves it. */
#include "comm/transport/arena/arena_transport.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/health/verdict.h"
#include "comm/transport/arena/device_region.h"
#include "comm/transport/arena/devices.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/arena/outboxes.h"
#include "comm/world.h"

const fsdp__collective_ops fsdp__arena_collectives = {
    .all_gather = fsdp__arena_all_gather,
    .reduce_scatter = fsdp__arena_reduce_scatter,
    .all_reduce = fsdp__arena_all_reduce,
    .broadcast = fsdp__arena_broadcast,
    .all_to_all = fsdp__arena_all_to_all,
    .barrier = fsdp__arena_barrier,
    .all_gather_coalesced = fsdp__arena_all_gather_coalesced,
    .reduce_scatter_coalesced = fsdp__arena_reduce_scatter_coalesced,
};
static fsdp_status create_peer(fsdp_process_group *group, fsdp_device *device, void *facts, void **out)
{
    FSDP_TRY(fsdp__peer_create(group->transport_group, device, group->comm->outbox_bytes, facts));
    *out = group->transport_group;
    return FSDP_OK;
}

const fsdp__carrier_ops fsdp__arena_peer = {FSDP__ARENA_PEER_OPS, .create = create_peer};
const fsdp__memory_ops fsdp__arena_memory = {
    .alloc = fsdp__arena_alloc,
    .free = fsdp__arena_free,
    .alloc_shared = fsdp__arena_alloc_shared,
    .free_shared = fsdp__arena_free_shared,
};
const fsdp__health_ops fsdp__arena_health = {
    .note = fsdp__arena_note,
    .host_waits = fsdp__arena_host_waits,
    .look_after = fsdp__arena_look_after,
    .set_timeout = fsdp__arena_set_timeout,
};

void fsdp__arena_abort(void *transport, const char *why)
{
    fsdp__arena_view *view = transport;

    fsdp__board_fail(view->arena->board, FSDP_COMM, fsdp__board_global(view->arena->board, view->rank), why);
}

void fsdp__arena_close(void *transport)
{
    fsdp__arena_view *view = transport;
    fsdp__board *board = view->arena->board;

    /* Leave first, so that peers who wait for this rank stop. Those who still read its memory may: its pages stay. */
    if (atomic_load(&fsdp__row_at(board, view->rank)->state) == FSDP__RANK_JOINED)
        fsdp__board_leave(board, view->rank);
    pthread_mutex_destroy(&view->health.mutex);
    fsdp__outboxes_close(view);
    fsdp__device_regions_end(view);
    fsdp__arena_close_devices(view);
    fsdp__arena_memory_close(view);
    fsdp__arena_unref(view->arena);
    fsdp__free(view);
}

void fsdp__arena_note(void *g, const fsdp__call *call, fsdp__moment moment)
{
    fsdp__arena_group *group = g;

    if (moment == FSDP__CALL_DONE)
        fsdp__lent_settle(group);
    if (moment == FSDP__CALL_ISSUED)
        fsdp__device_regions_look(group->world);
    fsdp__health_note(&group->world->health, group->index, group->name, group->tag, call, moment);
}

void fsdp__arena_host_waits(void *g, const fsdp_stream *worker, bool waits)
{
    fsdp__arena_group *group = g;

    fsdp__health_program_waits(&group->world->health, group->index, worker, waits);
    if (!waits)
        fsdp__device_regions_look(group->world);
}

fsdp_status fsdp__arena_look_after(void *g, int64_t ticks)
{
    fsdp__arena_group *group = g;
    fsdp__board *board = group->world->arena->board;

    for (int r = 0; r < group->size; r++)
        if (r != group->rank)
            fsdp__verdict_look_at(&group->world->health, group->ranks[r], ticks);
    if (group->peer && ticks > 0)
        fsdp__peer_look(group, ticks);
    fsdp__verdict_check_keeper(board);
    return fsdp__board_holds(board);
}

void fsdp__arena_set_timeout(void *transport, int64_t timeout_ms, int64_t tick_ms)
{
    fsdp__health_set_timeout(&((fsdp__arena_view *)transport)->health, timeout_ms, tick_ms);
}

bool fsdp__arena_are_threads(const void *transport)
{
    return ((const fsdp__arena_view *)transport)->all_readable;
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

static fsdp_status open_all(fsdp__arena_view *view, bool wait, fsdp__arena_group **world)
{
    fsdp__traffic traffic = {0};

    FSDP_TRY(fsdp__arena_memory_open(view));
    FSDP_TRY(fsdp__arena_group_world(view, world));
    /* Set this before the first meeting: peers who wait there check only that ranks which have joined are alive. */
    atomic_store(&fsdp__row_at(view->arena->board, view->rank)->state, FSDP__RANK_JOINED);
    if (!wait)
        return FSDP_OK;
    FSDP_TRY(fsdp__rendezvous(*world, &traffic));
    return check_builds(view->arena->board);
}

fsdp_status fsdp__arena_open(fsdp_context *context, fsdp__arena *arena, int rank, bool all_readable, bool wait,
                             fsdp__arena_view **out, fsdp__arena_group **world)
{
    fsdp__arena_view *view = fsdp__calloc(1, sizeof *view);
    fsdp_status status;

    *out = NULL;
    *world = NULL;
    FSDP__TRY_NEW(view);
    view->context = context;
    view->arena = fsdp__arena_ref(arena);
    view->rank = rank;
    view->health = (fsdp__health){
        .context = context, .board = arena->board, .rank = rank, .joins = arena->control->join_seconds > 0};
    pthread_mutex_init(&view->health.mutex, NULL);
    fsdp__arena_set_timeout(view, view->health.joins ? arena->control->join_seconds * (int64_t)1000 : FSDP__TIMEOUT_MS,
                            FSDP__TICK_MS);
    view->all_readable = all_readable;
    pthread_mutex_init(&view->mutex, NULL);
    status = open_all(view, wait, world);
    if (status != FSDP_OK) {
        if (*world)
            fsdp__arena_group_free(fsdp__take(world));
        fsdp__arena_close(view);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    /* All have joined, or nobody waits for that: from here on the usual timeout holds. */
    view->health.joins = false;
    fsdp__arena_set_timeout(view, FSDP__TIMEOUT_MS, FSDP__TICK_MS);
    fsdp__context_attach(context, FSDP__SLOT_HEART, fsdp__arena_ref(arena), release_heart);
    fsdp__context_set_heart(context, &fsdp__row_at(arena->board, rank)->heart);
    *out = view;
    return FSDP_OK;
}

fsdp_status fsdp__arena_attach(fsdp_context *context, const fsdp__comm_ops *ops, fsdp__arena *arena, int rank,
                               bool all_readable, bool wait)
{
    fsdp__arena_view *view;
    fsdp__arena_group *world;

    FSDP_TRY(fsdp__arena_open(context, arena, rank, all_readable, wait, &view, &world));
    /* From here on the context owns them, even when this fails. */
    return fsdp__comm_attach(context, ops, view, world, rank, arena->board->world);
}
