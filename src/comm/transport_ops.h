/* transport_ops.h - what a transport provides, as a table for each of its jobs. A transport makes contexts
 * (fsdp_context_create_threads, fsdp__shm_join, ...) and attaches itself to them with its tables; nothing above knows
 * which transport it is (except that objects.c knows the fake one).
 *
 * comm/ checks every argument, counts, numbers the calls of each group and keeps a failure sticky: it does so once,
 * above all transports. A transport moves bytes, compares the ranks' signatures and ends everybody's calls when one
 * rank fails.
 *
 * [Note: issued on a stream]
 * The collectives of a group are called one at a time in the order of their numbers, each from inside the work of
 * traffic->stream, on whatever thread runs that work; those of different groups may run side by side. A slot may block,
 * but it must neither wait for that stream, whose work it is, nor queue anything there. What it does to the buffers it
 * does by functions that may be called inside a stream's work: kernels (fsdp__run_kernel) and copies
 * (fsdp__run_copy_to_host, fsdp__run_copy_to_device). It follows a pointer itself only where fsdp__device_host_access
 * says that the host may. Host memory that kernels are given, such as a staging buffer, is registered with the device
 * first; the host's side of a copy may be any memory. call->buffers and the call itself are host memory.
 *
 * A kernel is *issued* when fsdp__run_kernel returns: what the device runs next on this stream comes after it, and so
 * does an fsdp__run_copy function, but the host and other ranks must not rely on it. Whoever is about to tell a peer by
 * host memory that something has been written or read settles the stream first (fsdp__stream_settle). There are three
 * such places, and all transports go through them: the meeting of ranks in an arena (fsdp__rendezvous), the end of a
 * read of shared memory (comm/readers.c), and the end of every call (comm/issue.c), after which the next call may use
 * the group's staging from another stream. On a device of which the host may follow pointers a kernel is complete when
 * it returns, so that there is nothing to settle.
 *   - A transport that works on the memory itself (threads, shm) blocks until its peers are there and runs kernels.
 *   - A transport whose library reads and writes host memory (MPI, from any thread) gives it the buffers where the host
 *     may follow them; otherwise it copies into its own memory, calls the library, which may block, and copies back.
 *   - A library that only issues, on a stream of the device (NCCL, or peers' memory that kernels of the device read),
 *     is no transport but a *device carrier* under one: carrier.h.
 * A transport may use the streams' workspace in any slot but all_gather and all_to_all, which are called while packed
 * pieces lie there (transport/coalesced.h). Groups of one rank and streams of a device without bytes never reach a
 * transport. */
#pragma once

#include "comm/group_calls.h"
#include "fsdp/comm.h"

/* The public call that was made: for signatures and messages. */
#define FSDP__CALL_MAP(X)                                   \
    X(ALL_GATHER, "all_gather")                             \
    X(REDUCE_SCATTER, "reduce_scatter")                     \
    X(ALL_REDUCE, "all_reduce")                             \
    X(BROADCAST, "broadcast")                               \
    X(ALL_TO_ALL, "all_to_all")                             \
    X(BARRIER, "barrier")                                   \
    X(ALL_GATHER_COALESCED, "all_gather_coalesced")         \
    X(REDUCE_SCATTER_COALESCED, "reduce_scatter_coalesced") \
    X(GATHER_OBJECTS, "gather_objects")                     \
    X(SCATTER_OBJECTS, "scatter_objects")                   \
    X(AGREE, "agree")                                       \
    X(PROCESS_GROUP_CREATE, "process_group_create")         \
    X(PROCESS_GROUP_ALLOC, "process_group_alloc")           \
    X(ANY, "any")                                           \
    X(CARRIER, "choose a carrier")

typedef enum fsdp__call_name {
#define FSDP__CALL_ENUM(NAME, text) FSDP__CALL_##NAME,
    FSDP__CALL_MAP(FSDP__CALL_ENUM)
#undef FSDP__CALL_ENUM
    FSDP__CALLS
} fsdp__call_name;

const char *fsdp__call_text(fsdp__call_name name);

