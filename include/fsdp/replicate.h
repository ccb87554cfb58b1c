/* fsdp/replicate.h - data parallel with whole parameters on every rank (PyTorch's DistributedDataParallel).
 *
 * Every rank holds all parameters, gradients and optimizer state; a backward averages the gradients over the ranks.
 * They are sent in *buckets*, of several parameters each, one all-reduce a bucket, as soon as the backward has come
 * through the last use of every parameter in it, and strictly in the order of the buckets, so that all ranks send the
 * same. It is the engine of fsdp/shard.h with one rank to shard over: parameters are distributed tensors of their whole
 * shape, (Replicate, Shard(0)) over a mesh of W x 1, and the methods of a sharded module work on a replicated one.
 *
 * Which parameters share a bucket (PyTorch's rules):
 *   - With find_unused_parameters: in the order of registration, a bucket closes once it has as many bytes as the limit
 *     says; the last registered are sent first. They stay so.
 *   - Else one bucket of all, for each dtype, in the first iteration. Before the forward after the first backward that
 *     reduced (with static_graph, the second) the buckets are built anew, in the order in which rank 0's gradients were
 *     complete: two broadcasts, once.
 *   - Where parameters are frozen or thawed later, before a forward, on all ranks: anew as in the first iteration.
 *
 * Without synchronisation (fsdp_module_set_requires_gradient_sync(module, false, true), PyTorch's no_sync) gradients
 * add up on each rank, and the next backward with it reduces the sum. Every backward with it reduces what it brought
 * and adds that to the gradients that are there.
 *
 * A parameter of which this rank has no gradient in a backward is an error on all ranks, at the end of that backward,
 * unless find_unused_parameters or static_graph says that it may happen: then it counts as zero in the average, and one
 * that no rank used keeps its gradient as it was, none perhaps.
 *
 * A backward that fails on all ranks at one place can be begun anew (fsdp_module_reset_iteration), unless they use
 * different parameters: then some have sent buckets that others have not, and the next collective is FSDP_MISMATCH.
 *
 * A write to a parameter between a forward and its backward is an error of the backward, as with plain ones. So is one
 * to a buffer that an operation has saved, and the broadcast of rank 0's buffers before a forward is such a write, on
 * all ranks: set keep_buffers where a second forward comes before the backward of the first.
 *
 * Averages are sums in rank order, in f32, divided and rounded once: the same bits as of fully_shard in f32.
 */
#ifndef FSDP_REPLICATE_H
#define FSDP_REPLICATE_H

#include "fsdp/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_replicate_options {
    fsdp_mesh *mesh; /* of one dimension; NULL: all ranks of the context. Borrowed */
    /* Bytes from which a bucket is full, in MiB. 0: 25, and 1 for the first bucket. */
    double bucket_cap_mb;
    /* Ranks may use different parameters in a step, and each other ones in the next. Each backward ends with one
     * all-reduce of an int32 per parameter, which says who was used at all. */
    bool find_unused_parameters;
    /* Each rank uses the same parameters in every step, though not all of them perhaps: asked once, in the first
     * backward that reduces, all of whose buckets are sent at its end. One forward, one backward. */
    bool static_graph;
    /* Gradients lie in the buckets, where they were computed and reduced: half the memory for gradients while they are
     * reduced, no more afterwards. Without, a bucket is given up when it has been reduced into memory of its own. */
    bool gradient_as_bucket_view;
    /* PyTorch's broadcast_buffers=False: the ranks' buffers are their own. Else those of rank 0 replace the others'
     * before the first forward, and before every forward that follows one whose backward synchronises. One broadcast
     * for each dtype. */
    bool keep_buffers;
    /* PyTorch's init_sync=False: parameters and buffers are the same on all ranks as they are. Else they are broadcast
     * from rank 0, if they have values there. */
    bool no_init_sync;
    /* BF16 or F16: gradients are cast to it and divided by the ranks, summed in it, and cast back (PyTorch's
     * bf16_compress_hook and fp16_compress_hook): half the bytes. NONE: they are sent as they are. */
    fsdp_dtype compress;
    /* Left as they are, each rank's own: parameters, which keep the gradients that this rank computes, and all
     * parameters and buffers of modules and of what is below them (PyTorch's
     * _set_params_and_buffers_to_ignore_for_model). The same on all ranks. Borrowed for the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    fsdp_overlap overlap; /* of reductions */
    bool no_shared_memory;
} fsdp_replicate_options;

