/* fsdp/fsdp1.h - the front door of FSDP1, PyTorch's FullyShardedDataParallel: the engine of fsdp/shard.h under the
 * names, defaults and schedule that users of FSDP1 know.
 *
 * fsdp_fsdp1_wrap makes the parameters of a module that no nested call has taken one *unit*. Call it from the bottom
 * up, last on the root, which has what is left over:
 *
 *     fsdp_fsdp1_options options = {.strategy = FSDP_SHARD_GRAD_OP};
 *
 *     for (int64_t i = 0; i < blocks; i++)
 *         FSDP_TRY(fsdp_fsdp1_wrap(fsdp_model_block(model, i), &options));
 *     FSDP_TRY(fsdp_fsdp1_wrap(model, &options));
 *
 * or by a policy, one call for the tree:
 *
 *     const char *const blocks[] = {"LlamaDecoderLayer"};
 *     const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = blocks, .class_count = 1};
 *
 *     FSDP_TRY(fsdp_fsdp1_wrap(model, &(fsdp_fsdp1_options){.auto_wrap_policy = &policy}));
 *
 * There is no wrapper module: names of modules and parameters stay what they were. All that fsdp/shard.h says of
 * sharded modules holds, and its methods take modules that came through this door. What is FSDP1's own:
 *
 * - A unit's parameters have one dtype and lie in one vector (PyTorch's FlatParameter), which is padded at its end and
 *   cut into equal parts: a gather and a reduction have no other padding, a shard is a run of its parameter's elements,
 *   or none of them (FSDP_FLAT in fsdp/dist.h), and as soon as one parameter of a unit has a gradient, on any rank, the
 *   others of it that are not frozen have one, too, zeros perhaps.
 * - The root stays unsharded after a forward, until its backward has ended, or a write to its shards.
 * - A module that is used several times in a forward, or in several forwards before one backward, is gathered once for
 *   that backward, and resharded when it has been through all of them.
 * - Gradients are reduced in mixed_precision.param_dtype where no reduce_dtype is given.
 * - Inputs are cast by the outermost module alone, unless cast_forward_inputs says otherwise.
 *
 * A sum of gradients is divided once, by all ranks, after the last addition, but for f16: see fsdp/shard.h. (PyTorch
 * divides before and after, by powers of two where the ranks are one: the same numbers up to rounding.)
 */
#ifndef FSDP_FSDP1_H
#define FSDP_FSDP1_H

#include "fsdp/state.h"
#include "fsdp/wrap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PyTorch's ShardingStrategy: what rests sharded, and until when. */
typedef enum fsdp_sharding_strategy {
    FSDP_FULL_SHARD, /* resharded after the forward, but for the root */
    /* Unsharded from the forward to the end of the backward; without gradient sync to that of the next one that has it,
     * or a write. */
    FSDP_SHARD_GRAD_OP,
    FSDP_NO_SHARD, /* every rank holds all; gradients are all-reduced */
    /* FULL_SHARD and SHARD_GRAD_OP inside a replica (hybrid sharding). */
    FSDP_HYBRID_SHARD,
    FSDP_HYBRID_SHARD_ZERO2, /* _HYBRID_SHARD_ZERO2 */
} fsdp_sharding_strategy;

/* When the backward gathers the unit before the one at hand, in the order in which their forwards ended. */
typedef enum fsdp_backward_prefetch {
    FSDP_BACKWARD_PRE,  /* before this one's backward: two are unsharded beside its gradients */
    FSDP_BACKWARD_POST, /* after it, before its gradients are reduced */
    FSDP_BACKWARD_NONE, /* backward_prefetch=None: when its own backward begins */
} fsdp_backward_prefetch;

