/* fsdp/comm.h - process groups and collectives over (pointer, count, dtype, stream).
 *
 * Every context has a world group. Further groups are subsets of its ranks. A collective must be called by every rank
 * of the group, in the same order with fitting arguments; each call carries a sequence number (the library's own calls,
 * as ranks join for example, are counted, too) and a signature (kind, bytes, dtype, operation), and ranks that disagree
 * all get one error that names both calls. A rank that dies, or calls fsdp_abort, ends every other rank's call with an
 * error that names it (FSDP_COMM). After a failure the group is broken: every later call fails at once, with the same
 * status and "group 'name' is broken: " before the reason.
 *
 * Reductions add in rank order with an f32 accumulator (integers: i64) and round once: the same bits on every run. An
 * average is that sum divided by the number of ranks (in f32, not multiplied by an inverse).
 *
 * [Note: ranks that do not come]
 * A call that waits for a peer looks around five times a second. A peer that has ended or left is an error at once.
 * Ranks whose programs wait for each other in a circle that none of them can leave, in different groups say, get
 * FSDP_MISMATCH within half a second (of several machines: docs/cluster.md), with the place of each: "rank 0 waits for
 * rank 1 in call 3 of group 'a' (barrier), and rank 1 waits for rank 0 in call 7 of group 'b' (all_reduce): ...".
 *
 * A peer that stands still for the timeout (fsdp_context_set_comm_timeout) ends the world with FSDP_COMM, and with what
 * every rank did last. To stand still is, at every look: no kernel, no collective, no more than a millisecond of
 * processor time on all of its threads since the look before, and a program that neither runs, nor would if it had a
 * core, nor waits for a disk. A peer that computes may take as long as it likes; warnings in the log say who waits for
 * whom, first after a fifth of the timeout, then at doubled intervals. Time is that of the waiting rank: none passes
 * while it is itself stopped (Ctrl-Z of the whole job, a suspended machine). A peer of the same machine that is stopped
 * alone (SIGSTOP) is named in the log at once, and stands still. The log's sink is called on the thread that waits,
 * which may be a stream's worker.
 *
 * Calls marked [collective] are made by every rank of the group (or world), those marked [blocks] return when their
 * work is done, which may be when other ranks have come. Calls marked [stream] enqueue on `stream` and return; on an
 * inline stream they are done on return. Buffers are memory of the stream's device and must stay valid until then;
 * after a call that failed, too, they are the caller's again (but to a network card that writes by itself, or an MPI
 * that the program calls too: there a process best ends). Nobody spins for long: waiting ranks sleep, so there may be
 * more ranks than cores.
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

/* Runs `body` on `world_size` ranks that are threads of this process, each with a context of its own, and waits for
 * all. Returns the first failure (by time). A body that fails aborts the world, so its peers do not wait for it.
 * options: NULL, or threads per rank in options->threads (rank and size fields are ignored). [blocks] */
typedef fsdp_status (*fsdp_rank_body)(fsdp_context *context, void *arg);
FSDP_API fsdp_status fsdp_run_threads(int world_size, const fsdp_context_options *options, fsdp_rank_body body,
                                      void *arg);
/* The same contexts without the threads: `contexts` has room for world_size. Each must be used, and freed, by a thread
 * of its own. */
FSDP_API fsdp_status fsdp_context_create_threads(int world_size, const fsdp_context_options *options,
                                                 fsdp_context **contexts);
/* A world of any size with this one real rank: collectives check and count, move nothing between ranks (a gather
 * repeats this rank's data, a reduction returns this rank's data). For planning. */
FSDP_API fsdp_status fsdp_context_create_fake(int rank, int world_size, fsdp_context **out);
/* The same on `machines` machines with so many ranks each, rank r on machine r / machine_ranks: what goes between them
 * is counted as it would be (network_sent and what follows it in fsdp_comm_stats), to the byte and message, if all
 * ranks did what this one does. `one_level`: as with FSDP_ONE_LEVEL=1 (docs/cluster.md). */
FSDP_API fsdp_status fsdp_context_create_fake_machines(int rank, int machines, int machine_ranks, bool one_level,
                                                       fsdp_context **out);

/* ---- groups ---- */

/* All ranks of the context; a group of one when the context was made by fsdp_context_create. Owned by the context. */
FSDP_API fsdp_process_group *fsdp_world(fsdp_context *context);
/* `ranks` are global ranks, ascending, without repetition. Ranks outside get *out = NULL. All ranks of the world call
 * it, in the same order of groups (different subsets may be made by one call per rank: rows of a mesh). [collective] */
FSDP_API fsdp_status fsdp_process_group_create(fsdp_context *context, const int *ranks, int count, const char *name,
                                               fsdp_process_group **out);
FSDP_API void fsdp_process_group_free(fsdp_process_group *group); /* not for the world; NULL is allowed */
FSDP_API int fsdp_process_group_rank(const fsdp_process_group *group);
FSDP_API int fsdp_process_group_size(const fsdp_process_group *group);
FSDP_API const char *fsdp_process_group_name(const fsdp_process_group *group);
FSDP_API int fsdp_process_group_global_rank(const fsdp_process_group *group, int rank);
FSDP_API fsdp_context *fsdp_process_group_context(const fsdp_process_group *group);

