/* comm_ops.h - what a transport provides. A transport makes contexts (fsdp_context_create_threads, fsdp__shm_join, ...)
 * and attaches itself to them with its table; nothing above knows which one it is.
 *
 * comm/ checks every argument, counts, numbers the calls of each group and keeps a failure sticky, once, above all
 * transports. A transport moves bytes, compares the ranks' signatures and ends everybody's calls when one rank fails.
 *
 * [Note: issued on a stream]
 * The collectives of a group are called one at a time in the order of their numbers, each from inside the work of
 * `stream`, on whatever thread runs that work; those of different groups may run side by side. A slot may block, but
 * neither wait for `stream`, whose work it is, nor queue anything there. What it does to the buffers is done on return,
 * by the calls that are for the inside of work: kernels (fsdp__run_kernel) and copies (fsdp__run_copy_to_host,
 * fsdp__run_copy_to_device). It follows a pointer itself only where fsdp__device_host_access says that the host may.
 * Host memory that kernels are given, such as a staging buffer, is registered with the device first; the host's side of
 * a copy may be any. call->buffers and the call are the host's.
 *   - One that works on the memory itself (threads, shm) blocks until its peers are there and runs kernels; these are
 *     complete on return, so it meets its peers right after one.
 *   - One whose library reads and writes host memory (MPI, from any thread) gives it the buffers where the host may
 *     follow them; else it copies into its own memory, calls the library, which may block, and copies back.
 *   - One whose library only issues (NCCL) has no place yet: where streams run by themselves (CUDA) the backend's
 *     stream_enqueue would run the work on the host at once and kernels would be issued beneath, so slots would have to
 *     be given the stream beneath, and whatever makes peers wait would have to be issued there as well, which threads
 *     and shm do not do.
 * A transport may use the streams' workspace in any slot but all_gather and all_to_all, which are called while packed
 * pieces lie there (coalesced.h). Groups of one rank and streams of a device without bytes never reach a transport. */
#ifndef COMM_COMM_OPS_H
#define COMM_COMM_OPS_H

#include "comm/internal.h"
#include "fsdp/comm.h"

/* What the caller called: for signatures and messages. */
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
    X(ANY, "any")

typedef enum fsdp__call_name {
#define FSDP__CALL_ENUM(NAME, text) FSDP__CALL_##NAME,
    FSDP__CALL_MAP(FSDP__CALL_ENUM)
#undef FSDP__CALL_ENUM
    FSDP__CALLS
} fsdp__call_name;

const char *fsdp__call_text(fsdp__call_name name);

/* One collective with checked arguments. Which fields count depends on the slot it is given to. */
typedef struct fsdp__call {
    fsdp__call_name name;
    uint64_t sequence; /* from 1, per group */

    const void *send;
    void *recv;    /* broadcast: the buffer */
    int64_t count; /* elements per rank, 0 is allowed */
    fsdp_dtype dtype;
    fsdp_reduce_op op;
    int root;
    /* all_reduce: 0 or 1 each, the host's memory, to become 1 where one is on any rank; NULL: all of this rank's are.
     */
    uint8_t *flags;
    int64_t flag_count;
    bool *lacking; /* all_reduce: becomes true where a flag is 0 on any rank; the host's memory; or NULL */

    const fsdp_sharded_buffer *buffers; /* buffer_count of them */
    int64_t buffer_count;
    /* reduce_scatter_coalesced: of each contribution; of the result, times the ranks for AVG; 1: none */
    float predivide, divisor;
    bool accumulate;
    uint8_t *contributed; /* by buffer: fsdp__contributed says it to them; or NULL */
    bool counted;         /* when it was issued; else it is by what fsdp__contributed is told */
    bool shared;          /* all_gather_coalesced: what is not empty lies in SHARED memory (shared_memory.h) */
    uint64_t places;      /* and where: equal on all ranks; 0: nothing lies there */
    bool force_copy;      /* take the path for memory that peers do not see */
    char label[FSDP__LABEL_BYTES];

    size_t bytes;           /* shared memory asked for */
    fsdp_status own_status; /* of process_group_alloc: this rank cannot take part */
} fsdp__call;

/* What a call did, added up by the transport. */
typedef struct fsdp__traffic {
    fsdp_stream *stream;                    /* whose work the call is; NULL: the host's */
    int64_t moved_bytes;                    /* copied, or read from peers */
    int64_t network_sent, network_received; /* bytes of the call's buffers, to and from other machines' memory */
    int64_t network_messages;               /* sent to other machines, of buffers and headers */
    int64_t waiting_ns;
    bool counts; /* the call counts, as a reduction by `op` that sent `sent_bytes`: known only when it ran */
    int64_t sent_bytes;
    fsdp_reduce_op op;
} fsdp__traffic;

/* A new group: `ranks` are `count` (2 or more) global ranks of which this one is ranks[rank]. */
typedef struct fsdp__process_group_spec {
    const char *name;
    const int *ranks;
    int count, rank;
    uint64_t ticket; /* the same number on all ranks for one fsdp_process_group_create, another for the next */
} fsdp__process_group_spec;

