/* vector_clock.h - how much of what each actor does is known to lie before some moment (Lamport; Mattern, "Virtual time
 * and global states of distributed systems", 1989). Actor i's n-th step lies before every moment whose clock has at[i]
 * >= n. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All zero: before everything. */
typedef struct fsdp__vector_clock {
    int64_t count, capacity;
    uint64_t *at; /* by actor; 0 beyond `count` */
} fsdp__vector_clock;

void fsdp__vector_clock_release(fsdp__vector_clock *clock);
uint64_t fsdp__vector_clock_at(const fsdp__vector_clock *clock, int actor);
/* Sets the actor's step. Returns false when out of memory; then nothing has changed. */
bool fsdp__vector_clock_set(fsdp__vector_clock *clock, int actor, uint64_t step);
/* Moves the clock on so that it also lies after `other`. Returns false when out of memory; then nothing has changed. */
bool fsdp__vector_clock_join(fsdp__vector_clock *clock, const fsdp__vector_clock *other);
/* Returns whether all that lies before `other` lies before `clock`. */
bool fsdp__vector_clock_covers(const fsdp__vector_clock *clock, const fsdp__vector_clock *other);
