/* network_transport.c - joins a world of several machines, and leaves it. */
#include "comm/transport/network/network_transport.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/health/verdict.h"
#include "comm/transport/arena/arena_transport.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/network/join_report.h"
#include "comm/transport/network/network_calls.h"
#include "comm/transport/network/numbering.h"
#include "comm/world.h"

/* ---- the table: what is not in files of its own is the arena's ---- */

static void *local_of(void *group)
{
    return ((fsdp__network_group *)group)->local;
}

static void note(void *group, const fsdp__call *call, fsdp__moment moment)
{
    fsdp__network_group *g = group;

    if (g->local)
        fsdp__arena_note(g->local, call, moment);
    else
        fsdp__health_note(&g->world->local->health, -1, g->name, g->tag, call, moment);
    fsdp__peers_note(&g->world->peers, moment);
}

static void host_waits(void *group, const fsdp_stream *worker, bool waits)
{
    fsdp__network_group *g = group;

    if (g->local)
        fsdp__arena_host_waits(g->local, worker, waits);
    else
        fsdp__health_program_waits(&g->world->local->health, -1, worker, waits);
}

static void set_timeout(void *transport, int64_t timeout_ms, int64_t tick_ms)
{
    fsdp__arena_set_timeout(((fsdp__network_view *)transport)->local, timeout_ms, tick_ms);
}

static int machines_of(const void *group)
{
    return ((const fsdp__network_group *)group)->machines;
}

static bool can_share(const void *group)
{
    return ((const fsdp__network_group *)group)->local != NULL;
}

/* Breaks the world in the arena; the thread that listens tells the other machines. */
static void abort_world(void *transport, const char *why)
{
    fsdp__network_view *machines = transport;

    fsdp__board_fail(machines->link.board, FSDP_COMM, machines->link.places.rank, why);
}

/* Tells why this rank does not join: at once to the ranks of its machine, who wait in the arena, and then to all. */
static void fail_joining(const fsdp__network_ops *ops, void *network, const fsdp__places *places, fsdp__arena *arena)
{
    bool held = fsdp_hold_error(true);
    fsdp__report mine = {0}, first;

    fsdp__report_write(&mine, fsdp_last_status());
    fsdp__board_abort(arena->board, fsdp_last_status(), places->rank, fsdp_last_error());
    (void)fsdp__report_compare(ops, network, places, &mine, &first);
    fsdp_release_error(held);
}

static void close_world(void *transport)
{
    fsdp__network_view *machines = transport;
    fsdp__deadline *deadline = fsdp__deadline_of(machines->link.ops, machines->link.network);
    bool whole = false;

    if (machines->awaited && !atomic_load(&machines->link.silent))
        fail_joining(machines->link.ops, machines->link.network, &machines->link.places, machines->arena);
    if (machines->local) {
        /* Do this first, so that peers who wait for this rank stop. */
        fsdp__board_leave(machines->link.board, machines->local->rank);
        whole = fsdp__watch_leave(&machines->watch);
        if (deadline)
            fsdp__deadline_leaving(deadline);
        fsdp__watch_close(&machines->watch, whole);
        fsdp__peers_close(&machines->peers);
        fsdp__arena_close(machines->local);
    }
    fsdp__link_silence(&machines->link);
    machines->link.ops->close(machines->link.network, whole);
    fsdp__places_release(&machines->link.places);
    fsdp__arena_unref(machines->arena);
    fsdp__free(machines);
}

static const char *host_of(const void *transport, int rank)
{
    const fsdp__places *places = &((const fsdp__network_view *)transport)->link.places;

    return places->machines > 1 ? fsdp__host_of(places, rank) : NULL;
}

static fsdp_status look_after(void *g, int64_t ticks)
{
    const fsdp__network_group *group = g;
    fsdp__network_view *view = group->world;
    int64_t now = atomic_load(&view->peers.ticks);
    const fsdp__awaited wait = {.since = now - ticks, .tested = now};

    if (group->local && fsdp__network_is_local(group))
        return fsdp__arena_look_after(group->local, ticks);
    for (int r = 0; r < group->size; r++)
        if (r != group->rank && !fsdp__board_aborted(view->link.board))
            fsdp__verdict_look(&view->peers, group->ranks[r], wait);
    return fsdp__board_holds(view->link.board);
}

