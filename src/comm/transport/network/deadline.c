/* deadline.c - the thread that counts time, and the table of the calls that it counts. */
#include "comm/transport/network/deadline.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/host.h"
#include "base/limits.h"
#include "base/lock.h"
#include "base/text.h"
#include "comm/health/process.h"
#include "comm/health/verdict.h"

enum {
    TURN_MS = 50,
    CALLS = 32, /* at once: a rank has fewer threads that call the network */
    LEAST_LEAVING_MS = 10000,
    MOST_LEAVING_MS = 60000, /* at most: all ranks have got there, and their work is done */
    MOST_BROKEN_MS = 5000,
    LOOK_MS = 200,      /* how often it checks the processes that were started beside this one */
    MISSING_MS = 10000, /* how long one of them may be missing; but at most half of the time to join */
    WARN_MS = 10000,    /* after which it reports that ranks still join; with the same limit */
    LINE_BYTES = FSDP__ABORT_BYTES + 256
};

typedef enum phase {
    JOINING,
    JOINED,
    LEAVING
} phase;

/* A call that is under way. */
typedef struct call {
    _Atomic uint64_t number; /* unique among all calls; 0: none */
    uint64_t seen;           /* `number` at the last turn; only the counting thread uses this field and the next */
    int64_t turns;
} call;

struct fsdp__deadline {
    const fsdp__network_ops *ops;
    void *network;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows, down to the calls */
    pthread_cond_t stopped;
    bool stop;
    phase phase;
    fsdp__peers *peers; /* while the phase is JOINED */
    fsdp__joining joining;
    int64_t missing_ms; /* how long one of them has been missing */
    int64_t leaving_ms;
    int rank;
    bool broken; /* the world is broken, as far as this thread knows; `reason` says why */
    char reason[FSDP__ABORT_BYTES];
    uint64_t ready; /* threads that were ready to run at the last turn (health/process.h), while calls last */
    _Atomic uint64_t numbers;
    call calls[CALLS]; /* if there are more at once, the rest are not counted */
};

/* ---- calls ---- */

static call *enter(fsdp__deadline *d)
{
    uint64_t number = atomic_fetch_add(&d->numbers, 1) + 1, none;

    for (int i = 0; i < CALLS; i++) {
        none = 0;
        if (atomic_compare_exchange_strong(&d->calls[i].number, &none, number))
            return &d->calls[i];
    }
    return NULL;
}

static bool leave(call *c, bool result)
{
    if (c)
        atomic_store(&c->number, 0);
    return result;
}

static bool exchange(void *network, const void *mine, size_t bytes, void *all, char *text)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    return leave(c, d->ops->exchange(d->network, mine, bytes, all, text));
}

static bool send(void *network, int to, int tag, const fsdp__segment *segments, int count, fsdp__network_request *out,
                 char *text)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    return leave(c, d->ops->send(d->network, to, tag, segments, count, out, text));
}

static bool receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                    fsdp__network_request *out, char *text)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    return leave(c, d->ops->receive(d->network, from, tag, segments, count, shorter, out, text));
}

static bool test(void *network, fsdp__network_request *requests, int count, char *text)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    return leave(c, d->ops->test(d->network, requests, count, text));
}

static bool poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    return leave(c, d->ops->poll(d->network, tag, data, bytes, from, got, text));
}

/* ---- counting ---- */

/* Ends the process. There is nobody to return to: the waiting thread is inside the carrier. */
static void end_process(const char *why)
{
    char line[LINE_BYTES];
    int bytes = snprintf(line, sizeof line, "fsdp: %s\n", why);
    ssize_t unheard = write(STDERR_FILENO, line, FSDP__MIN((size_t)bytes, sizeof line - 1));

    (void)unheard;
    _exit(1);
}

/* Returns whether any call has lasted since the last turn. */
static bool any_lasts(const fsdp__deadline *d)
{
    bool any = false;

    for (int i = 0; i < CALLS && !any; i++)
        any = d->calls[i].seen != 0 && atomic_load(&d->calls[i].number) == d->calls[i].seen;
    return any;
}

/* Returns whether a thread of the process has waited for a core since the last turn, in vain: it may be the one that is
 * to come back. */
static bool starves(fsdp__deadline *d)
{
    if (any_lasts(d))
        return fsdp__process_starves(getpid(), &d->ready);
    d->ready = 0;
    return false;
}