/* The module with all that is below it. options may be NULL. Where there are no parameters nothing is replicated, and
 * buffers are each rank's own. Errors, on all ranks, the module unchanged: names, shapes, dtypes or requires_grad of
 * the parameters, which are on the meta device, or options, that differ among the ranks; a module without a forward, or
 * that is sharded or replicated already, or has one below; a parameter without dimensions, not contiguous, that has a
 * gradient, is distributed, or is on another device than the others; static_graph with find_unused_parameters, a
 * bucket_cap_mb below 0, a compress that is not offered.
 * [collective] of the world, the first time for a mesh */
FSDP_API fsdp_status fsdp_replicate(fsdp_module *module, const fsdp_replicate_options *options);
/* Also of a module without parameters. */
FSDP_API bool fsdp_module_is_replicated(fsdp_module *module);

/* In place of the library's all-reduce, and of the division: makes the average of all ranks of `gradients`, the bucket
 * in one dimension, in place, by work that it gives to `stream`; on the host only after synchronising that. What this
 * rank has not used is -0 in it. Called in the order of the buckets on all ranks. A failure is one of the backward; who
 * fails before its peers can know calls fsdp_abort. NULL: the library's again. It takes the place of `compress`, too.
 */
typedef struct fsdp_gradient_bucket {
    int64_t index;
    bool last; /* of this backward */
    fsdp_tensor *gradients;
    fsdp_process_group *group; /* may be of one rank */
} fsdp_gradient_bucket;
typedef fsdp_status (*fsdp_bucket_hook)(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_module_set_bucket_hook(fsdp_module *module, fsdp_bucket_hook hook, void *arg);

/* ---- uneven inputs (PyTorch's join) ----
 *
 *     FSDP_TRY(fsdp_module_join_begin(module, NULL));
 *     while (there is a batch)
 *         ... forward, backward, step ...
 *     FSDP_TRY(fsdp_module_join_end(module));
 *
 * Ranks may have different numbers of batches, none at all too. In between every forward of the module begins with one
 * all-reduce, which says who has one. A rank without takes part, in join_end, in what the others' forwards and
 * backwards communicate, with nothing of its own but gradients that it has kept without synchronisation; it returns
 * when all are there, without gradients, with parameters and buffers of a rank that was there last. Optimizer state is
 * each rank's own. Each forward that is recorded while gradients are synchronised has its backward before the next one,
 * and ranks communicate nothing else. An error of what is agreed there (stop_early, ranks of which some synchronise and
 * some do not, values that one lacks before the first forward) is one of all ranks, of the forward or of join_end, and
 * ends the join on all: what was not reduced is dropped, and the next forward, or join_begin, is as ever. */
typedef struct fsdp_join_options {
    bool divide_by_present; /* gradients are divided by the ranks that had a batch, instead of all */
    bool stop_early;        /* the first rank without ends it for all: FSDP_STATE on every rank, without a join_end */
} fsdp_join_options;
/* FSDP_STATE when it is not replicated, runs, or has begun already. Local. */
FSDP_API fsdp_status fsdp_module_join_begin(fsdp_module *module, const fsdp_join_options *options);
FSDP_API fsdp_status fsdp_module_join_end(fsdp_module *module); /* [collective] */

/* The buckets as they are now, in the order in which they are sent; FSDP_STATE when `module` is not replicated. */
FSDP_API fsdp_status fsdp_module_bucket_count(fsdp_module *module, int64_t *out);
typedef struct fsdp_bucket_info {
    int64_t parameter_count, numel;
    fsdp_dtype dtype;
} fsdp_bucket_info;
FSDP_API fsdp_status fsdp_module_bucket_info(fsdp_module *module, int64_t bucket, fsdp_bucket_info *out);
/* The index-th parameter of a bucket. Its name is NULL before the first forward. Both borrowed. */
FSDP_API fsdp_status fsdp_module_bucket_parameter(fsdp_module *module, int64_t bucket, int64_t index,
                                                  fsdp_parameter *out);

#ifdef __cplusplus
}
#endif
#endif
