/* network_watch.c - the thread that tells and listens, and what follows from what it has heard. */
#include "comm/health/network_watch.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "comm/health/arena_watch.h"
#include "comm/health/waits.h"
#include "comm/transport/arena/process.h"
#include "comm/transport/network/tags.h"
#include "comm/world.h"

enum {
    PAUSE_MS = 20,       /* at most, between two checks for messages */
    BEAT_MS = 1000,      /* at most */
    BEATS = 4,           /* in a timeout, at least */
    SETTLE_TURNS = 100,  /* of a millisecond, to tell why the world is broken */
    LEAVE_TURNS = 10000, /* for the last words: at most this, or the timeout */
    IDLE_NS = 5000000    /* processor time between two looks: see health/pulse.c; here more threads wait */
};

static void nap(int64_t ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    (void)nanosleep(&time, NULL);
}

/* ---- what is known of a rank ---- */

/* Returns whether the beat is older than a meeting, which may have told more since the beat was sent. */
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

fsdp__known fsdp__watch_known(fsdp__watch *watch, int rank)
{
    fsdp__known known;

    pthread_mutex_lock(&watch->mutex);
    known = watch->known[rank];
    pthread_mutex_unlock(&watch->mutex);
    return known;
}

/* Notes news of this rank or of a counterpart: nobody else writes their places. */
static void note_news(fsdp__watch *watch, int rank, const fsdp__news *what)
{
    fsdp__known *known = &watch->known[rank];
    fsdp__heard heard = {0};
    int64_t ticks;

    (void)fsdp__board_read(watch->board, rank, &heard);
    pthread_mutex_lock(&watch->mutex);
    ticks = FSDP__MAX(known->silent, 1); /* since the previous news */
    known->silent = 0;
    known->beats = heard.beats + 1;
    pthread_mutex_unlock(&watch->mutex);
    heard.beats++;
    heard.still = what->still > 0 ? heard.still + ticks : 0;
    heard.awaits = what->awaits;
    heard.doing = what->doing;
    heard.left = heard.left || what->kind == FSDP__NEWS_LEFT;
    fsdp__board_write(watch->board, rank, &heard);
}

/* Returns whether this rank has got nothing done since the last look. One that waits for the network beats, and runs
 * now and then to see whether something has come: that counts as nothing. */
static bool is_still(fsdp__watch *watch)
{
    const fsdp__arena_rank *own = &watch->local->arena->control->ranks[watch->local->rank];
    bool waits = atomic_load(&own->program_in) > 0, is_thread = atomic_load(&own->pid) == 0, still;
    fsdp__pulse before = watch->pulse;
    uint64_t beats;

    fsdp__pulse_take(watch->local->arena, watch->local->rank, &watch->pulse);
    beats = watch->pulse.beats - atomic_load(&watch->wait_beats);
    still =
        before.known && (waits || (watch->pulse.state != 'R' && watch->pulse.state != 'D')) && beats == watch->beats;
    watch->beats = beats;
    /* Threads share the time of their process, also with ranks of what are other machines to them. */
    return still && (is_thread || watch->pulse.cpu_ns <= before.cpu_ns + IDLE_NS);
}

/* Returns 1 + a rank of this machine that the program waits for in the arena; 0: there is none. */
static int local_awaited(const fsdp__watch *watch)
{
    const fsdp__arena *arena = watch->local->arena;
    fsdp__rank_set awaited;
    fsdp__place place;

    if (!fsdp__program_place(arena, watch->local->rank, &place))
        return 0;
    awaited = fsdp__place_awaits(arena, watch->local->rank, &place, true);
    for (int r = 0; r < arena->control->world; r++)
        if (fsdp__rank_set_has(&awaited, r))
            return 1 + fsdp__arena_global(arena, r);
    return 0;
}