/* Counts one turn more; returns how long the longest call under way has lasted, in milliseconds. */
static int64_t count(fsdp__deadline *d)
{
    int64_t turns = 0, turn = starves(d) ? 0 : 1;

    for (int i = 0; i < CALLS; i++) {
        call *c = &d->calls[i];
        uint64_t number = atomic_load(&c->number);

        c->turns = number != 0 && number == c->seen ? c->turns + turn : 0;
        c->seen = number;
        turns = FSDP__MAX(turns, c->turns);
    }
    return turns * TURN_MS;
}

/* Checks whether the processes that were started beside this one live. If one ends with success before it has joined,
 * its starter sees no failure. */
static void check_living(fsdp__deadline *d, const char *host)
{
    int living = d->joining.started > 0 ? d->joining.living() : -1;
    char text[LINE_BYTES];

    d->missing_ms = living >= 0 && living < d->joining.started ? d->missing_ms + LOOK_MS : 0;
    if (d->missing_ms < FSDP__MIN(MISSING_MS, d->joining.ms / 2))
        return;
    snprintf(text, sizeof text,
             "machine '%s': of %d processes that were started here %d %s ended without joining the others", host,
             d->joining.started, d->joining.started - living, d->joining.started - living == 1 ? "has" : "have");
    end_process(text);
}

static void check_joining(fsdp__deadline *d, int64_t turns, const char *host)
{
    char text[LINE_BYTES];
    int64_t ms = turns * TURN_MS;

    if (ms % LOOK_MS == 0)
        check_living(d, host);
    if (d->joining.warns && ms >= FSDP__MIN(WARN_MS, d->joining.ms / 2)) {
        d->joining.warns = false;
        fsdp__warn("machine '%s': not all ranks have joined yet; they have %g s for it (FSDP_JOIN_TIMEOUT)", host,
                   (double)d->joining.ms / 1000);
    }
    if (ms < d->joining.ms)
        return;
    snprintf(text, sizeof text,
             "machine '%s': not all ranks have joined within %g s (FSDP_JOIN_TIMEOUT): one is stopped or has ended, or "
             "its machine cannot be reached",
             host, (double)d->joining.ms / 1000);
    end_process(text);
}

static void end_broken(const fsdp__deadline *d)
{
    char text[LINE_BYTES];

    snprintf(text, sizeof text, "%s; rank %d cannot leave the network, and is ended", d->reason, d->rank);
    end_process(text);
}

static void check_leaving(fsdp__deadline *d, int64_t call_ms)
{
    char text[LINE_BYTES];

    if (d->leaving_ms == 0 || call_ms < d->leaving_ms)
        return;
    if (d->broken)
        end_broken(d);
    snprintf(text, sizeof text,
             "rank %d: not all ranks have left the network within %g s: one is stopped or has ended, or its machine "
             "cannot be reached; the work of all of them was done",
             d->rank, (double)d->leaving_ms / 1000);
    end_process(text);
}

static int64_t timeout_of(const fsdp__deadline *d)
{
    return atomic_load(&d->peers->own->timeout_ms);
}

static void break_world(fsdp__deadline *d, int64_t call_ms)
{
    fsdp__peers *peers = d->peers;
    const fsdp__places *places = peers->places;
    char text[FSDP__ABORT_BYTES], was[FSDP__DOING_BYTES];

    fsdp__peers_doing_text(peers, was, sizeof was);
    snprintf(text, sizeof text,
             "rank %d (machine '%.64s') is in a call of the network that has not come back for %g s (comm.timeout is "
             "%.12g s): it was %s",
             places->rank, fsdp__host_of(places, places->rank), (double)call_ms / 1000, (double)timeout_of(d) / 1000,
             was);
    fsdp__verdict_end(peers->own->board, FSDP__STILL, places->rank, text);
}

/* Returns the limit from the break on, however old the calls are: others are still to be told. */
static int64_t broken_ms(const fsdp__deadline *d)
{
    int64_t timeout_ms = timeout_of(d);

    return timeout_ms > 0 ? FSDP__MIN(timeout_ms, MOST_BROKEN_MS) : MOST_BROKEN_MS;
}

/* Notes the break if the world is broken by now. */
static void note_break(fsdp__deadline *d)
{
    fsdp__board *board = d->peers->own->board;

    if (d->broken || !fsdp__board_aborted(board))
        return;
    (void)fsdp__board_failure(board); /* waits until the reason is set */
    fsdp__shown(fsdp_last_error(), d->reason, sizeof d->reason);
    d->broken = true;
    for (int i = 0; i < CALLS; i++)
        d->calls[i].turns = 0;
}

