/* fsdp/replicate.h - data parallelism with whole parameters on every rank (PyTorch's DistributedDataParallel).
 *
 * Every rank holds all parameters, gradients and optimizer state; a backward averages the gradients over the ranks.
 * Gradients are sent in *buckets* of several parameters, one all-reduce each, as soon as the backward has passed the
 * last use of every parameter in the bucket. Buckets are sent strictly in order, so that all ranks send the same. This
 * is the engine of fsdp/shard.h with one rank to shard over: parameters are distributed tensors of their whole shape,
 * (Replicate, Shard(0)) over a mesh of W x 1, and the methods of a sharded module work on a replicated one.
 *
 * Parameters are assigned to buckets by PyTorch's rules:
 *   - With find_unused_parameters: in the order of registration; a bucket is closed once it has reached the limit in
 *     bytes. The last registered are sent first. Buckets do not change.
 *   - Otherwise the first iteration has one bucket for each dtype. Before the forward after the first backward that
 *     reduced (with static_graph, the second) the buckets are rebuilt, in the order in which rank 0's gradients were
 *     complete: two broadcasts, once.
 *   - If parameters are frozen or thawed later, before a forward and on all ranks: as in the first iteration again.
 *
 * Without synchronisation (fsdp_module_set_requires_gradient_sync(module, false, true), PyTorch's no_sync) gradients
 * accumulate on each rank, and the next backward with synchronisation reduces the sum. Every backward with
 * synchronisation reduces its gradients and adds the result to the existing ones.
 *
 * If a rank has no gradient of a parameter in a backward, all ranks get an error at the end of that backward. With
 * find_unused_parameters or static_graph it is allowed: the parameter then counts as zero in the average, and if no
 * rank used it, its gradient (or the lack of one) does not change.
 *
 * A step whose backward failed on all ranks at the same place can be repeated (fsdp_module_reset_iteration), unless
 * ranks use different parameters: then some have sent buckets that others have not, and the next collective is
 * FSDP_MISMATCH.
 *
 * A write to a parameter between a forward and its backward is an error of the backward, as with plain parameters. So
 * is a write to a buffer that an operation has saved, and the broadcast of rank 0's buffers before a forward is such a
 * write on all ranks: set keep_buffers if a second forward comes before the backward of the first.
 *
 * Averages are sums in rank order, in f32, divided and rounded once: the same bits as fully_shard gives in f32.
 */
#ifndef FSDP_REPLICATE_H
#define FSDP_REPLICATE_H

#include "fsdp/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_replicate_options {
    fsdp_mesh *mesh; /* one dimension; NULL: all ranks of the context. Borrowed */
    /* The size at which a bucket is full, in MiB. 0: 25, and 1 for the first bucket. */
    double bucket_cap_mb;
    /* Ranks may use different parameters in a step, and different ones in each step. Each backward ends with one
     * all-reduce of an int32 per parameter, which says whether any rank used it. */
    bool find_unused_parameters;
    /* Each rank uses the same parameters in every step, though not necessarily all. This is determined once, in the
     * first backward that reduces, which sends all its buckets at its end. Each forward has one backward. */
    bool static_graph;
    /* Gradients are stored in the buckets in which they were computed and reduced. This halves the memory of gradients
     * during the reduction, and changes nothing afterwards. Otherwise a bucket is freed once it has been reduced into
     * separate memory. */
    bool gradient_as_bucket_view;
    /* PyTorch's broadcast_buffers=False: each rank keeps its own buffers. Otherwise rank 0's buffers replace those of
     * the others before the first forward, and before every forward that follows one whose backward synchronises, by
     * one broadcast for each dtype. */
    bool keep_buffers;
    /* PyTorch's init_sync=False: parameters and buffers are equal on all ranks already. Otherwise they are broadcast
     * from rank 0, if they have values there. */
    bool no_init_sync;
    /* BF16 or F16: gradients are cast to this dtype and divided by the number of ranks, summed in it, and cast back,
     * which halves the bytes (PyTorch's bf16_compress_hook and fp16_compress_hook). NONE: they are sent as they are. */
    fsdp_dtype compress;
    /* Parameters, and all parameters and buffers of modules and of the modules below them, that are left unchanged and
     * are each rank's own; parameters keep the gradients that this rank computes (PyTorch's
     * _set_params_and_buffers_to_ignore_for_model). Give the same on all ranks. Borrowed for the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    fsdp_overlap overlap; /* of reductions */
    bool no_shared_memory;
} fsdp_replicate_options;

