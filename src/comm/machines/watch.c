/* watch.c - the thread that tells and listens, and what follows from what it has heard. */
#include "comm/machines/watch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/machines/tags.h"
#include "comm/symmetric/process.h"
#include "comm/symmetric/waits.h"
#include "comm/symmetric/watch.h"
#include "comm/world.h"

enum {
    PAUSE_MS = 20,      /* at most, between two looks for messages */
    BEAT_MS = 1000,     /* at most */
    BEATS = 4,          /* in a timeout, at least */
    LEAVE_TICKS = 3,    /* what was sent before may still be on its way */
    SETTLE_TURNS = 100, /* of a millisecond: for the last words */
    SAME_BEATS = 3,     /* of every rank of a circle, in which it has waited so: so they all did at one time */
    IDLE_NS = 5000000   /* of processor time between two looks: see symmetric/pulse.c; more threads wait here */
};

typedef enum news_kind {
    NEWS_BEAT = 1,
    NEWS_LEFT,
    NEWS_BROKEN
} news_kind;

/* What travels; of the text only what there is. */
typedef struct news {
    int32_t kind, status, blamed;
    int32_t still; /* looks in which the rank has got nothing done */
    fsdp__doing doing;
    fsdp__waiting waiting;
    char text[FSDP__ABORT_BYTES];
} news;

typedef struct fsdp__letter {
    struct fsdp__letter *next;
    fsdp__network_request request;
    news news;
} letter;

static void nap(int64_t ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    (void)nanosleep(&time, NULL);
}

/* ---- telling ---- */

/* Takes back what has arrived; whether anything is still on its way. */
static bool settle(fsdp__watch *watch)
{
    for (letter **link = &watch->letters; *link;) {
        letter *one = *link;

        if (!fsdp__link_settle(watch->link, &one->request))
            return false;
        if (one->request) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        fsdp__free(one);
    }
    return watch->letters != NULL;
}

/* false: there is no memory for it; the next beat tells it. */
static bool tell(fsdp__watch *watch, int rank, const news *what)
{
    size_t bytes = offsetof(news, text) + (what->kind == NEWS_BROKEN ? strlen(what->text) + 1 : 0);
    letter *one = fsdp__calloc(1, sizeof *one);

    if (!one)
        return false;
    memcpy(&one->news, what, bytes);
    if (!fsdp__link_tell(watch->link, rank, FSDP__TAG_NEWS, &one->news, bytes, &one->request) || !one->request) {
        fsdp__free(one);
        return true;
    }
    one->next = watch->letters;
    watch->letters = one;
    return true;
}

/* ---- what is known of a rank ---- */

/* A meeting may have told more since the beat was sent. */
static bool is_older(const fsdp__doing *beat, const fsdp__doing *known)
{
    return beat->sequence < known->sequence && (beat->sequence == 0 || beat->tag == known->tag);
}

