/* watch.c - the thread that tells and listens. */
#include "comm/transport/network/watch.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "comm/health/process.h"
#include "comm/health/verdict.h"

enum {
    PAUSE_MS = 20,      /* at most, between two checks for messages */
    SETTLE_TURNS = 100, /* of a millisecond, to tell why the world is broken */
    LEAVE_TURNS = 10000 /* for the last words: at most this, or the timeout */
};

typedef enum news_kind {
    NEWS_SAID = 1,
    NEWS_BROKEN
} news_kind;

/* Holds what travels; of the text only as much as there is. */
typedef struct news {
    int32_t kind, status, blamed;
    fsdp__said said;
    char text[FSDP__ABORT_BYTES]; /* why the world is broken */
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

static fsdp__board *board_of(const fsdp__watch *watch)
{
    return watch->link->board;
}

/* ---- letters ---- */

/* Sends the news to `rank`. Returns false when out of memory. */
static bool tell(fsdp__watch *watch, int rank, const news *what)
{
    size_t bytes = offsetof(news, text) + (what->kind == NEWS_BROKEN ? strlen(what->text) + 1 : 0);
    letter *one = fsdp__calloc(1, sizeof *one);

    if (!one)
        return false;
    memcpy(&one->news, what, bytes);
    if (!fsdp__link_tell(watch->link, rank, &one->news, bytes, &one->request) || !one->request) {
        fsdp__free(one);
        return true;
    }
    one->next = watch->letters;
    watch->letters = one;
    return true;
}

/* Tells the news to the same local rank of each other machine. Returns whether all were told. */
static bool tell_column(fsdp__watch *watch, const news *what)
{
    const fsdp__places *places = &watch->link->places;
    bool all = true;

    for (int r = fsdp__local_of(places, places->rank); r < places->ranks; r += places->machine_ranks)
        if (r != places->rank)
            all = tell(watch, r, what) && all;
    return all;
}

/* Takes back the letters that have arrived. Returns whether any are still on their way. */
static bool take_back(fsdp__watch *watch)
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

/* Waits until what was told has gone; until then it belongs to the network. */
static void settle(fsdp__watch *watch, int64_t turns)
{
    bool broken = fsdp__board_aborted(board_of(watch));

    for (int64_t i = 0; i < turns && take_back(watch); i++) {
        if (!broken && fsdp__board_aborted(board_of(watch)))
            return;
        nap(1);
    }
}

/* ---- telling and listening ---- */

/* Tells why the world is broken. Each rank of a machine tells, since one is enough and may be the only one that can. */
static void tell_broken(fsdp__watch *watch)
{
    news what = {.kind = NEWS_BROKEN};

    what.status = fsdp__board_failure(board_of(watch)); /* returns once the reason is set, or nobody will set it */
    what.blamed = board_of(watch)->abort_rank;
    fsdp__shown(fsdp_last_error(), what.text, sizeof what.text);
    (void)tell_column(watch, &what);
    settle(watch, SETTLE_TURNS);
    atomic_store(&watch->link->told, true);
}

static void listen(fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;
    size_t got = 0, head = offsetof(news, text);
    news what = {0};
    int from = -1;

    while (fsdp__link_poll(watch->link, &what, sizeof what, &from, &got) && from >= 0) {
        if (got < head)
            continue;
        what.text[FSDP__MIN(got - head, sizeof what.text - 1)] = '\0';
        if (what.kind == NEWS_BROKEN)
            fsdp__board_abort(board_of(watch), (fsdp_status)what.status, what.blamed, what.text);
        else if (fsdp__are_counterparts(places, places->rank, from))
            fsdp__peers_hear(watch->peers, from, &what.said);
    }
}

/* Sends a beat, or says that this rank leaves. Once all counterparts know that, only its own machine hears that it
 * still listens. */
static void speak(fsdp__watch *watch)
{
    bool leaves = atomic_load(&watch->leaving);
    news what = {.kind = NEWS_SAID};

    fsdp__peers_say(watch->peers, &what.said);
    what.said.left = leaves;
    fsdp__peers_hear(watch->peers, watch->link->places.rank, &what.said);
    if (!atomic_load(&watch->told))
        atomic_store(&watch->told, tell_column(watch, &what) && leaves);
}

static void *watch_main(void *argument)
{
    fsdp__watch *watch = argument;
    const fsdp__health *own = watch->peers->own;
    /* Beats go by the clock: naps are longer on a crowded machine, and who listens may be on another one. Ticks go by
     * naps. The first beat is due at once. */
    int64_t spoke_ns = INT64_MIN / 2, since_tick = 0, cpu_ns = fsdp__thread_cpu_ns(), now, timeout_ms;

    while (!atomic_load(&watch->stop)) {
        int64_t tick_ms = atomic_load(&own->tick_ms), pause = FSDP__MIN(PAUSE_MS, tick_ms);

        listen(watch);
        if (fsdp__board_aborted(board_of(watch)))
            break;
        if (fsdp__clock_ns() - spoke_ns >= fsdp__peers_beat_ms(watch->peers) * 1000000 ||
            (atomic_load(&watch->leaving) && !atomic_load(&watch->told))) {
            spoke_ns = fsdp__clock_ns();
            speak(watch);
        }
        (void)take_back(watch);
        now = fsdp__thread_cpu_ns();
        fsdp__health_looked(own, now - cpu_ns);
        cpu_ns = now;
        nap(pause);
        since_tick += pause;
        if (since_tick >= tick_ms) {
            fsdp__peers_tick(watch->peers);
            since_tick = 0;
        }
    }
    timeout_ms = atomic_load(&own->timeout_ms);
    if (fsdp__board_aborted(board_of(watch)))
        tell_broken(watch);
    else if (atomic_load(&watch->leaving))
        settle(watch, timeout_ms > 0 ? FSDP__MIN(timeout_ms, LEAVE_TURNS) : LEAVE_TURNS);
    return NULL;
}

/* ---- life ---- */

fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp__link *link, fsdp__peers *peers)
{
    int error;

    watch->link = link;
    watch->peers = peers;
    error = pthread_create(&watch->thread, NULL, watch_main, watch);
    watch->started = error == 0;
    if (!watch->started)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start the thread that listens to other machines: %s%s",
                         strerror(error), fsdp__limit_behind(error));
    return FSDP_OK;
}

