/* race_state.h - what the ranks of a process that are checked against each other have in common. For races.c. */
#ifndef DEVICE_RACE_STATE_H
#define DEVICE_RACE_STATE_H

#include <pthread.h>

#include "device/actor.h"
#include "device/shadow.h"
#include "fsdp/context.h"

typedef struct fsdp__races {
    pthread_mutex_t mutex; /* of all of it */
    int64_t refs;          /* ranks */
    fsdp__actor **actors;  /* by id; they stay, as uses name them */
    int64_t actor_count, actor_capacity;
    fsdp__shadow *shadow;
    struct fsdp__channel *channels;
    char **texts; /* names that uses refer to, each once */
    int64_t text_count, text_capacity;
    bool lost;        /* there was no memory to keep count: nothing is found any more */
    char report[960]; /* the first race; "": none */
} fsdp__races;

/* A rank's part, in its context's slot. */
typedef struct fsdp__race_rank {
    fsdp__races *all;
    fsdp__actor *host;
    int rank;
} fsdp__race_rank;

/* While it is locked, the thread's fault points rest: what the check takes for itself is no use of the caller's. */
fsdp__races *fsdp__races_lock(const fsdp__race_rank *rank);
void fsdp__races_unlock(fsdp__races *races);

/* Locked from here on. */

/* NULL when out of memory. A place that an actor of the rank has left is used again. */
fsdp__actor *fsdp__races_add_actor(fsdp__races *races, int rank, bool has_thread);
/* The same text for as long as `races` lives; NULL when out of memory. */
const char *fsdp__races_text(fsdp__races *races, const char *text);
/* What `actor` has done is known under (key, number); `actor` comes after what all have posted under numbers up to
 * that. */
void fsdp__races_post(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number);
void fsdp__races_collect(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number);

#endif
