/* watch.c - the thread that tells and listens, and what follows from what it has heard. */
#include "comm/machines/watch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "comm/machines/circle.h"
#include "comm/machines/tags.h"
#include "comm/symmetric/process.h"
#include "comm/symmetric/waits.h"
#include "comm/symmetric/watch.h"
#include "comm/world.h"

enum {
    PAUSE_MS = 20,      /* at most, between two looks for messages */
    BEAT_MS = 1000,     /* at most */
    BEATS = 4,          /* in a timeout, at least */
    UNLOOKED_BEATS = 2, /* who waits looks around many times in a beat; else it is in the network, and may be through */
    LEAVE_TICKS = 3,    /* what was sent before may still be on its way */
    SETTLE_TURNS = 100, /* of a millisecond: for the last words */
    IDLE_NS = 5000000   /* of processor time between two looks: see symmetric/pulse.c; more threads wait here */
};

static void nap(int64_t ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    (void)nanosleep(&time, NULL);
}

/* ---- what is known of a rank ---- */

/* A meeting may have told more since the beat was sent. */
static bool is_older(const fsdp__doing *beat, const fsdp__doing *met)
{
    return beat->sequence < met->sequence && (beat->sequence == 0 || beat->tag == met->tag);
}

bool fsdp__watch_heard(fsdp__watch *watch, int rank, fsdp__heard *out)
{
    const fsdp__known *known = &watch->known[rank];

    if (!fsdp__board_read(watch->board, rank, out))
        return false;
    pthread_mutex_lock(&watch->mutex);
    if (known->met_beats > out->beats || (known->met_beats > 0 && is_older(&out->doing, &known->met)))
        out->doing = known->met;
    pthread_mutex_unlock(&watch->mutex);
    return true;
}

static fsdp__known known_of(fsdp__watch *watch, int rank)
{
    fsdp__known known;

    pthread_mutex_lock(&watch->mutex);
    known = watch->known[rank];
    pthread_mutex_unlock(&watch->mutex);
    return known;
}

/* Of this rank or a counterpart: nobody else writes their places. */
static void note_news(fsdp__watch *watch, int rank, const fsdp__news *what)
{
    fsdp__known *known = &watch->known[rank];
    fsdp__heard heard = {0};
    int64_t ticks;
    bool same;

    (void)fsdp__board_read(watch->board, rank, &heard);
    pthread_mutex_lock(&watch->mutex);
    ticks = FSDP__MAX(known->silent, 1); /* since its look before */
    known->silent = 0;
    known->beats = heard.beats + 1;
    pthread_mutex_unlock(&watch->mutex);
    same = what->waiting.whom == heard.waiting.whom && what->waiting.number == heard.waiting.number;
    heard.beats++;
    heard.still = what->still > 0 ? heard.still + ticks : 0;
    heard.same = same ? heard.same + 1 : 0;
    heard.waiting = what->waiting;
    heard.doing = what->doing;
    heard.left = heard.left || what->kind == FSDP__NEWS_LEFT;
    fsdp__board_write(watch->board, rank, &heard);
}

/* Whether this rank has got nothing done since the last look. One that waits for the network beats, and runs now and
 * then to see whether something has come: that is nothing. */
static bool is_still(fsdp__watch *watch, bool waits)
{
    int64_t cpu_ns = watch->pulse.cpu_ns;
    bool still = watch->pulse.known;
    uint64_t beats;

    fsdp__pulse_take(watch->local->arena, watch->local->rank, &watch->pulse);
    beats = watch->pulse.beats - atomic_load(&watch->wait_beats);
    still = still && (waits || (watch->pulse.state != 'R' && watch->pulse.state != 'D')) && beats == watch->beats &&
            watch->pulse.cpu_ns <= cpu_ns + IDLE_NS;
    watch->beats = beats;
    return still;
}