/* PyTorch's MixedPrecision. All zero: none. */
typedef struct fsdp_fsdp1_mixed_precision {
    fsdp_dtype param_dtype;        /* gather and compute in it; the shard keeps its own */
    fsdp_dtype reduce_dtype;       /* NONE: param_dtype */
    fsdp_dtype buffer_dtype;       /* as in fsdp_mp_policy */
    bool cast_forward_inputs;      /* every unit casts floating inputs to its param_dtype */
    bool keep_root_forward_inputs; /* cast_root_forward_inputs=False: the outermost does not either */
    /* From a backward to the next one shards have their gradients in param_dtype, with NO_SHARD in reduce_dtype, which
     * are rounded to it when the backward ends; another backward adds to them in the dtype of the shards. Optimizers,
     * norms and clipping compute in f32 with any dtype (PyTorch's Adam refuses such gradients, its SGD takes them); a
     * gradient scaler refuses f16. Hooks see gradients as they come. Half of the memory of gradients between a
     * backward and zero_grad. */
    bool keep_low_precision_grads;
} fsdp_fsdp1_mixed_precision;

/* All zero: PyTorch's defaults. */
typedef struct fsdp_fsdp1_options {
    fsdp_sharding_strategy strategy;
    /* Who communicates: one of these, or none, all ranks of the world. A process group: its ranks shard, or with
     * NO_SHARD hold all. For the hybrid strategies both groups, the second of the ranks that hold the same shards, or a
     * mesh of two dimensions, (replicate, shard); for the others a mesh of one. Borrowed: the mesh for the call, groups
     * for as long as the modules. */
    fsdp_process_group *process_group, *replicate_group;
    fsdp_mesh *mesh;
    /* Which modules below the given one are units, too; NULL: none. Without groups or a mesh the hybrid strategies
     * shard over the ranks of a machine then, and replicate across machines. Under mixed precision batch norms are
     * units of their own, without it: policy.full_precision_classes, or types called BatchNorm, BatchNorm1d,
     * BatchNorm2d, BatchNorm3d and SyncBatchNorm; they compute in the dtype of their parameters, and give back that of
     * their input. CUSTOM's `options` are an fsdp_fsdp1_options. Borrowed for the call. */
    const fsdp_wrap_policy *auto_wrap_policy;
    /* false: fsdp_module_parameters lists each unit's vector as one parameter, "_flat_param", in place of its parts:
     * what optimizers are made of, after wrapping; one that was made of the parts before is refused. All of it is
     * frozen, or none. State dicts, of optimizers too, have the parts, whose steps are one number.
     * true: the original parameters, each a run of the vector; optimizers that were made before go on, and frozen ones
     * may lie beside others. They begin at multiples of 16 bytes of the dtype they are gathered in.
     * The same for all units of a tree. */
    bool use_orig_params;
    fsdp_backward_prefetch backward_prefetch;
    /* A unit's forward gathers the one that came after it when the units were first used, unless this forward has come
     * to that one already; for models whose order stays. false: it does not; over several machines FSDP_OVERLAP_AUTO
     * gathers ahead by itself, FSDP_OVERLAP_WORKER does not. */
    bool forward_prefetch;
    /* limit_all_gathers=False. Here the limit always holds, so that this changes nothing: where gathers take memory of
     * their own no more than two units besides the root have some, and the gather of a third waits for the last reader
     * of the first, on its stream and not on the host, however far that is ahead. The same for all units of a tree. */
    bool no_limit_all_gathers;
    fsdp_fsdp1_mixed_precision mixed_precision;
    fsdp_offload_policy cpu_offload; /* CPUOffload(offload_params) */
    fsdp_overlap overlap;
    /* Called for each module of a unit that has parameters or buffers on the meta device itself, parents first, before
     * the unit is sharded: gives them bytes and values (fsdp_module_materialize, fsdp_module_initialize). NULL: what is
     * on the meta device stays there, and is materialized when all is wrapped, each rank its own part (PyTorch would
     * give bytes to whole units here). */
    fsdp_status (*param_init_fn)(void *arg, fsdp_module *module);
    void *param_init_arg;
    /* Parameters and buffers of each unit get the values of the first rank, by broadcasts: in its shard group, then
     * across replicas. Nothing of a unit may be on the meta device any more. */
    bool sync_module_states;
    /* Left as they are: parameters, and all of modules and what is below them. Give the same to all calls. Borrowed for
     * the call. */
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    bool no_shared_memory; /* as in fsdp_shard_options */
} fsdp_fsdp1_options;

