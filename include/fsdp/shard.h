/* fsdp/shard.h - fully sharded data parallel: each parameter is unsharded only while it is used.
 *
 * fsdp_fully_shard makes one *group* of a module's parameters, without those that a nested call has taken. A group is
 * gathered in one all-gather before the module's forward (and again before its backward, if it was resharded in
 * between), and its gradients are reduced in one reduce-scatter after the backward, whatever their dtypes. Call it from
 * the bottom up, last on the root:
 *
 *     for (int64_t i = 0; i < blocks; i++)
 *         FSDP_TRY(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
 *     FSDP_TRY(fsdp_fully_shard(model, NULL));
 *
 *     SHARDED --unshard--> GATHERING --wait--> UNSHARDED --reshard--> SHARDED
 *
 * After a forward a group may also keep a slice of the gathered parameters, to be gathered over fewer ranks
 * (reshard_after_forward_ranks). It is then SHARDED_POST_FORWARD until its next use or a write to a shard.
 *
 * Outside forward and backward the module's parameters are distributed tensors. Each holds this rank's rows by the
 * chunk rule of fsdp/dist.h, along dimension 0 or the one that options.placement chooses; its distribution has the
 * global shape. Optimizers and state dicts see these tensors, even while the engine keeps a group unsharded for its
 * next use (unlike PyTorch). Only between fsdp_module_unshard and the reshard do the module's fields point to
 * unsharded, plain tensors, which may be read but not written.
 *
 * A write to a shard (optimizer, fsdp_tensor_write, initialize, load) waits only until no peer reads the old values any
 * more. It makes everything stale that was derived from the old values: unsharded parameters are resharded, and their
 * next use gathers the new values. That use may be the backward of a forward that ran before the write. (If parameters
 * are not sharded, such a backward is an error.) In two cases that backward fails with FSDP_STATE, so run it before the
 * write: the parameter is used by a recomputed function; or, on a GPU, it is the weight of a norm whose result the
 * backward makes again instead of keeping it. One rank alone may write, with two exceptions. Inside a forward, and
 * between it and its backward, all ranks write or none does. Two ranks may not each write to a group that the other
 * holds unsharded (each would wait for the other: an error that names both). A shard cannot be written while the
 * forward or backward of its own module runs.
 *
 * A parameter belongs to the first call that finds it. If modules of later calls use it too (tied weights, a module
 * with two parents), those uses also gather the first call's group, which is resharded when none of them uses it. The
 * gradients of all uses add up and are reduced once, at the end of the backward. Optimizers and state dicts see one
 * shard. These calls must agree on mp_policy.param_dtype and have a common outermost module.
 *
 * Ranks may use different parameters in a step: any of those of a module that all ranks enter, and a rank may leave the
 * module's output unused. A parameter that a rank has not used counts as zero in the average; if no rank used it, its
 * gradient (or the lack of one) does not change. The module's inputs require a gradient on all ranks or on none; its
 * output requires one if another rank may need it. Entering a module is collective, unless it is conditional
 * (fsdp_module_set_conditional). A recomputed function around sharded modules runs again, and gathers, when this rank
 * first needs it, so inside it all ranks must use the same parameters; otherwise they get an error.
 *
 * The gradients of shards are distributed tensors, too. Gradient hooks of a shard see the result of a reduction before
 * it is added to the gradient.
 *
 * Hybrid sharding (a mesh of two dimensions, replicate and shard): every replica holds all parameters, sharded over its
 * own ranks; their distribution is (Replicate, Shard(0)). Gathers stay inside a replica. A reduction is a
 * reduce-scatter inside each replica, which gives *partial* gradients in the reduce dtype, then an all-reduce of those
 * across replicas, then one division by the number of all ranks (f16: see fsdp_module_set_gradient_divide_factor). The
 * replicas' parameters stay equal to the bit.
 *
 * Tensor parallel: parameters may be distributed tensors already, over a mesh that is another part of the same mesh
 * ("tp" of a mesh of "dp" and "tp"; see fsdp_mesh_slice). Then the engine gathers and reduces this rank's part; the
 * forward computes with the part, which keeps its distribution while it is unsharded. The shard's distribution is over
 * both meshes: (StridedShard(0), Shard(0)) if the parameter was cut by rows before, (Shard(0), Shard(1)) if it was cut
 * by columns. If the earlier mesh replicates a parameter with partial gradients (fsdp_distribution.partial_gradients),
 * each reduction of the group first adds these up over that mesh, by one all-reduce for each parameter in the reduce
 * dtype, so the shard's gradients are whole. The ranks of both meshes must make the same calls. The divisor of
 * gradients is the number of data-parallel ranks. Refused by name: meshes of two roots or with a common dimension,
 * partial parameters, a gather extension, reshard_after_forward_ranks that keeps slices; and such parameters in FSDP1
 * and fsdp_replicate.
 *
 * Inputs of the outermost module are moved to the device of its parameters if they are on another one.
 *
 * The model's code does not change: it computes the same with and without these calls. All ranks must make the same
 * calls in the same order; forwards and backwards are collective over the mesh. All ranks of a mesh must have
 * parameters of the same names, shapes and dtypes, in one order, and the same ones frozen. The first forward compares
 * them: if they differ, it fails with FSDP_MISMATCH on all ranks and names the first that differs; once that is mended,
 * it can be called again.
 */
