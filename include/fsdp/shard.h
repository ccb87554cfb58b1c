/* fsdp/shard.h - fully sharded data parallel: keep each parameter unsharded only while it is being used.
 *
 * fsdp_fully_shard makes the parameters of a module that no nested call has taken one *group*: they are gathered in
 * one all-gather before the module's forward (and again before its backward if they were resharded in between), and
 * their gradients leave in one reduce-scatter after its backward, whatever dtypes they have.
 * Call it from the bottom up, last on the root:
 *
 *     for (int64_t i = 0; i < blocks; i++)
 *         FSDP_TRY(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
 *     FSDP_TRY(fsdp_fully_shard(model, NULL));
 *
 *     SHARDED --unshard--> GATHERING --wait--> UNSHARDED --reshard--> SHARDED
 *
 * After a forward a group may also keep a part of what was gathered, for a gather over fewer ranks
 * (reshard_after_forward_ranks): then it is SHARDED_POST_FORWARD until its next use, or a write to a shard.
 *
 * Outside forward and backward the module's parameters are distributed tensors: local rows by the chunk rule of
 * fsdp/dist.h over dimension 0, or the one that options.placement says, global shape in their distribution. Optimizers
 * and state dicts see those, also while the engine keeps a group unsharded for its next use (unlike PyTorch). Only from
 * fsdp_module_unshard to the reshard do the module's fields name unsharded, plain tensors, which are to be read and not
 * written.
 *
 * A write to a shard (optimizer, fsdp_tensor_write, initialize, load) waits until no peer reads the old values, for no
 * longer, and makes everything stale that was made from them: what was unsharded is resharded, the next use gathers
 * anew, the backward of an earlier forward too (which of plain parameters is an error). One rank alone may write,
 * except inside a forward and between it and its backward, where all ranks do or none, and not to a group that another
 * rank holds unsharded while it writes to one that this rank holds (each would wait for the other: an error that names
 * both). While its own module's forward or backward runs, a shard cannot be written.
 *
 * A parameter belongs to the first call that finds it. Where modules of later calls use it too (tied weights, a module
 * below two parents), their uses gather the first call's group as well, which is resharded when none of them uses it.
 * All uses add up in one gradient, reduced once, at the end of the backward. An optimizer and a state dict see one
 * shard. These calls must agree on mp_policy.param_dtype and have an outermost module in common.
 *
 * Ranks may use different parameters in a step: of a module that all of them enter any parameters, or its output at
 * all. What a rank has not used counts as zero in the average, and a parameter that no rank used keeps its gradient as
 * it was, none perhaps. Its inputs require a gradient on all ranks or on none; its output does where another rank may
 * need it. To enter a module is collective, unless it is conditional (fsdp_module_set_conditional). A checkpoint around
 * sharded modules runs again, and gathers, when this rank first needs it: in one all ranks use the same parameters, or
 * get an error.
 *
 * Gradients of shards are distributed tensors as well. Gradient hooks of a shard see what a reduction brings, before it
 * is added.
 *
 * Hybrid sharding (a mesh of two dimensions, replicate and shard): every replica holds all parameters, sharded over its
 * own ranks; their distribution is (Replicate, Shard(0)). Gathers stay inside a replica. A reduction is a
 * reduce-scatter inside, which leaves *partial* gradients in the reduce dtype, and an all-reduce of those across; then
 * one division by the number of all ranks. The replicas' parameters stay equal to the bit.
 *
 * Inputs of the outermost module that are on another device are moved to that of its parameters.
 *
 * The model does not know: with or without these calls it computes the same. All ranks must make the same calls in the
 * same order; forwards and backwards are collective over the mesh.
 */
#ifndef FSDP_SHARD_H
#define FSDP_SHARD_H

#include "fsdp/dist.h"
#include "fsdp/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_reshard {
    FSDP_RESHARD_AUTO,   /* after the forward, except the root */
    FSDP_RESHARD_ALWAYS, /* after the forward, the root too */
    FSDP_RESHARD_NEVER,  /* keep unsharded until after the backward */
} fsdp_reshard;

/* FSDP2's MixedPrecisionPolicy. All zero: no mixed precision. It is each parameter's own, whether it is frozen or not;
 * those of one call may have several dtypes, and are still gathered in one all-gather and reduced in one
 * reduce-scatter. */