/* The devices of a group on one machine read each other's memory: it is the arena's group that has the carrier. */
static fsdp_status create_peer(fsdp_process_group *group, fsdp_device *device, void *facts, void **out)
{
    const fsdp__network_group *g = group->transport_group;

    if (!g->local)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "the ranks of a machine share no memory (FSDP_ONE_LEVEL)");
    *out = g->local;
    FSDP_TRY(fsdp__peer_create(g->local, device, group->comm->outbox_bytes, facts));
    return FSDP_OK;
}

static bool are_threads(const void *transport)
{
    return ((const fsdp__network_view *)transport)->local->all_readable;
}

static const fsdp__collective_ops collectives = {
    .all_gather = fsdp__network_all_gather,
    .reduce_scatter = fsdp__network_reduce_scatter,
    .all_reduce = fsdp__network_all_reduce,
    .broadcast = fsdp__network_broadcast,
    .all_to_all = fsdp__network_all_to_all,
    .barrier = fsdp__network_barrier,
    .all_gather_coalesced = fsdp__network_all_gather_coalesced,
    .reduce_scatter_coalesced = fsdp__network_reduce_scatter_coalesced,
};
static const fsdp__health_ops health = {
    .note = note, .host_waits = host_waits, .look_after = look_after, .set_timeout = set_timeout};
static const fsdp__carrier_ops peer = {FSDP__ARENA_PEER_OPS, .create = create_peer};
static const fsdp__comm_ops machines_ops = {
    .name = "machines",
    .are_threads = are_threads,
    .collectives = &collectives,
    .memory = &fsdp__network_memory,
    .readers = &fsdp__arena_readers,
    .health = &health,
    .peer = &peer,
    .group_open = fsdp__network_group_open,
    .group_ready = fsdp__network_group_ready,
    .group_free = fsdp__network_group_free,
    .abort = abort_world,
    .close = close_world,
    .machines = machines_of,
    .can_share = can_share,
    .host_of = host_of,
    .reader_group = local_of,
    .give_back = fsdp__network_give_back,
    .block = fsdp__network_block,
};

/* ---- joining ---- */

static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static fsdp_status show(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic, bool *visible)
{
    fsdp__shown_path path;

    FSDP_TRY(fsdp__shown_meet(group->local, call, fsdp__shown_is_readable(group->local, call, true), traffic, &path));
    *visible = path == FSDP__SHOWN_IN_PLACE;
    return FSDP_OK;
}

static bool adds(const fsdp__network_group *group, const fsdp__call *call, int local, int64_t i)
{
    return fsdp__shown_adds(group->local, call, local, i);
}

static const fsdp__world_acts acts = {
    .all_gather = fsdp__network_all_gather,
    .all_to_all = fsdp__network_all_to_all,
    .open_local = fsdp__network_open_local,
    .take = fsdp__malloc,
    .copy = copy,
    .carry = fsdp__exchange_carry,
    .compare = fsdp__meeting_compare,
    .show = show,
    .adds = adds,
};

static fsdp_status machines_new(const fsdp__network_ops *ops, void *network, fsdp__places places, fsdp__arena *arena,
                                const fsdp__network_options *options, bool wait, fsdp__network_view **out)
{
    fsdp__network_view *machines = fsdp__calloc(1, sizeof *machines);

    if (!machines) {
        if (wait)
            fail_joining(ops, network, &places, arena);
        ops->close(network, false);
        fsdp__places_release(&places);
        return FSDP_NO_MEMORY;
    }
    machines->acts = &acts;
    machines->link.ops = ops;
    machines->link.network = network;
    machines->link.places = places;
    machines->arena = fsdp__arena_ref(arena);
    machines->link.board = arena->board;
    machines->one_level = options->one_level;
    machines->awaited = wait;
    *out = machines;
    return FSDP_OK;
}

