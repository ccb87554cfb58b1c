/* comm.h - what a context knows of its world, and what a group is. For comm/ only. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "comm/carrier.h"
#include "comm/transport_ops.h"
#include "device/device.h"

typedef struct fsdp__comm fsdp__comm;

/* The order is that of fsdp_comm_stats. */
typedef struct fsdp__counters {
    /* Calls are counted when they are issued, except some reductions; those, and the bytes moved always, are counted
     * when the call runs, maybe on a worker. */
    _Atomic int64_t calls[FSDP_COLLECTIVES], bytes_sent[FSDP_COLLECTIVES];
    _Atomic int64_t calls_of[FSDP_COLLECTIVES][FSDP_REDUCE_OPS];
    _Atomic int64_t bytes_moved[FSDP_COLLECTIVES];
    _Atomic int64_t network_sent[FSDP_COLLECTIVES], network_received[FSDP_COLLECTIVES];
    _Atomic int64_t network_messages[FSDP_COLLECTIVES];
} fsdp__counters;

/* Freed symmetric memory that peers may still be reading. The memory begins with this struct. */
typedef struct fsdp__held_memory {
    struct fsdp__held_memory *next;
    uint64_t issued; /* calls issued when it was freed */
} fsdp__held_memory;

struct fsdp_process_group {
    fsdp__comm *comm;
    const fsdp__comm_ops *ops; /* the world's, or the fake transport's for a group of one */
    void *transport_group;
    fsdp_process_group *next; /* in comm->groups */
    char *name;
    int *ranks; /* global, ascending */
    int rank, size;
    int64_t refs;    /* the owner's, and those of graphs */
    uint64_t ticket; /* of the group's creation, the same on all ranks; 0: the world */
    bool force_copy;
    char label[FSDP__LABEL_BYTES]; /* of the coalesced calls issued from now on */

    /* See [Note: turns] in turns.h. */
    _Atomic uint64_t issued; /* counted by the host; a worker that waits for readers reads it */
    uint64_t known_done;     /* the program's order alone shows that calls up to this one have run */
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t done;    /* under the mutex, as the next */
    int64_t readings; /* ends of reads, and waits for readers, that streams have in their queues */

    fsdp_carrier wanted;
    fsdp__carriage carriage; /* changed under comm->mutex, by the program's thread except for its last fields */

    fsdp__held_memory *held; /* newest first */
    fsdp__counters counters;
};

struct fsdp__comm {
    fsdp_context *context;
    const fsdp__comm_ops *ops;
    void *transport;
    fsdp_process_group *world;
    /* all live groups; the host changes the list under the mutex, workers read it under the mutex */
    fsdp_process_group *groups;
    struct fsdp__shared_memory *shared;
    fsdp_carrier wanted;          /* of groups that are made later */
    uint64_t carried_issued;      /* calls of carriers, of all groups; the program's */
    pthread_cond_t carried_moved; /* under the mutex, as the next */
    uint64_t carried_done;
    bool nccl_sums;                    /* groups by NCCL leave sums to it */
    fsdp_nccl_buffers nccl_buffers;    /* what they show it */
    int64_t outbox_bytes;              /* of half an outbox of those that have one; 0: the usual size */
    struct fsdp__carrier_watch *watch; /* NULL: no group has a carrier */
    fsdp__counters counters;           /* of all groups, including freed ones */
    _Atomic int64_t total_ns, waiting_ns;
    _Atomic int64_t tick_ms; /* how often a rank that waits for others looks around */

    _Atomic bool broken;
    pthread_mutex_t mutex; /* guards the two fields below, and changes to `groups` */
    fsdp_status broken_status;
    char broken_text[1024];
};

/* Returns whether a carrier takes the group's calls on `stream`. */
static inline bool fsdp__is_carried(const fsdp_process_group *group, const fsdp_stream *stream)
{
    return stream && group->carriage.ops && fsdp__stream_device(stream) == group->carriage.device;
}

/* Returns the collectives of the group's calls on `stream`: its carrier's, or its transport's. */
static inline const fsdp__collective_ops *fsdp__collectives_of(const fsdp_process_group *group,
                                                               const fsdp_stream *stream)
{
    return fsdp__is_carried(group, stream) ? group->carriage.ops->collectives : group->ops->collectives;
}

/* Returns the position of a global rank in `ranks`, or -1 if it is not there. */
static inline int fsdp__position_of(int rank, const int *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}
