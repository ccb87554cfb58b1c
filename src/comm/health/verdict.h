/* verdict.h - decides what has become of ranks that others wait for, and ends the world if one will not come. All
 * that is concluded of a rank is concluded here, whoever waits for it and however: in an arena, over the network, or as
 * its starter. */
#pragma once

#include "comm/health/awaiting.h"
#include "comm/health/peers.h"

/* Says why an awaited rank will not come. */
typedef enum fsdp__fate {
    FSDP__GONE,    /* it has left, or died */
    FSDP__SILENT,  /* nothing was heard of it for the timeout */
    FSDP__STILL,   /* it has got nothing done for the timeout */
    FSDP__DISAGREE /* the ranks make different calls, or in another order */
} fsdp__fate;

/* Ends the world, unless it has ended, and says why. `rank` is the global rank to blame; -1: nobody. */
void fsdp__verdict_end(fsdp__board *board, fsdp__fate fate, int rank, const char *text);

/* ---- ranks of this machine ---- */

/* Ends the world and names `rank`, which is awaited and has left. */
void fsdp__verdict_left(fsdp__board *board, int rank);
/* Does the same if `rank` has died, which the system tells. */
void fsdp__verdict_check_alive(fsdp__board *board, int rank);
/* Ends the world if `rank`, which this one's device has waited for so many ticks, has left or died. */
void fsdp__verdict_look_at(const fsdp__health *own, int rank, int64_t ticks);
/* Returns whether it has waited wait->ticks for the device of `rank`, at which it looks, for the timeout, in which the
 * heart of that rank has not beaten. What its host does otherwise does not count: it has issued the call, or is about
 * to, and may well run while it waits for its device. */
bool fsdp__verdict_device_is_late(fsdp__wait *wait, int rank);
/* Ends the world because of that. */
void fsdp__verdict_device(const fsdp__wait *wait, const char *group, int rank);
/* Ends the world if the process that started the ranks has died. */
void fsdp__verdict_check_keeper(fsdp__board *board);
/* Returns whether the world ended because this rank was found dead. A peer has written that, and peers do not know what
 * the rank died of. */
bool fsdp__verdict_was_found(const fsdp__board *board, int rank);

/* Ends the world if the wait is part of a circle that was also seen at the last tick; returns whether it did. */
bool fsdp__verdict_circle(fsdp__wait *wait);
/* Ends the world if what the wait reaches has stood still for the timeout. */
void fsdp__verdict_reach(const fsdp__wait *wait, const fsdp__reach *reach);

/* ---- ranks that disagree ---- */

/* Ends the world with what two ranks (global) say about a call of the group, and fails with it. Every rank of the group
 * finds the same two; the rest of the world is told, too. */
fsdp_status fsdp__verdict_mismatch(fsdp__board *board, const char *group, const fsdp__signature *first, int first_rank,
                                   const fsdp__signature *other, int other_rank);
/* Ends the world if another rank of this machine makes a different call of the group under the number of the call that
 * `rank` (of this machine) is in. Signatures may never show this: one of the two may wait for the network before it
 * would meet the other. */
void fsdp__verdict_disagreement(fsdp__board *board, int group, int rank);

/* ---- ranks of any machine ---- */

/* A wait for a rank of any machine, in the ticks of the peers. */
typedef struct fsdp__awaited {
    int64_t since;  /* when something came from the rank, or when it was first awaited */
    int64_t tested; /* when somebody last began to look whether it had come, and it had not */
} fsdp__awaited;

/* Ends the world if something of `rank` is awaited that will not come: the rank has left or died; or nothing was heard
 * of it for the timeout; or it has got nothing done for that long and is in no call; or nobody gets anything done. */
void fsdp__verdict_look(fsdp__peers *peers, int rank, fsdp__awaited wait);
/* Does the same for a rank that has not said yet that it leaves, while this one leaves. */
void fsdp__verdict_last_word(fsdp__peers *peers, int rank);
