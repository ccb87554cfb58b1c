/* verdict.h - whether a rank that is awaited will come: what ends the world because of it, and what is told before.
 * `waited`: ticks of the watch since something came from it, or since it is awaited. */
#ifndef COMM_MACHINES_VERDICT_H
#define COMM_MACHINES_VERDICT_H

#include "comm/machines/watch.h"

/* Breaks the world where something of `rank` is awaited that will not come: it has left or died, nothing is heard of it
 * for the timeout, or it has got nothing done for that long and is in no call, or nobody gets anything done. */
void fsdp__verdict_look(fsdp__watch *watch, int rank, int64_t waited);
/* The same of a rank that has not said yet that it leaves, while this one does. */
void fsdp__verdict_last_word(fsdp__watch *watch, int rank);
/* Warns in the log that this rank waits for `rank`: after a fifth of the timeout, then at doubled intervals. `next`: 0
 * as a wait begins. */
void fsdp__verdict_tell_slow(fsdp__watch *watch, int rank, int64_t waited, int64_t *next);

#endif