/* Tells the news to the same local rank of each other machine. Returns whether all were told. */
static bool tell_column(fsdp__watch *watch, const fsdp__news *what)
{
    const fsdp__places *places = &watch->link->places;
    bool all = true;

    for (int r = fsdp__local_of(places, places->rank); r < places->ranks; r += places->machine_ranks)
        if (r != places->rank)
            all = fsdp__news_tell(&watch->letters, r, what) && all;
    return all;
}

static fsdp__news look_at_self(fsdp__watch *watch, fsdp__news_kind kind)
{
    fsdp__news what = {.kind = kind, .awaits = atomic_load(&watch->awaits)};

    pthread_mutex_lock(&watch->mutex);
    what.doing = watch->doing;
    pthread_mutex_unlock(&watch->mutex);
    watch->still = is_still(watch) ? watch->still + 1 : 0;
    what.still = (int32_t)FSDP__MIN(watch->still, INT32_MAX);
    if (what.awaits == 0)
        what.awaits = local_awaited(watch);
    return what;
}

/* Waits until what was told has gone; until then it belongs to the network. */
static void settle(fsdp__watch *watch, int64_t turns)
{
    bool broken = fsdp__arena_aborted(watch->link->arena);

    for (int64_t i = 0; i < turns && fsdp__news_settle(&watch->letters); i++) {
        if (!broken && fsdp__arena_aborted(watch->link->arena))
            return;
        nap(1);
    }
}

/* Tells why the world is broken. Each rank of a machine tells, since one is enough and may be the only one that can. */
static void tell_broken(fsdp__watch *watch)
{
    const fsdp__arena *arena = watch->link->arena;
    fsdp__news what = {.kind = FSDP__NEWS_BROKEN};

    what.status = fsdp__arena_failure(arena); /* returns once the reason is set, or nobody will set it any more */
    what.blamed = arena->control->abort_rank;
    fsdp__shown(fsdp_last_error(), what.text, sizeof what.text);
    (void)tell_column(watch, &what);
    settle(watch, SETTLE_TURNS);
    atomic_store(&watch->link->told, true);
}

/* ---- listening ---- */

static void hear(fsdp__watch *watch, int from, const fsdp__news *what)
{
    if (what->kind == FSDP__NEWS_BROKEN)
        fsdp__arena_abort(watch->link->arena, (fsdp_status)what->status, what->blamed, what->text);
    else if (fsdp__are_counterparts(&watch->link->places, watch->link->places.rank, from))
        note_news(watch, from, what);
}

static void listen(fsdp__watch *watch)
{
    fsdp__news what = {0};
    int from = -1;

    while (fsdp__news_hear(watch->link, &what, &from))
        hear(watch, from, &what);
}

/* Returns the time between two beats of a rank. */
static int64_t beat_ms_of(const fsdp__watch *watch)
{
    int64_t timeout_ms = atomic_load(&watch->timeout_ms);

    return timeout_ms > 0 ? FSDP__MAX(1, FSDP__MIN(BEAT_MS, timeout_ms / BEATS)) : BEAT_MS;
}

int64_t fsdp__watch_fresh_ticks(const fsdp__watch *watch)
{
    return beat_ms_of(watch) / atomic_load(&watch->tick_ms) + 1;
}

/* Adds a tick of a rank's silence, if somebody listens to it. Called with the mutex held. */
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
    int64_t fresh = fsdp__watch_fresh_ticks(watch);
    int here = places->rank - fsdp__local_of(places, places->rank);

    pthread_mutex_lock(&watch->mutex);
    for (int r = here; r < here + places->machine_ranks; r++)
        age(watch, r, true);
    for (int r = 0; r < places->ranks; r++)
        if (r < here || r >= here + places->machine_ranks)
            age(watch, r, watch->known[fsdp__listener_of(places, r)].silent <= fresh);
    pthread_mutex_unlock(&watch->mutex);
    atomic_fetch_add(&watch->ticks, 1);
}