static fsdp_status attach(fsdp_context *context, fsdp__network_view *machines, bool all_readable, bool wait)
{
    const fsdp__places *places = &machines->link.places;
    fsdp__arena_group *local = NULL;
    fsdp__network_group *world = NULL;
    fsdp_status status = FSDP_OK;

    if (machines->arena->board->ranks < places->ranks)
        status = FSDP_FAIL(FSDP_INVALID, "the memory of this machine's ranks has no board for %d ranks", places->ranks);
    if (status == FSDP_OK)
        status = fsdp__arena_open(context, machines->arena, fsdp__local_of(places, places->rank), all_readable, wait,
                                  &machines->local, &local);
    if (status == FSDP_OK)
        status = fsdp__network_group_world(machines, local, &world);
    if (status == FSDP_OK)
        status = fsdp__peers_open(&machines->peers, &machines->local->health, places);
    if (status == FSDP_OK)
        status = fsdp__watch_open(&machines->watch, &machines->link, &machines->peers);
    if (status != FSDP_OK) {
        bool held = fsdp_hold_error(true);

        fsdp__board_abort(machines->link.board, status, places->rank, fsdp_last_error());
        if (world)
            fsdp__network_group_free(world);
        else if (local)
            fsdp__arena_group_free(local);
        close_world(machines);
        fsdp_release_error(held);
        return status;
    }
    /* From here on the context owns them, even when this fails. */
    return fsdp__comm_attach(context, &machines_ops, machines, world, places->rank, places->ranks);
}

/* Agrees whether all have joined. If not, there is no world, and nobody is awaited when it is closed. */
static fsdp_status agree(fsdp__network_view *machines)
{
    fsdp__link *link = &machines->link;
    fsdp__report mine = {0}, first;
    fsdp_status status;

    machines->awaited = false;
    if (atomic_load(&link->silent))
        return fsdp__board_failure(link->board);
    status = fsdp__report_compare(link->ops, link->network, &link->places, &mine, &first);
    if (status != FSDP_OK) {
        atomic_store(&link->silent, true); /* all ranks know, so nobody has to be told */
        fsdp__board_abort(link->board, status, link->places.rank, fsdp_last_error());
    }
    return status;
}