typedef struct fsdp_mp_policy {
    fsdp_dtype param_dtype; /* gather and compute in this dtype; the shard keeps its own. NONE: that of the shard */
    /* Reduce gradients, and accumulate unreduced ones, in this dtype, whatever they are computed in; NONE: that of the
     * shard (as PyTorch since 2.15). It is what is sent. */
    fsdp_dtype reduce_dtype;
    fsdp_dtype output_dtype;  /* cast floating outputs of the module to this dtype */
    bool keep_forward_inputs; /* FSDP2's cast_forward_inputs=False: do not cast floating inputs to param_dtype */
    /* Floating buffers of the call's modules are cast to it once, before the first forward, but for tables that a layer
     * computes for itself (rope's). NONE: none is, as in FSDP2: a module that mixes its buffers with what it computes,
     * as a batch norm mixes its running statistics, meets two dtypes then. Set this, or give it a call of its own with
     * another policy. */
    fsdp_dtype buffer_dtype;
} fsdp_mp_policy;

/* FSDP2's CPUOffloadPolicy. */
typedef struct fsdp_offload_policy {
    /* Shards lie on the host, with their gradients and so the state of an optimizer, and are handled there; the
     * unsharded parameters, unsharded gradients and partial ones on the device that the parameters are on, or are
     * materialized on. A gather copies the shards to the device first, in their own dtype, and casts them there; a
     * reduction copies its result to the host and adds it there: all on streams beside the computing, for which the
     * host waits at the end of the backward. Ignored parameters and buffers stay on the device. Results are the same
     * bits. Where the device is the CPU nothing moves: the shards lie on the host as it is. */
    bool cpu;
    bool pageable; /* FSDP2's pin_memory=False: do not register that memory with the device */
} fsdp_offload_policy;

/* How prefetched gathers and reductions run. */
typedef enum fsdp_overlap {
    /* Inline on the CPU: ranks have no core to spare. Over several machines on workers; and where gathers go over them
     * each module gathers, in a forward of the outermost one, what came after it in the forward before: there are two
     * whole besides the outermost then, as in a backward. In both passes the one behind that is gathered, too, where
     * what comes next has fewer bytes than the module that computes, and so is there soon, and that one no more: three
     * are whole then. Nothing of this in a forward, and one in a backward, where modules lie on several meshes. */
    FSDP_OVERLAP_AUTO,
    FSDP_OVERLAP_INLINE,
    FSDP_OVERLAP_WORKER, /* gathers and reductions on worker streams */
} fsdp_overlap;

/* FSDP2's DataParallelMeshDims: which dimensions of a larger mesh are data parallel, by their names, each list ended by
 * NULL where it is shorter. Several of one list are flattened into one. All zero: those of the mesh itself. The other
 * dimensions are not ours: ranks that differ there hold parameters of their own. */
typedef struct fsdp_dp_mesh_dims {
    const char *shard[FSDP_MAX_MESH_DIMS];
    const char *replicate[FSDP_MAX_MESH_DIMS];
} fsdp_dp_mesh_dims;

/* How one parameter is sharded. */
typedef struct fsdp_shard_placement {
    int dim;         /* of the tensor; negative: from the end */
    fsdp_mesh *mesh; /* of one dimension (shard), or two (replicate, shard). Borrowed for the call */
} fsdp_shard_placement;

/* ---- gathers of other bytes ---- */

/* A parameter in the gathers of its group, as an extension sees it. */
typedef struct fsdp_gather_parameter {
    const char *name;           /* dotted, from the root; NULL before the first forward */
    const fsdp_tensor *sharded; /* this rank's part; the whole shape is in its distribution */
    const void *values;         /* for measure and pre: of this part, contiguous, on the device of the stream */
    fsdp_dtype param_dtype;     /* of the unsharded parameter */
    int ranks, rank;            /* it is sharded over */
    /* The unsharded parameter as (outer, rows, inner) elements; `rows` is the sharded dimension. Rank r has the rows of
     * fsdp_shard_range, fewer than others or none; its part is (outer, its rows, inner), contiguous. */
    int64_t outer, rows, inner;
} fsdp_gather_parameter;

