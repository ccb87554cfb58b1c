/* actor.h - things that happen one after the other: those of a rank's host thread, and of each of its streams that has
 * a thread.
 *
 * [Note: what orders actors]
 * What one actor does is ordered after what another did by an instant of the other: a snapshot of its clock, which is
 * taken when the other gets there and joined when the first one starts from there. The host's instants start every item
 * that it queues; those of a stream are what events mark. What a stream must wait for is kept in an order, which its
 * next item carries: so the queues hold the same items with and without the check. */
#pragma once

#include <stddef.h>

#include "check/vector_clock.h"

typedef struct fsdp__actor fsdp__actor;
typedef struct fsdp__order fsdp__order;

/* Marks a place in the sequence of an actor. It is shared, and complete once the actor has got there. */
typedef struct fsdp__instant {
    int64_t refs;
    fsdp__vector_clock clock;
    uint64_t number;            /* the item of its stream behind which it lies */
    fsdp__order *after;         /* waits of the stream that no item carried yet */
    struct fsdp__instant *next; /* next of the instants that the stream has still to reach */
} fsdp__instant;

/* Holds what comes before the next item: the item starts after an instant, and perhaps memory is given back there. */
struct fsdp__order {
    fsdp__order *next;
    fsdp__instant *after;
    const void *memory; /* NULL: none */
    size_t bytes;
    uint64_t step; /* the host's, that gives it back */
};

/* Holds what a stream has in its queue. */
typedef struct fsdp__item {
    struct fsdp__item *next;
    fsdp__order *orders;
    fsdp__instant *queued; /* where the host was when it queued the item */
} fsdp__item;

struct fsdp__actor {
    int id, rank;
    bool live;     /* false: another actor of the rank may take its place */
    char name[24]; /* "the host", "stream 2" */
    fsdp__vector_clock clock;
    fsdp__instant *now; /* valid while nothing has happened since; NULL: none */
    const char *within; /* the collective that runs; NULL: none */
    uint64_t number;    /* sequence number of that collective */

    /* Only streams with a thread have these. */
    bool has_thread;
    uint64_t queued, done;      /* items */
    fsdp__order *first, *last;  /* before the next item */
    fsdp__item *items, *newest; /* that have not begun; `newest` only where there are any */
    fsdp__instant *awaited;     /* instants that the stream has still to reach */
};

/* The functions below return false or NULL when out of memory. One mutex must guard all actors that know each other. */

fsdp__actor *fsdp__actor_create(int id, int rank, bool has_thread);
void fsdp__actor_free(fsdp__actor *actor);

void fsdp__instant_unref(fsdp__instant *instant);

/* Records that something was done: instants taken from now on lie after it. Returns its step. */
uint64_t fsdp__actor_step(fsdp__actor *actor);
/* Orders the actor after the instant. */
bool fsdp__actor_join(fsdp__actor *actor, const fsdp__instant *instant);
/* Returns the instant at which the actor is. The caller owns a reference. */
fsdp__instant *fsdp__actor_now(fsdp__actor *actor);

/* Returns the instant after all that was queued, or that a host has done. The caller owns a reference. */
fsdp__instant *fsdp__actor_mark(fsdp__actor *actor);
/* Orders work that is queued from now on after the instant. */
bool fsdp__actor_await(fsdp__actor *actor, fsdp__instant *instant);
/* Records what comes before the next item. `before` is copied; its `after` is where the host is. */
bool fsdp__actor_expect(fsdp__actor *actor, const fsdp__order *before);
/* Queues an item, which carries the orders and starts after the place where the host is. */
bool fsdp__actor_queue(fsdp__actor *actor, fsdp__actor *host);
/* Takes the last item back, because it could not be queued. */
void fsdp__actor_unqueue(fsdp__actor *actor);
/* Takes the first item out of the queue. The caller owns it and what it carries. */
fsdp__item *fsdp__actor_begin(fsdp__actor *actor);
/* Records that an item is done. */
bool fsdp__actor_finish(fsdp__actor *actor);
void fsdp__orders_free(fsdp__order *orders);
