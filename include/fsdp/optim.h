/* fsdp/optim.h - optimizers over whatever local tensors they are handed; on shards they are exact.
 *
 * The formulas are torch.optim's. State and arithmetic are f32, one fused pass over all tensors of a group; a parameter
 * in bf16 or f16 is rounded once, at the end of its step (unlike torch's, whose state has the parameter's dtype).
 * Parameters without a gradient in this step are skipped and their step count is not advanced (as in PyTorch, steps are
 * counted per parameter). An empty shard with a gradient counts its steps, so that ranks agree on them.
 */
#ifndef FSDP_OPTIM_H
#define FSDP_OPTIM_H

#include "fsdp/comm.h"
#include "fsdp/nn.h"
#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_optimizer fsdp_optimizer;

/* Begin with fsdp_adam_options_default(), PyTorch's (lr 1e-3, betas 0.9 0.999, eps 1e-8, no decay): a field that is not
 * set is 0, and betas and eps that are all 0 are refused. */
typedef struct fsdp_adam_options {
    double lr;
    double beta1, beta2, eps, weight_decay;
} fsdp_adam_options;

FSDP_API fsdp_adam_options fsdp_adam_options_default(void);

typedef struct fsdp_sgd_options {
    double lr, momentum, dampening, weight_decay;
    bool nesterov; /* needs momentum > 0 and dampening 0 */
} fsdp_sgd_options;

/* Holds references to the parameters (floating, contiguous; sharded ones as their local shard). State is made at the
 * first step; of parameters that are sharded later it is cut to this rank's rows at the next. Parameters that require
 * no gradient are kept out. State goes by names, of which each stands for one parameter. Errors name the parameter: on
 * the meta device, gathered by fsdp_module_unshard, not floating, not contiguous, given twice, without a name, or with
 * that of another. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_adamw_create(const fsdp_parameters *parameters, const fsdp_adam_options *options,
                                       fsdp_optimizer **out);
FSDP_API fsdp_status fsdp_adam_create(const fsdp_parameters *parameters, const fsdp_adam_options *options,
                                      fsdp_optimizer **out);
FSDP_API fsdp_status fsdp_sgd_create(const fsdp_parameters *parameters, const fsdp_sgd_options *options,
                                     fsdp_optimizer **out);
FSDP_API void fsdp_optimizer_free(fsdp_optimizer *optimizer); /* NULL is allowed */

/* A further parameter group of the same kind with options of its own; a parameter may be in one group only, and so may
 * a name. Groups are numbered from 0. */
FSDP_API fsdp_status fsdp_adam_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                         const fsdp_adam_options *options);
FSDP_API fsdp_status fsdp_sgd_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                        const fsdp_sgd_options *options);
FSDP_API int fsdp_optimizer_group_count(const fsdp_optimizer *optimizer);
/* Of a group that does not exist: 0, and nothing is set. */
FSDP_API double fsdp_optimizer_lr(const fsdp_optimizer *optimizer, int group);
FSDP_API void fsdp_optimizer_set_lr(fsdp_optimizer *optimizer, int group, double lr);

/* Total 2-norm of all gradients (of sharded ones over all ranks: one all-reduce of 664 bytes per sharded mesh
 * dimension; replicated ones count once), before clipping, into *norm (may be NULL). The same gradients have the same
 * norm, to the bit, however they are sharded and whatever they are sharded over: the sum does not depend on the order
 * in which it is added. When it is over max_norm the next step multiplies every gradient by max_norm / (norm + 1e-6):
 * the factor is folded into the step, the gradients in memory stay as they are. A second call before the step measures
 * the same gradients and sets the factor anew; step and zero_grad reset it. max_norm 0 or infinite: only the norm.
 * Without any gradient the norm is 0; an infinite or NaN norm is reported, and the factor is then what PyTorch's is (0,
 * NaN). All ranks must call it. [collective] */
FSDP_API fsdp_status fsdp_clip_grad_norm(fsdp_optimizer *optimizer, double max_norm, double *norm);
/* The same for the p-norm, p = norm_type above 0, INFINITY for the largest magnitude; torch's 0 and below (it counts
 * the tensors that are not all zero, or takes the smallest magnitude) are no norms, and refused. Gradients on different
 * meshes are put together by their sums of powers, each power rounded to f64. With
 * error_if_nonfinite a norm that is infinite or NaN is FSDP_NOT_FINITE, on all ranks, and the factor stays as it was.
 * [collective] */
FSDP_API fsdp_status fsdp_clip_grad_norm_type(fsdp_optimizer *optimizer, double max_norm, double norm_type,
                                              bool error_if_nonfinite, double *norm);

/* One step of every parameter that has a gradient. What can run out is acquired before anything is changed. */
FSDP_API fsdp_status fsdp_optimizer_step(fsdp_optimizer *optimizer);
/* The same for those of `parameters` that are the optimizer's and have a gradient: for a hook that steps parameters as
 * soon as their gradients are there (fsdp_module_set_post_accumulate_grad_hook). Stepped one by one in any order they
 * get the bits of one step for all. FSDP_STATE after a clip, whose factor is for a step of all. */
