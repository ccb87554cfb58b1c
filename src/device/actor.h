/* actor.h - who does things one after the other: the host thread of a rank, and each of its streams that has a thread.
 *
 * [Note: what orders actors]
 * What one actor does is ordered after what another did by an instant of the other: a snapshot of its clock, which is
 * taken when the other gets there and joined when the one starts from there. The host's instants start every item that
 * it queues; those of a stream are what events mark. A stream is told what to wait for in an order, which its next item
 * carries: so the queues hold the same items with and without the check. */
#ifndef DEVICE_ACTOR_H
#define DEVICE_ACTOR_H

#include <stddef.h>

#include "device/vector_clock.h"

typedef struct fsdp__actor fsdp__actor;
typedef struct fsdp__order fsdp__order;

/* A place in the sequence of an actor. Shared, and complete when the actor has come there. */
typedef struct fsdp__instant {
    int64_t refs;
    fsdp__vector_clock clock;
    uint64_t number;            /* the item of its stream after which it is */
    fsdp__order *after;         /* waits of the stream that no item had carried */
    struct fsdp__instant *next; /* of those that the stream has still to reach */
} fsdp__instant;

/* What lies in front of the next item: it comes after an instant, and perhaps memory is used there. */
struct fsdp__order {
    fsdp__order *next;
    fsdp__instant *after;
    const void *memory; /* NULL: none */
    size_t bytes;
    bool writes, frees;
    uint64_t step;    /* of the host, which gives the memory back */
    const char *what; /* lives as long as uses do */
};

struct fsdp__actor {
    int id, rank;
    bool live;     /* false: its place can be had by another actor of the rank */
    char name[24]; /* "the host", "stream 2" */
    fsdp__vector_clock clock;
    fsdp__instant *now; /* while nothing has happened since; NULL: none */
    const char *within; /* the collective that runs; NULL: none */
    uint64_t number;    /* of that */

    /* Streams with a thread only. */
    bool has_thread;
    uint64_t queued, done; /* items */
    fsdp__order *first, *last;
    fsdp__instant *awaited; /* instants that it has still to reach */
};

/* All of them: false or NULL when out of memory. Under one mutex for all actors that know each other. */

fsdp__actor *fsdp__actor_create(int id, int rank, bool has_thread);
void fsdp__actor_free(fsdp__actor *actor);

void fsdp__instant_unref(fsdp__instant *instant);

/* Something was done: instants taken from now on lie after it. Gives the step it was. */
uint64_t fsdp__actor_step(fsdp__actor *actor);
/* The actor comes after the instant. */
bool fsdp__actor_join(fsdp__actor *actor, const fsdp__instant *instant);
/* The instant at which the actor is. The caller owns a reference. */
fsdp__instant *fsdp__actor_now(fsdp__actor *actor);

/* The instant after all that was queued, or done by a host. The caller owns a reference. */
fsdp__instant *fsdp__actor_mark(fsdp__actor *actor);
/* Work that is queued from now on comes after the instant. */
bool fsdp__actor_await(fsdp__actor *actor, fsdp__instant *instant);
/* Memory is used in front of the next item, as the order says, which is copied; `after` is where the host stands. */
bool fsdp__actor_expect(fsdp__actor *actor, const fsdp__order *use);
/* An item is queued: takes the orders that it carries; puts them back, when it could not be queued. */
fsdp__order *fsdp__actor_queue(fsdp__actor *actor);
void fsdp__actor_unqueue(fsdp__actor *actor, fsdp__order *orders);
/* The uses that the next item was to have. */
void fsdp__actor_forget_uses(fsdp__actor *actor);
/* An item is done. */
bool fsdp__actor_finish(fsdp__actor *actor);
void fsdp__orders_free(fsdp__order *orders);

#endif