/* What becomes of a call on this rank, in this order. */
typedef enum fsdp__moment {
    FSDP__CALL_ISSUED, /* numbered, by the program */
    FSDP__CALL_BEGUN,  /* it is its turn */
    FSDP__CALL_DONE
} fsdp__moment;

typedef fsdp_status (*fsdp__collective)(void *group, const fsdp__call *call, fsdp_stream *stream,
                                        fsdp__traffic *traffic);

typedef struct fsdp__comm_ops {
    const char *name; /* "threads", "shm", "machines", "fake" */

    /* Required. In place as fsdp/comm.h allows it. */
    fsdp__collective all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, barrier;
    /* NULL: packed, and exchanged by all_gather and all_to_all, which then get the coalesced call (its name, buffers
     * and label, for the signature) with send, recv, count and dtype of a piece, several times with one number.
     * Required with alloc_shared: rows of shared memory have one writer, which packing knows nothing of. */
    fsdp__collective all_gather_coalesced, reduce_scatter_coalesced;

    /* Required. `group_open` on every member, then (when all of them succeeded) `group_ready`, which cannot fail, then
     * collectives. `group_free` at any time; no collective is running. */
    fsdp_status (*group_open)(void *transport, const fsdp__process_group_spec *spec, void **out);
    void (*group_ready)(void *group);
    void (*group_free)(void *group);

    /* Required. Ends all ranks' calls, now and later, with `text`; the first reason stays. Any thread. */
    void (*abort)(void *transport, const char *text);
    /* Required. This rank takes part no more. Frees `transport`. */
    void (*close)(void *transport);

    /* Memory that peers see: all four or none. `alloc` and `free` hand out this rank's own; `alloc_shared` is a
     * collective (call->bytes), that there is none is everybody's failure and breaks nothing; `free_shared` is local.
     */
    fsdp_status (*alloc)(void *transport, size_t bytes, void **out);
    void (*free)(void *transport, void *pointer);
    fsdp_status (*alloc_shared)(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
    void (*free_shared)(void *group, void *pointer);

    /* Readers of shared memory: all, with alloc_shared, or none where ranks have no peers. A rank's reads of a region
     * are numbered from 1. `read_begin` and `read_end` are called as the program says so, the latter returns the number
     * of the read that ended; `read_done` with that number when the work before has run. */
    void (*read_begin)(void *group, void *pointer);
    uint64_t (*read_end)(void *group, void *pointer);
    void (*read_done)(void *group, void *pointer, uint64_t number);
    uint64_t (*reads_ended)(void *group, void *pointer);
    /* Whether every rank is done with reads up to `number`. */
    bool (*readers_done)(void *group, void *pointer, uint64_t number);
    /* Waits for that, in the work of a worker stream, which the calls of the group behind the `issued` first ones stand
     * behind, or (NULL) of the program in place of all else. Fails when a rank that is not done is gone, or waits for
     * this one in its turn, or the world has ended. */
    fsdp_status (*await_readers)(void *group, void *pointer, uint64_t number, const fsdp_stream *worker,
                                 uint64_t issued);

    /* NULL: nothing comes from elsewhere. What a gather of this buffer into shared memory brings to this rank from
     * other machines is not needed any more; nobody reads there. */
    void (*give_back)(void *group, const fsdp_sharded_buffer *buffer);

    /* Watching over ranks that wait for each other: all or none. Of a call of the group, on the thread that it happens
     * on (which after one that failed first waits for peers that still read its caller's memory); whether the program
     * of this rank (its host thread) waits for calls or readers of the group and does nothing else (`worker`: for what
     * stands on that stream; NULL: for what it does itself, or on any); how long to wait for a rank that stands still
     * (milliseconds, 0: for ever), in ticks of which length. */
    void (*note)(void *group, const fsdp__call *call, fsdp__moment moment);
    void (*host_waits)(void *group, const fsdp_stream *worker, bool waits);
    void (*set_timeout)(void *transport, int64_t timeout_ms, int64_t tick_ms);

    /* On how many machines the group has members; NULL: on one. Whether it has memory that peers see; NULL: it has if
     * the transport has. */
    int (*machines)(const void *group);
    bool (*can_share)(const void *group);
    /* What the machine of a global rank is called; NULL, or no such slot: it need not be said. */
    const char *(*host_of)(const void *transport, int rank);

    /* NULL: it has no shared memory to add in, or adds so anyway. The world, and groups made from now on, add as
     * machines of so many ranks do: [Note: order of addition] in order.h. */
    void (*add_by_machine)(void *transport, void *world_group, int ranks);
} fsdp__comm_ops;

/* The transport without peers: every rank of the world is taken to hold what this one holds. Also used for groups of
 * one rank. `transport` is NULL, or of a world of several machines (fake/machines.h); `group` the fsdp_process_group.
 */
extern const fsdp__comm_ops fsdp__comm_fake_ops;

#endif
