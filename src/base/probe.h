/* probe.h - points that the product names, and to which anybody may subscribe.
 *
 * At a point the product tells its subscribers what it is about to do or has done; it does not know who listens. Where
 * nobody does a point costs a load and a branch. At points marked [asks] a subscriber may refuse: then the product
 * fails as it would if the system had refused.
 *
 * A subscriber is told on the thread that is at the point, which may be any thread of any rank, and several at once. It
 * must not change what the product does otherwise, and must not reach a point that it listens to unless it ignores
 * itself there, as check/fault.c does. What has begun is told to be done, also if it failed or was refused. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "fsdp/context.h"
#include "fsdp/dtype.h"

/* Each names the fields of its event that are set. context: at all but those of the process. */
typedef enum fsdp__point {
    /* ---- the process ---- */
    FSDP__POINT_CONTEXT_OPENED, /* [asks] context: it was made from the environment, and nothing was done with it */
    FSDP__POINT_ALLOCATION,     /* [asks] before memory of the host or of a device is taken: bytes */
    /* [asks, with errno] Before a file is made, written, synced or renamed. bytes: those of a write, which the
     * subscriber may reduce; 0: it is no write. */
    FSDP__POINT_WRITE,
    /* [asks, with errno] Before a folder is made, or a file or folder removed, also by a clean-up that ignores
     * failures. */
    FSDP__POINT_FOLDER,
    /* A thread lends its work to the thread that is told to borrow the same object, until it borrows it back. */
    FSDP__POINT_WORK_LENT,     /* object */
    FSDP__POINT_WORK_BORROWED, /* object */

    /* ---- memory of a context's devices, and memory that its ranks share ---- */
    FSDP__POINT_MEMORY_MAPPED,     /* a range that several threads use: memory, bytes. It may be mapped already */
    FSDP__POINT_MEMORY_UNMAPPED,   /* before it is gone: memory */
    FSDP__POINT_MEMORY_TAKEN,      /* stream (the device's own), memory, bytes, kind: fsdp_memory_kind */
    FSDP__POINT_MEMORY_GIVEN_BACK, /* before, in the order of the device's own stream: the same */
    /* The device's ledger has changed: stream, kind, object: whose memory it is (fsdp__taker), number: by how many
     * bytes, negative numbers modulo 2^64 */
    FSDP__POINT_MEMORY_COUNTED,
    FSDP__POINT_MEMORY_NAMED, /* what lies in a part of a block from now on: memory, bytes, kind, name */
    /* [asks] Before the stream's running work uses memory without a kernel: stream, memory, bytes, kind: fsdp__access,
     * name: what it does. */
    FSDP__POINT_MEMORY_USED,

    /* ---- streams: stream ---- */
    FSDP__POINT_DEVICE_CLOSED, /* object: the device, which is gone */
    FSDP__POINT_STREAM_OPENED, /* [asks] */
    FSDP__POINT_STREAM_CLOSED, /* its work is done, and it is gone: object: what its `watcher` was. stream is NULL */
    /* The work of a stream with a thread, which does it in the order in which it was queued. number: of the item among
     * those of its stream, from 1 */
    FSDP__POINT_ITEM_QUEUED,  /* [asks] before */
    FSDP__POINT_ITEM_REFUSED, /* the last one could not be queued */
    FSDP__POINT_ITEM_BEGUN,   /* on that thread, as the next one */
    FSDP__POINT_ITEM_DONE,
    FSDP__POINT_EVENT_RECORDED, /* event */
    /* The stream waits for it from here on, and an inline stream has waited: event, ns: when that was asked for */
    FSDP__POINT_EVENT_AWAITED,
    FSDP__POINT_EVENT_REACHED,  /* the host has waited for it: event, ns: since when. stream is NULL */
    FSDP__POINT_EVENT_CLOSED,   /* before it is gone: event. stream is NULL */
    FSDP__POINT_STREAM_REACHED, /* the host has waited for all of its work: ns: since when */

    /* ---- what streams do. ns: the clock of base/clock.h ---- */
    FSDP__POINT_KERNEL_ISSUED, /* kind: fsdp__kernel, name, object: its arguments */
    FSDP__POINT_KERNEL_BEGUN,  /* [asks] the same, ns. A caller's own function: kind FSDP__KERNELS, no arguments */
    FSDP__POINT_KERNEL_DONE,   /* kind, name, ns */
    /* A copy between the host and a device: memory (to), from, bytes, name, kind: fsdp__access, of the device's memory.
     * BEGUN and DONE are told inside the stream's work: ns. from is NULL where the host reads it itself. */
    FSDP__POINT_COPY_ISSUED, /* [asks] before it is queued; not told of a copy that is made inside other work */
    FSDP__POINT_COPY_BEGUN,  /* [asks] */
    FSDP__POINT_COPY_DONE,

    /* ---- collectives: object, the group ---- */
    FSDP__POINT_COLLECTIVE_CALLED, /* [asks] before it has a number */
    /* group (its name), name, label, number (of the group's calls, from 1), stream (NULL: the host alone), ns;
     * kind: fsdp_collective, or FSDP_COLLECTIVES for calls that are none of them, and word: its name; ranks of the
     * group; bytes: those of the larger side, with padding, and their dtype where all have one. Calls with neither
     * bytes nor a dtype move no tensors. */
    FSDP__POINT_COLLECTIVE_ISSUED,
    FSDP__POINT_COLLECTIVE_BEGUN, /* it is the turn of this call */
    FSDP__POINT_COLLECTIVE_DONE,
    /* Calls of the context's groups fail from now on, which its peers know: context, kind: fsdp_status, name: why */
    FSDP__POINT_WORLD_BROKEN,

    /* ---- order between threads of several ranks that comes from something other than an event ---- */
    /* All that the rank did before it publishes (object, number) lies before what follows an acquire of that number.
     * Published before another thread may go on, acquired when it is known to have been published. The numbers of an
     * object rise. stream NULL: the rank's host. */
    FSDP__POINT_ORDER_PUBLISHED, /* stream, object, number */
    FSDP__POINT_ORDER_ACQUIRED,  /* the same */

    /* ---- a run: ns ---- */
    /* Groups of parameters. name (of the module, or NULL), kind: fsdp_shard_event, and word: its name, phase:
     * of the module's training, number: how many groups there are, object: the state */
    FSDP__POINT_SHARD_CHANGED,
    FSDP__POINT_STAGE_BEGUN, /* of a run, on the thread that does it: name, number: of its step, from 1 */
    FSDP__POINT_STAGE_DONE,
    FSDP__POINT_STEP_BEGUN, /* of an optimizer, object. context is NULL where it has no parameters */
    FSDP__POINT_STEP_DONE,
    FSDP__POINT_RUN_ENDED, /* kind: fsdp_status: FSDP_OK, or a failure that all ranks have in the same way. ns is not
                              set */
    FSDP__POINT_MEMORY_LACKED, /* it ends because memory ran out: name: who has the memory, in lines. ns is not set */
    FSDP__POINT_BATCH_BEGUN,   /* on the thread that makes it: object (its ring), number. context may be NULL */
    FSDP__POINT_BATCH_DONE,
    FSDP__POINT_PART_BEGUN, /* this rank's file of a checkpoint: name, bytes */
    FSDP__POINT_PART_DONE,

    FSDP__POINTS
} fsdp__point;