static void note_news(fsdp__watch *watch, int rank, const news *what)
{
    fsdp__heard *heard = &watch->heard[rank];
    int64_t ticks;
    bool same;

    pthread_mutex_lock(&watch->mutex);
    ticks = FSDP__MAX(heard->silent, 1); /* since its look before */
    same = what->waiting.whom == heard->waiting.whom && what->waiting.number == heard->waiting.number;
    heard->still = what->still > 0 ? heard->still + ticks : 0;
    heard->same = same ? heard->same + 1 : 0;
    heard->silent = 0;
    heard->waiting = what->waiting;
    if (!is_older(&what->doing, &heard->doing))
        heard->doing = what->doing;
    if (what->kind == NEWS_LEFT && heard->left == 0)
        heard->left = 1;
    pthread_mutex_unlock(&watch->mutex);
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

/* Whether all were told. */
static bool tell_all(fsdp__watch *watch, news_kind kind)
{
    const fsdp__places *places = &watch->link->places;
    news what = {.kind = kind};
    bool all = true;

    pthread_mutex_lock(&watch->mutex);
    what.doing = watch->doing;
    what.waiting = watch->waiting;
    pthread_mutex_unlock(&watch->mutex);
    watch->still = is_still(watch, what.waiting.whom >= 0) ? watch->still + 1 : 0;
    what.still = (int32_t)FSDP__MIN(watch->still, INT32_MAX);
    if (what.waiting.whom < 0)
        find_local_wait(watch, &what.waiting);
    for (int r = 0; r < places->ranks; r++)
        if (r != places->rank)
            all = tell(watch, r, &what) && all;
    note_news(watch, places->rank, &what);
    return all;
}

/* Each rank of a machine tells one of every other machine: one of them is enough, and may be the only one that can. */
static void tell_broken(fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;
    const fsdp__control *control = watch->link->arena->control;
    news what = {.kind = NEWS_BROKEN};

    (void)fsdp__arena_failure(watch->link->arena); /* waits until the reason is there */
    what.status = control->abort_status;
    what.blamed = control->abort_rank;
    snprintf(what.text, sizeof what.text, "%s", control->abort_text);
    for (int r = places->rank % places->machine_ranks; r < places->ranks; r += places->machine_ranks)
        if (r != places->rank)
            (void)tell(watch, r, &what);
    for (int i = 0; i < SETTLE_TURNS && settle(watch); i++)
        nap(1);
    atomic_store(&watch->link->told, true);
}

/* ---- listening ---- */

static void hear(fsdp__watch *watch, int from, const news *what)
{
    if (what->kind == NEWS_BROKEN)
        fsdp__arena_abort(watch->link->arena, (fsdp_status)what->status, what->blamed, what->text);
    else
        note_news(watch, from, what);
}

static void listen(fsdp__watch *watch)
{
    news what = {0};
    size_t got = 0;
    int from = -1;

    while (fsdp__link_poll(watch->link, FSDP__TAG_NEWS, &what, sizeof what, &from, &got) && from >= 0) {
        if (got < offsetof(news, text))
            continue;
        what.text[FSDP__MIN(got - offsetof(news, text), sizeof what.text - 1)] = '\0';
        hear(watch, from, &what);
    }
}

static void tick(fsdp__watch *watch)
{
    pthread_mutex_lock(&watch->mutex);
    for (int r = 0; r < watch->link->places.ranks; r++) {
        watch->heard[r].silent++;
        watch->heard[r].left += watch->heard[r].left > 0;
    }
    pthread_mutex_unlock(&watch->mutex);
    atomic_fetch_add(&watch->ticks, 1);
}

/* ---- circles of programs, over machines ---- */

static void doing_text(const fsdp__doing *doing, char *text, size_t bytes)
{
    if (doing->sequence == 0)
        snprintf(text, bytes, "before its first call");
    else
        snprintf(text, bytes, "%s call %llu of group '%s' (%s%s%s%s)", doing->in > 0 ? "in" : "behind",
                 (unsigned long long)doing->sequence, doing->group, fsdp__call_text((fsdp__call_name)doing->name),
                 doing->label[0] ? " for '" : "", doing->label, doing->label[0] ? "'" : "");
}

/* Whether the program of `rank` waits for another rank that will not come unless its own program goes on: no call of it
 * is on its way but the one that it waits in, which is another. */
static bool waits_surely(const fsdp__watch *watch, int rank)
{
    const fsdp__heard *one = &watch->heard[rank], *other;

    if (one->waiting.whom < 0 || one->same < SAME_BEATS)
        return false;
    other = &watch->heard[one->waiting.whom];
    if (other->waiting.whom < 0 || other->doing.issued > 1)
        return false;
    return other->doing.tag != one->doing.tag || other->doing.sequence != one->doing.sequence;
}

/* The ranks of a circle that begins with this one; 0: there is none. */
static int find_circle(const fsdp__watch *watch, int *ranks)
{
    int rank = watch->link->places.rank, count = 0;

    do {
        if (!waits_surely(watch, rank) || count == watch->link->places.ranks)
            return 0;
        ranks[count++] = rank;
        rank = (int)watch->heard[rank].waiting.whom;
    } while (rank != ranks[0]);
    return count;
}

static void circle_text(const fsdp__watch *watch, const int *ranks, int count, char *text, size_t bytes)
{
    size_t at = 0;

    for (int i = 0; i < count && at < bytes; i++) {
        const char *before = i == 0 ? "" : i + 1 < count ? ", " : ", and ";
        char doing[320];

        doing_text(&watch->heard[ranks[i]].doing, doing, sizeof doing);
        at += (size_t)snprintf(text + at, bytes - at, "%srank %d waits for rank %d %s", before, ranks[i],
                               ranks[(i + 1) % count], doing);
    }
    if (at < bytes)
        snprintf(text + at, bytes - at, ": all ranks must make the same calls in the same order");
}

/* Ends the world where this rank is a part of one. */
static void end_circle(fsdp__watch *watch)
{
    char text[FSDP__ABORT_BYTES] = "";
    int *ranks = fsdp__calloc((size_t)watch->link->places.ranks, sizeof *ranks), count = 0;

    pthread_mutex_lock(&watch->mutex);
    if (ranks)
        count = find_circle(watch, ranks);
    if (count > 1)
        circle_text(watch, ranks, count, text, sizeof text);
    pthread_mutex_unlock(&watch->mutex);
    if (count > 1)
        fsdp__arena_abort(watch->link->arena, FSDP_MISMATCH, -1, text);
    fsdp__free(ranks);
}

void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns)
{
    atomic_fetch_add_explicit(&watch->local->arena->control->ranks[watch->local->rank].looked_ns, cpu_ns,
                              memory_order_relaxed);
}