/* Ends every rank's collectives, now and later, for the reason `why`. Whoever fails before joining a collective
 * must call it, or peers wait for ever. Any number of times. */
FSDP_API void fsdp_abort(fsdp_context *context, const char *why);

/* How long this rank's calls wait for a rank that stands still; 300 by default, 0: for ever. Rounded up to looks, and
 * at least two of them. See [Note: ranks that do not come] above. Any time; waits that have begun follow, too.
 * FSDP_INVALID below 0 and above 1e9. */
FSDP_API fsdp_status fsdp_context_set_comm_timeout(fsdp_context *context, double seconds);

/* ---- collectives on plain buffers ----
 * In place is allowed where said. `count` is per rank; 0 is allowed. Complete on return of an inline stream: all
 * buffers may be reused. */

/* recv (size * count) = the ranks' send (count) in rank order. In place: send == recv + rank * count. [collective]
 * [stream] */
FSDP_API fsdp_status fsdp_all_gather(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_stream *stream);
/* recv (count) = op over ranks of part `rank` of send (size * count). In place: recv == send + rank * count.
 * [collective] [stream] */
FSDP_API fsdp_status fsdp_reduce_scatter(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                         fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream);
/* recv (count) = op over ranks of send (count). In place: recv == send. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_reduce(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream);
/* buffer (count) = that of group rank `root`. [collective] [stream] */
FSDP_API fsdp_status fsdp_broadcast(fsdp_process_group *group, void *buffer, int64_t count, fsdp_dtype dtype, int root,
                                    fsdp_stream *stream);
/* Part r of recv = part `rank` of rank r's send; both (size * count), not in place. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_barrier(fsdp_process_group *group); /* [collective] [blocks] */

/* Small objects of any size per rank. Every rank gets all of them: out[r] has out_bytes[r] bytes; the caller frees with
 * fsdp_objects_free(group, out, out_bytes). [collective] [blocks] */
FSDP_API fsdp_status fsdp_gather_objects(fsdp_process_group *group, const void *object, size_t bytes, void ***out,
                                         size_t **out_bytes);
/* Rank r gets objects[r] of `root` (NULL on the others); the caller frees *out with free(). [collective] [blocks] */
FSDP_API fsdp_status fsdp_scatter_objects(fsdp_process_group *group, int root, const void *const *objects,
                                          const size_t *bytes, void **out, size_t *out_bytes);
FSDP_API void fsdp_objects_free(fsdp_process_group *group, void **objects, size_t *bytes);
/* All ranks learn the worst: FSDP_OK only if `mine` is FSDP_OK on every rank, else the lowest failing rank's status and
 * message. In a group of several ranks "rank N: " is put before it, unless another group's agreement did, and
 * " (machine 'b')" behind it where ranks are on several machines and it does not name that one. Makes a local failure
 * everybody's without breaking the group. [collective] [blocks] */
FSDP_API fsdp_status fsdp_agree(fsdp_process_group *group, fsdp_status mine);

/* ---- coalesced collectives for sharded parameters ----
 * A sharded buffer is one parameter, seen as (outer, rows, inner) with `rows` its sharded dimension: `outer` runs of
 * `numel` elements one after the other, of each of which group rank r owns [r * chunk, min(numel, (r+1) * chunk)).
 * `shard` is this rank's own part of all runs, without gaps (may be NULL when empty). Ranks pass the same sizes and
 * dtypes in the same order; buffers of one call may have any dtypes, each its own.
 *
 * Memory that peers can see makes them cheap (fsdp_process_group_alloc): where `unsharded` is shared memory a gather is
 * the cast of one's own rows (nothing at all when shard lies in place with the same dtype) and a barrier; where it is
 * symmetric memory peers copy their parts straight to the final place; a reduction reads peers' rows in place. Other
 * memory takes packing. The result is the same bits. The buffers of one gather lie all in shared memory, at the same
 * places of the same regions on every rank (else FSDP_MISMATCH), or none of them does, on no rank. The region may be a
 * larger group's; FSDP_UNSUPPORTED in a group that could not have one (fsdp_process_group_can_share).
 *
 * Reuse: peers may still read this rank's `unsharded` when the call is done here. It may be overwritten once a later
 * collective of the group (a barrier, say) is complete on this rank. fsdp_process_group_free_memory knows that. Shared
 * memory is overwritten by the next gather that any rank makes into it: have a barrier between the last read of what
 * one gather has brought and the next gather there, on every rank. Two regions in turns want none in between, where a
 * rank reads the one before it gathers into the other.
 *
 * A reduction adds what each rank gives as its `unsharded`, which is memory of its own (symmetric memory, or any):
 * ranks that give one and the same shared memory add the same bytes several times. */