/* In the arena, where a rank of this machine is awaited. */
static void find_local_wait(const fsdp__watch *watch, fsdp__waiting *out)
{
    const fsdp__arena *arena = watch->local->arena;
    fsdp__rank_set awaited;
    fsdp__place place;

    if (!fsdp__program_place(arena, watch->local->rank, &place))
        return;
    awaited = fsdp__place_awaits(arena, watch->local->rank, &place, true);
    for (int r = 0; r < arena->control->world && out->whom < 0; r++)
        if (fsdp__rank_set_has(&awaited, r))
            *out = (fsdp__waiting){fsdp__arena_global(arena, r), place.mark + place.region};
}

/* The first rank of this one's column. */
static int first_of_column(const fsdp__places *places)
{
    return places->rank % places->machine_ranks;
}

/* The same local rank of each other machine. Whether all were told. */
static bool tell_column(fsdp__watch *watch, const fsdp__news *what)
{
    const fsdp__places *places = &watch->link->places;
    bool all = true;

    for (int r = first_of_column(places); r < places->ranks; r += places->machine_ranks)
        if (r != places->rank)
            all = fsdp__news_tell(&watch->letters, r, what) && all;
    return all;
}

static fsdp__news look_at_self(fsdp__watch *watch, fsdp__news_kind kind)
{
    fsdp__news what = {.kind = kind};

    pthread_mutex_lock(&watch->mutex);
    what.doing = watch->doing;
    what.waiting = watch->waiting;
    watch->unlooked = watch->looks == watch->looks_told ? watch->unlooked + 1 : 0;
    watch->looks_told = watch->looks;
    if (watch->unlooked >= UNLOOKED_BEATS)
        what.waiting.whom = -1;
    pthread_mutex_unlock(&watch->mutex);
    watch->still = is_still(watch, what.waiting.whom >= 0) ? watch->still + 1 : 0;
    what.still = (int32_t)FSDP__MIN(watch->still, INT32_MAX);
    if (what.waiting.whom < 0)
        find_local_wait(watch, &what.waiting);
    return what;
}

/* Each rank of a machine tells: one of them is enough, and may be the only one that can. */
static void tell_broken(fsdp__watch *watch)
{
    const fsdp__control *control = watch->link->arena->control;
    fsdp__news what = {.kind = FSDP__NEWS_BROKEN};

    (void)fsdp__arena_failure(watch->link->arena); /* waits until the reason is there */
    what.status = control->abort_status;
    what.blamed = control->abort_rank;
    snprintf(what.text, sizeof what.text, "%s", control->abort_text);
    (void)tell_column(watch, &what);
    for (int i = 0; i < SETTLE_TURNS && fsdp__news_settle(&watch->letters); i++)
        nap(1);
    atomic_store(&watch->link->told, true);
}

/* ---- listening ---- */

static void hear(fsdp__watch *watch, int from, const fsdp__news *what)
{
    if (what->kind == FSDP__NEWS_BROKEN)
        fsdp__arena_abort(watch->link->arena, (fsdp_status)what->status, what->blamed, what->text);
    else if (from % watch->link->places.machine_ranks == first_of_column(&watch->link->places))
        note_news(watch, from, what);
}

static void listen(fsdp__watch *watch)
{
    fsdp__news what = {0};
    int from = -1;

    while (fsdp__news_hear(watch->link, &what, &from))
        hear(watch, from, &what);
}

/* Between two of a rank's. */
static int64_t beat_ms_of(const fsdp__watch *watch)
{
    int64_t timeout_ms = atomic_load(&watch->timeout_ms);

    return timeout_ms > 0 ? FSDP__MIN(BEAT_MS, timeout_ms / BEATS) : BEAT_MS;
}

/* Who hears of `rank` on this machine. */
static int listener_of(const fsdp__places *places, int rank)
{
    return places->rank - first_of_column(places) + rank % places->machine_ranks;
}

/* In so many ticks a rank that can speak does. */
static int64_t fresh_ticks(const fsdp__watch *watch)
{
    return beat_ms_of(watch) / atomic_load(&watch->tick_ms) + 1;
}