#ifndef FSDP_SHARD_H
#define FSDP_SHARD_H

#include "fsdp/dist.h"
#include "fsdp/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_reshard {
    FSDP_RESHARD_AUTO,   /* reshard after the forward, except the root */
    FSDP_RESHARD_ALWAYS, /* reshard after the forward, including the root */
    FSDP_RESHARD_NEVER,  /* keep unsharded until after the backward */
} fsdp_reshard;

/* Corresponds to FSDP2's MixedPrecisionPolicy. All zero: no mixed precision. It applies to each parameter by itself,
 * frozen or not. The parameters of one call may have several dtypes and are still gathered in one all-gather and
 * reduced in one reduce-scatter. */
typedef struct fsdp_mp_policy {
    fsdp_dtype param_dtype; /* gather and compute in this dtype; shards keep theirs. NONE: the shard's */
    /* Gradients are sent and reduced, and unreduced ones accumulated, in this dtype, whatever dtype they are computed
     * in. NONE: the shard's dtype (as in PyTorch since 2.15). */
    fsdp_dtype reduce_dtype;
    fsdp_dtype output_dtype;  /* cast floating outputs of the module to this dtype */
    bool keep_forward_inputs; /* FSDP2's cast_forward_inputs=False: do not cast floating inputs to param_dtype */
    /* Floating-point buffers of the call's modules are cast to this dtype once, before the first forward, except tables
     * that a layer computes itself (rope's). NONE: no buffer is cast, as in FSDP2; a module that combines its buffers
     * with its activations, as a batch norm does with its running statistics, then meets two dtypes. In that case set
     * this, or shard the module by a call with another policy. */
    fsdp_dtype buffer_dtype;
    /* Lets float32 shards rest as the bfloat16 that is gathered and 16 more bits, in 4 bytes a parameter instead of 6;
     * param_dtype must be FSDP_BF16. The shards keep all their bits. But the values that are gathered are rounded to
     * nearest with ties away from zero, and not to even. So about one value in 131,072 is gathered as a different
     * bfloat16 than without split_shards: the next larger one in magnitude. Adam and AdamW with moments in float32 step
     * on the two halves. Every other use of a shard (state dicts, other optimizers, fsdp_tensor_data) makes the shards
     * of its group float32 again, until the next gather of the group. The call that gives the parameters memory fails
     * with FSDP_UNSUPPORTED in these cases: ranks share the memory of gathered parameters (set no_shared_memory);
     * shards are offloaded, flat, not float32, coded for the gather, or sharded in a later dimension than 0. */
    bool split_shards;
} fsdp_mp_policy;

/* Corresponds to FSDP2's CPUOffloadPolicy. */
typedef struct fsdp_offload_policy {
    /* Shards, their gradients and therefore optimizer state are kept and updated on the host. Unsharded parameters,
     * unsharded gradients and partial gradients are on the device where the parameters are, or are materialized. A
     * gather copies the shards to the device in their own dtype and casts them there; a reduction copies its result to
     * the host and adds it there. Both run on streams beside the computation, and the host waits for them at the end of
     * the backward. Ignored parameters and buffers stay on the device. The results are the same bits. If the device is
     * the CPU, nothing moves: the shards are on the host already. */
    bool cpu;
    bool pageable; /* FSDP2's pin_memory=False: leave the host memory of the shards unpinned, without a try */
} fsdp_offload_policy;

/* Says how prefetched gathers and reductions run. */
typedef enum fsdp_overlap {
    /* They run on workers if the ranks are on several machines, or compute on GPUs: what a rank waits for comes while
     * it computes. A GPU's host runs ahead, so the next module is gathered early in a forward, too, and two modules
     * besides the outermost are unsharded, as in a backward. On the processors of one machine they run inline, because
     * ranks have no spare core. Ranks that are alone in their groups have no worker. On GPUs a module that stays
     * unsharded after its forward is gathered when the module before it begins, from the second forward on, if all
     * modules lie on one mesh.
     *
     * If gathers go over several machines, a module that begins in a forward of the outermost module also gathers the
     * module that followed it in the previous forward. So two modules besides the outermost are unsharded, as in a
     * backward. In both passes a module also gathers the module after the next one, if the next one has fewer bytes
     * than the module itself, and so arrives soon, and the one after it has no more bytes than the module itself. Then
     * three modules besides the outermost are unsharded. If modules lie on several meshes, nothing is gathered ahead in
     * a forward, and one module in a backward. */
    FSDP_OVERLAP_AUTO,
    FSDP_OVERLAP_INLINE,
    FSDP_OVERLAP_WORKER, /* gathers and reductions run on worker streams */
} fsdp_overlap;

