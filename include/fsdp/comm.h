/* fsdp/comm.h - process groups and collectives over (pointer, count, dtype, stream).
 *
 * Every context has a world group. Other groups are subsets of its ranks. Every rank of a group must call its
 * collectives in the same order and with matching arguments. Each call carries a sequence number (which also counts the
 * library's own calls, e.g. as ranks join) and a signature (kind, bytes, dtype, operation); ranks that disagree all get
 * one error that names both calls. A rank that dies, or calls fsdp_abort, ends every other rank's call with an error
 * that names it (FSDP_COMM). After a failure the group is broken: every later call fails at once with the same status
 * and with the reason after "group 'name' is broken: ".
 *
 * Reductions add in rank order with an f32 accumulator (integers: i64), so every run gives the same bits. They round
 * once; over several machines, each machine's sum is rounded to the dtype that travels, and then their sum. An average
 * is this sum divided by the number of ranks (in f32, not multiplied by an inverse).
 *
 * [Note: ranks that do not come]
 * A call that waits for a peer checks its peers five times a second. If a peer has ended or left, the call fails at
 * once. Ranks whose programs wait for each other in a circle that none of them can leave (for instance in different
 * groups) get FSDP_MISMATCH within half a second, with the place of each: "rank 0 waits for rank 1 in call 3 of group
 * 'a' (barrier), and rank 1 waits for rank 0 in call 7 of group 'b' (all_reduce): ...". A circle over several machines
 * ends after the timeout, with FSDP_COMM and the same places (docs/cluster.md).
 *
 * A peer that is stuck for the whole timeout (fsdp_context_set_comm_timeout) ends the world with FSDP_COMM and a
 * message that says what every rank did last. A peer is stuck if at every check it has run no kernel and no collective
 * since the check before, has used at most a millisecond of processor time on all of its threads, and its program
 * neither runs, nor is ready to run, nor waits for a disk. A peer that computes may take any time; warnings in the log
 * say which rank waits for which, first after a fifth of the timeout, then at doubled intervals. Time is measured by
 * the waiting rank and does not pass while that rank is itself stopped (Ctrl-Z of the whole job, a suspended machine).
 * A peer on the same machine that is stopped alone (SIGSTOP) is named in the log at once and counts as stuck. The log's
 * sink is called on the waiting thread, which may be a stream's worker.
 *
 * Calls marked [collective] must be made by every rank of the group (or world). Calls marked [blocks] return when their
 * work is done, which may require other ranks to arrive. Calls marked [stream] enqueue work on `stream` and return; on
 * an inline stream the work is done on return. Buffers are memory of the stream's device and must stay valid until the
 * work is done. After a failed call, too, they are the caller's again, unless a network card writes by itself or the
 * program also calls MPI; in those cases it is best to end the process. Waiting ranks do not spin for long but sleep,
 * so there may be more ranks than cores.
 */
#ifndef FSDP_COMM_H
#define FSDP_COMM_H

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_process_group fsdp_process_group;

typedef enum fsdp_reduce_op {
    FSDP_SUM,
    FSDP_AVG,
    FSDP_MAX,
    FSDP_MIN,
    FSDP_REDUCE_OPS
} fsdp_reduce_op;

/* ---- contexts that belong to a world ---- */

/* Runs `body` on `world_size` ranks, which are threads of this process with a context each, and waits for all of them.
 * Returns the first failure (by time). If a body fails, the world is aborted, so that its peers do not wait for it.
 * options: NULL, or threads per rank in options->threads (the rank and size fields are ignored). [blocks] */
typedef fsdp_status (*fsdp_rank_body)(fsdp_context *context, void *arg);
FSDP_API fsdp_status fsdp_run_threads(int world_size, const fsdp_context_options *options, fsdp_rank_body body,
                                      void *arg);
/* Creates such contexts without threads; `contexts` has room for world_size. Each context must be used, and freed, by
 * its own thread. */
FSDP_API fsdp_status fsdp_context_create_threads(int world_size, const fsdp_context_options *options,
                                                 fsdp_context **contexts);
/* Creates a world of any size in which only this rank is real. Collectives check and count but move nothing between
 * ranks: a gather repeats this rank's data, a reduction returns it. For planning. */