/* A tick more of a rank's silence, where somebody listens. With the mutex. */
static void age(fsdp__watch *watch, int rank, bool listens)
{
    fsdp__known *known = &watch->known[rank];
    uint64_t beats = fsdp__board_beats(watch->board, rank);

    known->silent = beats == known->beats ? known->silent + listens : 0;
    known->beats = beats;
    known->left += known->left > 0 || fsdp__board_left(watch->board, rank);
}

static void tick(fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;
    int64_t fresh = fresh_ticks(watch);
    int here = places->rank - first_of_column(places);

    pthread_mutex_lock(&watch->mutex);
    for (int r = here; r < here + places->machine_ranks; r++)
        age(watch, r, true);
    for (int r = 0; r < places->ranks; r++)
        if (r < here || r >= here + places->machine_ranks)
            age(watch, r, watch->known[listener_of(places, r)].silent <= fresh);
    pthread_mutex_unlock(&watch->mutex);
    atomic_fetch_add(&watch->ticks, 1);
}

/* Whether what stands on the board of the rank is what it is doing: it speaks, and is listened to. */
static bool is_fresh(fsdp__watch *watch, int rank)
{
    int64_t fresh = 2 * fresh_ticks(watch);

    return known_of(watch, rank).silent <= fresh &&
           known_of(watch, listener_of(&watch->link->places, rank)).silent <= fresh;
}

void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns)
{
    atomic_fetch_add_explicit(&watch->local->arena->control->ranks[watch->local->rank].looked_ns, cpu_ns,
                              memory_order_relaxed);
}

static bool hear_of(void *watch, int rank, fsdp__heard *out)
{
    return is_fresh(watch, rank) && fsdp__watch_heard(watch, rank, out);
}

/* Two ranks of a machine in one call of a group that each takes for another: one of them may wait for the network first
 * and never come where the other waits for it, so they would not compare. Of the world alone: groups that were made in
 * one call have one tag, and ranks of two of them make calls of their own. */
static void end_disagreement(fsdp__watch *watch, const fsdp__doing *mine)
{
    const fsdp__places *places = &watch->link->places;
    int own = places->rank, here = own - first_of_column(places);

    for (int r = here; r < here + places->machine_ranks; r++) {
        fsdp__heard heard;
        const fsdp__doing *theirs = &heard.doing;
        char text[256];

        if (watch->one_level || r == own || mine->in == 0 || mine->tag != fsdp__tag_base(0) ||
            !fsdp__watch_heard(watch, r, &heard))
            continue;
        if (theirs->in == 0 || theirs->tag != mine->tag || theirs->sequence != mine->sequence ||
            theirs->name == mine->name)
            continue;
        snprintf(text, sizeof text, "ranks disagree in group '%s': call %llu is %s on rank %d but %s on rank %d",
                 mine->group, (unsigned long long)mine->sequence,
                 fsdp__call_text((fsdp__call_name)(r < own ? theirs : mine)->name), FSDP__MIN(r, own),
                 fsdp__call_text((fsdp__call_name)(r < own ? mine : theirs)->name), FSDP__MAX(r, own));
        fsdp__arena_abort(watch->link->arena, FSDP_MISMATCH, -1, text);
        return;
    }
}

/* A beat, or that this rank leaves: once all counterparts know that, only its machine hears that it listens still. */
static void speak(fsdp__watch *watch)
{
    bool leaves = atomic_load(&watch->leaving);
    const fsdp__places *places = &watch->link->places;
    fsdp__news what = look_at_self(watch, leaves ? FSDP__NEWS_LEFT : FSDP__NEWS_BEAT);
    char circle[FSDP__ABORT_BYTES] = "";

    note_news(watch, places->rank, &what);
    if (!atomic_load(&watch->told))
        atomic_store(&watch->told, tell_column(watch, &what) && leaves);
    end_disagreement(watch, &what.doing);
    if (fsdp__circle_find(hear_of, watch, places->rank, places->ranks, circle, sizeof circle))
        fsdp__arena_abort(watch->link->arena, FSDP_MISMATCH, -1, circle);
}

