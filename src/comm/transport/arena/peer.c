/* peer.c - makes and ends outboxes, and lets streams meet. */
#include "comm/transport/arena/peer.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/probe.h"
#include "comm/carrier.h"
#include "comm/health/verdict.h"
#include "comm/health/watchdog.h"
#include "comm/transport/arena/device_region.h"
#include "comm/transport/arena/outboxes.h"
#include "comm/transport/arena/rendezvous.h"
#include "device/device.h"
#include "device/moment.h"

enum {
    HALF_BYTES = 32 << 20,
    RELEASES = 5
};

/* Holds what each rank tells the others. */
typedef struct facts {
    fsdp__export outbox;
    bool words;
} facts;

_Static_assert(sizeof(facts) <= FSDP__CARRIER_FACTS, "there is room for it");

typedef struct fsdp__peer {
    fsdp_device *device;
    int64_t half_bytes;
    struct fsdp__outbox *outbox;
    fsdp__export *theirs; /* by group rank, as the next */
    char **boxes;         /* NULL: not open */
    bool words;           /* all devices have them */
    bool shares;          /* all ranks are on one */
    bool registered;
    bool shown; /* peers may have the outbox open */
    fsdp__wait wait;
    _Atomic uint32_t met;    /* meetings that were issued */
    _Atomic uint32_t issued; /* calls */
    _Atomic bool torn;       /* one was not issued to its end */
    _Atomic int releases;
} peer;

static fsdp__words *words_of(const fsdp__arena_group *g, int rank)
{
    return fsdp__arena_words_of(g->world->arena, g->index, g->ranks[rank]);
}

/* ---- life ---- */

static void close_boxes(const fsdp__arena_group *g)
{
    peer *p = g->peer;

    for (int r = 0; r < g->size; r++)
        if (p->boxes && p->boxes[r] && r != g->rank)
            fsdp__device_unimport(p->device, &p->theirs[r], p->boxes[r]);
    atomic_store(&words_of(g, g->rank)->open, 0);
}

void fsdp__peer_free(void *group)
{
    fsdp__arena_group *g = group;
    peer *p = g->peer;
    size_t bytes;
    void *words = fsdp__arena_words(g->world->arena, &bytes);

    if (!p)
        return;
    close_boxes(g);
    if (p->outbox)
        fsdp__outbox_free(g->world, p->outbox, p->shown);
    if (p->registered)
        fsdp__device_unregister_host(p->device, words, bytes);
    FSDP__FREE_ALL(p->boxes, p->theirs, p);
    g->peer = NULL;
}

/* Gets what this rank needs, and says what it has. */
static fsdp_status prepare(const fsdp__arena_group *g, facts *mine)
{
    peer *p = g->peer;
    size_t bytes;
    void *words = fsdp__arena_words(g->world->arena, &bytes);
    fsdp__words *own = words_of(g, g->rank);
    fsdp_status status;

    __atomic_store_n(&own->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&own->done, 0, __ATOMIC_RELAXED);
    atomic_store(&own->open, 1);
    FSDP_TRY(fsdp__device_register_host(p->device, words, bytes));
    p->registered = true;
    status = fsdp__device_try_words(p->device, &own->tried);
    if (status != FSDP_OK && status != FSDP_UNSUPPORTED)
        return status;
    mine->words = status == FSDP_OK;
    FSDP_TRY(fsdp__outbox_new(g, p->device, 2 * (size_t)p->half_bytes, &p->outbox));
    mine->outbox = *fsdp__outbox_memory(p->outbox);
    return FSDP_OK;
}