/* Names the dimensions of a larger mesh that are data parallel (FSDP2's DataParallelMeshDims). A list shorter than its
 * array ends with NULL. Several dimensions in one list are flattened into one. All zero: the dimensions of the mesh
 * itself. The remaining dimensions are not used here: ranks that differ in them hold different parameters. */
typedef struct fsdp_dp_mesh_dims {
    const char *shard[FSDP_MAX_MESH_DIMS];
    const char *replicate[FSDP_MAX_MESH_DIMS];
} fsdp_dp_mesh_dims;

/* Says how one parameter is sharded. */
typedef struct fsdp_shard_placement {
    int dim;         /* dimension of the tensor; negative: from the end */
    fsdp_mesh *mesh; /* one dimension (shard) or two (replicate, shard). Borrowed for the call */
} fsdp_shard_placement;

typedef struct fsdp_gather_extension fsdp_gather_extension; /* below: sends parameters in another format */

typedef struct fsdp_shard_options {
    /* A mesh of one dimension: its ranks hold a part each. Two dimensions: hybrid sharding, the first replicates and
     * the second shards. More: dp_mesh_dims names those to use. NULL: all ranks of the context, one dimension.
     * Borrowed */
    fsdp_mesh *mesh;
    fsdp_dp_mesh_dims dp_mesh_dims;
    fsdp_reshard reshard_after_forward;
    /* FSDP2's integer reshard_after_forward, instead of the enum; 0: use the enum. The number k must divide the number
     * of ranks. 1 is NEVER, all ranks is ALWAYS. For any other k every rank keeps 1/k of the gathered bytes after a
     * forward; the next use gathers over k consecutive ranks of the mesh (of one machine, say), or over all ranks after
     * a write to a shard. The first call with this mesh and k creates the process groups, [collective] of the world. */
    int reshard_after_forward_ranks;
    /* ZeRO's stage, 0: none. The stage says what is sharded while a step runs, however many microbatches the step has.
     * 1: optimizer state; parameters are gathered once a step and stay whole, gradients add up whole and are reduced
     * once. 2: gradients, too: every backward reduces. 3: parameters, too: they are resharded after the forward.
     * Between steps all of them are sharded at every stage. Stages 1 and 2 imply reshard_after_forward NEVER; stage 3
     * leaves it as set. fsdp_module_set_is_last_microbatch marks the end of a step. Modules may have different stages.
     * Results are the same bits if gradients add up in the same order. They do, except at stage 1 with several
     * microbatches: it adds up the gradients of a rank's microbatches before it reduces. */
    int zero_stage;
    fsdp_mp_policy mp_policy;
    fsdp_offload_policy offload_policy;
    fsdp_overlap overlap;
    /* FSDP2's shard_placement_fn. It is called once for each parameter of the call, with its dotted name relative to
     * the call's module; `out` is preset to dimension 0 and the call's mesh. NULL: the preset for all. Any dimension
     * may be uneven. Rows of a later dimension are not contiguous in the unsharded parameter, so its group copies where
     * other groups share memory; the shard and its gradient are contiguous. Parameters over another mesh (experts, over
     * some of the ranks) are gathered and reduced separately, and their gradients divided by that mesh's ranks. All
     * ranks of a mesh must give the same answers. */
    fsdp_status (*placement)(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out);
    void *placement_arg;
    /* Applies to the parameters that `extends` selects by dotted name relative to the call's module. If `extends` is
     * NULL, these are the weights of Linear and Conv1D layers that are not tied to an earlier layer's (biases, norms
     * and embeddings lose more than is saved). Forward and backward compute with the decoded values, in param_dtype.
     * Gradients are reduced as usual, and shards, optimizers and state dicts do not differ. The other parameters of the
     * group are gathered with these, unchanged. Each rank keeps the bytes that it sends, and has the unsharded
     * parameters in memory of its own; a gather also takes memory for the bytes of all ranks. With
     * reshard_after_forward_ranks the slice that is kept and gathered over those ranks is in param_dtype. Copied; all
     * ranks of a mesh must give the same extension. NULL: none. */
    const fsdp_gather_extension *gather_extension;
    bool (*extends)(void *arg, const char *name, const fsdp_tensor *parameter);
    void *extends_arg;
    /* Parameters that are neither sharded, moved nor reduced, in whichever modules they are; give the same list to all
     * calls. Each rank has its own gradients of them, so the caller must keep the parameters equal. Do not put them
     * into an optimizer that clips gradients together with those of shards, because the norm would differ between
     * ranks. Borrowed for the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    bool no_shared_memory; /* on all ranks: copy even if they share memory, or a GPU (for comparison and tests) */
} fsdp_shard_options;