static void stop(fsdp__watch *watch)
{
    if (!watch->started)
        return;
    atomic_store(&watch->stop, true);
    pthread_join(watch->thread, NULL);
    watch->started = false;
}

/* Returns a rank that has not said that it takes part no more; -1: all have. Ranks of the same machine must be waited
 * for too, as this word is the last that a rank sends: a rank that closed the network earlier would have messages in it
 * that nobody receives, which MPI forbids. */
static int who_is_left(const fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;

    for (int r = 0; r < places->ranks; r++)
        if (r != places->rank && !fsdp__board_left(board_of(watch), r))
            return r;
    return -1;
}

bool fsdp__watch_leave(fsdp__watch *watch)
{
    int rank = -1;

    if (!watch->started)
        return false;
    atomic_store(&watch->leaving, true);
    while (!fsdp__board_aborted(board_of(watch)) && ((rank = who_is_left(watch)) >= 0 || !atomic_load(&watch->told))) {
        if (rank >= 0)
            fsdp__verdict_last_word(watch->peers, rank);
        nap(1);
    }
    stop(watch);
    return !fsdp__board_aborted(board_of(watch)) && !atomic_load(&watch->link->silent);
}

void fsdp__watch_close(fsdp__watch *watch, bool whole)
{
    stop(watch);
    while (!whole && watch->letters) {
        letter *one = watch->letters;

        watch->letters = one->next;
        fsdp__free(one);
    }
}