/* What is sent of a parameter in place of its rows in param_dtype (FSDP2's fsdp_pre_all_gather and
 * fsdp_post_all_gather). Functions give work to `stream`, and touch memory of the device on the host only after
 * synchronising that; addresses and structs are theirs during the call. The same calls on all ranks, with the same
 * results for the ranks to be equal. A failure is one of the forward, backward or unshard that gathers. */
typedef struct fsdp_gather_extension {
    const char *name; /* for messages */
    /* Bytes that each rank sends: one number for all, so of the longest part that a rank may have. */
    size_t (*sent_bytes)(void *arg, const fsdp_gather_parameter *parameter);
    /* Optional. A number of this rank's shard, asked for after a write to it: pre gets the largest of all ranks'. One
     * all-reduce has it for all parameters of the outermost module: before a forward of that, and before an unshard. */
    fsdp_status (*measure)(void *arg, const fsdp_gather_parameter *parameter, float *out, fsdp_stream *stream);
    /* From the shard to what is sent, which is kept for all gathers until the next write (16-byte aligned). Called
     * after one (`written`), and whenever `measured` may have changed; where it has not, what is there may stay. */
    fsdp_status (*pre)(void *arg, const fsdp_gather_parameter *parameter, const float *measured, bool written,
                       void *sent, fsdp_stream *stream);
    /* From what the ranks sent, received[rank], to the unsharded parameter in param_dtype, all of it. After each
     * gather, in its stream. Peers may read `received`, too. */
    fsdp_status (*post)(void *arg, const fsdp_gather_parameter *parameter, const void *const *received, void *unsharded,
                        fsdp_stream *stream);
    void *arg;
} fsdp_gather_extension;

/* One byte an element, e4m3: x 448 / (the largest magnitude of all shards), nearest even. All ranks compute the same
 * values, whatever their number. */
FSDP_API const fsdp_gather_extension *fsdp_gather_float8(void);
/* One byte an element, and a float every 128 of a rank's part: x 127 / (the largest magnitude of the block). No
 * collective but the gather. Values depend on where blocks begin, so on the number of ranks. */
FSDP_API const fsdp_gather_extension *fsdp_gather_int8(void);

typedef struct fsdp_shard_options {
    /* One dimension: its ranks hold a part each. Two: hybrid sharding, the first replicates and the second shards.
     * More: dp_mesh_dims says which are meant. NULL: all ranks of the context, one dimension. Borrowed */
    fsdp_mesh *mesh;
    fsdp_dp_mesh_dims dp_mesh_dims;
    fsdp_reshard reshard_after_forward;
    /* FSDP2's integer reshard_after_forward, in place of the enum; 0: none. A number k that divides the ranks: 1:
     * NEVER; all ranks: ALWAYS; else every rank keeps 1/k of the gathered bytes after a forward, and the next use
     * gathers over k consecutive ranks of the mesh (of one machine, say), after a write to a shard over all. The
     * process groups are made by the first call with this mesh and k, [collective] of the world. */
    int reshard_after_forward_ranks;
    /* ZeRO as one number; 0: not said. What a rank has only a part of while a step runs, however many microbatches it
     * has. 1: optimizer state: parameters are gathered once a step and stay whole, gradients add up whole and are
     * reduced once. 2: gradients too: every backward reduces. 3: parameters too: resharded after the forward. Between
     * steps all of it is sharded in any. 1 and 2 are reshard_after_forward NEVER, 3 is what that says. Where a step
     * ends fsdp_module_set_is_last_microbatch says. Modules may differ. The results are the same bits where gradients
     * add up in the same order: always but for 1, which with several microbatches adds those of a rank first. */
    int zero_stage;
    fsdp_mp_policy mp_policy;
    fsdp_offload_policy offload_policy;
    fsdp_overlap overlap;
    /* FSDP2's shard_placement_fn: asked once for each parameter of the call, by its dotted name from the call's module.
     * `out` is dimension 0 and the call's mesh when it comes. NULL: that for all. Any dimension may be uneven. Rows of
     * a later dimension lie apart in the unsharded parameter, so its group copies where others share memory; the shard
     * and its gradient are contiguous. Parameters over another mesh (experts, over a part of the ranks) are gathered
     * and reduced by themselves, and their gradients divided by that mesh's ranks. All ranks of a mesh must answer
     * alike. */
    fsdp_status (*placement)(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out);
    void *placement_arg;
    /* For the parameters that `extends` picks by their dotted name from the call's module; NULL: the weights of layers
     * of types Linear and Conv1D where they are not tied to an earlier layer's (biases, norms and embeddings lose more
     * than is saved). Forward and backward compute with what arrives, in param_dtype; gradients are reduced as ever and
     * shards, optimizers and state dicts see no difference. The other parameters of such a group are gathered with it
     * as they are. Each rank keeps what it sends, and has the unsharded parameters in memory of its own; a gather has
     * room for what is sent by all ranks besides. With reshard_after_forward_ranks what is kept, and gathered over
     * those ranks, is in param_dtype. Copied; all ranks of a mesh must give the same. NULL: none. */
    const fsdp_gather_extension *gather_extension;
    bool (*extends)(void *arg, const char *name, const fsdp_tensor *parameter);
    void *extends_arg;
    /* Left as they are: neither sharded, nor moved, nor reduced, whichever modules have them; give the same list to all
     * calls. Their gradients are this rank's own, so keeping them equal is the caller's business, and they belong into
     * no optimizer whose gradients are clipped together with those of shards: their norm differs from rank to rank.
     * Borrowed for the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    bool no_shared_memory; /* take the copying path even where ranks share memory (comparison, tests) */
} fsdp_shard_options;

