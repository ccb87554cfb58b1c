/* verdict.h - decides whether a rank that is awaited will come, ends the world if it will not, and reports long waits
 * before that. `waited`: ticks since something came from the rank, or since it is awaited. */
#ifndef COMM_HEALTH_VERDICT_H
#define COMM_HEALTH_VERDICT_H

#include "comm/health/peers.h"

/* Breaks the world if something of `rank` is awaited that will not come: the rank has left or died; or nothing was
 * heard of it for the timeout; or it has got nothing done for that long and is in no call; or nobody gets anything
 * done. */
void fsdp__verdict_look(fsdp__peers *peers, int rank, int64_t waited);
/* Does the same for a rank that has not said yet that it leaves, while this one leaves. */
void fsdp__verdict_last_word(fsdp__peers *peers, int rank);
/* Ends the world if another rank of this machine makes a different call of the group under the number of the call that
 * `rank` (of this machine) is in. Signatures may never show this: one of the two may wait for the network before it
 * would meet the other. */
void fsdp__verdict_disagreement(fsdp__board *board, int group, int rank);
/* Warns in the log that this rank waits for `rank`: after a fifth of the timeout, then at doubled intervals. `*next`
 * must be 0 when a wait begins. */
void fsdp__verdict_tell_slow(fsdp__peers *peers, int rank, int64_t waited, int64_t *next);

#endif