/* Shards one module. `options` may be NULL. Parameters that have values are cut to this rank's rows now (all ranks must
 * hold the same values); meta parameters stay on meta. On an error the module is unchanged, and all ranks of the mesh
 * get an error that any of them has: a container that cannot be called; a second call for the module; a parameter that
 * has no dimensions, is not contiguous or already has a gradient; a mesh of more than two dimensions without
 * dp_mesh_dims, or without a dimension they name; an option with an undefined value. FSDP_MISMATCH: only some ranks
 * have parameters to shard. [collective] */
FSDP_API fsdp_status fsdp_fully_shard(fsdp_module *module, const fsdp_shard_options *options);
/* Shards several modules as one group (small layers, or tied weights to be gathered once). The group is gathered when
 * the first of them runs, and resharded when all have run. */
FSDP_API fsdp_status fsdp_fully_shard_modules(fsdp_module *const *modules, int count,
                                              const fsdp_shard_options *options);

/* ---- methods of a sharded module, through whichever front door. FSDP_STATE: `module` is not sharded. Only reshard_all
 * and set_keep_unsharded, which are for whole subtrees, need no sharded module ---- */

/* Turns the reduction of gradients on or off. false: gradients stay unsharded on this rank and accumulate; the backward
 * communicates none (no_sync). The next backward with true reduces the accumulated gradients; zero_grad drops them.
 * Applies to the module and, with `recurse`, to every sharded module below. */
FSDP_API fsdp_status fsdp_module_set_requires_gradient_sync(fsdp_module *module, bool sync, bool recurse);
/* Says, before each forward of a step of several, whether its backward is the last of the step. For the module and
 * every sharded module below, it does what options.zero_stage requires: it sets is_last_backward; for stage 1 it sets
 * requires_gradient_sync and reshard_after_backward to `last`, for stage 2 reshard_after_backward only. Modules without
 * a stage, or of stage 3, keep their settings. A step of one microbatch needs no call. */
FSDP_API fsdp_status fsdp_module_set_is_last_microbatch(fsdp_module *module, bool last);
/* Gathers the module's own group now, including conditional modules below but no other nested groups. The module's
 * fields point to unsharded tensors until the reshard: fsdp_module_reshard, a forward or backward that reshards, or a
 * write to a shard. Calling it again, or just before a forward, costs nothing extra. [collective] */
FSDP_API fsdp_status fsdp_module_unshard(fsdp_module *module);
/* Frees the unsharded parameters and puts the shards back. Idempotent. A local call. */
FSDP_API fsdp_status fsdp_module_reshard(fsdp_module *module);
/* Does the same for every sharded module of the subtree. Afterwards no memory of gathers is held, even after a forward
 * that has no backward. */
FSDP_API fsdp_status fsdp_module_reshard_all(fsdp_module *module);

/* Holds the options of FSDP1's summon_full_params, which is two calls here. Between them fields point to whole, plain
 * tensors in the dtype of the shards, which may be read and written (model surgery, averaging weights, inspection). If
 * tensor parallel has cut a parameter, its tensor is this rank's part, with the distribution that it had before.
 * Meanwhile the modules cannot run and the shards cannot be written: FSDP_STATE. The same error has whoever shards,
 * cuts or adapts modules below, or converts, optimizes or saves what is summoned. Unsharded parameters are resharded
 * first. */
typedef struct fsdp_summon_options {
    bool no_recurse; /* only the module's own parameters; those of sharded modules below stay sharded */
    /* Discard changes at the end. Otherwise each rank writes its own part back, which counts as a write to the shard
     * even if nothing changed; ranks must write the same values if replicas are to stay equal. Freezing a parameter and
     * dropping its gradient (zero_grad) then apply to the shard at once. */
    bool no_writeback;
    /* Only the first rank of each shard group gets the parameters; on the others fields point to the shards, and memory
     * is needed for one group at a time while it is gathered. Requires no_writeback. In a shard group of one rank, that
     * rank is the first. */
    bool rank0_only;
    bool offload_to_cpu; /* put them into host memory; the device holds one group at a time */
    /* Include whole gradients for the shards that have one. They are written back with the parameters, and may also be
     * dropped or created. Gradients that wait to be reduced are not included. */
    bool with_grads;
} fsdp_summon_options;

/* Begins a summon. `options` may be NULL. It takes memory for all parameters at once, in addition to the shards,
 * without padding (a flat group is one vector that contains its parameters, with its padding); each group is gathered
 * by itself. On an error, which all ranks get, nothing has changed: in a forward or backward, summoned already, on the
 * meta device, no memory. [collective] */
FSDP_API fsdp_status fsdp_module_summon_full_params(fsdp_module *module, const fsdp_summon_options *options);
/* Ends the summon that was begun on this same module. Fields point to the shards again, whatever happens; a tensor that
 * the caller still holds is a plain one. A local call, but writes wait for peers that read (see above). */
FSDP_API fsdp_status fsdp_module_end_summon(fsdp_module *module);
/* Recovers after an error in a forward or backward: it drops this iteration's gathers, gradients and order, and
 * everything is sharded again. Gradients reduced before the error stay in the shards until zero_grad. For the root
 * only. The group must not be broken. */