fsdp_status fsdp__peer_create(fsdp__arena_group *g, fsdp_device *device, int64_t half_bytes, void *out)
{
    facts mine = {0};
    fsdp_status status;

    FSDP__TRY_NEW(g->peer = fsdp__calloc(1, sizeof *g->peer));
    g->peer->device = device;
    g->peer->half_bytes = half_bytes > 0 ? half_bytes : HALF_BYTES;
    fsdp__wait_begin(&g->peer->wait, &g->world->health, (fsdp__wait_place){.group = g->index});
    status = prepare(g, &mine);
    if (status != FSDP_OK) {
        fsdp__peer_free(g);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    memcpy(out, &mine, sizeof mine);
    return FSDP_OK;
}

static fsdp_status open_boxes(const fsdp__arena_group *g, const void *const *all)
{
    peer *p = g->peer;
    facts theirs;

    p->shown = true;
    FSDP__TRY_NEW(p->theirs = fsdp__calloc((size_t)g->size, sizeof *p->theirs));
    FSDP__TRY_NEW(p->boxes = fsdp__calloc((size_t)g->size, sizeof *p->boxes));
    p->words = p->shares = true;
    for (int r = 0; r < g->size; r++) {
        memcpy(&theirs, all[r], sizeof theirs);
        p->theirs[r] = theirs.outbox;
        p->words = p->words && theirs.words;
        p->shares = p->shares && memcmp(theirs.outbox.card, p->theirs[0].card, sizeof theirs.outbox.card) == 0;
        if (r == g->rank)
            p->boxes[r] = fsdp__outbox_memory(p->outbox)->memory;
        else
            FSDP_TRY(fsdp__device_import(p->device, &theirs.outbox, (void **)&p->boxes[r]));
    }
    return FSDP_OK;
}

fsdp_status fsdp__peer_open(void *group, const void *const *all, char *why, size_t why_bytes)
{
    const fsdp__arena_group *g = group;

    FSDP_TRY(open_boxes(g, all));
    fsdp__device_judge(g->peer->device, fsdp__board_holds, g->world->arena->board); /* [Note: released] */
    snprintf(why, why_bytes, "its ranks are on one machine, and %s%s",
             fsdp__peer_shares(g) ? "share a GPU: gathers without a cast move nothing"
                                  : "their GPUs read each other's memory",
             g->peer->words ? "" : "; the hosts meet for them, since a stream of this driver waits for no word");
    return FSDP_OK;
}

bool fsdp__peer_shares(const void *group)
{
    const peer *p = ((const fsdp__arena_group *)group)->peer;

    return p->shares && p->words;
}

/* ---- calls ---- */

fsdp_status fsdp__peer_begin(fsdp__arena_group *g, fsdp_stream *stream)
{
    peer *p = g->peer;
    uint32_t before = atomic_fetch_add(&p->issued, 1); /* first, so that the wait has somebody who looks after it */

    if (p->words)
        FSDP_TRY(fsdp__stream_await_word(stream, &words_of(g, g->rank)->done, before));
    return FSDP_OK;
}

fsdp_status fsdp__peer_end(fsdp__arena_group *g, fsdp_stream *stream)
{
    peer *p = g->peer;
    fsdp__words *own = words_of(g, g->rank);

    if (p->words)
        return fsdp__stream_write_word(stream, &own->done, atomic_load(&p->issued));
    FSDP_TRY(fsdp__stream_settle(stream));
    __atomic_store_n(&own->done, atomic_load(&p->issued), __ATOMIC_RELEASE);
    return FSDP_OK;
}

/* Tells the race check (base/probe.h) that the streams meet here. It is told when the meeting is issued, so the hosts
 * must issue their meetings in the order in which they tell of them. */
static fsdp_status tell_meeting(fsdp__arena_group *g, fsdp__traffic *traffic)
{
    const void *meeting = words_of(g, 0);
    uint64_t number = atomic_load(&g->peer->met);

    /* If nobody checks this world, the hosts do not meet, even if somebody listens to others. */
    if (!fsdp__is_probed(FSDP__POINT_ORDER_PUBLISHED) || !fsdp__context_get(g->world->context, FSDP__SLOT_WATCHER))
        return FSDP_OK;
    FSDP__TELL(ORDER_PUBLISHED, .context = g->world->context, .stream = traffic->stream, .object = meeting,
               .number = number);
    FSDP_TRY(fsdp__rendezvous(g, traffic));
    FSDP__TELL(ORDER_ACQUIRED, .context = g->world->context, .stream = traffic->stream, .object = meeting,
               .number = number);
    return FSDP_OK;
}

fsdp_status fsdp__peer_meet(fsdp__arena_group *g, fsdp__traffic *traffic)
{
    peer *p = g->peer;
    fsdp__traffic settled = *traffic;
    fsdp_status status;

    atomic_fetch_add(&p->met, 1);
    if (!p->words) {
        settled.carried = false;
        status = fsdp__rendezvous(g, &settled);
        traffic->waiting_ns = settled.waiting_ns;
        return status;
    }
    FSDP_TRY(fsdp__stream_write_word(traffic->stream, &words_of(g, g->rank)->arrived, atomic_load(&p->met)));
    FSDP_TRY(tell_meeting(g, traffic));
    for (int r = 0; r < g->size; r++)
        if (r != g->rank)
            FSDP_TRY(fsdp__stream_await_word(traffic->stream, &words_of(g, r)->arrived, atomic_load(&p->met)));
    return FSDP_OK;
}

static char *half_of(const fsdp__arena_group *g, int rank, uint32_t meeting)
{
    return g->peer->boxes[rank] + (size_t)(meeting % 2) * (size_t)g->peer->half_bytes;
}

char *fsdp__peer_next_half(const fsdp__arena_group *g)
{
    return half_of(g, g->rank, atomic_load(&g->peer->met) + 1);
}

char *fsdp__peer_half(const fsdp__arena_group *g, int rank)
{
    return half_of(g, rank, atomic_load(&g->peer->met));
}

int64_t fsdp__peer_half_bytes(const fsdp__arena_group *g)
{
    return g->peer->half_bytes;
}

/* ---- from outside ---- */

static bool is_behind(const fsdp__arena_group *g, int rank)
{
    return fsdp__word_is_behind(fsdp__word_at(&words_of(g, rank)->done), atomic_load(&g->peer->issued));
}

/* Returns whether the device of a rank waits until others have read. */
static bool awaits_reads(const fsdp__arena_group *g, int rank)
{
    bool any = false;

    for (int r = 0; r < g->size && !any; r++)
        any = r != rank && fsdp__device_regions_wait(g, rank, r);
    return any;
}

/* A rank is busy until its peers have done the calls, too, since they read its outbox. Once it was released it does not
 * wait for them; and a call that was torn, or is on a device that is lost, will not be done. The first gets some more
 * releases for what was issued. */
uint64_t fsdp__peer_busy(void *group)
{
    const fsdp__arena_group *g = group;
    const peer *p = g->peer;
    uint64_t sum = 1 + fsdp__device_regions_reads(g);
    bool behind = awaits_reads(g, g->rank);

    if (atomic_load(&p->releases) > 0)
        return behind || (is_behind(g, g->rank) && !(atomic_load(&p->torn) && atomic_load(&p->releases) > RELEASES) &&
                          !fsdp__device_has_ended(p->device));
    for (int r = 0; r < g->size; r++) {
        behind = behind || is_behind(g, r);
        sum += (uint64_t)fsdp__word_at(&words_of(g, r)->arrived) + fsdp__word_at(&words_of(g, r)->done);
    }
    return behind ? sum : 0;
}

/* See [Note: released]. A peer that lives may overwrite a word with less, so this is done again. */
void fsdp__peer_release(void *group)
{
    const fsdp__arena_group *g = group;
    peer *p = g->peer;

    for (int r = 0; r < g->size; r++)
        if (r != g->rank)
            __atomic_store_n(&words_of(g, r)->arrived, atomic_load(&p->met), __ATOMIC_RELEASE);
    fsdp__device_regions_release(g);
    atomic_fetch_add(&p->releases, 1);
}

void fsdp__peer_tear(fsdp__arena_group *g)
{
    atomic_store(&g->peer->torn, true);
}

/* ---- devices that do not come ---- */

/* Returns whether the device of a rank (of the arena) waits in group `index`, of which it is. */
static bool waits_in(const fsdp__arena *arena, int index, int rank)
{
    const fsdp__board_group *place = fsdp__group_at(arena->board, index);
    const fsdp__words *own = fsdp__arena_words_of(arena, index, rank), *other;

    if (atomic_load(&place->key) == 0 || !atomic_load(&own->open))
        return false;
    for (int r = 0; r < arena->board->world; r++) {
        other = fsdp__arena_words_of(arena, index, r);
        if ((atomic_load(&place->ranks[r / 64]) >> r % 64 & 1) && atomic_load(&other->open) &&
            fsdp__word_is_behind(fsdp__word_at(&other->arrived), fsdp__word_at(&own->arrived)))
            return true;
    }
    return false;
}

/* Returns whether the device of a rank of the group waits for another one, which will then be named by its own rank. */
static bool waits_itself(const fsdp__arena_group *g, int rank)
{
    bool waits = awaits_reads(g, rank);

    for (int index = 0; index < FSDP__BOARD_GROUPS && !waits; index++)
        waits = waits_in(g->world->arena, index, g->ranks[rank]);
    return waits;
}

/* Returns whether this rank's device waits for the device of `rank`: it has come to a meeting to which the other one
 * has not come yet; or it has done all its calls, and the other one still reads them; or it is to write what the other
 * one reads. */
static bool is_awaited(const fsdp__arena_group *g, int rank)
{
    return fsdp__word_is_behind(fsdp__word_at(&words_of(g, rank)->arrived),
                                fsdp__word_at(&words_of(g, g->rank)->arrived)) ||
           (!is_behind(g, g->rank) && is_behind(g, rank)) || fsdp__device_regions_wait(g, g->rank, rank);
}

/* Returns whether this rank is the first of those whose devices wait: one is enough to report it. */
static bool waits_first(const fsdp__arena_group *g)
{
    bool first = true;

    for (int r = 0; r < g->rank && first; r++)
        first = !waits_in(g->world->arena, g->index, g->ranks[r]);
    return first;
}

/* A device that waits itself is not blamed until twice the time has passed: then devices wait in a circle. */
void fsdp__peer_look(fsdp__arena_group *g, int64_t ticks)
{
    fsdp__wait *wait = &g->peer->wait;
    int64_t timeout = atomic_load(&wait->own->timeout_ticks);
    bool circle = timeout > 0 && ticks >= 2 * timeout;

    wait->ticks = ticks;
    if (ticks == 1)
        wait->next_notice = 0;
    for (int r = 0; r < g->size; r++) {
        bool late = r != g->rank && fsdp__verdict_device_is_late(wait, g->ranks[r]);

        if (r == g->rank || !is_awaited(g, r) || (waits_itself(g, r) && !circle))
            continue;
        if (waits_first(g))
            fsdp__watchdog_tell_device(wait, g->name, g->ranks[r]);
        if (late)
            fsdp__verdict_device(wait, g->name, g->ranks[r]);
    }
}