typedef struct fsdp_sharded_buffer {
    void *unsharded;
    void *shard;
    int64_t numel, chunk; /* of one run */
    int64_t outer;        /* runs; 0: one */
    fsdp_dtype unsharded_dtype, shard_dtype;
    /* Of a reduction: each rank's contribution is rounded to it before it is added (f32 sum); NONE: unsharded_dtype. */
    fsdp_dtype reduce_dtype;
} fsdp_sharded_buffer;

/* unsharded = the ranks' shards, converted. `buffers` is copied. [collective] [stream] */
FSDP_API fsdp_status fsdp_all_gather_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers,
                                               int64_t count, fsdp_stream *stream);

typedef struct fsdp_reduce_options {
    fsdp_reduce_op op; /* SUM or AVG */
    float predivide;   /* of each contribution, before it is rounded to the reduce dtype; 0 means 1 */
    float divisor;     /* of the result, times the ranks for AVG; 0 means 1 */
    bool accumulate;   /* shard += result */
    /* NULL, or one byte a buffer, 0 or 1 as the caller has it, that has become 1, once the stream's work is done, if
     * any rank contributed to it. The caller's memory until then; need not be given on all ranks. */
    uint8_t *contributed;
} fsdp_reduce_options;

/* shard = op over ranks of this rank's rows of their `unsharded`; with a divisor, the sum over (divisor times
 * ranks for AVG) by one f32 division.
 *
 * A rank that has nothing to add to a buffer passes NULL as its `unsharded`, whatever the others do: it is left out of
 * the sum (of the number of ranks it is not). A shard to which nobody contributed is not written, also without
 * `accumulate`, and nothing is sent for it; where nobody contributed to anything the call does not count as a
 * reduce_scatter. Who passes NULL counts the call when it runs, others when it is issued. [collective] [stream] */
FSDP_API fsdp_status fsdp_reduce_scatter_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers,
                                                   int64_t count, const fsdp_reduce_options *options,
                                                   fsdp_stream *stream);

typedef enum fsdp_memory_sharing {
    FSDP_MEMORY_SYMMETRIC, /* this rank's own, readable by peers */
    FSDP_MEMORY_SHARED,    /* one region for all ranks of a machine: same bytes, each rank writes its own part */
} fsdp_memory_sharing;

/* Whether the group can give such memory: it has several ranks, on one machine, or the same local ranks of each of
 * several, and these are not in one level (FSDP_ONE_LEVEL). Over several machines there is one region on each. */
FSDP_API bool fsdp_process_group_can_share(const fsdp_process_group *group, fsdp_memory_sharing sharing);
/* 64-byte aligned; SHARED is zeroed, [collective] with equal bytes on every rank; SYMMETRIC is local and reuses what
 * was freed. FSDP_UNSUPPORTED when the group cannot. Nothing is counted in a device's ledger: the caller knows what it
 * is.
 */
FSDP_API fsdp_status fsdp_process_group_alloc(fsdp_process_group *group, fsdp_memory_sharing sharing, size_t bytes,
                                              void **out);
/* SYMMETRIC memory is handed out again only after every peer is done reading it; SHARED memory when every rank has
 * given it back. Before the group is freed. Of SHARED memory that is not there (any more) nothing happens. */
FSDP_API void fsdp_process_group_free_memory(fsdp_process_group *group, fsdp_memory_sharing sharing, void *pointer,
                                             size_t bytes);
/* Forces the packing path where memory is not shared (tests, comparison). Same on every rank. */
FSDP_API void fsdp_process_group_force_copy(fsdp_process_group *group, bool on);

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
    /* What a ring algorithm sends per rank: all-gather and reduce-scatter of n padded bytes: (W-1)/W n; all-reduce
     * twice that. The figures of the algorithm, whatever the transport does. Groups of one send and count nothing. */
    int64_t bytes_sent[FSDP_COLLECTIVES];
    int64_t calls_of[FSDP_COLLECTIVES][FSDP_REDUCE_OPS]; /* of reductions, by the operation on the wire */
    int64_t bytes_moved[FSDP_COLLECTIVES];               /* really copied or read from peers by this rank */
    /* What this rank has exchanged with ranks of other machines: the bytes of buffers alone, and the messages that it
     * has sent, in which they went, or a header of the call (docs/cluster.md). */
    int64_t network_sent[FSDP_COLLECTIVES], network_received[FSDP_COLLECTIVES];
    int64_t network_messages[FSDP_COLLECTIVES];
} fsdp_comm_stats;

FSDP_API const char *fsdp_collective_name(fsdp_collective kind);
FSDP_API void fsdp_process_group_stats(const fsdp_process_group *group, fsdp_comm_stats *out);
FSDP_API void fsdp_context_comm_stats(const fsdp_context *context,
                                      fsdp_comm_stats *out); /* all groups, also freed ones */
FSDP_API void fsdp_context_reset_comm_stats(fsdp_context *context);
/* Host nanoseconds this rank has spent in collectives: all of it, and the part spent waiting for peers. */
FSDP_API void fsdp_context_comm_time(const fsdp_context *context, int64_t *total_ns, int64_t *waiting_ns);

#ifdef __cplusplus
}
#endif
#endif