FSDP_API fsdp_status fsdp_module_reset_iteration(fsdp_module *module);

/* ---- inspection ---- */

typedef enum fsdp_sharded_state {
    FSDP_SHARDED,
    FSDP_SHARDED_POST_FORWARD, /* a slice is kept: see reshard_after_forward_ranks */
    FSDP_GATHERING,
    FSDP_UNSHARDED
} fsdp_sharded_state;

typedef struct fsdp_shard_info {
    const char *name; /* the group's module(s), from the root, "" for the root; NULL before the first forward */
    fsdp_sharded_state state;
    int64_t parameter_count; /* number of tensors */
    int64_t numel;           /* elements of the whole group, without padding */
    int64_t padded_numel;    /* with rows padded to a multiple of the ranks: what all ranks send together */
    int64_t shard_numel;     /* elements this rank holds, without padding */
    bool shares_memory;      /* gathers copy nothing on this machine */
    bool offloaded;          /* shards are on the host, away from the device: see fsdp_offload_policy */
    bool keeps_unsharded;    /* set by fsdp_module_set_keep_unsharded */
    int64_t gather_ns;       /* its part of fsdp_module_exposed_time */
} fsdp_shard_info;

FSDP_API bool fsdp_module_is_sharded(fsdp_module *module);
FSDP_API fsdp_status fsdp_module_shard_info(fsdp_module *module, fsdp_shard_info *out);

/* Returns the nanoseconds that this rank's program has spent in gathers and in reductions of the module's tree so far,
 * which is what steps would save if those cost nothing. If they run inline, this is their whole time, with the casts
 * that belong to them; if they run on other streams, the time spent waiting for them. The difference between two calls
 * is the time between them. Roots that share a communication context have these times in common. Copying offloaded
 * gradients to the host is not included. Either place may be NULL.
 *
 * A GPU waits by itself: events of its own measure how long, from the first call on, and later calls wait until it has
 * done what it was given before. */
FSDP_API fsdp_status fsdp_module_exposed_time(fsdp_module *module, int64_t *gather_ns, int64_t *reduce_ns);

/* ======== for experts: most programs need nothing below ========
 *
 * These, too, return FSDP_STATE if `module` is not sharded.
 *
 * ---- when parameters are gathered and resharded ---- */

/* Set whether to reshard, at any time. The first replaces what the options say, including
 * reshard_after_forward_ranks. */
FSDP_API fsdp_status fsdp_module_set_reshard_after_forward(fsdp_module *module, bool reshard, bool recurse);
FSDP_API fsdp_status fsdp_module_set_reshard_after_backward(fsdp_module *module, bool reshard, bool recurse);
/* Keeps parameters unsharded over many forwards. true: whatever the other settings say, the module and all sharded
 * modules below keep what a forward has gathered until a write to a shard or a reshard, so that several forwards
 * without a backward gather once. false: the settings apply again, and everything is resharded. A local call, the same
 * on all ranks. FSDP_STATE: a forward or backward runs. */
FSDP_API fsdp_status fsdp_module_set_keep_unsharded(fsdp_module *module, bool keep);
/* Turns gathering in the backward on or off. false: the backward neither gathers nor prefetches the module's own group,
 * for modules whose backward reads no parameters, such as an embedding. A backward that does read a parameter which is
 * not unsharded fails on all ranks. A recomputation in the backward (fsdp_module_set_recompute) gathers in any
 * case. */
FSDP_API fsdp_status fsdp_module_set_unshard_in_backward(fsdp_module *module, bool unshard);
/* Makes the module conditional; call it before the first forward. Every rank may then enter the module or not,
 * depending on its data, and as often as it likes; sharded modules below it are conditional, too. Its parameters are
 * gathered and reduced together with the next sharded module above, of which there must be only one, so all of them
 * take memory when that one runs. A conditional module prefetches nothing. Outside the forward of the module above,
 * calling it is collective as for any other module. Ranks that enter different modules which are not conditional get an
 * error that names both. */
FSDP_API fsdp_status fsdp_module_set_conditional(fsdp_module *module, bool conditional);
/* Do what fsdp_module_unshard does in two calls (FSDP2's unshard(async_op=True)). The first issues the gather and
 * returns; fields still point to the shards. The second waits for the gather; from then on fields point to unsharded
 * tensors. The module serves as the handle. The second call is local and may be left out, since a forward waits by
 * itself. It does nothing if the first was not called, or if the module's parameters, or others tied to them, were
 * used, resharded or written in between. A gather that is never used is dropped at the end of the next backward.
 * [collective] */
