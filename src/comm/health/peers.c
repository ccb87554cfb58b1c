/* peers.c - what was heard of each rank, and how long ago. */
#include "comm/health/peers.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "comm/health/process.h"
#include "comm/health/waits.h"

enum {
    BEAT_MS = 1000,   /* at most */
    BEATS = 4,        /* in a timeout, at least */
    IDLE_NS = 5000000 /* processor time between two looks: see pulse.c; here more threads wait */
};

fsdp_status fsdp__peers_open(fsdp__peers *peers, fsdp__health *own, const fsdp__places *places)
{
    peers->own = own;
    peers->places = places;
    FSDP__TRY_NEW(peers->known = fsdp__calloc((size_t)places->ranks, sizeof *peers->known));
    pthread_mutex_init(&peers->mutex, NULL);
    return FSDP_OK;
}

void fsdp__peers_close(fsdp__peers *peers)
{
    if (!peers->known)
        return;
    pthread_mutex_destroy(&peers->mutex);
    fsdp__free(fsdp__take(&peers->known));
}

int64_t fsdp__peers_beat_ms(const fsdp__peers *peers)
{
    int64_t timeout_ms = atomic_load(&peers->own->timeout_ms);

    return timeout_ms > 0 ? FSDP__MAX(1, FSDP__MIN(BEAT_MS, timeout_ms / BEATS)) : BEAT_MS;
}

int64_t fsdp__peers_fresh_ticks(const fsdp__peers *peers)
{
    return fsdp__peers_beat_ms(peers) / atomic_load(&peers->own->tick_ms) + 1;
}

/* ---- this rank ---- */

void fsdp__peers_note(fsdp__peers *peers, fsdp__moment moment)
{
    if (moment != FSDP__CALL_ISSUED)
        atomic_fetch_add_explicit(&peers->in, moment == FSDP__CALL_BEGUN ? 1 : -1, memory_order_relaxed);
}

void fsdp__peers_doing_text(const fsdp__peers *peers, char *text, size_t bytes)
{
    fsdp__doing doing;

    fsdp__call_last(peers->own->board, -1, peers->own->rank, &doing);
    fsdp__doing_text(&doing, atomic_load(&peers->in), text, bytes);
}

/* Returns whether this rank has got nothing done since the last look. One that waits for the network beats, and runs
 * now and then to see whether something has come: that counts as nothing. */
static bool is_still(fsdp__peers *peers)
{
    const fsdp__row *own = fsdp__row_at(peers->own->board, peers->own->rank);
    bool waits = atomic_load(&own->program_in) > 0, is_thread = atomic_load(&own->pid) == 0, still;
    fsdp__pulse before = peers->pulse;
    uint64_t beats;

    fsdp__pulse_take(peers->own->board, peers->own->rank, &peers->pulse);
    beats = peers->pulse.beats - atomic_load(&peers->wait_beats);
    still =
        before.known && (waits || (peers->pulse.state != 'R' && peers->pulse.state != 'D')) && beats == peers->beats;
    peers->beats = beats;
    /* Threads share the time of their process, also with ranks of what are other machines to them. */
    return still && !peers->pulse.starves && (is_thread || peers->pulse.cpu_ns <= before.cpu_ns + IDLE_NS);
}

/* Returns 1 + a rank of this machine that the program waits for; 0: there is none. */
static int awaited_here(const fsdp__board *board, int rank)
{
    fsdp__rank_set awaited;
    fsdp__wait_place place;

    if (!fsdp__program_place(board, rank, &place))
        return 0;
    awaited = fsdp__place_awaits(board, rank, &place, true);
    for (int r = 0; r < board->world; r++)
        if (fsdp__rank_set_has(&awaited, r))
            return 1 + fsdp__board_global(board, r);
    return 0;
}

void fsdp__peers_say(fsdp__peers *peers, fsdp__said *out)
{
    const fsdp__board *board = peers->own->board;

    *out = (fsdp__said){.in = atomic_load(&peers->in), .awaits = atomic_load(&peers->awaits)};
    if (!fsdp__call_last(board, -1, peers->own->rank, &out->doing))
        out->doing = (fsdp__doing){.sequence = 0}; /* what was said before stays */
    peers->still = is_still(peers) ? peers->still + 1 : 0;
    out->still = peers->still;
    if (out->awaits == 0)
        out->awaits = awaited_here(board, peers->own->rank);
}