/* One module. options may be NULL. Errors (module unchanged), on all ranks of the mesh what is wrong on one: a
 * container that cannot be called, applied twice, a parameter without dimensions, one that is not contiguous or has a
 * gradient already, a mesh of more dimensions than two without dp_mesh_dims, or without those that it names; an
 * option that has no such value; FSDP_MISMATCH where only some ranks have parameters to shard. Parameters with bytes
 * are cut to this rank's rows now (all ranks must hold the same values); meta parameters stay meta. [collective] */
FSDP_API fsdp_status fsdp_fully_shard(fsdp_module *module, const fsdp_shard_options *options);
/* Several modules as one group (small layers; tied weights that are to be gathered once). Gathered when the first of
 * them runs, resharded when all have run. */
FSDP_API fsdp_status fsdp_fully_shard_modules(fsdp_module *const *modules, int count,
                                              const fsdp_shard_options *options);

/* ---- methods of a sharded module: FSDP_STATE when `module` was not given to fully_shard ---- */

/* Gathers the module's own group now (nested ones not, but conditional ones); its fields name unsharded tensors until
 * the reshard, which is fsdp_module_reshard, a forward or backward that reshards, or a write to a shard. A second call,
 * or one before a forward, costs nothing. [collective] */
FSDP_API fsdp_status fsdp_module_unshard(fsdp_module *module);
/* Frees the unsharded parameters and puts the shards back. Idempotent; a local call. */
FSDP_API fsdp_status fsdp_module_reshard(fsdp_module *module);
/* The same for every sharded module of the subtree. After it no memory of gathers is held, also behind a forward whose
 * backward never comes. */
FSDP_API fsdp_status fsdp_module_reshard_all(fsdp_module *module);
/* fsdp_module_unshard in two calls, FSDP2's unshard(async_op=True): the first issues the gather and returns, fields
 * name the shards still; the second waits for it, from when on they name unsharded tensors. The module is the handle:
 * the second call is local and may be left out, since a forward waits itself; it does nothing where the first was not
 * called, or where a use, a reshard or a write came in between, of what it has or of what is tied to it. A gather that
 * nobody wanted is dropped at the end of the next backward. [collective] */
FSDP_API fsdp_status fsdp_module_unshard_async(fsdp_module *module);
FSDP_API fsdp_status fsdp_module_wait_unshard(fsdp_module *module);

/* FSDP1's summon_full_params, between two calls: fields name whole, plain tensors in the dtype of the shards, to be
 * read and written (surgery, averages of weights, a look at them). The modules cannot run meanwhile, nor can the shards
 * be written: FSDP_STATE. What was unsharded is resharded first. */