bool fsdp__watch_is_fresh(fsdp__watch *watch, int rank)
{
    int64_t fresh = 2 * fsdp__watch_fresh_ticks(watch);

    return fsdp__watch_known(watch, rank).silent <= fresh &&
           fsdp__watch_known(watch, fsdp__listener_of(&watch->link->places, rank)).silent <= fresh;
}

void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns)
{
    atomic_fetch_add_explicit(&watch->local->arena->control->ranks[watch->local->rank].looked_ns, cpu_ns,
                              memory_order_relaxed);
}

/* Ends the world when two ranks of a machine are in one call of a group that each takes for a different call. One of
 * them may wait for the network first and never get to where the other waits for it, so they would not compare. This is
 * checked for the world only: groups that were made in one call have one tag, and ranks of two such groups make calls
 * of their own. */
static void end_disagreement(fsdp__watch *watch, const fsdp__doing *mine)
{
    const fsdp__places *places = &watch->link->places;
    int own = places->rank, here = own - fsdp__local_of(places, places->rank);

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

/* Sends a beat, or says that this rank leaves. Once all counterparts know that, only its own machine hears that it
 * still listens. */
static void speak(fsdp__watch *watch)
{
    bool leaves = atomic_load(&watch->leaving);
    const fsdp__places *places = &watch->link->places;
    fsdp__news what = look_at_self(watch, leaves ? FSDP__NEWS_LEFT : FSDP__NEWS_BEAT);

    note_news(watch, places->rank, &what);
    if (!atomic_load(&watch->told))
        atomic_store(&watch->told, tell_column(watch, &what) && leaves);
    end_disagreement(watch, &what.doing);
}

static void *watch_main(void *argument)
{
    fsdp__watch *watch = argument;
    /* The first beat is due at once. */
    int64_t since_beat = INT64_MAX / 2, since_tick = 0, cpu_ns = fsdp__thread_cpu_ns(), now, timeout_ms;

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
    timeout_ms = atomic_load(&watch->timeout_ms);
    if (fsdp__arena_aborted(watch->link->arena))
        tell_broken(watch);
    else if (atomic_load(&watch->leaving))
        settle(watch, timeout_ms > 0 ? FSDP__MIN(timeout_ms, LEAVE_TURNS) : LEAVE_TURNS);
    return NULL;
}

/* ---- what is known ---- */

void fsdp__watch_doing_text(fsdp__watch *watch, char *text, size_t bytes)
{
    fsdp__doing doing;

    pthread_mutex_lock(&watch->mutex);
    doing = watch->doing;
    pthread_mutex_unlock(&watch->mutex);
    fsdp__doing_text(&doing, text, bytes);
}

int64_t fsdp__watch_ticks(const fsdp__watch *watch)
{
    return atomic_load(&watch->ticks);
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

fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp_context *context, fsdp__link *link, const fsdp__symmetric *local,
                             bool one_level)
{
    size_t ranks = (size_t)link->places.ranks;
    int error;

    if (link->arena->control->board_bytes < fsdp__board_bytes(link->places.ranks))
        return FSDP_FAIL(FSDP_INVALID, "the memory of this machine's ranks has no board for %zu ranks", ranks);
    watch->context = context;
    watch->link = watch->letters.link = link;
    watch->local = local;
    watch->one_level = one_level;
    watch->board = fsdp__arena_board(link->arena);
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

void fsdp__watch_stop(fsdp__watch *watch)
{
    if (!watch->started)
        return;
    atomic_store(&watch->stop, true);
    pthread_join(watch->thread, NULL);
    watch->started = false;
}

void fsdp__watch_close(fsdp__watch *watch, bool whole)
{
    if (!watch->known)
        return;
    fsdp__watch_stop(watch);
    if (!whole)
        fsdp__news_forget(&watch->letters);
    pthread_mutex_destroy(&watch->mutex);
    fsdp__free(watch->known);
}