/* ---- the others ---- */

/* Returns whether a beat was sent before what is known already, from a meeting. */
static bool is_older(const fsdp__doing *beat, const fsdp__doing *known)
{
    return beat->sequence < known->sequence && (beat->sequence == 0 || beat->tag == known->tag);
}

/* Only this rank writes these rows, on whatever thread holds the mutex. */
void fsdp__peers_hear(fsdp__peers *peers, int rank, const fsdp__said *said)
{
    fsdp__known *known = &peers->known[rank];
    fsdp__said before = {0}, now = *said;

    FSDP__HELD(&peers->mutex);
    (void)fsdp__board_said(peers->own->board, rank, &before);
    now.beats = known->beats = before.beats + 1;
    /* Count since the previous news; but news that comes late was long ago. */
    now.still = said->still > 0 ? FSDP__MIN(before.still + FSDP__MAX(known->silent, 1),
                                            said->still * fsdp__peers_fresh_ticks(peers))
                                : 0;
    now.left = before.left || said->left;
    if (is_older(&said->doing, &before.doing)) {
        now.doing = before.doing;
        now.in = before.in;
    }
    known->silent = 0;
    fsdp__board_say(peers->own->board, rank, &now);
}

void fsdp__peers_met(fsdp__peers *peers, int rank, const char *group, int tag, const fsdp__signature *theirs)
{
    fsdp__said said;

    if (!fsdp__are_counterparts(peers->places, peers->places->rank, rank))
        return;
    FSDP__HELD(&peers->mutex);
    if (fsdp__board_said(peers->own->board, rank, &said)) {
        fsdp__doing_set(&said.doing, group, tag, theirs->sequence, theirs->name, theirs->label);
        said.in = 1;
        fsdp__board_say(peers->own->board, rank, &said);
    }
}

fsdp__known fsdp__peers_known(fsdp__peers *peers, int rank)
{
    fsdp__known known;

    FSDP__HELD(&peers->mutex);
    known = peers->known[rank];
    return known;
}

/* Returns whether a rank of this machine would speak, maybe, if it had a core. */
static bool starves(const fsdp__peers *peers, int rank)
{
    const fsdp__board *board = peers->own->board;
    fsdp__known *known = &peers->known[rank];

    if (rank == peers->places->rank || known->silent <= fsdp__peers_fresh_ticks(peers)) {
        known->ready = 0;
        return false;
    }
    return fsdp__process_starves(fsdp__pulse_process(board, fsdp__local_of(peers->places, rank)), &known->ready);
}

/* Adds a tick of a rank's silence, if somebody listens to it. Called with the mutex held. */
static void age(fsdp__peers *peers, int rank, bool listens)
{
    fsdp__known *known = &peers->known[rank];
    uint64_t beats = fsdp__board_beats(peers->own->board, rank);

    known->silent = beats == known->beats ? known->silent + listens : 0;
    known->beats = beats;
    known->left += known->left > 0 || fsdp__board_left(peers->own->board, rank);
}

void fsdp__peers_tick(fsdp__peers *peers)
{
    const fsdp__places *places = peers->places;
    int64_t fresh = fsdp__peers_fresh_ticks(peers);
    int here = places->rank - fsdp__local_of(places, places->rank);

    pthread_mutex_lock(&peers->mutex);
    for (int r = here; r < here + places->machine_ranks; r++)
        age(peers, r, !starves(peers, r));
    for (int r = 0; r < places->ranks; r++)
        if (r < here || r >= here + places->machine_ranks)
            age(peers, r, peers->known[fsdp__listener_of(places, r)].silent <= fresh);
    pthread_mutex_unlock(&peers->mutex);
    atomic_fetch_add(&peers->ticks, 1);
}

bool fsdp__peers_is_fresh(fsdp__peers *peers, int rank)
{
    int64_t fresh = 2 * fsdp__peers_fresh_ticks(peers);

    return fsdp__peers_known(peers, rank).silent <= fresh &&
           fsdp__peers_known(peers, fsdp__listener_of(peers->places, rank)).silent <= fresh;
}
