/* deadline.h - an end for calls of the network that do not come back.
 *
 * A carrier may wait for ever: as ranks join and leave, for one that is stopped or a machine that cannot be reached;
 * and MPI, in the middle of a call, for a peer that has died. No thread can be called back from there. So one that
 * never calls the network counts how long each call lasts, and where one is over its time the process says why and
 * ends, with status 1:
 *
 *   while ranks join    the time that is given for all of it, whatever it waits for; or 10 s without one of the
 *                       processes that were started beside this one: it has ended, and whoever started it waits too;
 *   later               comm.timeout: the world breaks;
 *   in a broken world   5 s more, or comm.timeout where that is less, from the break on;
 *   as they leave       comm.timeout, but 10 s at least and a minute at most.
 *
 * Time is counted in turns of the thread, so a process that was stopped has not waited. */
#ifndef COMM_MACHINES_DEADLINE_H
#define COMM_MACHINES_DEADLINE_H

#include "comm/machines/watch.h"

typedef struct fsdp__deadline fsdp__deadline;

/* How ranks join. */
typedef struct fsdp__joining {
    int64_t ms;          /* the time that all have for it; 0: no end */
    bool warns;          /* this process says that it takes long */
    int started;         /* processes that the starter has started on this machine; 0: not known */
    int (*living)(void); /* how many of them there are; below 0: not known */
} fsdp__joining;

/* A carrier with an end: functions of `ops`, each within its time. Its network is a deadline, from the function below
 * in place of `open`. */
extern const fsdp__network_ops fsdp__deadline_ops;
bool fsdp__deadline_open(const fsdp__network_ops *ops, const fsdp__joining *joining, void **network,
                         fsdp__network_world *out, char *text);

/* NULL: the network is not one of these. */
fsdp__deadline *fsdp__deadline_of(const fsdp__network_ops *ops, void *network);
/* All have joined: from here on the watch has the timeout, and knows what this rank is doing. */
void fsdp__deadline_joined(fsdp__deadline *deadline, fsdp__watch *watch);
/* Nothing but `close` comes now; the watch may go. */
void fsdp__deadline_leaving(fsdp__deadline *deadline);

#endif