/* Describes one collective with checked arguments. Which fields are used depends on the slot that gets it. */
typedef struct fsdp__call {
    fsdp__call_name name;
    uint64_t sequence; /* from 1, per group */

    const void *send;
    void *recv;    /* broadcast: the buffer */
    int64_t count; /* elements per rank, 0 is allowed */
    fsdp_dtype dtype;
    fsdp_reduce_op op;
    int root;
    /* all_reduce: flags in host memory, 0 or 1 each. A flag becomes 1 where it is 1 on any rank. NULL: all of this
     * rank's flags are 1. */
    uint8_t *flags;
    int64_t flag_count;
    bool *lacking; /* all_reduce: becomes true where a flag is 0 on any rank. Host memory, or NULL */

    const fsdp_sharded_buffer *buffers; /* buffer_count of them */
    int64_t buffer_count;
    /* A transport runs a plain call by the rows of buffers: that call is then `plain`, which is what ranks compare, and
     * whose memory peers may read until it ends. NULL: this call itself was made */
    const struct fsdp__call *plain;
    /* reduce_scatter_coalesced: `predivide` divides each contribution, `divisor` the result (times the number of ranks
     * for AVG); 1: no division */
    float predivide, divisor;
    bool accumulate;
    uint8_t *contributed; /* per buffer, set by fsdp__contributed; or NULL */
    bool counted;         /* the call was counted when it was issued; otherwise fsdp__contributed counts it */
    bool shared;          /* all_gather_coalesced: all non-empty buffers lie in SHARED memory (shared_memory.h) */
    uint64_t places;      /* where they lie: equal on all ranks; 0: nothing lies there */
    bool force_copy;      /* take the path for memory that peers cannot see */
    char label[FSDP__LABEL_BYTES];

    size_t bytes;           /* size of the shared memory asked for */
    fsdp_device *device;    /* in whose memory it is to lie, which the ranks have in common; NULL: the host's */
    fsdp_status own_status; /* process_group_alloc: why this rank cannot take part */
} fsdp__call;

/* Holds what a call did; the transport adds to it. */
typedef struct fsdp__traffic {
    fsdp_stream *stream;                    /* the call is part of this stream's work; NULL: of the host's */
    bool carried;                           /* by a device carrier: it is issued, and nothing is settled */
    int64_t moved_bytes;                    /* bytes copied, or read from peers */
    int64_t network_sent, network_received; /* bytes of the call's buffers, to and from other machines' memory */
    int64_t network_messages;               /* messages sent to other machines, with buffers or headers */
    int64_t waiting_ns;
    bool counts; /* the call is to be counted, as a reduction by `op` that sent `sent_bytes`: known only once it ran */
    int64_t sent_bytes;
    fsdp_reduce_op op;
} fsdp__traffic;

/* Describes a new group: `ranks` are `count` (2 or more) global ranks, and this rank is ranks[rank]. NULL: all ranks of
 * the world, from 0 on. */
typedef struct fsdp__process_group_spec {
    const char *name;
    const int *ranks;
    int count, rank;
    uint64_t ticket; /* the same number on all ranks for one fsdp_process_group_create, another for the next */
} fsdp__process_group_spec;

/* The stages of a call on this rank, in this order. */
typedef enum fsdp__moment {
    FSDP__CALL_ISSUED, /* the program has numbered it */
    FSDP__CALL_BEGUN,  /* it is its turn */
    FSDP__CALL_DONE
} fsdp__moment;

typedef fsdp_status (*fsdp__collective)(void *group, const fsdp__call *call, fsdp__traffic *traffic);

typedef struct fsdp__collective_ops {
    /* Required. Buffers may be in place where fsdp/comm.h allows it. */
    fsdp__collective all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, barrier;
    fsdp__collective all_gather_coalesced,
        reduce_scatter_coalesced; /* transport/coalesced.h packs where no memory is shared */
} fsdp__collective_ops;