static void *watch_main(void *argument)
{
    fsdp__watch *watch = argument;
    int64_t since_beat = INT64_MAX / 2, since_tick = 0, cpu_ns = fsdp__thread_cpu_ns(), now;
    bool left = false;

    while (!atomic_load(&watch->stop)) {
        int64_t tick_ms = atomic_load(&watch->tick_ms), timeout_ms = atomic_load(&watch->timeout_ms);
        int64_t pause = FSDP__MIN(PAUSE_MS, tick_ms);
        int64_t beat_ms = timeout_ms > 0 ? FSDP__MIN(BEAT_MS, timeout_ms / BEATS) : BEAT_MS;

        listen(watch);
        if (fsdp__arena_aborted(watch->link->arena))
            break;
        if (!left && (since_beat >= beat_ms || atomic_load(&watch->leaving))) {
            left = atomic_load(&watch->leaving);
            left = tell_all(watch, left ? NEWS_LEFT : NEWS_BEAT) && left;
            end_circle(watch);
            atomic_store(&watch->told, left);
            since_beat = 0;
        }
        (void)settle(watch);
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
    for (int i = 0; i < SETTLE_TURNS && settle(watch); i++)
        nap(1);
    return NULL;
}

/* ---- what follows ---- */

static void end_world(fsdp__watch *watch, int rank, const fsdp__heard *heard, const char *what, int64_t ticks)
{
    const fsdp__places *places = &watch->link->places;
    const char *host = places->hosts[fsdp__machine_of(places, rank)];
    char text[FSDP__ABORT_BYTES], was[320], mine[320];
    fsdp__doing doing;

    pthread_mutex_lock(&watch->mutex);
    doing = watch->doing;
    pthread_mutex_unlock(&watch->mutex);
    doing_text(&heard->doing, was, sizeof was);
    doing_text(&doing, mine, sizeof mine);
    snprintf(
        text, sizeof text,
        "rank %d (machine '%.64s') %s for %.6g s (comm.timeout is %.12g s): it was %s; rank %d, which waits for it, "
        "is %s",
        rank, host, what, (double)(ticks * atomic_load(&watch->tick_ms)) / 1000,
        (double)atomic_load(&watch->timeout_ms) / 1000, was, places->rank, mine);
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, rank, text);
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

static fsdp__heard heard_of(fsdp__watch *watch, int rank)
{
    fsdp__heard heard;

    pthread_mutex_lock(&watch->mutex);
    heard = watch->heard[rank];
    pthread_mutex_unlock(&watch->mutex);
    return heard;
}

/* Ranks that wait for each other, in whatever way: nobody gets anything done. */
static bool all_are_still(fsdp__watch *watch, int64_t limit)
{
    bool still = true;

    pthread_mutex_lock(&watch->mutex);
    for (int r = 0; r < watch->link->places.ranks && still; r++)
        still = watch->heard[r].still >= limit || watch->heard[r].left > 0;
    pthread_mutex_unlock(&watch->mutex);
    return still;
}

void fsdp__watch_look(fsdp__watch *watch, int rank, int64_t since)
{
    const fsdp__places *places = &watch->link->places;
    int64_t limit = limit_of(watch), waited = fsdp__watch_ticks(watch) - since;
    fsdp__heard heard = heard_of(watch, rank);
    char text[FSDP__ABORT_BYTES];

    if (heard.left > LEAVE_TICKS && waited > LEAVE_TICKS) {
        snprintf(text, sizeof text, "rank %d has left", rank);
        fsdp__arena_abort(watch->link->arena, FSDP_COMM, rank, text);
    }
    if (heard.left > 0) /* it says nothing more */
        return;
    if (fsdp__machine_of(places, rank) == fsdp__machine_of(places, places->rank))
        fsdp__arena_check_alive(watch->link->arena, rank % places->machine_ranks);
    if (limit == 0 || waited < limit)
        return;
    if (heard.silent >= limit)
        end_world(watch, rank, &heard, "has not been heard of", heard.silent);
    else if (heard.still >= limit && (heard.doing.in == 0 || all_are_still(watch, limit)))
        end_world(watch, rank, &heard, "has stood still", heard.still);
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
    if (moment == FSDP__CALL_BEGUN) {
        doing->tag = tag;
        doing->sequence = call->sequence;
        doing->name = (int32_t)call->name;
        snprintf(doing->group, sizeof doing->group, "%s", group);
        memcpy(doing->label, call->label, sizeof doing->label);
    }
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
    if (watch->program_in == tag + 1 && watch->waiting.whom != whom) {
        watch->waiting.whom = whom;
        watch->waiting.number++;
    }
    pthread_mutex_unlock(&watch->mutex);
}

void fsdp__watch_met(fsdp__watch *watch, int rank, const char *group, int tag, const fsdp__signature *theirs)
{
    fsdp__doing *doing = &watch->heard[rank].doing;

    pthread_mutex_lock(&watch->mutex);
    doing->in = 1;
    doing->tag = tag;
    doing->sequence = theirs->sequence;
    doing->name = (int32_t)theirs->name;
    snprintf(doing->group, sizeof doing->group, "%s", group);
    memcpy(doing->label, theirs->label, sizeof doing->label);
    pthread_mutex_unlock(&watch->mutex);
}

fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp__link *link, const fsdp__symmetric *local)
{
    int error;

    watch->link = link;
    watch->local = local;
    watch->waiting.whom = -1;
    watch->heard = fsdp__calloc((size_t)link->places.ranks, sizeof *watch->heard);
    if (!watch->heard)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&watch->mutex, NULL);
    error = pthread_create(&watch->thread, NULL, watch_main, watch);
    watch->started = error == 0;
    if (!watch->started)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start the thread that listens to other machines: %s", strerror(error));
    return FSDP_OK;
}