static void *watch_main(void *argument)
{
    fsdp__watch *watch = argument;
    int64_t since_beat = INT64_MAX / 2, since_tick = 0, cpu_ns = fsdp__thread_cpu_ns(), now;

    while (!atomic_load(&watch->stop)) {
        int64_t tick_ms = atomic_load(&watch->tick_ms), pause = FSDP__MIN(PAUSE_MS, tick_ms);

        listen(watch);
        if (fsdp__arena_aborted(watch->link->arena))
            break;
        if (since_beat >= beat_ms_of(watch) || (atomic_load(&watch->leaving) && !atomic_load(&watch->told))) {
            speak(watch);
            since_beat = 0;
        }
        (void)fsdp__news_settle(&watch->letters);
        now = fsdp__thread_cpu_ns();
        fsdp__watch_looked(watch, now - cpu_ns);
        cpu_ns = now;
        nap(pause);
        since_beat += pause;
        since_tick += pause;
        if (since_tick >= tick_ms) {
            tick(watch);
            since_tick = 0;
        }
    }
    if (fsdp__arena_aborted(watch->link->arena))
        tell_broken(watch);
    for (int i = 0; i < SETTLE_TURNS && fsdp__news_settle(&watch->letters); i++)
        nap(1);
    return NULL;
}

/* ---- what follows ---- */

void fsdp__watch_doing_text(fsdp__watch *watch, char *text, size_t bytes)
{
    fsdp__doing doing;

    pthread_mutex_lock(&watch->mutex);
    doing = watch->doing;
    pthread_mutex_unlock(&watch->mutex);
    fsdp__doing_text(&doing, text, bytes);
}

/* Because of `rank`: what became of it, then what it was doing and what waits for it. */
static void break_world(fsdp__watch *watch, int rank, const char *became)
{
    char text[FSDP__ABORT_BYTES], was[320] = "in a call that is not known", mine[320];
    fsdp__heard heard;

    if (fsdp__watch_heard(watch, rank, &heard))
        fsdp__doing_text(&heard.doing, was, sizeof was);
    fsdp__watch_doing_text(watch, mine, sizeof mine);
    snprintf(text, sizeof text, "%s: it was %s; rank %d, which waits for it, is %s", became, was,
             watch->link->places.rank, mine);
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, rank, text);
}

static const char *host_of(const fsdp__watch *watch, int rank)
{
    return watch->link->places.hosts[fsdp__machine_of(&watch->link->places, rank)];
}

static void end_world(fsdp__watch *watch, int rank, const char *what, int64_t ticks)
{
    char became[256];

    snprintf(became, sizeof became, "rank %d (machine '%.64s') %s for %.6g s (comm.timeout is %.12g s)", rank,
             host_of(watch, rank), what, (double)(ticks * atomic_load(&watch->tick_ms)) / 1000,
             (double)atomic_load(&watch->timeout_ms) / 1000);
    break_world(watch, rank, became);
}

/* Ticks of the timeout; 0: there is none. */
static int64_t limit_of(const fsdp__watch *watch)
{
    int64_t timeout_ms = atomic_load(&watch->timeout_ms), tick_ms = atomic_load(&watch->tick_ms);

    return timeout_ms > 0 ? FSDP__MAX(2, (timeout_ms + tick_ms - 1) / tick_ms) : 0;
}

int64_t fsdp__watch_ticks(const fsdp__watch *watch)
{
    return atomic_load(&watch->ticks);
}

/* Ranks that wait for each other, in whatever way: nobody gets anything done. */
static bool all_are_still(fsdp__watch *watch, int64_t limit)
{
    for (int r = 0; r < watch->link->places.ranks; r++) {
        fsdp__heard heard;

        if (fsdp__board_left(watch->board, r))
            continue;
        if (!is_fresh(watch, r) || !fsdp__board_read(watch->board, r, &heard) || heard.still < limit)
            return false;
    }
    return true;
}