/* Serves memory that peers see. All slots are required. */
typedef struct fsdp__memory_ops {
    /* Hand out this rank's own memory. */
    fsdp_status (*alloc)(void *transport, size_t bytes, void **out);
    void (*free)(void *transport, void *pointer);
    /* `alloc_shared` is a collective (call->bytes); if there is no memory, it fails on all ranks and breaks nothing.
     * `free_shared` is local. */
    fsdp_status (*alloc_shared)(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
    void (*free_shared)(void *group, void *pointer);
} fsdp__memory_ops;

/* Serves readers of shared memory. All slots but the last two are required. A rank's reads of a region are numbered
 * from 1. */
typedef struct fsdp__reader_ops {
    /* The program calls `read_begin` and `read_end`; the latter returns the number of the read that ended. `read_done`
     * is called with that number when the work before it has run. */
    void (*read_begin)(void *group, void *pointer);
    uint64_t (*read_end)(void *group, void *pointer);
    void (*read_done)(void *group, void *pointer, uint64_t number);
    uint64_t (*reads_ended)(void *group, void *pointer);
    /* Returns whether every rank is done with the reads up to `number`. */
    bool (*readers_done)(void *group, void *pointer, uint64_t number);
    /* Waits until every rank is done with the reads up to `number`. It waits in the work of the stream `worker`, behind
     * which stand the group's calls after the first `issued`; or, with NULL, in the program itself, which then does
     * nothing else. Fails when a rank that is not done is gone, or is itself waiting for this one, or the world has
     * ended. */
    fsdp_status (*await_readers)(void *group, void *pointer, uint64_t number, const fsdp_stream *worker,
                                 uint64_t issued);
    /* Of memory that lies on a device, from inside the work of a stream: counts the reads up to `number` as over when
     * the device gets there, which others know by the device alone, and makes the stream wait until the reads of all
     * up to it are over. NULL, both: there is no such memory. */
    fsdp_status (*device_done)(void *group, void *pointer, uint64_t number, fsdp_stream *stream);
    fsdp_status (*device_await)(void *group, void *pointer, uint64_t number, fsdp_stream *stream);
} fsdp__reader_ops;

/* Watching over ranks that wait for each other. All slots are required. */
typedef struct fsdp__health_ops {
    /* Tells of a call of the group, on the thread on which the moment happens; after a call that failed, it first waits
     * for peers that still read its caller's memory. */
    void (*note)(void *group, const fsdp__call *call, fsdp__moment moment);
    /* Tells whether this rank's program (its host thread) waits for calls or readers of the group and does nothing
     * else. `worker` is the stream whose work it waits for; NULL: it waits for what it does itself, or for work on any
     * stream. */
    void (*host_waits)(void *group, const fsdp_stream *worker, bool waits);
    /* Looks after the ranks of the group for a device that has waited for them for so many ticks: ends the world if one
     * of them will not come, and fails when the world has ended. Called every tick, by one thread that does nothing
     * else. */
    fsdp_status (*look_after)(void *group, int64_t ticks);
    /* Says how long to wait for a rank that stands still (milliseconds, 0: for ever), and how long a tick is. */
    void (*set_timeout)(void *transport, int64_t timeout_ms, int64_t tick_ms);
} fsdp__health_ops;

typedef struct fsdp__comm_ops {
    const char *name; /* "threads", "shm", "machines", "fake" */

    const fsdp__collective_ops *collectives; /* required */
    const fsdp__memory_ops *memory;          /* NULL: peers see no memory of each other */
    const fsdp__reader_ops *readers;         /* with `memory`; NULL where ranks have no peers */
    const fsdp__health_ops *health;          /* NULL: nobody watches */
    const struct fsdp__carrier_ops *peer; /* by memory that devices read from each other; NULL: there is no such way */

    /* Required. `group_open` is called on every member, then (when all of them succeeded) `group_ready`, which cannot
     * fail, then collectives. `group_free` may be called at any time when no collective is running. */
    fsdp_status (*group_open)(void *transport, const fsdp__process_group_spec *spec, void **out);
    void (*group_ready)(void *group);
    void (*group_free)(void *group);

    /* Required. Ends all ranks' calls, now and later, because this rank has failed as `why` says (fsdp__board_fail);
     * the first reason stays. May be called on any thread. */
    void (*abort)(void *transport, const char *why);
    /* Required. Ends this rank's part in the world and frees `transport`. */
    void (*close)(void *transport);

    /* Returns whether the ranks of a machine are threads of one process; NULL: they are not, or there is one. */
    bool (*are_threads)(const void *transport);
    /* `machines` returns on how many machines the group has members; NULL: on one. `can_share` returns whether the
     * group has memory that peers see; NULL: it has if the transport has. */
    int (*machines)(const void *group);
    bool (*can_share)(const void *group);
    /* Returns the name of a global rank's machine; NULL, or no such slot: it need not be said. */
    const char *(*host_of)(const void *transport, int rank);

    /* Returns what the readers' slots call the group; NULL: the group itself. */
    void *(*reader_group)(void *group);
    /* Tells that what a gather of this buffer into shared memory brings to this rank from other machines is not needed
     * any more; nobody reads there. NULL: nothing comes from other machines. */
    void (*give_back)(void *group, const fsdp_sharded_buffer *buffer);

    /* Makes the world, and groups made from now on, add as machines with `ranks` ranks each do:
     * [Note: order of addition] in order.h. NULL: the transport has no shared memory to add in, or adds so anyway. */
    void (*add_by_machine)(void *transport, void *world_group, int ranks);
    /* Returns how many ranks' contributions the group adds first; NULL: it adds all in rank order. */
    int (*block)(const void *group);
} fsdp__comm_ops;

/* Describes the transport without peers: every rank of the world is taken to hold what this one holds. It also serves
 * groups of one rank. `transport` is NULL, or belongs to a world of several machines (fake_world.h). */
extern const fsdp__comm_ops fsdp__comm_fake_ops;