FSDP_API fsdp_status fsdp_context_create_fake(int rank, int world_size, fsdp_context **out);
/* Does the same for `machines` machines with machine_ranks ranks each; rank r is on machine r / machine_ranks. Traffic
 * between them is counted (network_sent and the fields after it in fsdp_comm_stats), to the byte and message, as if all
 * ranks did what this one does. `one_level` counts as with FSDP_ONE_LEVEL=1 (docs/cluster.md). */
FSDP_API fsdp_status fsdp_context_create_fake_machines(int rank, int machines, int machine_ranks, bool one_level,
                                                       fsdp_context **out);

/* ---- groups ---- */

/* Returns the group of all ranks, owned by the context; it has one rank if fsdp_context_create made the context. */
FSDP_API fsdp_process_group *fsdp_world(fsdp_context *context);
/* Creates a group of `ranks`: global ranks, ascending, without repetition. Other ranks get *out = NULL. All ranks of
 * the world must call it, in the same order of groups; one call may create different subsets on different ranks, such
 * as the rows of a mesh. [collective] */
FSDP_API fsdp_status fsdp_process_group_create(fsdp_context *context, const int *ranks, int count, const char *name,
                                               fsdp_process_group **out);
/* Frees a group, but not the world; NULL is allowed. Operations of fsdp/parallel.h whose backward is still to come keep
 * the group until then. */
FSDP_API void fsdp_process_group_free(fsdp_process_group *group);
FSDP_API int fsdp_process_group_rank(const fsdp_process_group *group);
FSDP_API int fsdp_process_group_size(const fsdp_process_group *group);
FSDP_API const char *fsdp_process_group_name(const fsdp_process_group *group);
FSDP_API int fsdp_process_group_global_rank(const fsdp_process_group *group, int rank);
FSDP_API fsdp_context *fsdp_process_group_context(const fsdp_process_group *group);

/* Ends all collectives of every rank, now and later, for the reason `why`. A rank that fails before it joins a
 * collective must call it; otherwise its peers wait until their timeout. It may be called any number of times.
 * [thread-safe] */
FSDP_API void fsdp_abort(fsdp_context *context, const char *why);

/* Sets how long this rank's calls wait for a rank that is stuck; 300 by default, 0: for ever. The time is rounded up to
 * a multiple of the check interval, and to at least two of them: see [Note: ranks that do not come] above. It may be
 * set at any time and also applies to waits that have begun. FSDP_INVALID: below 0 or above 1e9. */
FSDP_API fsdp_status fsdp_context_set_comm_timeout(fsdp_context *context, double seconds);

/* Names the ways in which a group's calls on streams of a GPU can travel. Objects, barriers, and all calls on streams
 * of the CPU go through memory of the host (or MPI) in any case. */
typedef enum fsdp_carrier {
    FSDP_CARRIER_AUTO,   /* PEER in a group of processes on one machine, NCCL in one over several machines; STAGED among
                            threads of one process, and if the other is not available */
    FSDP_CARRIER_PEER,   /* by memory of the GPUs that the ranks of a machine read from each other */
    FSDP_CARRIER_NCCL,   /* by NVIDIA's NCCL */
    FSDP_CARRIER_STAGED, /* through memory of the host, which the host copies to and from */
    FSDP_CARRIERS
} fsdp_carrier;

/* Returns "auto", "peer", "nccl" or "staged". */
FSDP_API const char *fsdp_carrier_name(fsdp_carrier carrier);
/* Choose a carrier. The first function does so for all groups of the context that have no carrier yet and for all later
 * groups, the second for one group. Choose the same on every rank. A group gets its carrier at its first call on a
 * stream of a GPU, or when parameters that are sharded over it get their bytes on a GPU. All ranks of the group must
 * make that call with a GPU, and the log says which carrier it is and why. If a carrier was asked for by name and is
 * not available, that call fails with FSDP_UNSUPPORTED and says on which rank and why. FSDP_STATE: the group has a
 * carrier.
 *
 * By PEER and NCCL a rank's calls come to its GPU in the order in which the program makes them, on whatever streams and
 * groups. So all ranks must make the calls of the groups that they have in common in the same order, and no call may
 * wait for something that only a later call brings about. Ranks that differ are ended after the timeout. */