FSDP_API fsdp_status fsdp_module_unshard_async(fsdp_module *module);
FSDP_API fsdp_status fsdp_module_wait_unshard(fsdp_module *module);
/* Set which modules are gathered ahead, in the order of the list (copied), once the module's own parameters have been
 * gathered: in its forward (default: none, or what FSDP_OVERLAP_AUTO says) or in its backward (default: the module
 * whose forward came before, or the two before, as FSDP_OVERLAP_AUTO says). A list replaces the default, an empty one
 * restores it. Each module in it must be sharded and below the same outermost module. This affects scheduling only: the
 * results are the same bits. Each gather ahead holds its memory until its use; one that is not used is dropped at the
 * end of the forward or backward. */
FSDP_API fsdp_status fsdp_module_set_modules_to_forward_prefetch(fsdp_module *module, fsdp_module *const *modules,
                                                                 int count);
FSDP_API fsdp_status fsdp_module_set_modules_to_backward_prefetch(fsdp_module *module, fsdp_module *const *modules,
                                                                  int count);
/* Sets an event of the outermost module, after an optimizer step: the gathers of the next forward wait for `event`,
 * which must be recorded after the last write to a shard, and not for all work queued by then on the device's stream.
 * NULL: wait as usual. The event is used for one forward, is ignored if a shard is written later, and must stay valid
 * until that forward. If modules share a communication context, it must follow the last write to the shards of any of
 * them. With no_shared_memory, a gather into new memory still waits for all queued work; so does a rank that is alone
 * in its group and casts. */
FSDP_API fsdp_status fsdp_module_set_post_optim_event(fsdp_module *module, fsdp_event *event);
/* Makes several outermost modules, such as the stages of a pipeline, communicate as one (FSDP2's share_comm_ctx): on
 * the same streams, in the order of their calls, with one set of memory for gathers ahead and one pipeline of
 * reductions. The pipeline uses the largest number that any of them asks for, and worker streams if any uses them.
 * Otherwise each outermost module has its own context. The results are the same bits. The modules must be on one
 * device, and only the first may have run. FSDP_STATE: others have run, are unsharded or are not outermost. The modules
 * may be freed in any order. */
FSDP_API fsdp_status fsdp_share_comm_context(fsdp_module *const *modules, int count);

/* ---- when and how gradients are reduced ---- */

/* Turns the all-reduce of hybrid sharding on or off. false: gradients are reduced inside each replica only and
 * accumulate there, sharded, in the reduce dtype; shards get no gradient. The next backward with true completes the
 * accumulated gradients, even if it adds no new ones; zero_grad drops them. Setting requires_gradient_sync sets this,
 * too. On a mesh without replicas it makes no difference. */
FSDP_API fsdp_status fsdp_module_set_requires_all_reduce(fsdp_module *module, bool on, bool recurse);
/* Says whether a backward is the last of its step. false: the end of a backward does not wait for reductions and keeps
 * the prefetch order (for several backwards per step). */
FSDP_API fsdp_status fsdp_module_set_is_last_backward(fsdp_module *module, bool last);

/* Returns which gradients a parameter has besides the one of its shard; 0: none. A local call, without
 * communication. */
typedef enum fsdp_pending_gradient {
    FSDP_PENDING_UNREDUCED = 1, /* on this rank only: from backwards without gradient sync */
    FSDP_PENDING_PARTIAL = 2,   /* reduced inside the replica: from backwards without all-reduce */
} fsdp_pending_gradient;
FSDP_API int fsdp_parameter_pending_gradients(const fsdp_tensor *parameter);

/* Reduces all pending gradients of the module and the modules below into the shards' gradients, whatever the settings
 * say, and waits for reductions in flight. If nothing is pending, nothing is communicated, so a second call does
 * nothing. It must not be called while a forward or backward runs. [collective] */
FSDP_API fsdp_status fsdp_module_synchronize_gradients(fsdp_module *module);
/* Sets how many reductions may be in flight at a time, each with its unsharded gradients (default 1). With more, the
 * computation waits less for reductions on worker streams. All modules below one outermost module share one pipeline,
 * which uses the largest number set for any of them. The results are the same bits. */
FSDP_API fsdp_status fsdp_module_set_reduce_scatter_max_inputs(fsdp_module *module, int most, bool recurse);
/* Runs reductions beside gathers. true: reductions use their own process group (one for each shard group) and, on
 * worker streams, their own stream. Off by default. The results are the same bits. FSDP_STATE: gradients wait to be
 * reduced. [collective] of the world */
FSDP_API fsdp_status fsdp_module_set_separate_reduce_scatter_group(fsdp_module *module, bool on, bool recurse);
/* Divides reduced gradients by `factor` instead of the number of all data-parallel ranks, replicas included (0: the
 * default). There is one division, after the last sum; only gradients that are sent in f16 are also divided before they
 * are sent, by a power of two near the root of the divisor, and by the rest after the sum. Not recursive. */
FSDP_API fsdp_status fsdp_module_set_gradient_divide_factor(fsdp_module *module, float factor);
/* Makes reductions sum and then divide instead of averaging (for libraries whose average is missing or wrong). The
 * results are the same bits here. Not recursive. */