/* Ends the world where nothing has been heard of the rank, or of who listens to it here: that one first, for who does
 * not listen any more has heard something before. */
static bool end_silent(fsdp__watch *watch, int rank, int64_t limit)
{
    const fsdp__places *places = &watch->link->places;
    int listener = listener_of(places, rank);
    int64_t margin = listener == places->rank || listener == rank ? 0 : fresh_ticks(watch);
    int silent = known_of(watch, listener).silent >= limit        ? listener
                 : known_of(watch, rank).silent >= limit + margin ? rank
                                                                  : -1;

    if (silent >= 0)
        end_world(watch, silent, "has not been heard of", known_of(watch, silent).silent);
    return silent >= 0;
}

/* Whether the process of a rank of this machine is there; breaks the world where it has died. */
static void check_alive(fsdp__watch *watch, int rank)
{
    if (rank != watch->link->places.rank)
        fsdp__arena_check_alive(watch->link->arena, rank % watch->link->places.machine_ranks);
}

void fsdp__watch_look(fsdp__watch *watch, int rank, int64_t since)
{
    int64_t limit = limit_of(watch), waited = fsdp__watch_ticks(watch) - since, left = known_of(watch, rank).left;
    fsdp__heard heard;
    char became[128];

    if (left > LEAVE_TICKS && waited > LEAVE_TICKS) {
        snprintf(became, sizeof became, "rank %d has left (machine '%.64s')", rank, host_of(watch, rank));
        break_world(watch, rank, became);
    }
    if (left > 0) /* it says nothing more */
        return;
    check_alive(watch, listener_of(&watch->link->places, rank));
    if (limit == 0 || waited < limit || end_silent(watch, rank, limit))
        return;
    if (fsdp__watch_heard(watch, rank, &heard) && heard.still >= limit &&
        (heard.doing.in == 0 || all_are_still(watch, limit)))
        end_world(watch, rank, "has stood still", heard.still);
}

/* ---- life ---- */

void fsdp__watch_set_timeout(fsdp__watch *watch, int64_t timeout_ms, int64_t tick_ms)
{
    atomic_store(&watch->tick_ms, tick_ms);
    atomic_store(&watch->timeout_ms, timeout_ms);
}

void fsdp__watch_note(fsdp__watch *watch, const char *group, int tag, const fsdp__call *call, fsdp__moment moment)
{
    fsdp__doing *doing = &watch->doing;

    pthread_mutex_lock(&watch->mutex);
    doing->issued += moment == FSDP__CALL_ISSUED ? 1 : moment == FSDP__CALL_DONE ? -1 : 0;
    doing->in += moment == FSDP__CALL_BEGUN ? 1 : moment == FSDP__CALL_DONE ? -1 : 0;
    if (moment == FSDP__CALL_BEGUN)
        fsdp__doing_set(doing, group, tag, call->sequence, (int32_t)call->name, call->label);
    pthread_mutex_unlock(&watch->mutex);
}

void fsdp__watch_program_waits(fsdp__watch *watch, int tag, bool waits)
{
    pthread_mutex_lock(&watch->mutex);
    watch->program_in = waits ? tag + 1 : 0;
    watch->waiting.whom = -1;
    watch->waiting.number++;
    pthread_mutex_unlock(&watch->mutex);
}

void fsdp__watch_waits(fsdp__watch *watch, int tag, int whom)
{
    pthread_mutex_lock(&watch->mutex);
    watch->looks += watch->program_in == tag + 1;
    if (watch->program_in == tag + 1 && watch->waiting.whom != whom) {
        watch->waiting.whom = whom;
        watch->waiting.number++;
    }
    pthread_mutex_unlock(&watch->mutex);
}

