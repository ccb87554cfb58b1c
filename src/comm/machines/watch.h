/* watch.h - what ranks of different machines know of each other beside their calls: that they live, what they do, that
 * one has left, and why the world is broken.
 *
 * A thread of every rank tells and listens, a few dozen times a second and on a tag of its own; nothing waits for it.
 * To its counterparts, the same local rank of every other machine, it says that it lives, every second or four times in
 * a timeout, with the call that the rank is in; what it hears of them it writes on its machine's board (board.h), and
 * what it says itself. So every rank knows of all, and each hears of one rank a machine.
 *
 * Who waits for a rank looks here whether that will come (verdict.h). Time is counted in ticks that the thread
 * has slept through: none passes while a rank is itself stopped, and none of the silence of a rank elsewhere while
 * nobody is known to listen: its listener, who shares its local rank and the reader's machine, must be heard of. */
#ifndef COMM_MACHINES_WATCH_H
#define COMM_MACHINES_WATCH_H

#include <pthread.h>

#include "comm/machines/news.h"
#include "comm/symmetric/group.h"
#include "comm/symmetric/pulse.h"
#include "comm/symmetric/signature.h"

/* Of one rank, as this one has counted and met it. */
typedef struct fsdp__known {
    uint64_t beats;     /* as last seen on the board */
    int64_t silent;     /* ticks since there was another */
    int64_t left;       /* ticks since it has left; 0: it has not */
    fsdp__doing met;    /* what it said in a meeting of this rank's, */
    uint64_t met_beats; /* 1 + the beats that were heard then; 0: it never did */
} fsdp__known;

typedef struct fsdp__watch {
    fsdp_context *context;
    fsdp__link *link;
    const fsdp__symmetric *local;
    void *board;    /* of this machine */
    bool one_level; /* ranks of a machine compare their calls over the network, too */
    pthread_t thread;
    bool started;
    _Atomic bool leaving, told, stop; /* this rank is about to leave; its counterparts know */
    _Atomic int64_t timeout_ms, tick_ms, ticks;
    pthread_mutex_t mutex;        /* of the following */
    fsdp__doing doing;            /* this rank's */
    fsdp__waiting waiting;        /* the same, over the network */
    uint64_t looks, looks_told;   /* of the program, for whom it waits; as many at the last beat */
    int64_t unlooked;             /* beats since there was one */
    uint64_t heard, heard_number; /* at the last beat: beats of whom it waits for, in which wait */
    int64_t program_in;           /* 1 + the tag of the group that its program waits in; 0: it does not */
    fsdp__known *known;           /* by rank */
    _Atomic uint64_t wait_beats;  /* of the heart, that say no more than that this rank waits */
    fsdp__pulse pulse;            /* its own */
    uint64_t beats;               /* when it was taken, without those */
    int64_t still;
    fsdp__letters letters;
} fsdp__watch;

/* Begins to tell and listen. */
fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp_context *context, fsdp__link *link, const fsdp__symmetric *local,
                             bool one_level);
/* Ends the thread: with the last words, where the rank leaves. */
void fsdp__watch_stop(fsdp__watch *watch);
/* `whole`: the network is taken leave of, and sends what is still on its way, which is its own for good. */
void fsdp__watch_close(fsdp__watch *watch, bool whole);
void fsdp__watch_set_timeout(fsdp__watch *watch, int64_t timeout_ms, int64_t tick_ms);
/* Of a call on this rank, in the group of the tag. */
void fsdp__watch_note(fsdp__watch *watch, const char *group, int tag, const fsdp__call *call, fsdp__moment moment);
/* The program waits for calls of the group and does nothing else, or does no more. */
void fsdp__watch_program_waits(fsdp__watch *watch, int tag, bool waits);
/* A call of the group waits for a rank, and says so again and again; -1: no more, or something has come from there:
 * from then on it is another wait. */
void fsdp__watch_waits(fsdp__watch *watch, int tag, int whom);

/* A rank has said in a meeting of the group what it calls there: fresher than its last beat. */
void fsdp__watch_met(fsdp__watch *watch, int rank, const char *group, int tag, const fsdp__signature *theirs);

/* A thread of this rank has used so much processor time to look whether others have come: no sign of life. */
void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns);

/* "in call 6 of group 'world' (...)": what this rank does. */
void fsdp__watch_doing_text(fsdp__watch *watch, char *text, size_t bytes);
/* What is known of a rank; false: nothing now. */
bool fsdp__watch_heard(fsdp__watch *watch, int rank, fsdp__heard *out);
/* Ticks so far. */
int64_t fsdp__watch_ticks(const fsdp__watch *watch);
fsdp__known fsdp__watch_known(fsdp__watch *watch, int rank);
/* In so many ticks a rank that can speak does. */
int64_t fsdp__watch_fresh_ticks(const fsdp__watch *watch);
/* Whether what stands on the board of the rank is what it is doing: it speaks, and is listened to. */
bool fsdp__watch_is_fresh(fsdp__watch *watch, int rank);

#endif