typedef struct fsdp_summon_options {
    bool no_recurse; /* the module's own parameters alone; those of sharded modules below stay shards */
    /* What is written is lost at the end. Else each rank writes its own part back, which counts as a write to the
     * shard whether anything changed or not; ranks must write the same where replicas are to stay equal. Freezing and
     * dropping a gradient (zero_grad) is then done to the shard, at once. */
    bool no_writeback;
    /* On the first rank of each shard group alone; fields of the others name the shards. They have room for one group
     * at a time while it is gathered. Needs no_writeback. Who shards over one rank is the first. */
    bool rank0_only;
    bool offload_to_cpu; /* in the host's memory; the device has room for one group at a time */
    /* With the gradients that shards have, whole; written back with them, dropped or made there as well. Gradients that
     * wait to be reduced are no part of that. */
    bool with_grads;
} fsdp_summon_options;

/* options may be NULL. Takes memory for all parameters at once, unpadded (a flat group's as one vector, in which its
 * parameters lie, with its padding), beside the shards: group by group, one gather each. Errors, on all ranks, after
 * which everything is as before: in a forward or backward, twice, on the meta device, no memory. [collective] */
FSDP_API fsdp_status fsdp_module_summon_full_params(fsdp_module *module, const fsdp_summon_options *options);
/* Ends what was begun on this very module. Fields name the shards again, whatever happens; a tensor that the caller
 * still holds is a plain one. A local call, but writes wait for peers that read (see above). */
FSDP_API fsdp_status fsdp_module_end_summon(fsdp_module *module);

/* false: gradients stay unsharded on this rank and add up there; nothing is communicated in the backward (no_sync). The
 * next backward with true reduces what has added up. zero_grad drops it. For the module and, with `recurse`, every
 * sharded module below. */
FSDP_API fsdp_status fsdp_module_set_requires_gradient_sync(fsdp_module *module, bool sync, bool recurse);
/* false: gradients of hybrid sharding are reduced inside each replica only, and add up there, sharded, in the reduce
 * dtype; shards get no gradient. The next backward with true completes what has added up, also where that backward
 * brings nothing new. zero_grad drops it. Setting requires_gradient_sync sets this, too. No difference on a mesh
 * without replicas. */
FSDP_API fsdp_status fsdp_module_set_requires_all_reduce(fsdp_module *module, bool on, bool recurse);
/* false: the end of a backward does not wait for reductions and keeps the prefetch order (several backwards per step).
 */
FSDP_API fsdp_status fsdp_module_set_is_last_backward(fsdp_module *module, bool last);
/* Before each forward of a step of several: whether its backward is the step's last. Does for the module and every
 * sharded module below what their options.zero_stage says: sets is_last_backward; of stage 1 requires_gradient_sync and
 * reshard_after_backward to `last`; of stage 2 reshard_after_backward alone. Modules without a stage, or of stage 3,
 * stay as they are set. A step of one microbatch needs no call. */
FSDP_API fsdp_status fsdp_module_set_is_last_microbatch(fsdp_module *module, bool last);
/* Before the first forward: this rank may enter the module or not, as its data has it, and so may every other, as often
 * as it likes; sharded modules below are conditional, too. Its parameters are gathered and reduced together with the
 * next sharded module above it, of which there must be one only, so each needs memory when that one runs. It prefetches
 * nothing. Called outside of that one's forward, it is collective like any other. Without, ranks that enter different
 * modules get an error that names both. */
FSDP_API fsdp_status fsdp_module_set_conditional(fsdp_module *module, bool conditional);
/* These two at any time. The first replaces what the options say, reshard_after_forward_ranks too. */
FSDP_API fsdp_status fsdp_module_set_reshard_after_forward(fsdp_module *module, bool reshard, bool recurse);
FSDP_API fsdp_status fsdp_module_set_reshard_after_backward(fsdp_module *module, bool reshard, bool recurse);
/* true: whatever they are set to, the module and all that is sharded below keep what a forward has gathered, until a
 * write to a shard or a reshard: for many forwards in a row without a backward, which then gather once. false: as they
 * are set again, and all is resharded. A local call, the same on all ranks; FSDP_STATE while a forward or backward
 * runs. */
FSDP_API fsdp_status fsdp_module_set_keep_unsharded(fsdp_module *module, bool keep);
/* false: the backward does not gather the module's own group, nor prefetch it: for modules whose backward reads no
 * parameter, as an embedding's. One that does read a parameter which is not unsharded fails, on all ranks. What is
 * recomputed in a backward (fsdp_module_set_checkpoint) is gathered all the same. */
