/* fsdp/fsdp1.h - FSDP1, PyTorch's FullyShardedDataParallel: the engine of fsdp/shard.h with FSDP1's names, defaults and
 * schedule.
 *
 * fsdp_fsdp1_wrap makes one *unit* of a module's parameters, without those that a nested call has taken. Call it from
 * the bottom up, last on the root, which gets the remaining parameters:
 *
 *     fsdp_fsdp1_options options = {.strategy = FSDP_SHARD_GRAD_OP};
 *
 *     for (int64_t i = 0; i < blocks; i++)
 *         FSDP_TRY(fsdp_fsdp1_wrap(fsdp_model_block(model, i), &options));
 *     FSDP_TRY(fsdp_fsdp1_wrap(model, &options));
 *
 * or once for the whole tree, with a policy:
 *
 *     const char *const blocks[] = {"LlamaDecoderLayer"};
 *     const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = blocks, .class_count = 1};
 *
 *     FSDP_TRY(fsdp_fsdp1_wrap(model, &(fsdp_fsdp1_options){.auto_wrap_policy = &policy}));
 *
 * There is no wrapper module: names of modules and parameters do not change. Everything that fsdp/shard.h says of
 * sharded modules holds, and its methods take these modules. The differences are FSDP1's:
 *
 * - A unit's parameters have one dtype and form one vector (PyTorch's FlatParameter), which is padded at its end and
 *   cut into equal parts. Gathers and reductions have no other padding. A shard is a run of its parameter's elements,
 *   or is empty (FSDP_FLAT in fsdp/dist.h). As soon as one parameter of a unit has a gradient on any rank, all of
 *   the unit's parameters that are not frozen have one, which may be zero.
 * - The root stays unsharded after a forward until its backward has ended, or until a write to its shards.
 * - A module used several times in a forward, or in several forwards before one backward, is gathered once for that
 *   backward and resharded when the backward has passed all of its uses.
 * - Gradients are reduced in mixed_precision.param_dtype if no reduce_dtype is given.
 * - Only the outermost module casts inputs, unless cast_forward_inputs is set.
 *
 * A sum of gradients is divided once, by the number of all ranks, after the last addition, except in f16
 * (fsdp_module_set_gradient_divide_factor). PyTorch divides before and after, by powers of two if the number of ranks
 * is one: the results are equal up to rounding.
 */
#ifndef FSDP_FSDP1_H
#define FSDP_FSDP1_H

#include "fsdp/state.h"
#include "fsdp/wrap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Corresponds to PyTorch's ShardingStrategy: says what is sharded when no module runs, and until when it stays
 * unsharded. */
typedef enum fsdp_sharding_strategy {
    FSDP_FULL_SHARD, /* resharded after the forward, except the root */
    /* Unsharded from the forward to the end of the backward; without gradient sync, to the end of the next backward
     * with it, or a write. */
    FSDP_SHARD_GRAD_OP,
    FSDP_NO_SHARD, /* every rank holds all parameters; gradients are all-reduced */
    /* FULL_SHARD inside each replica (hybrid sharding). */
    FSDP_HYBRID_SHARD,
    FSDP_HYBRID_SHARD_ZERO2, /* _HYBRID_SHARD_ZERO2: SHARD_GRAD_OP inside each replica */
} fsdp_sharding_strategy;

/* Says when the backward gathers the next unit, which is the one whose forward ended before this one's. */
typedef enum fsdp_backward_prefetch {
    FSDP_BACKWARD_PRE,  /* before this unit's backward: two units are unsharded, besides this one's gradients */
    FSDP_BACKWARD_POST, /* after this unit's backward, before its gradients are reduced */
    FSDP_BACKWARD_NONE, /* backward_prefetch=None: when the next unit's own backward begins */
} fsdp_backward_prefetch;