/* Describes an event. Fields that a point does not name are 0. */
typedef struct fsdp__probe_event {
    fsdp__point point;
    int kind;
    const fsdp_context *context;
    struct fsdp_stream *stream;
    struct fsdp_event *event;
    const void *object, *memory, *from;
    size_t bytes;
    const char *name, *label, *group, *word, *phase;
    uint64_t number;
    int64_t ns;
    int ranks;
    fsdp_dtype dtype;
} fsdp__probe_event;

typedef struct fsdp__subscriber {
    _Atomic uint64_t points; /* the sum of FSDP__POINT_BIT of each that it listens to */
    /* What it returns counts at points that ask; FSDP_OK elsewhere. */
    fsdp_status (*see)(void *arg, fsdp__probe_event *event);
    void *arg;
    struct fsdp__subscriber *_Atomic next; /* for probe.c */
} fsdp__subscriber;

#define FSDP__POINT_BIT(point) ((uint64_t)1 << (point))

/* Adds a subscriber to the points of the whole process, for as long as the process lives. [thread-safe] */
void fsdp__subscribe(fsdp__subscriber *subscriber);
/* Tells `see` from now on of what happens in a context. Returns NULL, with a last error, when out of memory. Call it on
 * the context's own thread. */
fsdp__subscriber *fsdp__context_subscribe(fsdp_context *context, uint64_t points,
                                          fsdp_status (*see)(void *arg, fsdp__probe_event *event), void *arg);
/* Ends that; NULL is allowed. A subscriber may do so while it is told. Nobody may be at a point that it listens to on
 * another thread: before it ends, what it has heard of streams is waited for. */
void fsdp__unsubscribe(fsdp__subscriber *subscriber);

/* ---- for the product ---- */

/* A context begins with the first of its subscribers (context.c), so a pointer to one is a pointer to the other. */

/* Changes what a subscriber listens to. */
void fsdp__listen(fsdp__subscriber *subscriber, uint64_t points);

extern _Atomic uint64_t fsdp__probed; /* the points that somebody listens to */

static inline bool fsdp__is_probed(fsdp__point point)
{
    return atomic_load_explicit(&fsdp__probed, memory_order_relaxed) & FSDP__POINT_BIT(point);
}

/* Tells all who listen to the point. Returns the first refusal, after which nobody else is told: those who were told
 * before hear nothing of it. */
fsdp_status fsdp__probe(fsdp__probe_event *event);

/* Tells, with the fields of the event: FSDP__TELL(WORK_LENT, .object = saver). */
#define FSDP__TELL(which, ...)                                                                  \
    do {                                                                                        \
        if (fsdp__is_probed(FSDP__POINT_##which))                                               \
            (void)fsdp__probe(&(fsdp__probe_event){.point = FSDP__POINT_##which, __VA_ARGS__}); \
    } while (0)
/* Asks in the same way. A status. */
#define FSDP__ASK(which, ...)                                                           \
    (fsdp__is_probed(FSDP__POINT_##which)                                               \
         ? fsdp__probe(&(fsdp__probe_event){.point = FSDP__POINT_##which, __VA_ARGS__}) \
         : FSDP_OK)
/* Asks whether a file or folder may be used. Returns true, with errno set, when it may not. `*bytes` are those of a
 * write, and may be reduced; NULL: it is no write. */
static inline bool fsdp__file_is_refused(fsdp__point point, size_t *bytes)
{
    fsdp__probe_event event;
    bool refused;

    if (!fsdp__is_probed(point))
        return false;
    event = (fsdp__probe_event){.point = point, .bytes = bytes ? *bytes : 0};
    refused = fsdp__probe(&event) != FSDP_OK;
    if (bytes)
        *bytes = event.bytes;
    return refused;
}