FSDP_API fsdp_status fsdp_module_set_unshard_in_backward(fsdp_module *module, bool unshard);
/* What is gathered ahead, in the order of the list (copied), as soon as the module's own parameters are there: in its
 * forward (by default nothing, or what FSDP_OVERLAP_AUTO says) and in its backward (by default the one whose forward
 * came before it, or two, as that says); a list replaces the default, of 0 modules brings it back. Each module of the
 * list must be sharded and below the same outermost module. Scheduling only: the results are the same bits. Each gather
 * ahead has its memory until its use; one that is not used is given up at the end of the forward, or of the backward.
 */
FSDP_API fsdp_status fsdp_module_set_modules_to_forward_prefetch(fsdp_module *module, fsdp_module *const *modules,
                                                                 int count);
FSDP_API fsdp_status fsdp_module_set_modules_to_backward_prefetch(fsdp_module *module, fsdp_module *const *modules,
                                                                  int count);
/* Of the outermost module, after an optimizer step: the gathers of the next forward wait for `event` (NULL: as ever),
 * recorded behind the last write to a shard, instead of for all that the device's stream has been given by then. It
 * counts once, is no longer looked at when a shard is written later, and must stay until the next forward. Of modules
 * that share a communication context it lies behind the last write to any of theirs. Memory that
 * a gather gets new from the device is waited for in any case (no_shared_memory). */
FSDP_API fsdp_status fsdp_module_set_post_optim_event(fsdp_module *module, fsdp_event *event);
/* How many reductions may be in flight at a time, each with its unsharded gradients (default 1): with more, the
 * computing waits less for reductions on worker streams. All modules below one outermost module share one pipeline: the
 * most that one of them asks for counts. The results are the same bits. */
FSDP_API fsdp_status fsdp_module_set_reduce_scatter_max_inputs(fsdp_module *module, int most, bool recurse);
/* true: reductions go through a channel of their own, a process group (one for each shard group) and, on worker
 * streams, a stream, so that gathers and reductions run beside each other. Off by default. The results are the same
 * bits. FSDP_STATE while gradients wait to be reduced. [collective] of the world */
FSDP_API fsdp_status fsdp_module_set_separate_reduce_scatter_group(fsdp_module *module, bool on, bool recurse);
/* Several outermost modules, such as the stages of a pipeline, communicate as one (FSDP2's share_comm_ctx): on the same
 * streams, in the order of their calls, with one set of memory for gathers ahead and one pipeline of reductions, of
 * which the most that one of them asks for holds (so does FSDP_OVERLAP_WORKER). Without, each has its own. The results
 * are the same bits. All on one device; of those that have run already only the first. FSDP_STATE for modules that have
 * run, are unsharded, or are not outermost. The modules are freed in any order. */
FSDP_API fsdp_status fsdp_share_comm_context(fsdp_module *const *modules, int count);
/* Divides reduced gradients by this instead of the number of all data-parallel ranks, replicas included (0: the default
 * again). One division, after the last sum. Not recursive. */
FSDP_API fsdp_status fsdp_module_set_gradient_divide_factor(fsdp_module *module, float factor);
/* true: reductions sum on the wire, and are divided afterwards, where they would average (for libraries without an
 * average, or with a wrong one). Same bits here. Not recursive. */
FSDP_API fsdp_status fsdp_module_set_force_sum_reduction(fsdp_module *module, bool on);
/* Called with every reduced group of the module's own before its shards get their gradients, to do more to them: an
 * all-reduce over further ranks, say. `gradients` is this rank's part of the group in one dimension, padding included,
 * in the reduce dtype (of several reduce dtypes: a call each): summed over all ranks of the mesh and divided. It may be
 * changed in place, by work that the hook gives to `stream`; on the host only after synchronising that. All ranks make
 * the same calls. A failure is one of the backward. NULL: no hook. Not recursive. */
typedef fsdp_status (*fsdp_all_reduce_hook)(void *arg, fsdp_tensor *gradients, fsdp_stream *stream);
FSDP_API fsdp_status fsdp_module_set_all_reduce_hook(fsdp_module *module, fsdp_all_reduce_hook hook, void *arg);