/* A rank that has not said that it takes part no more; -1: all have. That is the last of a rank, also for those of its
 * own machine: whoever closes the network before has messages in it that nobody takes, which MPI forbids. */
static int who_is_left(fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;

    for (int r = 0; r < places->ranks; r++)
        if (r != places->rank && heard_of(watch, r).left == 0)
            return r;
    return -1;
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
    const fsdp__places *places;
    fsdp__arena *arena;
    int rank = -1;

    if (!watch->started)
        return false;
    places = &watch->link->places;
    arena = watch->link->arena;
    atomic_store(&watch->leaving, true);
    while (!fsdp__arena_aborted(arena) && ((rank = who_is_left(watch)) >= 0 || !atomic_load(&watch->told))) {
        int64_t limit = limit_of(watch);
        fsdp__heard heard = heard_of(watch, rank < 0 ? places->rank : rank);

        if (rank >= 0 && fsdp__machine_of(places, rank) == fsdp__machine_of(places, places->rank))
            fsdp__arena_check_alive(arena, rank % places->machine_ranks);
        if (rank >= 0 && limit > 0 && heard.silent >= limit)
            end_world(watch, rank, &heard, "has not been heard of", heard.silent);
        nap(1);
    }
    stop_thread(watch);
    return !fsdp__arena_aborted(arena) && !atomic_load(&watch->link->silent);
}

void fsdp__watch_close(fsdp__watch *watch)
{
    if (!watch->heard)
        return;
    stop_thread(watch);
    while (watch->letters) {
        letter *one = watch->letters;

        watch->letters = one->next;
        fsdp__free(one);
    }
    pthread_mutex_destroy(&watch->mutex);
    fsdp__free(watch->heard);
}
