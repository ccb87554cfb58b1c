/* network_watch.h - what ranks of different machines know of each other apart from their calls: that they live, what
 * they do, that one has left, and why the world is broken.
 *
 * A thread of every rank tells and listens, a few dozen times a second and on a tag of its own; nothing waits for it.
 * Every second, or four times in a timeout, it tells its counterparts (the same local rank of every other machine) that
 * it lives, and which call the rank is in. What it hears of them it writes on its machine's board (board.h), along with
 * what it says itself. So every rank knows of all, and each hears from one rank of each machine.
 *
 * A rank that waits for another looks here whether that one will come (verdict.h). Time is counted in ticks that the
 * thread has slept through. No tick passes while a rank is itself stopped. A remote rank's silence counts only while
 * somebody is known to listen: its listener, which has the same local rank on the reader's machine, must be heard
 * of. */
#ifndef COMM_HEALTH_NETWORK_WATCH_H
#define COMM_HEALTH_NETWORK_WATCH_H

#include <pthread.h>

#include "comm/health/news.h"
#include "comm/health/pulse.h"
#include "comm/transport/arena/arena_group.h"
#include "comm/transport/arena/signature.h"

/* What this rank has counted of another rank, and heard from it in meetings. */
typedef struct fsdp__known {
    uint64_t beats;     /* as last seen on the board */
    int64_t silent;     /* ticks since the last beat */
    int64_t left;       /* ticks since the rank has left; 0: it has not */
    fsdp__doing met;    /* what it said in a meeting with this rank */
    uint64_t met_beats; /* 1 + the beats that were heard by then; 0: there was no meeting */
} fsdp__known;

typedef struct fsdp__watch {
    fsdp_context *context;
    fsdp__link *link;
    const fsdp__symmetric *local;
    void *board;    /* of this machine */
    bool one_level; /* ranks of one machine compare their calls over the network, too */
    pthread_t thread;
    bool started;
    /* this rank is about to leave; its counterparts know that; the thread is to end */
    _Atomic bool leaving, told, stop;
    _Atomic int64_t timeout_ms, tick_ms, ticks;
    pthread_mutex_t mutex;       /* guards `doing` and `known` */
    fsdp__doing doing;           /* of this rank */
    fsdp__known *known;          /* by rank */
    _Atomic int awaits;          /* 1 + a rank that one of its calls waits for over the network; 0: none */
    _Atomic uint64_t wait_beats; /* beats of the heart that only say that this rank waits */
    fsdp__pulse pulse;           /* this rank's own */
    uint64_t beats;              /* beats of the heart when the pulse was taken, without `wait_beats` */
    int64_t still;
    fsdp__letters letters;
} fsdp__watch;

/* Begins to tell and listen. */
fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp_context *context, fsdp__link *link, const fsdp__symmetric *local,
                             bool one_level);
/* Ends the thread, which sends the last words first if the rank leaves. */
void fsdp__watch_stop(fsdp__watch *watch);
/* Frees what the watch has. `whole`: the ranks take leave in the network, which still sends what is on its way and
 * keeps it for good. */
void fsdp__watch_close(fsdp__watch *watch, bool whole);
void fsdp__watch_set_timeout(fsdp__watch *watch, int64_t timeout_ms, int64_t tick_ms);
/* Notes a moment of a call on this rank, in the group of the tag. */
void fsdp__watch_note(fsdp__watch *watch, const char *group, int tag, const fsdp__call *call, fsdp__moment moment);

/* Notes what a rank has said in a meeting of the group about its call: this is fresher than its last beat. */
void fsdp__watch_met(fsdp__watch *watch, int rank, const char *group, int tag, const fsdp__signature *theirs);

/* Notes that a thread of this rank has spent this processor time on looking whether others have come: it is no sign of
 * life. */
void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns);

/* Writes what this rank does: "in call 6 of group 'world' (...)". */
void fsdp__watch_doing_text(fsdp__watch *watch, char *text, size_t bytes);
/* Gets what is known of a rank; returns false if that cannot be read now. */
bool fsdp__watch_heard(fsdp__watch *watch, int rank, fsdp__heard *out);
/* Returns the number of ticks so far. */
int64_t fsdp__watch_ticks(const fsdp__watch *watch);
fsdp__known fsdp__watch_known(fsdp__watch *watch, int rank);
/* Returns the number of ticks in which a rank that can speak does so. */
int64_t fsdp__watch_fresh_ticks(const fsdp__watch *watch);
/* Returns whether the board shows what the rank is doing now: it speaks, and is listened to. */
bool fsdp__watch_is_fresh(fsdp__watch *watch, int rank);

#endif