FSDP_API fsdp_status fsdp_optimizer_step_parameters(fsdp_optimizer *optimizer, fsdp_tensor *const *parameters,
                                                    int64_t count);
/* Drops the gradients (PyTorch's set_to_none). */
FSDP_API fsdp_status fsdp_optimizer_zero_grad(fsdp_optimizer *optimizer);

/* ---- state ----
 *
 * Under names of its parameters: "state.<parameter>.exp_avg" and ".exp_avg_sq" (Adam), ".momentum_buffer" (SGD with
 * momentum), and ".step", how many steps the parameter has taken (int64, the same on all ranks). Moments are f32, with
 * the distribution of their parameter. Options (lr, betas, ...) are part of it where
 * fsdp_optimizer_add_param_groups says so.
 *
 * FSDP1's functions, each a pair of calls: full_optim_state_dict is the state dict and fsdp_state_dict_gather;
 * sharded_optim_state_dict the state dict and fsdp_state_dict_shard_rows; shard_full_ and scatter_full_optim_state_dict
 * and optim_state_dict_to_load are fsdp_optimizer_load_full_state_dict, from each rank's own, broadcast_from_rank0, and
 * from_parts: it goes straight into the optimizer. */

/* The state there is, of parameters that have stepped; moments alias live memory, a step is a copy. Nothing is
 * communicated. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_optimizer_state_dict(fsdp_optimizer *optimizer, fsdp_state_dict **out);
/* Makes state, of zeros and no step, for every parameter that has none: places for who reads a checkpoint in place. */
FSDP_API fsdp_status fsdp_optimizer_init_state(fsdp_optimizer *optimizer);
/* Takes over a state dict of this rank's parts, one that fsdp_optimizer_state_dict has made, say, and a reader filled:
 * moments are copied where they are not the optimizer's own. Parameters without entries have no state afterwards.
 * Errors name the parameter, before anything is changed: only some of a parameter's entries, or those of no parameter;
 * and a part of another shape. */
FSDP_API fsdp_status fsdp_optimizer_load_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *state);
/* The same of whole tensors (fsdp_state_dict_gather), or of parts that another optimizer has, as
 * fsdp_state_dict_load_full takes them. [collective] */
FSDP_API fsdp_status fsdp_optimizer_load_full_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *full,
                                                         const fsdp_full_state_options *options);

/* Adds the options of each parameter's group as "param_groups.<parameter>.<option>" (PyTorch's flattened form), lr as
 * it is now: the 64 bits of a double, as an int64. A state dict with them sets them when it is loaded, in whichever
 * groups the parameters are; those of a group must be the same. SGD's nesterov stays with the optimizer. */
FSDP_API fsdp_status fsdp_optimizer_add_param_groups(fsdp_optimizer *optimizer, fsdp_state_dict *state);
/* PyTorch's rekey_optim_state_dict: the same tensors under numbers of the parameters, in the order of the groups
 * ("state.0.exp_avg"), or from those under names again. An entry that is no parameter's is an error. Nothing is
 * communicated. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_optimizer_rekey_state_dict(const fsdp_optimizer *optimizer, const fsdp_state_dict *state,
                                                     bool to_ids, fsdp_state_dict **out);

/* ---- state partitioned by whole parameters (torch's ZeroRedundancyOptimizer) ----
 *
 * ZeRO-1 for modules that every rank has whole, and whose gradients are the same on all ranks, averaged by whoever
 * replicates them (a parameter has one on all ranks or on none): each rank has the state of some parameters, steps
 * those, and tells the others. Bit-equal to the optimizer without. Sharded parameters need none of it: their state is
 * sharded as they are. */

typedef struct fsdp_partition_options {
    fsdp_process_group *group;      /* the ranks; NULL: all of the context. Borrowed, for the optimizer's life */
    bool parameters_as_bucket_view; /* one broadcast a rank, of its parameters in a row; else one a parameter */
} fsdp_partition_options;

/* From the largest parameter to the smallest, each goes to the rank that has the fewest elements so far, of several to
 * the lowest; in every group of parameters, also those that are added later. fsdp_optimizer_step steps this rank's own,
 * and is [collective] from here on: broadcasts from rank 0's parameters to the last rank's, each from the largest. What
 * fails on one rank ends the world. Groups, learning rates, clipping and scaler are as ever, and the same on all ranks.
 * State that there is already stays with its rank and goes from the others. options may be NULL. Errors name the
 * parameter: sharded (later, too: of the step), on another device than the others; FSDP_STATE when called twice. */
FSDP_API fsdp_status fsdp_optimizer_partition_state(fsdp_optimizer *optimizer, const fsdp_partition_options *options);
/* The name of the `index`-th parameter of a group that `rank` steps, in the order of its broadcasts; NULL: there are no
 * more. */