FSDP_API fsdp_status fsdp_module_set_force_sum_reduction(fsdp_module *module, bool on);
/* Compresses gradients (PyTorch's bf16_compress_hook and fp16_compress_hook): they are sent in BF16 or F16, half the
 * bytes, if the reduce dtype is wider; on the rank they still accumulate in the reduce dtype. NONE: send in the reduce
 * dtype again. Each contribution is rounded once, and the sum is the library's, in f32; partial gradients that wait for
 * other replicas are kept in the dtype sent. FSDP_STATE while some wait. FSDP_UNSUPPORTED: a replicated module, whose
 * buckets have an option for this. Make the same call on all ranks. */
FSDP_API fsdp_status fsdp_module_set_gradient_compression(fsdp_module *module, fsdp_dtype dtype, bool recurse);

/* The hook is called with every reduced group of the module before its shards get their gradients, for further work
 * such as an all-reduce over more ranks. `gradients` is this rank's part of the group, one-dimensional, including
 * padding, in the reduce dtype (with several reduce dtypes there is one call for each): summed over all ranks of the
 * mesh and divided. The hook may change it in place, by work queued on `stream`, or on the host after synchronising the
 * stream. All ranks make the same calls. A failure is one of the backward. NULL: no hook. Not recursive. */
typedef fsdp_status (*fsdp_all_reduce_hook)(void *arg, fsdp_tensor *gradients, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_module_set_all_reduce_hook(fsdp_module *module, fsdp_all_reduce_hook hook, void *arg);

/* The hook is called when gradients of the module's own parameters are in place, that is, a reduction is complete and
 * was added to what the shards had (torch's post_accumulate_grad hooks, one group at a time). `parameters` are the
 * shards that have a gradient. The gradient may be read, used for a step (fsdp_optimizer_step_parameters) and dropped
 * by work on the shards' device, which waits for it, while the backward continues with other modules. The call is made
 * inside the backward, at the latest at its end, on the rank's own thread; with worker streams when the next reduction
 * begins, in the same order on all ranks. It is not made in backwards whose gradients stay on the rank or in the
 * replica. A failure is one of the backward. NULL: no hook. */
typedef fsdp_status (*fsdp_post_accumulate_grad_hook)(void *arg, fsdp_tensor *const *parameters, int64_t count);
FSDP_API fsdp_status fsdp_module_set_post_accumulate_grad_hook(fsdp_module *module, fsdp_post_accumulate_grad_hook hook,
                                                               void *arg, bool recurse);

/* ---- custom gather formats ---- */

/* Describes a parameter of a group to a gather extension. */
typedef struct fsdp_gather_parameter {
    const char *name;           /* dotted, from the root; NULL before the first forward */
    const fsdp_tensor *sharded; /* this rank's shard; its distribution has the global shape */
    const void *values;         /* for measure and pre: the shard's values, contiguous, on the stream's device */
    fsdp_dtype param_dtype;     /* dtype of the unsharded parameter */
    int ranks, rank;            /* of the group that the parameter is sharded over */
    /* Shape of the unsharded parameter as (outer, rows, inner) elements; `rows` is the sharded dimension. Rank r has
     * the rows of fsdp_shard_range, which may be fewer than others have, or none; its part is (outer, its rows, inner),
     * contiguous. */
    int64_t outer, rows, inner;
} fsdp_gather_parameter;

/* Sends a parameter in another format than its rows in param_dtype (FSDP2's fsdp_pre_all_gather and
 * fsdp_post_all_gather). The functions queue work on `stream`; they may touch device memory from the host only after
 * synchronising the stream. Addresses and structs are valid during the call. All ranks get the same calls, and must
 * compute the same results if their parameters are to be equal. A failure is one of the forward, backward or unshard
 * that gathers. */
struct fsdp_gather_extension {
    const char *name; /* for messages */
    /* Returns how many bytes each rank sends. The number is the same for all ranks, so it must fit the longest part
     * that any rank has. */
    size_t (*sent_bytes)(void *arg, const fsdp_gather_parameter *parameter);
    /* Optional. Computes a number from this rank's shard after a write to it; pre gets the maximum over all ranks. One
     * all-reduce fetches it for all parameters of the outermost module, before that module's forward or an unshard. */
    fsdp_status (*measure)(void *arg, const fsdp_gather_parameter *parameter, float *out, fsdp_stream *stream);
    /* Encodes the shard as the bytes to send, which are kept for all gathers until the next write (16-byte aligned).
     * Called after a write (`written` is true), and whenever `measured` may have changed; if it has not, `sent` may
     * stay as it is. */
    fsdp_status (*pre)(void *arg, const fsdp_gather_parameter *parameter, const float *measured, bool written,
                       void *sent, fsdp_stream *stream);
    /* Decodes what the ranks sent, received[rank], into the whole unsharded parameter in param_dtype. Called after each
     * gather, in its stream. Peers may read `received` at the same time. */
    fsdp_status (*post)(void *arg, const fsdp_gather_parameter *parameter, const void *const *received, void *unsharded,
                        fsdp_stream *stream);
    void *arg;
};
/* Sends one byte an element: e4m3 of x * 448 / (the largest magnitude of all shards), rounded to nearest even. All
 * ranks compute the same values, whatever their number. */
FSDP_API const fsdp_gather_extension *fsdp_gather_float8(void);
/* Sends one byte an element, x * 127 / (the largest magnitude of its block), and one float for each block of 128
 * elements of a rank's part. The gather is the only collective. Values depend on where blocks begin, so on the number
 * of ranks. */
FSDP_API const fsdp_gather_extension *fsdp_gather_int8(void);

/* ---- custom collectives ---- */

/* Describes the call of a custom collective, which replaces the library's for the module's own parameters (FSDP2's
 * set_custom_all_gather, set_custom_reduce_scatter). The collective gets one packed buffer, padded to equal parts for
 * all ranks, as fsdp_all_gather and fsdp_reduce_scatter take it. It is not called in groups of one rank. */
typedef struct fsdp_custom_call {
    fsdp_process_group *group; /* the shard group, or the group for slices or separate reductions in use */
    const void *send;          /* all-gather: part `rank` of recv (count); reduce-scatter: one part for each rank */
    void *recv;                /* all-gather: one part of each rank; reduce-scatter: this rank's part (count) */
    int64_t count;             /* elements of one part */
    fsdp_dtype dtype;    /* of all elements; gather of mixed dtypes: U8; reduction: the reduce dtype, one call each */
    fsdp_reduce_op op;   /* of a reduction: SUM or AVG */
    fsdp_stream *stream; /* the work may be done on return, or later in this stream's order */
} fsdp_custom_call;

typedef struct fsdp_custom_collective {
    /* Does the collective. A failure is one of the forward or backward; a rank that fails before its peers can know
     * must call fsdp_abort. Traffic is counted if it goes through a process group. [collective] */
    fsdp_status (*run)(void *arg, const fsdp_custom_call *call);
    /* Allocate and release the packed buffer of each call; set both or neither. It is device memory, used in the order
     * of the device's stream (fsdp_device_stream): to free it at once, synchronise that stream first. NULL: the buffer
     * is the device's own, counted as unsharded parameters or gradients. */
    fsdp_status (*allocate)(void *arg, fsdp_device *device, size_t bytes, void **out);
    void (*release)(void *arg, fsdp_device *device, void *memory, size_t bytes);
    void *arg;
} fsdp_custom_collective;

/* Sets a custom all-gather, at any time; NULL restores the library's. The struct is copied; `arg` must stay valid as
 * long as the module or a graph of it. Not recursive. It works only if ranks do not share memory, else FSDP_STATE: set
 * it while the parameters are on the meta device, or set options.no_shared_memory. */
FSDP_API fsdp_status fsdp_module_set_custom_all_gather(fsdp_module *module, const fsdp_custom_collective *collective);
/* Sets a custom reduce-scatter, which is responsible for the sum in the reduce dtype: the library's own adds in f32 in
 * rank order, without intermediate rounding. */
FSDP_API fsdp_status fsdp_module_set_custom_reduce_scatter(fsdp_module *module,
                                                           const fsdp_custom_collective *collective);
/* Sets a custom all-reduce between replicas, for partial gradients (hybrid sharding, or all parameters on every rank).
 * It sums `send` into `recv`, which are the same buffer, of `count` elements in the reduce dtype; the library divides.
 * allocate is not supported. It is not called with one replica. */
FSDP_API fsdp_status fsdp_module_set_custom_all_reduce(fsdp_module *module, const fsdp_custom_collective *collective);

/* ---- watching ---- */

/* Names the events of a group that a listener gets (fsdp_module_set_shard_listener, below). At level FSDP_LOG_DEBUG the
 * log has the same events, in order with the collectives (fsdp_context_set_log): "unshard 'layers.0' (forward)",
 * "all_gather: 42 float32 over 2 ranks of group 'dp'", ... */
typedef enum fsdp_shard_event {
    FSDP_EVENT_UNSHARD, /* a gather begins */
    FSDP_EVENT_WAIT,    /* unsharded parameters are in place */
    FSDP_EVENT_RESHARD,
    FSDP_EVENT_PRE_FORWARD,
    FSDP_EVENT_POST_FORWARD,
    FSDP_EVENT_PRE_BACKWARD,
    FSDP_EVENT_POST_BACKWARD, /* resharded and reduced, if it was to be */
    FSDP_EVENT_REDUCE,
} fsdp_shard_event;
typedef void (*fsdp_shard_listener)(void *arg, fsdp_module *module, fsdp_shard_event event);
/* Has the listener called at every transition of every group below the root, on this rank's thread, for tests and
 * demonstrations. */
FSDP_API fsdp_status fsdp_module_set_shard_listener(fsdp_module *root, fsdp_shard_listener listener, void *arg);

#ifdef __cplusplus
}
#endif
#endif