/* A collective that the caller has written, in the place of the library's for the module's own parameters (FSDP2's
 * set_custom_all_gather, set_custom_reduce_scatter). It gets one packed buffer, padded to equal parts of all ranks:
 * fsdp_all_gather and fsdp_reduce_scatter take the same. Not called in groups of one rank. */
typedef struct fsdp_custom_call {
    fsdp_process_group *group; /* the shard group; of slices, or of a channel of its own, where there is one */
    const void *send;          /* all-gather: part `rank` of recv (count). Reduce-scatter: a part for each rank */
    void *recv;                /* all-gather: a part of each rank. Reduce-scatter: this rank's part (count) */
    int64_t count;             /* elements of one part */
    fsdp_dtype dtype;  /* of all; of a gather of several dtypes U8, bytes. Reductions: the reduce dtype, a call each */
    fsdp_reduce_op op; /* of a reduction: SUM or AVG */
    fsdp_stream *stream; /* the work is for it, and may be done on return or later in its order */
} fsdp_custom_call;
typedef struct fsdp_custom_collective {
    /* [collective] A failure is one of the forward or backward; who fails before its peers can know calls fsdp_abort.
     * What it sends counts if it goes through a process group. */
    fsdp_status (*run)(void *arg, const fsdp_custom_call *call);
    /* Both, or NULL: where the packed buffer of each call lies. It is memory of the device, taken and given back in the
     * order of the device's stream (fsdp_device_stream): who frees at once synchronises that first. Without, the buffer
     * is the device's own, counted as unsharded parameters or gradients. */
    fsdp_status (*allocate)(void *arg, fsdp_device *device, size_t bytes, void **out);
    void (*release)(void *arg, fsdp_device *device, void *memory, size_t bytes);
    void *arg;
} fsdp_custom_collective;
/* NULL: the library's again. At any time; the struct is copied, `arg` must stay as long as the module, or a graph of
 * it. Not recursive. A gather is one of memory that ranks do not share: FSDP_STATE where they do, so set it while the
 * parameters are on the meta device, or give options.no_shared_memory. */
FSDP_API fsdp_status fsdp_module_set_custom_all_gather(fsdp_module *module, const fsdp_custom_collective *collective);
/* The sum in the reduce dtype is the function's: the library's own adds in f32 in rank order and rounds nothing. */
FSDP_API fsdp_status fsdp_module_set_custom_reduce_scatter(fsdp_module *module,
                                                           const fsdp_custom_collective *collective);

/* Between replicas, in the place of the all-reduce of partial gradients (hybrid sharding, or every rank with all of the
 * parameters): the sum of `send` into `recv`, which are one, of `count` elements in the reduce dtype; the library
 * divides. Without allocate. Not called where there is one replica. */
FSDP_API fsdp_status fsdp_module_set_custom_all_reduce(fsdp_module *module, const fsdp_custom_collective *collective);
/* PyTorch's bf16_compress_hook and fp16_compress_hook: gradients are sent in BF16 or F16, half the bytes, where the
 * reduce dtype is wider, in which they still add up on the rank; NONE: in that again. A contribution is rounded once,
 * and the sum is the library's, in f32; what waits for other replicas waits as it is sent. FSDP_STATE while something
 * does; FSDP_UNSUPPORTED for a replicated module, whose buckets have an option for it. The same on all ranks. */
FSDP_API fsdp_status fsdp_module_set_gradient_compression(fsdp_module *module, fsdp_dtype dtype, bool recurse);

/* Called when gradients of the module's own parameters are in place: a reduction has landed and was added to what its
 * shards had (torch's post_accumulate_grad hooks, a group at a time). `parameters` are those of its shards that have a
 * gradient; it may be read, stepped with (fsdp_optimizer_step_parameters) and dropped, while the backward goes on with
 * other modules: by work of the shards' device, which waits for it. It is called inside the backward, at the latest at
 * its end, on the rank's own thread; on worker streams when the next reduction begins, on all ranks in the same order.
 * Not in backwards whose gradients stay on the rank, or in the replica. A failure is one of the backward. NULL: no
 * hook. */