/* PyTorch's FullyShardedDataParallel(module, ...). options may be NULL. A world of one rank (or a process group, or
 * mesh of one) is NO_SHARD, with a warning. Errors (module unchanged): those of fsdp_fully_shard_by_policy; a unit of
 * parameters of several dtypes, or frozen ones and others without use_orig_params; a hybrid strategy without its
 * groups, another one with two; a process group and a mesh; what param_init_fn has left on the meta device. Where a
 * unit fails those before it are wrapped. [collective] of the world */
FSDP_API fsdp_status fsdp_fsdp1_wrap(fsdp_module *module, const fsdp_fsdp1_options *options);

/* PyTorch's no_sync(), from `begin` to `end`: backwards in between communicate no gradients, which add up unsharded on
 * this rank; the next backward after `end` reduces them with its own. Of the outermost module, between forwards and
 * backwards; FSDP_STATE otherwise. Pairs may be nested. */
FSDP_API fsdp_status fsdp_fsdp1_no_sync_begin(fsdp_module *root);
FSDP_API fsdp_status fsdp_fsdp1_no_sync_end(fsdp_module *root);

/* PyTorch's register_comm_hook, of the outermost module for all units: `hook` in place of the collective that reduces a
 * unit's gradients. It is given the flat gradient, padded: makes this rank's part of the sum (a reduce-scatter), or
 * with NO_SHARD all of it in place (an all-reduce, `send` and `recv` are one); see fsdp_custom_collective, without
 * allocate. The library divides where the call says SUM. NULL: the library's again. FSDP_UNSUPPORTED for the hybrid
 * strategies, as in PyTorch. For its compression hooks: fsdp_module_set_gradient_compression. */
FSDP_API fsdp_status fsdp_fsdp1_register_comm_hook(fsdp_module *root, const fsdp_custom_collective *hook);

/* ---- state dicts ----
 *
 * Whatever state dict of fsdp/state.h is taken of the module has original names, too, and goes through any other front
 * door; these have what PyTorch's have, with the names and shapes that it gives: tied parameters under each of their
 * names, and in a LOCAL one each unit's flat vector as "<unit>._flat_param", padding included with use_orig_params,
 * then beside the runs of the original parameters. Units that no two ranks share (NO_SHARD) have their parameters whole
 * in all types. The optimizer's is fsdp_optimizer_state_dict, with fsdp_optimizer_add_param_groups, and
 * fsdp_state_dict_of_type: original names and shapes again; PyTorch's SHARDED and LOCAL ones are SHARDED,
 * over_replicas.
 */

/* FSDP.set_state_dict_type: what the next two do where their config is NULL. FULL before. */
FSDP_API fsdp_status fsdp_fsdp1_set_state_dict_type(fsdp_module *module, const fsdp_state_dict_config *config);
/* LOCAL and what has not to be cut are aliases of live memory, the rest copies. FSDP_UNSUPPORTED for a LOCAL one of
 * modules that were wrapped with a mesh. The caller owns `*out`. [collective], on all ranks whatever they get */
FSDP_API fsdp_status fsdp_fsdp1_state_dict(fsdp_module *module, const fsdp_state_dict_config *config,
                                           fsdp_state_dict **out);
/* In again: FULL and SHARDED ones of any strategy and number of ranks, LOCAL ones as they were made. Of tied parameters
 * one name will do. With rank0_only from the world's rank 0; NULL will do on the others. [collective] */
FSDP_API fsdp_status fsdp_fsdp1_load_state_dict(fsdp_module *module, const fsdp_state_dict_config *config,
                                                const fsdp_state_dict *state);

#ifdef __cplusplus
}
#endif
#endif
