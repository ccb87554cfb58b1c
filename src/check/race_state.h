/* race_state.h - what the ranks of a process that are checked against each other have in common. For races.c only. */
#pragma once

#include <pthread.h>

#include "check/actor.h"
#include "check/shadow.h"

typedef struct fsdp__races {
    pthread_mutex_t mutex; /* guards all of it */
    int64_t refs;          /* number of ranks */
    fsdp__actor **actors;  /* by id; never freed before, as uses name them */
    int64_t actor_count, actor_capacity;
    fsdp__shadow *shadow;
    struct fsdp__channel *channels;
    char **texts; /* names that uses refer to, each stored once */
    int64_t text_count, text_capacity;
    bool lost;        /* out of memory to keep track: no race is found any more */
    char report[960]; /* the first race; "": none */
} fsdp__races;

/* Holds a rank's part, in its context's slot. */
typedef struct fsdp__race_rank {
    fsdp__races *all;
    fsdp__actor *host;
    int rank;
} fsdp__race_rank;

/* Locks. Until it is unlocked the thread's faults rest: what the check uses for itself is not the caller's. */
void fsdp__races_lock(const fsdp__race_rank *rank);
void fsdp__races_unlock(fsdp__races *races);

/* The functions below need the lock. */

/* Adds an actor; one that has left may give its place to a new one of the same rank. NULL when out of memory. */
fsdp__actor *fsdp__races_add_actor(fsdp__races *races, int rank, bool has_thread);
/* Returns a copy of the text that lives as long as `races`; NULL when out of memory. */
const char *fsdp__races_text(fsdp__races *races, const char *text);
/* Post makes known under (key, number) what `actor` has done; collect orders `actor` after what all have posted under
 * numbers up to that one. */
void fsdp__races_post(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number);
void fsdp__races_collect(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number);