typedef fsdp_status (*fsdp_post_accumulate_grad_hook)(void *arg, fsdp_tensor *const *parameters, int64_t count);
FSDP_API fsdp_status fsdp_module_set_post_accumulate_grad_hook(fsdp_module *module, fsdp_post_accumulate_grad_hook hook,
                                                               void *arg, bool recurse);

/* Gradients that a parameter has beside that of its shard; 0: none. Local, without communication. */
typedef enum fsdp_pending_gradient {
    FSDP_PENDING_UNREDUCED = 1, /* on this rank alone: of backwards without gradient sync */
    FSDP_PENDING_PARTIAL = 2,   /* reduced inside the replica: of backwards without all-reduce */
} fsdp_pending_gradient;
FSDP_API int fsdp_parameter_pending_gradients(const fsdp_tensor *parameter);
/* Reduces all that is pending in the module and below into the shards' gradients, whatever the settings say, and waits
 * for reductions in flight. Nothing is communicated where nothing is pending: a second call does nothing. Not while a
 * forward or backward runs. [collective] */
FSDP_API fsdp_status fsdp_module_synchronize_gradients(fsdp_module *module);
/* After an error in a forward or backward: drops this iteration's gathers, gradients and order; everything is sharded
 * again. What has been reduced by then stays in the shards' gradients, until zero_grad. Root only. The group must not
 * be broken. */
FSDP_API fsdp_status fsdp_module_reset_iteration(fsdp_module *module);

/* ---- looking ---- */

typedef enum fsdp_sharded_state {
    FSDP_SHARDED,
    FSDP_SHARDED_POST_FORWARD, /* a slice is kept: see reshard_after_forward_ranks */
    FSDP_GATHERING,
    FSDP_UNSHARDED
} fsdp_sharded_state;

typedef struct fsdp_shard_info {
    const char
        *name; /* dotted name of the group's module(s) from the root, "" for the root; NULL before the first forward */
    fsdp_sharded_state state;
    int64_t parameter_count; /* tensors */
    int64_t numel;           /* elements of the whole group, without padding */
    int64_t padded_numel;    /* rows padded to a multiple of the ranks: what is sent of all ranks */
    int64_t shard_numel;     /* elements this rank holds, without padding */
    bool shares_memory;      /* gathers move nothing on this machine */
    bool offloaded;          /* shards lie on the host, away from the device: see fsdp_offload_policy */
    bool keeps_unsharded;    /* by fsdp_module_set_keep_unsharded */
} fsdp_shard_info;

FSDP_API bool fsdp_module_is_sharded(fsdp_module *module);
FSDP_API fsdp_status fsdp_module_shard_info(fsdp_module *module, fsdp_shard_info *out);

/* Nanoseconds that this rank's program has spent in gathers and in reductions of the module's tree so far: what a step
 * would be shorter by if they cost nothing. Where they run inline that is all of them, with the casts that go with
 * them; on streams of their own, what is waited for them. A difference of two calls is that of what was done in
 * between. Roots that share a communication context have these in common. What brings offloaded gradients to the host
 * is not in it. */
FSDP_API fsdp_status fsdp_module_exposed_time(fsdp_module *module, int64_t *gather_ns, int64_t *reduce_ns);

/* Sees every transition of every group below the root, on this rank's thread: for tests and for showing what happens.
 * The log has the same at level FSDP_LOG_DEBUG, with the collectives in their place (fsdp_context_set_log): "unshard
 * 'layers.0' (forward)", "all_gather: 42 float32 over 2 ranks of group 'dp'", ... */
typedef enum fsdp_shard_event {
    FSDP_EVENT_UNSHARD, /* a gather begins */
    FSDP_EVENT_WAIT,    /* unsharded parameters in place */
    FSDP_EVENT_RESHARD,
    FSDP_EVENT_PRE_FORWARD,
    FSDP_EVENT_POST_FORWARD,
    FSDP_EVENT_PRE_BACKWARD,
    FSDP_EVENT_POST_BACKWARD, /* resharded and reduced, where it was to be */
    FSDP_EVENT_REDUCE,
} fsdp_shard_event;
typedef void (*fsdp_shard_listener)(void *arg, fsdp_module *module, fsdp_shard_event event);
FSDP_API fsdp_status fsdp_module_set_shard_listener(fsdp_module *root, fsdp_shard_listener listener, void *arg);

#ifdef __cplusplus
}
#endif
#endif