/* Corresponds to PyTorch's MixedPrecision. All zero: no mixed precision. */
typedef struct fsdp_fsdp1_mixed_precision {
    fsdp_dtype param_dtype;        /* gather and compute in this dtype; shards keep theirs */
    fsdp_dtype reduce_dtype;       /* NONE: param_dtype */
    fsdp_dtype buffer_dtype;       /* as in fsdp_mp_policy */
    bool cast_forward_inputs;      /* every unit casts floating inputs to its param_dtype */
    bool keep_root_forward_inputs; /* cast_root_forward_inputs=False: the outermost module casts none either */
    /* Between a backward and the next one, shards keep their gradients in param_dtype (with NO_SHARD in reduce_dtype),
     * rounded when the backward ends; another backward adds to them in the dtype of the shards. This halves the memory
     * of gradients between a backward and zero_grad. Optimizers, norms and clipping compute in f32 with any dtype
     * (PyTorch's Adam refuses such gradients, its SGD accepts them); a gradient scaler refuses f16. Hooks see gradients
     * as they arrive. */
    bool keep_low_precision_grads;
} fsdp_fsdp1_mixed_precision;

/* Holds the options of fsdp_fsdp1_wrap. All zero: PyTorch's defaults. */
typedef struct fsdp_fsdp1_options {
    fsdp_sharding_strategy strategy;
    /* The ranks that communicate. Set groups, a mesh, or neither for all ranks of the world. The ranks of a process
     * group shard, or with NO_SHARD hold all parameters. A hybrid strategy takes both groups, where the second contains
     * the ranks that hold the same shards, or a mesh of two dimensions, (replicate, shard); other strategies take a
     * mesh of one dimension. Borrowed: the mesh for the call, groups for as long as the modules. */
    fsdp_process_group *process_group, *replicate_group;
    fsdp_mesh *mesh;
    /* Selects the modules below the given one that become units, too; NULL: none. With a policy and neither groups nor
     * a mesh, hybrid strategies shard over the ranks of a machine and replicate across machines. Under mixed precision
     * batch norms become units of their own without mixed precision: the policy.full_precision_classes, or else the
     * types BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d and SyncBatchNorm. They compute in the dtype of their
     * parameters and return the dtype of their input. CUSTOM's `options` are an fsdp_fsdp1_options. Borrowed for the
     * call. */
    const fsdp_wrap_policy *auto_wrap_policy;
    /* false: fsdp_module_parameters lists each unit's vector as one parameter, "_flat_param", in place of the original
     * ones. Create optimizers from it after wrapping; one that was created from the original parameters before is
     * refused. The whole vector is frozen, or none of it. State dicts, of optimizers too, contain the original
     * parameters, which have one step count. true: the parameters are the original ones, each a run of the vector.
     * Optimizers created before wrapping stay valid, and frozen parameters may share a unit with others. Parameters
     * begin at multiples of 16 bytes in the dtype in which they are gathered. The value must be the same for all units
     * of a tree. */
    bool use_orig_params;
    fsdp_backward_prefetch backward_prefetch;
    /* true: a unit's forward also gathers the unit that followed it when units were first used, unless this forward has
     * reached that one already; for models whose order does not change. false: it does not. Over several machines
     * FSDP_OVERLAP_AUTO gathers ahead anyway, FSDP_OVERLAP_WORKER does not. */
    bool forward_prefetch;
    /* limit_all_gathers=False, which has no effect: here the limit always holds. If gathers need memory of their own,
     * at most two units besides the root have it. The gather of a third waits for the last reader of the first, on its
     * stream and not on the host, however far ahead the host is. The value must be the same for all units of a tree. */
    bool no_limit_all_gathers;
    fsdp_fsdp1_mixed_precision mixed_precision;
    fsdp_offload_policy cpu_offload; /* CPUOffload(offload_params) */
    fsdp_overlap overlap;
    /* Called for each module of a unit that itself has parameters or buffers on the meta device, parents first, before
     * the unit is sharded. It gives them memory and values (fsdp_module_materialize, fsdp_module_initialize). NULL:
     * what is on the meta device stays there and is materialized after wrapping, each rank its own part (PyTorch would
     * allocate whole units here). */
    fsdp_status (*param_init_fn)(void *arg, fsdp_module *module);
    void *param_init_arg;
    /* Broadcasts the parameters and buffers of each unit from the first rank: inside its shard group, then across
     * replicas. Nothing of a unit may then be on the meta device any more. */
    bool sync_module_states;
    /* Parameters, and modules with everything below them, that are left unchanged. Give the same to all calls. Borrowed
     * for the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    bool no_shared_memory; /* as in fsdp_shard_options */
} fsdp_fsdp1_options;