FSDP_API fsdp_status fsdp_context_set_carrier(fsdp_context *context, fsdp_carrier carrier);
FSDP_API fsdp_status fsdp_process_group_set_carrier(fsdp_process_group *group, fsdp_carrier carrier);
/* Lets NCCL make the sums of groups that have no carrier yet. It sends less between machines, but adds in an order of
 * its own and rounds at each addition, to the dtype that travels. So results differ in their last bits from those of
 * any other way, and with the number of ranks and of machines. AUTO then means NCCL, also on one machine, and no other
 * carrier is accepted. Set the same on every rank. */
FSDP_API fsdp_status fsdp_context_set_nccl_sums(fsdp_context *context, bool on);

/* Says which memory of a rank is registered with NCCL. The results are the same bits in any case. */
typedef enum fsdp_nccl_buffers {
    FSDP_NCCL_REGISTERED, /* 64 MiB of the GPU for each group, in which exact sums are packed, and arrive */
    /* Registers 32 MiB more, through which buffers are gathered, too, and asks NCCL to let copy engines gather and
     * exchange where it can: from version 2.28 on, among GPUs that are linked inside one machine. Then no kernel takes
     * multiprocessors from the computation, but gathered rows are copied once more. */
    FSDP_NCCL_COPY_ENGINES,
    FSDP_NCCL_PLAIN, /* nothing: it copies through buffers of its own */
    FSDP_NCCL_BUFFERS
} fsdp_nccl_buffers;

/* Chooses the registered memory of groups that have no carrier yet; FSDP_NCCL_REGISTERED is the default. A group that
 * has a carrier keeps what it has registered. Set the same on every rank. If NCCL cannot use the memory, or its
 * registration fails, the group works without, and the log says so. FSDP_INVALID: there is no such value. */
FSDP_API fsdp_status fsdp_context_set_nccl_buffers(fsdp_context *context, fsdp_nccl_buffers buffers);
/* Returns the group's carrier; AUTO: it has none yet. */
FSDP_API fsdp_carrier fsdp_process_group_carrier(const fsdp_process_group *group);

/* ---- collectives on plain buffers ----
 * In-place use is allowed where stated. `count` is per rank; 0 is allowed. On an inline stream the call is complete on
 * return, and all buffers may be reused. */

/* Sets recv (size * count) to the ranks' send (count) in rank order. In place: send == recv + rank * count.
 * [collective] [stream] */
FSDP_API fsdp_status fsdp_all_gather(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_stream *stream);
/* Sets recv (count) to the reduction by op, over all ranks, of part `rank` of send (size * count). In place: recv ==
 * send + rank * count. [collective] [stream] */
FSDP_API fsdp_status fsdp_reduce_scatter(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                         fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream);
/* Sets recv (count) to the reduction by op of all ranks' send (count). In place: recv == send. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_reduce(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream);
/* Copies the buffer (count) of group rank `root` to all ranks. [collective] [stream] */
FSDP_API fsdp_status fsdp_broadcast(fsdp_process_group *group, void *buffer, int64_t count, fsdp_dtype dtype, int root,
                                    fsdp_stream *stream);
/* Sets part r of recv to part `rank` of rank r's send; both are (size * count). Not in place. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_barrier(fsdp_process_group *group); /* [collective] [blocks] */

/* Gathers a small object of any size from each rank to every rank: out[r] has out_bytes[r] bytes. The caller frees with
 * fsdp_objects_free(group, out, out_bytes). [collective] [blocks] */
FSDP_API fsdp_status fsdp_gather_objects(fsdp_process_group *group, const void *object, size_t bytes, void ***out,
                                         size_t **out_bytes);
/* Sends objects[r] of rank `root` to rank r; other ranks pass NULL. The caller frees *out with free(). [collective]
 * [blocks] */
FSDP_API fsdp_status fsdp_scatter_objects(fsdp_process_group *group, int root, const void *const *objects,
                                          const size_t *bytes, void **out, size_t *out_bytes);
