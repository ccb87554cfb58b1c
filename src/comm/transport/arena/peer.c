/* peer.c - makes and ends outboxes, and lets streams meet. */
#include "comm/transport/arena/peer.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/probe.h"
#include "comm/carrier.h"
#include "comm/health/process.h"
#include "comm/transport/arena/rendezvous.h"
#include "device/device.h"

enum {
    HALF_BYTES = 32 << 20,
    RELEASES = 5,
    PATIENCE = 25,     /* ticks */
    CLOSE_LOOKS = 100, /* at whether peers have closed an outbox: after so long the driver has to cope */
    LOOK_NS = 1000000
};

/* What each rank tells the others. */
typedef struct facts {
    fsdp__export outbox;
    bool words;
} facts;

_Static_assert(sizeof(facts) <= FSDP__CARRIER_FACTS, "there is room for it");

typedef struct fsdp__peer {
    fsdp_device *device;
    int64_t half_bytes;
    fsdp__export outbox;
    fsdp__export *theirs; /* by group rank, as the next */
    char **boxes;         /* NULL: not open */
    bool words;           /* all devices have them */
    bool registered;
    _Atomic uint32_t met;    /* meetings that were issued */
    _Atomic uint32_t issued; /* calls */
    _Atomic bool torn;       /* one was not issued to its end */
    _Atomic int releases, patience;
} peer;

static fsdp__words *words_of(const fsdp__arena_group *g, int rank)
{
    return fsdp__arena_words_of(g->world->arena, g->index, g->ranks[rank]);
}