/* Wraps a module, as PyTorch's FullyShardedDataParallel(module, ...) does. `options` may be NULL. A world (or process
 * group, or mesh) of one rank becomes NO_SHARD, with a warning. Errors, with the module unchanged: those of
 * fsdp_fully_shard_by_policy; a unit whose parameters have several dtypes, or of which some are frozen without
 * use_orig_params; a hybrid strategy without its two groups, another strategy with two; both a process group and a
 * mesh; tensors that param_init_fn has left on the meta device. If a unit fails, those before it are wrapped.
 * [collective] of the world */
FSDP_API fsdp_status fsdp_fsdp1_wrap(fsdp_module *module, const fsdp_fsdp1_options *options);

/* Begin and end PyTorch's no_sync(): backwards between `begin` and `end` communicate no gradients, which accumulate
 * unsharded on this rank; the next backward after `end` reduces them together with its own. Call them on the outermost
 * module, between forwards and backwards; FSDP_STATE otherwise. Pairs may be nested. */
FSDP_API fsdp_status fsdp_fsdp1_no_sync_begin(fsdp_module *root);
FSDP_API fsdp_status fsdp_fsdp1_no_sync_end(fsdp_module *root);

/* Sets `hook` on all units below the outermost module, in place of the collective that reduces a unit's gradients
 * (PyTorch's register_comm_hook). The hook gets the flat gradient, padded, and computes this rank's part of the sum (a
 * reduce-scatter), or with NO_SHARD the whole sum in place (an all-reduce; `send` and `recv` are the same). See
 * fsdp_custom_collective; allocate is not supported. If the call says SUM, the library divides. NULL restores the
 * library's. FSDP_UNSUPPORTED: hybrid strategies, as in PyTorch. For PyTorch's compression hooks use
 * fsdp_module_set_gradient_compression. */
FSDP_API fsdp_status fsdp_fsdp1_register_comm_hook(fsdp_module *root, const fsdp_custom_collective *hook);

/* ---- state dicts ----
 *
 * The state dicts of fsdp/state.h also have the original names when taken of an FSDP1 module, and can be loaded into
 * modules sharded in any other way. Those below have the contents, names and shapes of PyTorch's: tied parameters under
 * each of their names, and in a LOCAL state dict each unit's flat vector as "<unit>._flat_param". With use_orig_params
 * it includes padding and stands beside the runs of the original parameters. Units that are not sharded (NO_SHARD) have
 * whole parameters in all types. For the optimizer use fsdp_optimizer_state_dict, with fsdp_optimizer_add_param_groups,
 * and fsdp_state_dict_of_type, which also give original names and shapes; PyTorch's SHARDED and LOCAL types are SHARDED
 * with over_replicas.
 */

/* Sets what the next two functions do if their config is NULL, as FSDP.set_state_dict_type does. The default is
 * FULL. */
FSDP_API fsdp_status fsdp_fsdp1_set_state_dict_type(fsdp_module *module, const fsdp_state_dict_config *config);
/* Makes a state dict of the module. In a LOCAL one, and where nothing has to be cut, tensors are aliases of live
 * memory; the others are copies. FSDP_UNSUPPORTED: a LOCAL one of modules that were wrapped with a mesh. The caller
 * owns `*out`. [collective] on all ranks, whatever each of them gets */
FSDP_API fsdp_status fsdp_fsdp1_state_dict(fsdp_module *module, const fsdp_state_dict_config *config,
                                           fsdp_state_dict **out);
/* Loads a state dict: FULL and SHARDED ones of any strategy and number of ranks, LOCAL ones as they were made. Tied
 * parameters need only one of their names. With rank0_only it is read from the world's rank 0, and others may pass
 * NULL. [collective] */
FSDP_API fsdp_status fsdp_fsdp1_load_state_dict(fsdp_module *module, const fsdp_state_dict_config *config,
                                                const fsdp_state_dict *state);

#ifdef __cplusplus
}
#endif
#endif