FSDP_API void fsdp_objects_free(fsdp_process_group *group, void **objects, size_t *bytes);
/* Tells all ranks the outcome: FSDP_OK only if `mine` is FSDP_OK on every rank, else the status and message of the
 * lowest failing rank. Makes a local failure everybody's without breaking the group. In a group of several ranks the
 * message is preceded by "rank N: ", unless another group's agreement has added that, and followed by " (machine 'b')"
 * if ranks are on several machines and it does not name that one. [collective] [blocks] */
FSDP_API fsdp_status fsdp_agree(fsdp_process_group *group, fsdp_status mine);

/* ---- counters ---- */

typedef enum fsdp_collective {
    FSDP_ALL_GATHER,
    FSDP_REDUCE_SCATTER,
    FSDP_ALL_REDUCE,
    FSDP_BROADCAST,
    FSDP_ALL_TO_ALL,
    FSDP_BARRIER,
    FSDP_OBJECTS,
    FSDP_COLLECTIVES
} fsdp_collective;

typedef struct fsdp_comm_stats {
    int64_t calls[FSDP_COLLECTIVES];
    /* Bytes that a ring algorithm sends per rank: (W-1)/W n for an all-gather or reduce-scatter of n padded bytes,
     * twice that for an all-reduce. These are the algorithm's figures, whatever the transport does. Groups of one rank
     * send and count nothing. */
    int64_t bytes_sent[FSDP_COLLECTIVES];
    int64_t calls_of[FSDP_COLLECTIVES][FSDP_REDUCE_OPS]; /* reductions by the operation on the wire */
    int64_t bytes_moved[FSDP_COLLECTIVES];               /* bytes that this rank has copied or read from peers */
    /* Traffic of this rank with ranks of other machines: bytes of buffers only, and the number of messages sent, which
     * carry them or a header of the call (docs/cluster.md). */
    int64_t network_sent[FSDP_COLLECTIVES], network_received[FSDP_COLLECTIVES];
    int64_t network_messages[FSDP_COLLECTIVES];
} fsdp_comm_stats;

FSDP_API const char *fsdp_collective_name(fsdp_collective kind);
FSDP_API void fsdp_process_group_stats(const fsdp_process_group *group, fsdp_comm_stats *out);
FSDP_API void fsdp_context_comm_stats(const fsdp_context *context,
                                      fsdp_comm_stats *out); /* of all groups, including freed ones */
FSDP_API void fsdp_context_reset_comm_stats(fsdp_context *context);
/* Returns the host nanoseconds that this rank has spent in collectives: in total, and waiting for peers. */
FSDP_API void fsdp_context_comm_time(const fsdp_context *context, int64_t *total_ns, int64_t *waiting_ns);

/* ======== for experts: most programs need nothing below ========
 *
 * ---- coalesced collectives for sharded parameters ----
 *
 * A sharded buffer describes one parameter as (outer, rows, inner), where `rows` is the sharded dimension: `outer`
 * consecutive runs of `numel` elements. Of each run group rank r owns [r * chunk, min(numel, (r+1) * chunk)). `shard`
 * is this rank's own part of all runs, without gaps (may be NULL if empty). Ranks pass the same sizes and dtypes in the
 * same order; each buffer of a call may have its own dtypes.
 *
 * Memory that peers can access makes these collectives cheap (fsdp_process_group_alloc). If `unsharded` is shared
 * memory, a gather is a cast of this rank's own rows (or nothing, if `shard` is already in place with the same dtype)
 * and a barrier. If it is symmetric memory, peers copy their parts straight to the final place. A reduction reads
 * peers' rows in place. Other memory needs packing. The results are the same bits. The buffers of one gather are either
 * all in shared memory, at the same places of the same regions on every rank (else FSDP_MISMATCH), or none of them is,
 * on any rank. The region may belong to a larger group; FSDP_UNSUPPORTED in a group that could not have one
 * (fsdp_process_group_can_share).
 *
 * Reuse: peers may still read this rank's `unsharded` when the call is done here. It may be overwritten once a later
 * collective of the group (such as a barrier) is complete on this rank; fsdp_process_group_free_memory takes care of
 * that. Shared memory is overwritten by the next gather that any rank makes into it, so every rank needs a barrier
 * between its last read of one gather's result and the next gather there. If two regions are used in turn, no barrier
 * is needed, as long as each rank reads the first region before it gathers into the second.
 *
 * A reduction adds each rank's `unsharded`, which must be that rank's own memory (symmetric memory, or any other): if
 * ranks pass the same shared memory, the same bytes are added several times. */