/* Replicates the module and everything below it. `options` may be NULL. Without parameters nothing is replicated, and
 * each rank keeps its own buffers. Errors, on all ranks and with the module unchanged: options that differ among the
 * ranks, or names, shapes, dtypes or requires_grad of the parameters, or which of them are on meta; a module without a
 * forward, or one that is sharded or replicated already or contains such a module; a parameter that has no dimensions,
 * is not contiguous, has a gradient, is distributed, or is on another device than the others; static_graph with
 * find_unused_parameters; a bucket_cap_mb below 0; an unsupported compress dtype. [collective] of the world, the first
 * time for a mesh */
FSDP_API fsdp_status fsdp_replicate(fsdp_module *module, const fsdp_replicate_options *options);
/* Returns whether the module is replicated, also for one without parameters. */
FSDP_API bool fsdp_module_is_replicated(fsdp_module *module);

/* ---- uneven inputs (PyTorch's join) ----
 *
 *     FSDP_TRY(fsdp_module_join_begin(module, NULL));
 *     while (there is a batch)
 *         ... forward, backward, step ...
 *     FSDP_TRY(fsdp_module_join_end(module));
 *
 * Ranks may have different numbers of batches, or none. Between these two calls every forward of the module begins with
 * one all-reduce, which tells which ranks have a batch. A rank without a batch calls join_end. There it takes part in
 * the communication of the forwards and backwards of ranks that have one, and contributes only gradients that it has
 * kept without synchronisation. join_end returns when all ranks have reached it; the rank then has no gradients, and
 * the parameters and buffers of a rank that arrived last. Optimizer state is each rank's own. While gradients are
 * synchronised, each recorded forward must have its backward before the next forward, and ranks may communicate nothing
 * else. An error in what ranks agree on there (stop_early, other options on one rank than on another, some ranks
 * synchronise and others do not, values missing on one before the first forward) is an error of the forward or of
 * join_end on all ranks and ends the join: unreduced gradients are dropped, and the next forward, or join_begin, works
 * as usual. */
typedef struct fsdp_join_options {
    bool divide_by_present; /* divide gradients by the number of ranks that had a batch, not by all */
    bool stop_early;        /* the first rank without a batch ends the join: FSDP_STATE on all, no join_end */
} fsdp_join_options;
/* Begins a join. options may be NULL, and must be the same on all ranks. FSDP_STATE: the module is not replicated, is
 * running, or has begun a join already. A local call. */
FSDP_API fsdp_status fsdp_module_join_begin(fsdp_module *module, const fsdp_join_options *options);
FSDP_API fsdp_status fsdp_module_join_end(fsdp_module *module); /* [collective] */

/* ======== for experts: most programs need nothing below ======== */

/* Replaces the library's all-reduce and division. The hook averages `gradients`, the one-dimensional bucket, over all
 * ranks in place, by work queued on `stream`, or on the host after synchronising it. Gradients of parameters that this
 * rank has not used are -0. The hook is called in the order of the buckets on all ranks. A failure is one of the
 * backward; a rank that fails before its peers can know must call fsdp_abort. The hook also replaces `compress`. NULL
 * restores the library's. */
typedef struct fsdp_gradient_bucket {
    int64_t index;
    bool last; /* of this backward */
    fsdp_tensor *gradients;
    fsdp_process_group *group; /* may have one rank */
} fsdp_gradient_bucket;
typedef fsdp_status (*fsdp_bucket_hook)(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_module_set_bucket_hook(fsdp_module *module, fsdp_bucket_hook hook, void *arg);

/* Return the current buckets, in the order in which they are sent. FSDP_STATE: `module` is not replicated. */
FSDP_API fsdp_status fsdp_module_bucket_count(fsdp_module *module, int64_t *out);
typedef struct fsdp_bucket_info {
    int64_t parameter_count, numel;
    fsdp_dtype dtype;
} fsdp_bucket_info;
FSDP_API fsdp_status fsdp_module_bucket_info(fsdp_module *module, int64_t bucket, fsdp_bucket_info *out);
/* Returns the index-th parameter of a bucket, tensor and name borrowed. The name is dotted, from the
 * replicated module. */
FSDP_API fsdp_status fsdp_module_bucket_parameter(fsdp_module *module, int64_t bucket, int64_t index,
                                                  fsdp_parameter *out);

#ifdef __cplusplus
}
#endif
#endif