static void check_joined(fsdp__deadline *d, int64_t call_ms)
{
    if (!d->broken && timeout_of(d) > 0 && call_ms >= timeout_of(d))
        break_world(d, call_ms);
    else if (d->broken && call_ms >= broken_ms(d))
        end_broken(d);
    note_break(d);
}

/* Waits for one turn. Called with the mutex held. */
static void wait_a_turn(fsdp__deadline *d)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)TURN_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!d->stop && pthread_cond_timedwait(&d->stopped, &d->mutex, &until) == 0)
        continue;
}

static void *count_main(void *argument)
{
    fsdp__deadline *d = argument;
    char host[FSDP__HOST_BYTES];

    fsdp__host_name(host);
    FSDP__HELD(&d->mutex);
    for (int64_t turns = 1; !d->stop; turns++) {
        int64_t call_ms;

        wait_a_turn(d);
        call_ms = count(d);
        if (d->phase == JOINING)
            check_joining(d, turns, host);
        else if (d->phase == JOINED)
            check_joined(d, call_ms);
        else
            check_leaving(d, call_ms);
    }
    return NULL;
}

/* ---- life ---- */

static bool start(fsdp__deadline *d, char *text)
{
    pthread_condattr_t attributes;
    int error;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&d->stopped, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&d->mutex, NULL);
    error = pthread_create(&d->thread, NULL, count_main, d);
    if (error != 0)
        snprintf(text, FSDP__NETWORK_TEXT, "cannot start the thread that looks after the network: %s%s",
                 strerror(error), fsdp__limit_behind(error));
    return error == 0;
}

static void release(fsdp__deadline *d, bool started)
{
    if (started) {
        pthread_mutex_lock(&d->mutex);
        d->stop = true;
        pthread_cond_signal(&d->stopped);
        pthread_mutex_unlock(&d->mutex);
        pthread_join(d->thread, NULL);
    }
    pthread_cond_destroy(&d->stopped);
    pthread_mutex_destroy(&d->mutex);
    fsdp__free(d);
}

static void close_network(void *network, bool whole)
{
    fsdp__deadline *d = network;
    call *c = enter(d);

    d->ops->close(d->network, whole);
    (void)leave(c, true);
    release(d, true);
}

bool fsdp__deadline_open(const fsdp__network_ops *ops, const fsdp__joining *joining, void **network,
                         fsdp__network_world *out, char *text)
{
    fsdp__deadline *d = fsdp__calloc(1, sizeof *d);
    bool started;
    call *c;

    *network = NULL;
    if (!d) {
        fsdp__shown(fsdp_last_error(), text, FSDP__NETWORK_TEXT);
        return false;
    }
    d->ops = ops;
    d->joining = *joining;
    started = start(d, text);
    c = enter(d);
    if (!started || !leave(c, ops->open(&d->network, out, text))) {
        release(d, started);
        return false;
    }
    *network = d;
    return true;
}

fsdp__deadline *fsdp__deadline_of(const fsdp__network_ops *ops, void *network)
{
    return ops == &fsdp__deadline_ops ? network : NULL;
}

void fsdp__deadline_joined(fsdp__deadline *deadline, fsdp__peers *peers)
{
    FSDP__HELD(&deadline->mutex);
    deadline->phase = JOINED;
    deadline->peers = peers;
    deadline->rank = peers->places->rank;
}

void fsdp__deadline_leaving(fsdp__deadline *deadline)
{
    int64_t timeout_ms = 0;

    FSDP__HELD(&deadline->mutex);
    if (deadline->peers) {
        note_break(deadline);
        timeout_ms = timeout_of(deadline);
    }
    if (!deadline->peers)
        deadline->leaving_ms = deadline->joining.ms;
    else if (deadline->broken)
        deadline->leaving_ms = broken_ms(deadline);
    else if (timeout_ms > 0)
        deadline->leaving_ms = FSDP__MIN(FSDP__MAX(timeout_ms, LEAST_LEAVING_MS), MOST_LEAVING_MS);
    deadline->phase = LEAVING;
    deadline->peers = NULL;
}

const fsdp__network_ops fsdp__deadline_ops = {
    .version = FSDP__NETWORK_VERSION,
    .close = close_network,
    .exchange = exchange,
    .send = send,
    .receive = receive,
    .test = test,
    .poll = poll,
};