typedef struct fsdp_sharded_buffer {
    void *unsharded;
    void *shard;
    int64_t numel, chunk; /* of one run */
    int64_t outer;        /* number of runs; 0: one */
    fsdp_dtype unsharded_dtype, shard_dtype;
    /* For a reduction: each rank's contribution is rounded to this dtype before it is added (f32 sum); NONE:
     * unsharded_dtype. */
    fsdp_dtype reduce_dtype;
} fsdp_sharded_buffer;

/* Sets `unsharded` to the ranks' shards, converted. `buffers` is copied. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_gather_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers,
                                               int64_t count, fsdp_stream *stream);

typedef struct fsdp_reduce_options {
    fsdp_reduce_op op; /* SUM or AVG */
    float predivide;   /* divides each contribution before it is rounded to the reduce dtype; 0 means 1 */
    float divisor;     /* divides the result, times the number of ranks for AVG; 0 means 1 */
    bool accumulate;   /* shard += result */
    /* NULL, or one byte a buffer, preset by the caller to 0 or 1. A byte is set to 1, once the stream's work is done,
     * if any rank contributed to its buffer. The memory must stay valid until then; not all ranks need to pass it. */
    uint8_t *contributed;
} fsdp_reduce_options;

/* Sets each shard to the reduction by op, over all ranks, of this rank's rows of their `unsharded`; with a divisor, to
 * the sum divided once, in f32, by the divisor (times the number of ranks for AVG). A rank that has nothing to add to a
 * buffer passes NULL as its `unsharded`, whatever the others do: it is left out of the sum but still counts as one of
 * the ranks. A shard to which no rank contributed is not written, even without `accumulate`, and nothing is sent for
 * it. If no rank contributed to any buffer, the call does not count as a reduce_scatter. A rank that passes NULL counts
 * the call when it runs, others when it is issued. [collective] [stream] */
FSDP_API fsdp_status fsdp_reduce_scatter_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers,
                                                   int64_t count, const fsdp_reduce_options *options,
                                                   fsdp_stream *stream);

typedef enum fsdp_memory_sharing {
    FSDP_MEMORY_SYMMETRIC, /* this rank's own memory, readable by peers */
    FSDP_MEMORY_SHARED,    /* one region for all ranks of a machine; each rank writes its own part */
} fsdp_memory_sharing;

/* Returns whether the group can provide such memory: it has several ranks, either all on one machine, or the same local
 * ranks on each of several machines that do not use one level (FSDP_ONE_LEVEL). On several machines there is one region
 * on each. */
FSDP_API bool fsdp_process_group_can_share(const fsdp_process_group *group, fsdp_memory_sharing sharing);
/* Allocates memory, 64-byte aligned. SHARED is zeroed and [collective] with equal bytes on every rank; SYMMETRIC is
 * local and reuses freed memory. For that the host waits for reads in flight [blocks], except for those of a group's
 * last two calls: so a program finds the same memory free in every run, however fast its streams are.
 * FSDP_UNSUPPORTED: the group cannot provide it. The memory is not counted in a device's ledger, because only the
 * caller knows its kind. */
FSDP_API fsdp_status fsdp_process_group_alloc(fsdp_process_group *group, fsdp_memory_sharing sharing, size_t bytes,
                                              void **out);
/* Frees memory; call it before the group is freed. SYMMETRIC memory is reused only after every peer has finished
 * reading it, SHARED memory when every rank has freed it. Freeing SHARED memory that does not exist (any more) does
 * nothing. */
FSDP_API void fsdp_process_group_free_memory(fsdp_process_group *group, fsdp_memory_sharing sharing, void *pointer,
                                             size_t bytes);
/* Forces the packing path even if memory is shared (for tests and comparison). Set the same on every rank. */
FSDP_API void fsdp_process_group_force_copy(fsdp_process_group *group, bool on);

#ifdef __cplusplus
}
#endif
#endif
