/* watch.h - what ranks of different machines know of each other beside their calls: that they live, what they do, that
 * one has left, and why the world is broken.
 *
 * A thread of every rank tells and listens, a few dozen times a second and on a tag of its own; nothing waits for it.
 * To every other rank it says that it lives, every second or four times in a timeout, with the call that the rank is
 * in. Who waits for a rank looks here (fsdp__watch_look) whether that will come. Time is counted in ticks that the
 * thread has slept through: none passes while a rank is itself stopped. */
#ifndef COMM_MACHINES_WATCH_H
#define COMM_MACHINES_WATCH_H

#include <pthread.h>

#include "comm/machines/link.h"
#include "comm/symmetric/group.h"
#include "comm/symmetric/pulse.h"
#include "comm/symmetric/signature.h"

/* What a rank is in: the call that it has begun last. */
typedef struct fsdp__doing {
    int32_t in;     /* calls, begun and not done */
    int32_t issued; /* calls, issued and not done */
    int32_t tag;    /* of the call's group */
    int32_t name;
    uint64_t sequence; /* 0: no call yet */
    char group[FSDP__GROUP_NAME_BYTES], label[FSDP__LABEL_BYTES];
} fsdp__doing;

/* Whom a rank's program waits for, doing nothing else; -1: for nobody. `number`: another one for another wait. */
typedef struct fsdp__waiting {
    int64_t whom;
    uint64_t number;
} fsdp__waiting;

/* Of one rank, as it was heard of last. */
typedef struct fsdp__heard {
    fsdp__doing doing;
    fsdp__waiting waiting;
    int64_t same;   /* beats since it waits so */
    int64_t silent; /* ticks since */
    int64_t still;  /* ticks in which it has got nothing done, as it says */
    int64_t left;   /* ticks since it has left; 0: it has not */
} fsdp__heard;

typedef struct fsdp__watch {
    fsdp__link *link;
    const fsdp__symmetric *local;
    pthread_t thread;
    bool started;
    _Atomic bool leaving, told, stop; /* this rank is about to leave; all have been told so */
    _Atomic int64_t timeout_ms, tick_ms, ticks;
    pthread_mutex_t mutex;       /* of the following */
    fsdp__doing doing;           /* this rank's */
    fsdp__waiting waiting;       /* the same, over the network */
    int64_t program_in;          /* 1 + the tag of the group that its program waits in; 0: it does not */
    fsdp__heard *heard;          /* by rank */
    _Atomic uint64_t wait_beats; /* of the heart, that say no more than that this rank waits */
    fsdp__pulse pulse;           /* its own */
    uint64_t beats;              /* when it was taken, without those */
    int64_t still;
    struct fsdp__letter *letters; /* on their way */
} fsdp__watch;

/* Begins to tell and listen. */
fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp__link *link, const fsdp__symmetric *local);
/* Tells all that this rank takes part no more, and waits until nobody does, or the world is broken: true: nobody. Then
 * the thread has ended. One that was not opened is of no world: false. */
bool fsdp__watch_leave(fsdp__watch *watch);
void fsdp__watch_close(fsdp__watch *watch);
void fsdp__watch_set_timeout(fsdp__watch *watch, int64_t timeout_ms, int64_t tick_ms);
/* Of a call on this rank, in the group of the tag. */
void fsdp__watch_note(fsdp__watch *watch, const char *group, int tag, const fsdp__call *call, fsdp__moment moment);
/* The program waits for calls of the group and does nothing else, or does no more. */
void fsdp__watch_program_waits(fsdp__watch *watch, int tag, bool waits);
/* A call of the group waits for a rank; -1: no more. */
void fsdp__watch_waits(fsdp__watch *watch, int tag, int whom);

/* A rank has said in a meeting of the group what it calls there: fresher than its last beat. */
void fsdp__watch_met(fsdp__watch *watch, int rank, const char *group, int tag, const fsdp__signature *theirs);

/* A thread of this rank has used so much processor time to look whether others have come: no sign of life. */
void fsdp__watch_looked(const fsdp__watch *watch, int64_t cpu_ns);

/* Ticks so far. */
int64_t fsdp__watch_ticks(const fsdp__watch *watch);
/* Something of `rank` is awaited since tick `since`: breaks the world where it will not come. */
void fsdp__watch_look(fsdp__watch *watch, int rank, int64_t since);

#endif