fsdp_status fsdp__network_attach(const fsdp__network_ops *ops, void *network, fsdp__places places, fsdp__arena *arena,
                                 const fsdp__network_options *options, bool wait, fsdp_context **out)
{
    fsdp_context_options of_context = {.rank = places.rank,
                                       .world_size = places.ranks,
                                       .local_rank = places.rank % places.machine_ranks,
                                       .local_world_size = places.machine_ranks,
                                       .threads = options->threads};
    fsdp__network_view *machines;
    fsdp_context *context = NULL;
    fsdp_status status;

    *out = NULL;
    FSDP_TRY(machines_new(ops, network, places, arena, options, wait, &machines));
    status = fsdp_context_create(&of_context, &context);
    if (status != FSDP_OK) {
        close_world(machines);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    status = attach(context, machines, options->all_readable, wait);
    if (status == FSDP_OK && wait)
        status = agree(machines);
    if (status != FSDP_OK) {
        fsdp_context_free(context);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    if (fsdp__deadline_of(ops, network))
        fsdp__deadline_joined(network, &machines->peers);
    *out = context;
    return FSDP_OK;
}

/* The first message of every rank. Other builds may use another form for everything else, so this one must not
 * change. */
typedef struct builds {
    char library[FSDP__BUILD_BYTES], carrier[FSDP__BUILD_BYTES];
    char host[FSDP__HOST_BYTES + 63]; /* 256 bytes together */
} builds;

static fsdp_status fail_builds(const builds *all, int rank)
{
    bool same = memcmp(all[0].library, all[rank].library, FSDP__BUILD_BYTES) == 0;
    const char *what = same ? "its plug-in of " : "";

    return FSDP_FAIL(
        FSDP_MISMATCH,
        "MPI's rank 0 (machine '%.64s') runs %sfsdp %s, and its rank %d (machine '%.64s') %sfsdp %s: " FSDP__ONE_BUILD,
        all[0].host, what, same ? all[0].carrier : all[0].library, rank, all[rank].host, what,
        same ? all[rank].carrier : all[rank].library);
}

/* Compares the builds of all ranks. A rank without memory takes part all the same, since the others wait for it. */
static fsdp_status compare_builds(const fsdp__network_ops *carrier, const fsdp__network_ops *ops, void *network,
                                  const fsdp__network_world *world)
{
    char text[FSDP__NETWORK_TEXT] = "";
    FSDP__FREED builds *all = fsdp__calloc((size_t)world->size, sizeof *all);
    builds mine = {.host = ""};

    fsdp__build_own(mine.library);
    fsdp__build_of(carrier, mine.carrier);
    snprintf(mine.host, sizeof mine.host, "%.64s", world->host);
    if (!ops->exchange(network, &mine, sizeof mine, all, text))
        FSDP_TRY(all ? FSDP_FAIL(FSDP_COMM, "rank %d: %s", world->rank, text) : FSDP_NO_MEMORY);
    for (int r = 1; r < world->size; r++)
        if (memcmp(&all[0], &all[r], offsetof(builds, host)) != 0)
            return fail_builds(all, r);
    return FSDP_OK;
}

/* Holds what every rank says of itself. */
typedef struct introduction {
    fsdp__network_world world;
    int32_t one_level;
} introduction;

static fsdp_status compare_levels(const introduction *all, int ranks)
{
    for (int r = 1; r < ranks; r++)
        if (all[r].one_level != all[0].one_level)
            return FSDP_FAIL(FSDP_MISMATCH,
                             "FSDP_ONE_LEVEL=1 is set for MPI's rank %d and not for its rank %d: set it everywhere",
                             all[r].one_level ? r : 0, all[r].one_level ? 0 : r);
    return FSDP_OK;
}

static fsdp_status place(const introduction *all, const introduction *mine, fsdp__places *out)
{
    size_t ranks = (size_t)mine->world.size;
    FSDP__FREED fsdp__network_world *worlds = fsdp__calloc(ranks, sizeof *worlds);

    FSDP__TRY_NEW(worlds);
    for (size_t r = 0; r < ranks; r++)
        worlds[r] = all[r].world;
    FSDP_TRY(compare_levels(all, mine->world.size));
    return fsdp__places_make(worlds, mine->world.size, mine->world.rank, out);
}

/* Finds out where each rank is. A rank without memory takes part all the same, since the others wait for it. */
static fsdp_status find_places(const fsdp__network_ops *ops, void *network, const introduction *mine, fsdp__places *out)
{
    char text[FSDP__NETWORK_TEXT] = "";
    FSDP__FREED introduction *all = fsdp__calloc((size_t)mine->world.size, sizeof *all);
    fsdp_status status;

    if (!ops->exchange(network, mine, sizeof *mine, all, text))
        return all ? FSDP_FAIL(FSDP_COMM, "rank %d: %s", mine->world.rank, text) : FSDP_NO_MEMORY;
    status = place(all, mine, out);
    if (!ops->exchange(network, mine, 0, status == FSDP_OK ? all : NULL, text) && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_COMM, "rank %d: %s", mine->world.rank, text);
    return status;
}

fsdp_status fsdp__network_join(const fsdp__network_ops *ops, const fsdp__network_options *options, fsdp_context **out)
{
    char text[FSDP__NETWORK_TEXT] = "";
    const fsdp__network_ops *carrier = ops;
    introduction mine = {.one_level = options->one_level};
    fsdp__places places = {0};
    fsdp__arena *arena = NULL;
    void *network = NULL;
    fsdp_status status;

    *out = NULL;
    if (ops->version != FSDP__NETWORK_VERSION)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "the network library is of version %d, this program needs %d: install the one that came with "
                         "it",
                         ops->version, FSDP__NETWORK_VERSION);
    if (!(options->joining.ms > 0 ? fsdp__deadline_open(ops, &options->joining, &network, &mine.world, text)
                                  : ops->open(&network, &mine.world, text)))
        return FSDP_FAIL(FSDP_COMM, "cannot join the world: %s", text);
    /* With a time limit the network is a deadline, whose calls go through that table. */
    if (options->joining.ms > 0)
        ops = &fsdp__deadline_ops;
    status = compare_builds(carrier, ops, network, &mine.world);
    if (status == FSDP_OK)
        status = find_places(ops, network, &mine, &places);
    if (status == FSDP_OK)
        status = options->share(options->arg, ops, network, &places, &arena);
    if (status != FSDP_OK) {
        fsdp__places_release(&places);
        ops->close(network, false);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    status = fsdp__network_attach(ops, network, places, arena, options, true, out);
    fsdp__arena_unref(arena);
    return status;
}