static uint32_t word_at(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* ---- life ---- */

static void close_boxes(const fsdp__arena_group *g)
{
    peer *p = g->peer;

    for (int r = 0; r < g->size; r++)
        if (p->boxes && p->boxes[r] && r != g->rank)
            fsdp__device_unimport(p->device, &p->theirs[r], p->boxes[r]);
    atomic_store(&words_of(g, g->rank)->closed, 1);
}

/* Waits a little until the peers read this rank's outbox no more: all calls are done, and they may be closing it. */
static void await_closed(const fsdp__arena_group *g)
{
    bool all = false;

    for (int look = 0; look < CLOSE_LOOKS && !all && !fsdp__board_aborted(g->world->arena->board); look++) {
        if (look > 0)
            (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        all = true;
        for (int r = 0; r < g->size; r++)
            all = all &&
                  (atomic_load(&words_of(g, r)->closed) || fsdp__board_has_left(g->world->arena->board, g->ranks[r]));
    }
}

void fsdp__peer_free(void *group)
{
    fsdp__arena_group *g = group;
    peer *p = g->peer;
    size_t bytes;
    void *words = fsdp__arena_words(g->world->arena, &bytes);

    if (!p)
        return;
    if (p->boxes) {
        close_boxes(g);
        await_closed(g);
    }
    if (p->outbox.memory)
        fsdp__device_unexport(p->device, &p->outbox);
    if (p->registered)
        fsdp__device_unregister_host(p->device, words, bytes);
    fsdp__free(p->boxes);
    fsdp__free(p->theirs);
    fsdp__free(p);
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

    own->arrived = own->done = 0;
    atomic_store(&own->closed, 0);
    atomic_store(&own->ended, 0);
    FSDP_TRY(fsdp__device_register_host(p->device, words, bytes));
    p->registered = true;
    status = fsdp__device_try_words(p->device, &own->tried);
    if (status != FSDP_OK && status != FSDP_UNSUPPORTED)
        return status;
    mine->words = status == FSDP_OK;
    FSDP_TRY(fsdp__device_export(p->device, 2 * (size_t)p->half_bytes, &p->outbox));
    mine->outbox = p->outbox;
    return FSDP_OK;
}

fsdp_status fsdp__peer_create(fsdp__arena_group *g, fsdp_device *device, int64_t half_bytes, void *out)
{
    facts mine = {0};
    fsdp_status status;

    FSDP__TRY_NEW(g->peer = fsdp__calloc(1, sizeof *g->peer));
    g->peer->device = device;
    g->peer->half_bytes = half_bytes > 0 ? half_bytes : HALF_BYTES;
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

    FSDP__TRY_NEW(p->theirs = fsdp__calloc((size_t)g->size, sizeof *p->theirs));
    FSDP__TRY_NEW(p->boxes = fsdp__calloc((size_t)g->size, sizeof *p->boxes));
    p->words = true;
    for (int r = 0; r < g->size; r++) {
        memcpy(&theirs, all[r], sizeof theirs);
        p->theirs[r] = theirs.outbox;
        p->words = p->words && theirs.words;
        if (r == g->rank)
            p->boxes[r] = p->outbox.memory;
        else
            FSDP_TRY(fsdp__device_import(p->device, &theirs.outbox, (void **)&p->boxes[r]));
    }
    return FSDP_OK;
}

fsdp_status fsdp__peer_open(void *group, const void *const *all, char *why, size_t why_bytes)
{
    const fsdp__arena_group *g = group;

    FSDP_TRY(open_boxes(g, all));
    snprintf(why, why_bytes, "its ranks are on one machine, and their GPUs read each other's memory%s",
             g->peer->words ? "" : "; the hosts meet for them, since a stream of this driver waits for no word");
    return FSDP_OK;
}

/* ---- calls ---- */

fsdp_status fsdp__peer_begin(fsdp__arena_group *g, fsdp_stream *stream)
{
    peer *p = g->peer;

    if (p->words)
        FSDP_TRY(fsdp__stream_await_word(stream, &words_of(g, g->rank)->done, atomic_load(&p->issued)));
    atomic_fetch_add(&p->issued, 1);
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

/* Tells who checks the order of uses (base/probe.h) that the streams meet here. That is told when it is issued, and so
 * the hosts must then issue in the order that they tell. */
static fsdp_status tell_meeting(fsdp__arena_group *g, fsdp__traffic *traffic)
{
    const void *meeting = words_of(g, 0);
    uint64_t number = atomic_load(&g->peer->met);

    if (!fsdp__is_probed(FSDP__POINT_ORDER_PUBLISHED))
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
    return (int32_t)(atomic_load(&g->peer->issued) - word_at(&words_of(g, rank)->done)) > 0;
}

/* A rank is busy until its peers have done the calls, too, since they read its outbox. Once it was released it does not
 * wait for them; and a call that was torn will not be done, so it gets some more releases for what was issued. */
uint64_t fsdp__peer_busy(void *group)
{
    const fsdp__arena_group *g = group;
    const peer *p = g->peer;
    uint64_t sum = 1;
    bool behind = false;

    if (atomic_load(&p->releases) > 0)
        return is_behind(g, g->rank) && !(atomic_load(&p->torn) && atomic_load(&p->releases) > RELEASES);
    for (int r = 0; r < g->size; r++) {
        behind = behind || is_behind(g, r);
        sum += (uint64_t)word_at(&words_of(g, r)->arrived) + word_at(&words_of(g, r)->done);
    }
    return behind ? sum : 0;
}

void fsdp__peer_ended(void *group)
{
    const fsdp__arena_group *g = group;

    atomic_store(&words_of(g, g->rank)->ended, 1);
}

/* Returns whether all ranks that live know that the world has ended. */
static bool all_know(const fsdp__arena_group *g)
{
    bool all = true;

    for (int r = 0; r < g->size; r++) {
        const fsdp__row *row = fsdp__row_at(g->world->arena->board, g->ranks[r]);

        all = all && (atomic_load(&words_of(g, r)->ended) || atomic_load(&row->state) != FSDP__RANK_JOINED ||
                      fsdp__process_is_dead(atomic_load(&row->pid), atomic_load(&row->start_ticks)));
    }
    return all;
}

/* Writes what this rank's streams wait for. Its peers' streams wait for the same words, so their devices must be
 * condemned first; a rank that is stopped holds that up for a while. A peer that lives may overwrite a word with less,
 * so this is done again. */
void fsdp__peer_release(void *group)
{
    const fsdp__arena_group *g = group;
    peer *p = g->peer;

    if (!all_know(g) && atomic_fetch_add(&p->patience, 1) < PATIENCE)
        return;
    for (int r = 0; r < g->size; r++)
        if (r != g->rank)
            __atomic_store_n(&words_of(g, r)->arrived, atomic_load(&p->met), __ATOMIC_RELEASE);
    atomic_fetch_add(&p->releases, 1);
}

void fsdp__peer_tear(fsdp__arena_group *g)
{
    atomic_store(&g->peer->torn, true);
}