void fsdp__watch_met(fsdp__watch *watch, int rank, const char *group, int tag, const fsdp__signature *theirs)
{
    fsdp__known *known = &watch->known[rank];
    fsdp__doing *doing = &known->met;
    fsdp__heard heard;

    if (!fsdp__board_read(watch->board, rank, &heard))
        return;
    pthread_mutex_lock(&watch->mutex);
    known->met_beats = heard.beats + 1;
    doing->in = 1;
    doing->issued = heard.doing.issued;
    fsdp__doing_set(doing, group, tag, theirs->sequence, theirs->name, theirs->label);
    pthread_mutex_unlock(&watch->mutex);
}

fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp__link *link, const fsdp__symmetric *local, bool one_level)
{
    size_t ranks = (size_t)link->places.ranks;
    int error;

    if (link->arena->control->board_bytes < fsdp__board_bytes(link->places.ranks))
        return FSDP_FAIL(FSDP_INVALID, "the memory of this machine's ranks has no board for %zu ranks", ranks);
    watch->link = watch->letters.link = link;
    watch->local = local;
    watch->one_level = one_level;
    watch->board = fsdp__arena_board(link->arena);
    watch->waiting.whom = -1;
    watch->known = fsdp__calloc(ranks, sizeof *watch->known);
    if (!watch->known)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&watch->mutex, NULL);
    error = pthread_create(&watch->thread, NULL, watch_main, watch);
    watch->started = error == 0;
    if (!watch->started)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start the thread that listens to other machines: %s%s",
                         strerror(error), fsdp__limit_behind(error));
    return FSDP_OK;
}

/* A rank that has not said that it takes part no more; -1: all have. That is the last of a rank, also for those of its
 * own machine: whoever closes the network before has messages in it that nobody takes, which MPI forbids. */
static int who_is_left(const fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;

    for (int r = 0; r < places->ranks; r++)
        if (r != places->rank && !fsdp__board_left(watch->board, r))
            return r;
    return -1;
}

/* A rank of this machine that has left the arena, and has died before it could hear the last word of `rank`, or say its
 * own: nobody else would write it down. */
static void check_last_word(fsdp__watch *watch, int listener, int rank)
{
    const fsdp__places *places = &watch->link->places;
    const fsdp__arena_rank *shared = &watch->link->arena->control->ranks[listener % places->machine_ranks];
    char text[96];

    if (listener == places->rank ||
        !fsdp__process_is_dead(atomic_load(&shared->pid), atomic_load(&shared->start_ticks)) ||
        fsdp__board_left(watch->board, rank))
        return;
    snprintf(text, sizeof text, "rank %d has died as it left (process %d)", listener, atomic_load(&shared->pid));
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, listener, text);
}

static void stop_thread(fsdp__watch *watch)
{
    if (!watch->started)
        return;
    atomic_store(&watch->stop, true);
    pthread_join(watch->thread, NULL);
    watch->started = false;
}

bool fsdp__watch_leave(fsdp__watch *watch)
{
    fsdp__arena *arena;
    int rank = -1;

    if (!watch->started)
        return false;
    arena = watch->link->arena;
    atomic_store(&watch->leaving, true);
    while (!fsdp__arena_aborted(arena) && ((rank = who_is_left(watch)) >= 0 || !atomic_load(&watch->told))) {
        int64_t limit = limit_of(watch);

        if (rank >= 0) {
            int listener = listener_of(&watch->link->places, rank);

            check_alive(watch, listener);
            check_last_word(watch, listener, rank);
            if (limit > 0)
                (void)end_silent(watch, rank, limit);
        }
        nap(1);
    }
    stop_thread(watch);
    return !fsdp__arena_aborted(arena) && !atomic_load(&watch->link->silent);
}

void fsdp__watch_close(fsdp__watch *watch)
{
    if (!watch->known)
        return;
    stop_thread(watch);
    fsdp__news_forget(&watch->letters);
    pthread_mutex_destroy(&watch->mutex);
    fsdp__free(watch->known);
}