FSDP_API const char *fsdp_optimizer_partition(const fsdp_optimizer *optimizer, int rank, int group, int64_t index);
/* Brings the state of all ranks together on rank `to` of the group: copies in the host's memory, which
 * fsdp_optimizer_state_dict gives out there until the next step or load; on the other ranks that is FSDP_STATE. No rank
 * holds more than one tensor of others beside its own. Every rank may load what it gives out
 * (fsdp_optimizer_load_state_dict) and keeps what is of its parameters; fsdp_optimizer_load_full_state_dict takes it
 * from rank 0, with room for all of it on every rank meanwhile. [collective] */
FSDP_API fsdp_status fsdp_optimizer_consolidate_state_dict(fsdp_optimizer *optimizer, int to);

/* ---- gradient scaler (torch.amp.GradScaler) ----
 *
 * Gradients of a model that computes in float16 may be too small for it. The loss is multiplied by a scale before the
 * backward, the gradients by its inverse before the step; a scale that was too large shows in gradients that are not
 * finite, and that step is left out. One step, in this order, clipping or not:
 *
 *     FSDP_TRY(fsdp_backward(fsdp_grad_scaler_scale(scaler, loss)));
 *     FSDP_TRY(fsdp_grad_scaler_unscale(scaler, optimizer));
 *     FSDP_TRY(fsdp_clip_grad_norm(optimizer, 1.0, NULL));
 *     FSDP_TRY(fsdp_grad_scaler_step(scaler, optimizer, NULL));
 *     FSDP_TRY(fsdp_grad_scaler_update(scaler));
 *     FSDP_TRY(fsdp_optimizer_zero_grad(optimizer));
 *
 * Several optimizers may share one scaler: unscale and step each, update once. */

typedef struct fsdp_grad_scaler fsdp_grad_scaler;

/* All that a scaler knows, to be kept with a checkpoint. */
typedef struct fsdp_grad_scaler_state {
    double scale;          /* what the next loss is multiplied by */
    double growth_factor;  /* above 1; after growth_interval steps in a row without an infinite gradient */
    double backoff_factor; /* below 1; after a step with one */
    int64_t growth_interval;
    int64_t growth_tracker; /* such steps so far */
} fsdp_grad_scaler_state;

/* PyTorch's: 65536, 2, 0.5, 2000, 0. */
FSDP_API fsdp_grad_scaler_state fsdp_grad_scaler_state_default(void);
/* `group`: the ranks that decide together, all that train the model, over shards and replicas: fsdp_world(context).
 * Borrowed. state NULL: the default; the same on all ranks. FSDP_INVALID names the field that cannot be. The caller
 * owns
 * `*out`. */
FSDP_API fsdp_status fsdp_grad_scaler_create(fsdp_process_group *group, const fsdp_grad_scaler_state *state,
                                             fsdp_grad_scaler **out);
FSDP_API void fsdp_grad_scaler_free(fsdp_grad_scaler *scaler); /* NULL is allowed */
FSDP_API fsdp_grad_scaler_state fsdp_grad_scaler_get_state(const fsdp_grad_scaler *scaler);
FSDP_API fsdp_status fsdp_grad_scaler_set_state(fsdp_grad_scaler *scaler, const fsdp_grad_scaler_state *state);

/* loss times the scale; a tensor expression, as in fsdp/ops.h. */
FSDP_API fsdp_tensor *fsdp_grad_scaler_scale(const fsdp_grad_scaler *scaler, fsdp_tensor *loss);
/* Multiplies the optimizer's gradients by the inverse of the scale, where they lie, and notes whether one of any rank
 * is not finite: one all-reduce of one flag, in which ranks without gradients take part. FSDP_STATE where it fails on
 * another rank, which it names, and when these gradients have been unscaled or stepped since the last update;
 * FSDP_UNSUPPORTED for a float16 parameter, whose gradient would lose what unscaling makes small. [collective] */
FSDP_API fsdp_status fsdp_grad_scaler_unscale(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer);
/* Unscales, unless that is done, and steps; but where a gradient of any rank is not finite no rank steps, and
 * parameters and optimizer state stay as they are. `*stepped` (may be NULL) says which. FSDP_STATE for a second step
 * before an update. [collective] */
FSDP_API fsdp_status fsdp_grad_scaler_step(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer, bool *stepped);
/* Once after the steps of all optimizers: scale times backoff_factor when one of them had a gradient that was not
 * finite, else one step further towards its growth. FSDP_STATE when nothing was unscaled since the last update. */
FSDP_API fsdp_status fsdp_grad_scaler_update(fsdp_grad_scaler *scaler);

/* Learning-rate schedules: factor of the base rate at optimizer step `step` (from 0). Warm-up rises linearly from
 * 1 / (warmup + 1) to 1, which step `warmup_steps` has; then constant, or linear or cosine decay from 1 to min_factor,
 * which step `total_steps` and all after it have. */
typedef enum fsdp_decay {
    FSDP_DECAY_CONSTANT,
    FSDP_DECAY_LINEAR,
    FSDP_DECAY_COSINE
} fsdp_decay;
typedef struct fsdp_schedule {
    int64_t warmup_steps, total_steps;
    fsdp_decay decay;
    double min_factor;
} fsdp_schedule;
FSDP_API double fsdp_schedule_factor(const fsdp_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
