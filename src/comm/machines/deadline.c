/* deadline.c - the thread that counts, and the table of calls that it counts. */
#include "comm/machines/deadline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/symmetric/watch.h"

enum {
    TURN_MS = 50,
    CALLS = 32, /* at once: threads of a rank that call the network are fewer */
    LEAST_LEAVING_MS = 10000,
    MOST_BROKEN_MS = 5000,
    LINE_BYTES = FSDP__ABORT_BYTES + 128
};

typedef enum phase {
    JOINING,
    JOINED,
    LEAVING
} phase;

/* One that is under way. */
typedef struct call {
    _Atomic uint64_t number; /* of all calls; 0: none */
    uint64_t seen;           /* at the last turn; this and the next are the counting thread's */
    int64_t turns;
} call;

struct fsdp__deadline {
    const fsdp__network_ops *ops;
    void *network;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows up to the calls */
    pthread_cond_t stopped;
    bool stop;
    phase phase;
    fsdp__watch *watch; /* while it is JOINED */
    int64_t joining_ms, leaving_ms;
    int rank;
    _Atomic uint64_t numbers;
    call calls[CALLS];
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

/* Nobody is left to return to: what waits is in the carrier. */
static void end_process(const char *why)
{
    char line[LINE_BYTES];
    int bytes = snprintf(line, sizeof line, "fsdp: %s\n", why);
    ssize_t unheard = write(STDERR_FILENO, line, FSDP__MIN((size_t)bytes, sizeof line - 1));

    (void)unheard;
    _exit(1);
}

/* Milliseconds of the longest call under way. */
static int64_t longest(fsdp__deadline *d)
{
    int64_t turns = 0;

    for (int i = 0; i < CALLS; i++) {
        call *c = &d->calls[i];
        uint64_t number = atomic_load(&c->number);

        c->turns = number != 0 && number == c->seen ? c->turns + 1 : 0;
        c->seen = number;
        turns = FSDP__MAX(turns, c->turns);
    }
    return turns * TURN_MS;
}

static void check_joining(fsdp__deadline *d, int64_t turns, int64_t call_ms)
{
    char text[LINE_BYTES];

    if (turns * TURN_MS < d->joining_ms || call_ms == 0)
        return;
    snprintf(text, sizeof text,
             "not all ranks have joined within %g s (FSDP_JOIN_TIMEOUT): one is stopped or has ended, or its machine "
             "cannot be reached",
             (double)d->joining_ms / 1000);
    end_process(text);
}

static void check_leaving(fsdp__deadline *d, int64_t call_ms)
{
    int64_t limit = FSDP__MAX(d->leaving_ms, LEAST_LEAVING_MS);
    char text[LINE_BYTES];

    if (d->leaving_ms == 0 || call_ms < limit)
        return;
    snprintf(text, sizeof text,
             "rank %d: not all ranks have left the network within %g s: one is stopped or has ended, or its machine "
             "cannot be reached; the work of all of them was done",
             d->rank, (double)limit / 1000);
    end_process(text);
}

static void break_world(fsdp__deadline *d, int64_t call_ms)
{
    fsdp__watch *watch = d->watch;
    const fsdp__places *places = &watch->link->places;
    char text[FSDP__ABORT_BYTES], was[320];

    fsdp__watch_doing_text(watch, was, sizeof was);
    snprintf(text, sizeof text,
             "rank %d (machine '%.64s') is in a call of the network that has not come back for %g s (comm.timeout is "
             "%.12g s): it was %s",
             places->rank, places->hosts[fsdp__machine_of(places, places->rank)], (double)call_ms / 1000,
             (double)atomic_load(&watch->timeout_ms) / 1000, was);
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, places->rank, text);
    for (int i = 0; i < CALLS; i++)
        d->calls[i].turns = 0;
}

static void check_joined(fsdp__deadline *d, int64_t call_ms)
{
    fsdp__arena *arena = d->watch->link->arena;
    int64_t timeout_ms = atomic_load(&d->watch->timeout_ms);
    char text[LINE_BYTES];

    if (!fsdp__arena_aborted(arena)) {
        if (timeout_ms > 0 && call_ms >= timeout_ms)
            break_world(d, call_ms);
        return;
    }
    if (call_ms < (timeout_ms > 0 ? FSDP__MIN(timeout_ms, MOST_BROKEN_MS) : MOST_BROKEN_MS))
        return;
    (void)fsdp__arena_failure(arena); /* waits until the reason is there */
    snprintf(text, sizeof text, "%s; rank %d cannot leave the network, and is ended", fsdp_last_error(), d->rank);
    end_process(text);
}

/* One turn. With the mutex. */
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

    pthread_mutex_lock(&d->mutex);
    for (int64_t turns = 1; !d->stop; turns++) {
        int64_t call_ms;

        wait_a_turn(d);
        call_ms = longest(d);
        if (d->phase == JOINING)
            check_joining(d, turns, call_ms);
        else if (d->phase == JOINED)
            check_joined(d, call_ms);
        else
            check_leaving(d, call_ms);
    }
    pthread_mutex_unlock(&d->mutex);
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
        snprintf(text, FSDP__NETWORK_TEXT, "cannot start the thread that looks after the network: %s", strerror(error));
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

bool fsdp__deadline_open(const fsdp__network_ops *ops, int64_t join_ms, void **network, fsdp__network_world *out,
                         char *text)
{
    fsdp__deadline *d = fsdp__calloc(1, sizeof *d);
    bool started;
    call *c;

    *network = NULL;
    if (!d) {
        snprintf(text, FSDP__NETWORK_TEXT, "%s", fsdp_last_error());
        return false;
    }
    d->ops = ops;
    d->joining_ms = join_ms;
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

void fsdp__deadline_joined(fsdp__deadline *deadline, fsdp__watch *watch)
{
    pthread_mutex_lock(&deadline->mutex);
    deadline->phase = JOINED;
    deadline->watch = watch;
    deadline->rank = watch->link->places.rank;
    pthread_mutex_unlock(&deadline->mutex);
}

void fsdp__deadline_leaving(fsdp__deadline *deadline)
{
    pthread_mutex_lock(&deadline->mutex);
    deadline->leaving_ms = deadline->watch ? atomic_load(&deadline->watch->timeout_ms) : deadline->joining_ms;
    deadline->phase = LEAVING;
    deadline->watch = NULL;
    pthread_mutex_unlock(&deadline->mutex);
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
