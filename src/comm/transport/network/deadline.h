/* deadline.h - puts a time limit on calls of the network that do not come back.
 *
 * A carrier may wait for ever: while ranks join and leave, for a rank that is stopped or a machine that cannot be
 * reached; and MPI, in the middle of a call, for a peer that has died. No thread can be called back from there. So a
 * thread that never calls the network counts how long each call lasts. Where one is over its time, the process says why
 * and ends, with status 1:
 *
 *   while ranks join    the time that is given for all of joining, whatever it waits for; or 10 s without one of the
 *                       processes that were started beside this one: it has ended, and its starter waits too;
 *   later               comm.timeout: the world breaks;
 *   in a broken world   5 s more, or comm.timeout where that is less, counted from the break;
 *   as they leave       comm.timeout, but at least 10 s and at most a minute.
 *
 * Time is counted in turns of the thread, so a process that was stopped has not waited; and a call does not last longer
 * in a turn in which a thread of the process got no core. */
#pragma once

#include "comm/health/peers.h"
#include "comm/transport/network/network.h"

typedef struct fsdp__deadline fsdp__deadline;

/* Holds what is known while ranks join. */
typedef struct fsdp__joining {
    int64_t ms;          /* the time that all ranks have for it; 0: no end */
    bool warns;          /* this process reports that it takes long */
    int started;         /* number of processes that the starter has started on this machine; 0: not known */
    int (*living)(void); /* returns how many of them live; below 0: not known */
} fsdp__joining;

/* A carrier with a time limit: the functions of `ops`, each with its limit. Its network is a deadline, made by the
 * function below instead of `open`. */
extern const fsdp__network_ops fsdp__deadline_ops;
bool fsdp__deadline_open(const fsdp__network_ops *ops, const fsdp__joining *joining, void **network,
                         fsdp__network_world *out, char *text);

/* Returns NULL if the network is not a deadline. */
fsdp__deadline *fsdp__deadline_of(const fsdp__network_ops *ops, void *network);
/* Says that all have joined: from here on `peers` knows the timeout, and what this rank is doing. */
void fsdp__deadline_joined(fsdp__deadline *deadline, fsdp__peers *peers);
/* Says that nothing but `close` comes now; `peers` may be freed. */
void fsdp__deadline_leaving(fsdp__deadline *deadline);
