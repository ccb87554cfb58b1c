/* fsdp/optim.h - optimizers over local tensors; their steps on shards are exact.
 *
 * The formulas are torch.optim's. State and arithmetic are f32, in one fused pass over all tensors of a group; a
 * parameter in bf16 or f16 is rounded once, at the end of its step (torch's state has the parameter's dtype). A
 * parameter without a gradient is skipped and its step count does not advance (as in PyTorch, steps are counted per
 * parameter). An empty shard with a gradient counts its steps, so that ranks agree on them.
 *
 * Given a NULL optimizer or scaler, a call returns the last error, if there is one: that of the call which failed to
 * make it.
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

/* Start from fsdp_adam_options_default(), which has PyTorch's values (lr 1e-3, betas 0.9 0.999, eps 1e-8, no decay):
 * fields that are not set are 0, and betas and eps that are all 0 are refused. */
typedef struct fsdp_adam_options {
    double lr;
    double beta1, beta2, eps, weight_decay;
    /* 8: parameters with two or more dimensions and 4096 or more elements have moments of one byte an element, with a
     * scale for every 256 elements of a row (bitsandbytes' dynamic codes); the other moments are f32, and eps must be
     * above 0. 0 or 32: all moments are f32. */
    int state_bits;
} fsdp_adam_options;

FSDP_API fsdp_adam_options fsdp_adam_options_default(void);

typedef struct fsdp_sgd_options {
    double lr, momentum, dampening, weight_decay;
    bool nesterov; /* requires momentum > 0 and dampening 0 */
} fsdp_sgd_options;

/* Has the options of Lion (google/automl). fsdp_lion_options_default() has lr 1e-4, betas 0.9 0.99 and no decay. */
typedef struct fsdp_lion_options {
    double lr;
    double beta1, beta2;
    double weight_decay; /* decoupled */
} fsdp_lion_options;

FSDP_API fsdp_lion_options fsdp_lion_options_default(void);

/* Says how Muon's learning rate depends on the shape of a matrix. */
typedef enum fsdp_muon_adjust {
    FSDP_MUON_ORIGINAL,       /* times sqrt(max(1, rows / columns)) */
    FSDP_MUON_MATCH_RMS_ADAMW /* times 0.2 sqrt(max(rows, columns)): steps are as long as AdamW's */
} fsdp_muon_adjust;

/* Muon (torch.optim.Muon) makes the momentum of a matrix orthogonal by five steps of Newton and Schulz in bfloat16. Use
 * it for the matrices of hidden layers, and add groups of AdamW (fsdp_adam_add_group) for all other parameters.
 * fsdp_muon_options_default() has PyTorch's lr 1e-3, momentum 0.95, nesterov, weight_decay 0.1, ORIGINAL. */
typedef struct fsdp_muon_options {
    double lr, momentum;
    double weight_decay; /* decoupled */
    bool nesterov;
    fsdp_muon_adjust adjust;
} fsdp_muon_options;

FSDP_API fsdp_muon_options fsdp_muon_options_default(void);

/* Configures Adafactor (torch.optim.Adafactor). Where a gradient has two or more dimensions it keeps only the means of
 * its squares over the rows and over the columns of the last two; of vectors it keeps all squares. At step t the
 * averages move by t^beta2_decay, and the step is as long as min(lr, 1 / sqrt(t)) times the root mean square of the
 * parameter, or times eps2 if that is larger. fsdp_adafactor_options_default() has PyTorch's values: lr 1e-2,
 * beta2_decay -0.8, eps (None, 1e-3), d 1 and no decay. */
typedef struct fsdp_adafactor_options {
    double lr;
    double weight_decay; /* decoupled */
    double beta2_decay;  /* at most 0 */
    double eps1;         /* the least root of a mean that counts; 0: the eps of the parameter's dtype */
    double eps2;
    double d; /* updates whose root mean square is above it are scaled down to it; at least 1 */
} fsdp_adafactor_options;

FSDP_API fsdp_adafactor_options fsdp_adafactor_options_default(void);

/* Create an optimizer, which holds references to the parameters (floating, contiguous; sharded ones as local shards).
 * State is allocated at the first step; if parameters are sharded later, it is cut to this rank's rows at the next
 * step. Parameters that require no gradient are left out. State is kept under names, so each name must stand for one
 * parameter. Errors name the parameter: on the meta device, gathered by fsdp_module_unshard, not floating, not
 * contiguous, given twice, without a name, or with the name of another. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_adamw_create(const fsdp_parameters *parameters, const fsdp_adam_options *options,
                                       fsdp_optimizer **out);
FSDP_API fsdp_status fsdp_adam_create(const fsdp_parameters *parameters, const fsdp_adam_options *options,
                                      fsdp_optimizer **out);
FSDP_API fsdp_status fsdp_sgd_create(const fsdp_parameters *parameters, const fsdp_sgd_options *options,
                                     fsdp_optimizer **out);
FSDP_API fsdp_status fsdp_lion_create(const fsdp_parameters *parameters, const fsdp_lion_options *options,
                                      fsdp_optimizer **out);
/* A step of Muon over sharded matrices is [collective]: each matrix goes in bfloat16 to one of the ranks that share it
 * and comes back orthogonal. This takes 4 bytes an element over each mesh dimension that splits it, for any number of
 * ranks. The bits are those of one rank. Matrices may be cut anywhere. Errors name the parameter that is not a matrix,
 * or partial. Ranks whose gradients are of different matrices get FSDP_MISMATCH. */
FSDP_API fsdp_status fsdp_muon_create(const fsdp_parameters *parameters, const fsdp_muon_options *options,
                                      fsdp_optimizer **out);
/* A step of Adafactor over sharded parameters is [collective], and each has a gradient on all ranks or on none
 * (FSDP_MISMATCH). It makes two all-reduces for each sharded mesh dimension: one of the f32 means of all rows and
 * columns, and one of 1328 bytes for each parameter. Parameters may be cut anywhere. Means of columns, and of rows that
 * ranks share, are added in the order of ranks, so the last bits depend on the number of ranks. Flat parameters (FSDP1
 * without original ones) are FSDP_UNSUPPORTED, and so are partial ones. */
FSDP_API fsdp_status fsdp_adafactor_create(const fsdp_parameters *parameters, const fsdp_adafactor_options *options,
                                           fsdp_optimizer **out);
FSDP_API void fsdp_optimizer_free(fsdp_optimizer *optimizer); /* NULL is allowed */

/* Returns a group's learning rate; 0 if the group does not exist. */
FSDP_API double fsdp_optimizer_lr(const fsdp_optimizer *optimizer, int group);
/* Sets it. FSDP_INVALID: there is no such group, or `lr` is negative or NaN; nothing is changed then. */
FSDP_API fsdp_status fsdp_optimizer_set_lr(fsdp_optimizer *optimizer, int group, double lr);

/* Computes the total 2-norm of all gradients before clipping and stores it in *norm (may be NULL). Sharded gradients
 * are summed over all ranks, with one all-reduce of 664 bytes per sharded mesh dimension; replicated ones count once.
 * The norm does not depend on the order of addition, so the same gradients have the same norm, to the bit, however they
 * are sharded and over any number of ranks. If it exceeds max_norm, the next step multiplies every gradient by max_norm
 * / (norm + 1e-6): the factor is folded into the step, and the gradients in memory do not change. A second call before
 * the step measures the same gradients and sets the factor again; step and zero_grad reset it. max_norm 0 or infinite:
 * only compute the norm. Without any gradient the norm is 0. An infinite or NaN norm is reported, and the factor is
 * then PyTorch's (0, NaN). [collective] */
FSDP_API fsdp_status fsdp_clip_grad_norm(fsdp_optimizer *optimizer, double max_norm, double *norm);
/* Steps every parameter that has a gradient. Resources that can run out are acquired before anything is changed. */
FSDP_API fsdp_status fsdp_optimizer_step(fsdp_optimizer *optimizer);
/* Drops the gradients (PyTorch's set_to_none). This also ends a step, which matters on a GPU: if steps ask for the same
 * memory in the same order, places for all their requests are chosen together, and hardly more is reserved than is live
 * at the peak. The next step begins with the first call of a module that records a graph. Tensors that were made before
 * that call and still live, such as its inputs, belong to it. A loop need not say anything else: it may drop gradients
 * before or after a step, for one microbatch or several. Evaluate and generate between fsdp_no_grad_begin and
 * fsdp_no_grad_end, best right after this call. */
FSDP_API fsdp_status fsdp_optimizer_zero_grad(fsdp_optimizer *optimizer);

/* ---- gradient scaler (torch.amp.GradScaler) ----
 *
 * Gradients of a model that computes in float16 may be too small for that dtype. The loss is multiplied by a scale
 * before the backward, and the gradients by its inverse before the step. If the scale was too large, some gradients are
 * not finite, and the step is skipped. A step consists of these calls, in this order (clipping is optional):
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

/* Holds the whole state of a scaler, to be saved in a checkpoint. */
typedef struct fsdp_grad_scaler_state {
    double scale;          /* factor of the next loss */
    double growth_factor;  /* above 1; applied after growth_interval steps in a row with finite gradients */
    double backoff_factor; /* below 1; applied after a step with a gradient that is not finite */
    int64_t growth_interval;
    int64_t growth_tracker; /* steps in a row so far */
} fsdp_grad_scaler_state;

/* Returns PyTorch's defaults: 65536, 2, 0.5, 2000, 0. */
FSDP_API fsdp_grad_scaler_state fsdp_grad_scaler_state_default(void);
/* Creates a scaler. `group` has all ranks that train the model, shards and replicas, which decide together:
 * fsdp_world(context). Borrowed. `state` must be the same on all ranks; NULL: the default. FSDP_INVALID names the field
 * that is out of range. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_grad_scaler_create(fsdp_process_group *group, const fsdp_grad_scaler_state *state,
                                             fsdp_grad_scaler **out);
FSDP_API void fsdp_grad_scaler_free(fsdp_grad_scaler *scaler); /* NULL is allowed */
FSDP_API fsdp_grad_scaler_state fsdp_grad_scaler_get_state(const fsdp_grad_scaler *scaler);
FSDP_API fsdp_status fsdp_grad_scaler_set_state(fsdp_grad_scaler *scaler, const fsdp_grad_scaler_state *state);

/* Returns loss times the scale; a tensor expression, as in fsdp/ops.h. */
FSDP_API fsdp_tensor *fsdp_grad_scaler_scale(const fsdp_grad_scaler *scaler, fsdp_tensor *loss);
/* Multiplies the optimizer's gradients in place by the inverse of the scale, and notes whether any gradient on any rank
 * is not finite, by one all-reduce of one flag, in which ranks without gradients take part. FSDP_STATE: it fails on
 * another rank, which is named, or these gradients have been unscaled or stepped since the last update.
 * FSDP_UNSUPPORTED: a float16 parameter, whose gradient would lose small values by unscaling. [collective] */
FSDP_API fsdp_status fsdp_grad_scaler_unscale(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer);
/* Unscales, unless that has been done, and steps. If any gradient on any rank is not finite, no rank steps, and
 * parameters and optimizer state do not change. `*stepped` (may be NULL) says whether it stepped. FSDP_STATE: a second
 * step before an update. [collective] */
FSDP_API fsdp_status fsdp_grad_scaler_step(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer, bool *stepped);
/* Updates the scale, once after the steps of all optimizers: multiplies it by backoff_factor if any of them had a
 * gradient that was not finite, and otherwise counts one step towards its growth. FSDP_STATE: nothing was unscaled
 * since the last update. */
FSDP_API fsdp_status fsdp_grad_scaler_update(fsdp_grad_scaler *scaler);

/* Describes a learning-rate schedule: the factor of the base rate at optimizer step `step` (from 0). Warm-up rises
 * linearly from 1 / (warmup + 1) to 1, which is reached at step `warmup_steps`. After it the factor is constant, or
 * decays linearly or as a cosine from 1 to min_factor, which is reached at step `total_steps` and kept.
 *
 * The last two are those of transformers (get_wsd_schedule, get_inverse_sqrt_schedule). WSD warms up from min_factor to
 * 1, stays there, and falls to min_factor in the last `decay_steps` of `total_steps`. INVERSE_SQRT warms up from 0;
 * then the factor is sqrt(T / (step + T - warmup_steps)), and at least min_factor. */
typedef enum fsdp_decay {
    FSDP_DECAY_CONSTANT,
    FSDP_DECAY_LINEAR,
    FSDP_DECAY_COSINE,
    FSDP_DECAY_WSD,
    FSDP_DECAY_INVERSE_SQRT
} fsdp_decay;
/* Says how WSD falls. */
typedef enum fsdp_fall {
    FSDP_FALL_COSINE,
    FSDP_FALL_LINEAR,
    FSDP_FALL_SQRT /* 1 - sqrt(progress) */
} fsdp_fall;
typedef struct fsdp_schedule {
    int64_t warmup_steps, total_steps;
    fsdp_decay decay;
    double min_factor;
    int64_t decay_steps; /* WSD */
    fsdp_fall fall;      /* WSD */
    int64_t timescale;   /* INVERSE_SQRT: T; 0: warmup_steps, or 10000 without warm-up */
} fsdp_schedule;
/* Returns the factor at `step`. A NULL schedule: 1. */
FSDP_API double fsdp_schedule_factor(const fsdp_schedule *schedule, int64_t step);

/* ======== for experts: most programs need nothing below ======== */

/* Add a parameter group with its own options, of the optimizer's kind; groups of Muon and of AdamW may be in one
 * optimizer. A parameter, and a name, may be in one group only. Groups are numbered from 0. */
FSDP_API fsdp_status fsdp_adam_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                         const fsdp_adam_options *options);
FSDP_API fsdp_status fsdp_sgd_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                        const fsdp_sgd_options *options);
FSDP_API fsdp_status fsdp_lion_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                         const fsdp_lion_options *options);
FSDP_API fsdp_status fsdp_muon_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                         const fsdp_muon_options *options);
FSDP_API fsdp_status fsdp_adafactor_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                              const fsdp_adafactor_options *options);
FSDP_API int fsdp_optimizer_group_count(const fsdp_optimizer *optimizer);

/* Does the same as fsdp_clip_grad_norm for the p-norm with p = norm_type above 0, INFINITY for the largest magnitude.
 * torch's norm_type 0 and below (the number of tensors that are not all zero, or the smallest magnitude) are not norms
 * and are refused. Gradients on different meshes are combined by their sums of powers, each power rounded to f64. With
 * error_if_nonfinite an infinite or NaN norm is FSDP_NOT_FINITE, on all ranks, and the factor does not change.
 * [collective] */
FSDP_API fsdp_status fsdp_clip_grad_norm_type(fsdp_optimizer *optimizer, double max_norm, double norm_type,
                                              bool error_if_nonfinite, double *norm);

/* Steps those of `parameters` that belong to the optimizer and have a gradient, for hooks that step parameters as soon
 * as their gradients are ready (fsdp_module_set_post_accumulate_grad_hook). Steps of single parameters, in any order,
 * give the same bits as one step of all. Where a step is [collective], ranks give the same ones in the same order.
 * FSDP_STATE: after a clip, whose factor is for a step of all. */
FSDP_API fsdp_status fsdp_optimizer_step_parameters(fsdp_optimizer *optimizer, fsdp_tensor *const *parameters,
                                                    int64_t count);

/* ---- state ----
 *
 * State is named after the parameters: "state.<parameter>.exp_avg" and ".exp_avg_sq" (Adam), ".exp_avg" (Lion),
 * ".momentum_buffer" (SGD with momentum, Muon), ".row_var" and ".col_var" or, of vectors, ".variance" (Adafactor), with
 * state_bits 8 ".exp_avg_codes" and ".exp_avg_sq_codes" (u8) with ".exp_avg_scales" and ".exp_avg_sq_scales" (one for
 * each block of 256 elements of a row), and ".step", the number of steps that the parameter has taken (int64, the same
 * on all ranks). Moments are f32, with the distribution of their parameter; but every rank has all of row_var (...,
 * rows, 1) and col_var (..., 1, columns). Options (lr, betas, ...) are included if fsdp_optimizer_add_param_groups has
 * added them.
 *
 * FSDP1's functions correspond to these calls: full_optim_state_dict to the state dict and fsdp_state_dict_gather,
 * sharded_optim_state_dict to the state dict and fsdp_state_dict_shard_rows. shard_full_optim_state_dict,
 * scatter_full_optim_state_dict and optim_state_dict_to_load are fsdp_optimizer_load_full_state_dict from each rank's
 * own, with broadcast_from_rank0, and with from_parts; it loads straight into the optimizer. */

/* Makes a state dict of the existing state, which parameters that have stepped have. Moments alias live memory, step
 * counts are copies. Nothing is communicated. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_optimizer_state_dict(fsdp_optimizer *optimizer, fsdp_state_dict **out);
/* Allocates state, zeros and no steps, for every parameter that has none, so that a checkpoint can be read in place. */
FSDP_API fsdp_status fsdp_optimizer_init_state(fsdp_optimizer *optimizer);
/* Loads a state dict of this rank's parts, such as one from fsdp_optimizer_state_dict that a reader has filled; moments
 * that are not the optimizer's own memory are copied, from whatever device they are on. Parameters without entries have
 * no state afterwards. Errors name the parameter, before anything is changed: only some of a parameter's entries;
 * entries of no parameter, or of another kind of optimizer; a part of another shape, or without bytes on the meta
 * device; a step that is no count. */
FSDP_API fsdp_status fsdp_optimizer_load_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *state);
/* Does the same with whole tensors (fsdp_state_dict_gather), or with parts of another optimizer, as
 * fsdp_state_dict_load_full takes them. [collective] */
FSDP_API fsdp_status fsdp_optimizer_load_full_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *full,
                                                         const fsdp_full_state_options *options);

/* Adds the options of each parameter's group as "param_groups.<parameter>.<option>" (PyTorch's flattened form), with
 * the current lr; each is the 64 bits of a double, stored as an int64. Loading a state dict with options sets them, in
 * whichever groups the parameters are; parameters of one group must have the same. SGD's nesterov stays with the
 * optimizer. */
FSDP_API fsdp_status fsdp_optimizer_add_param_groups(fsdp_optimizer *optimizer, fsdp_state_dict *state);
/* Renames state as PyTorch's rekey_optim_state_dict does: makes a state dict with the same tensors under the numbers of
 * the parameters, in the order of the groups ("state.0.exp_avg"), or from numbers under names again. An entry that
 * belongs to no parameter is an error. Nothing is communicated. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_optimizer_rekey_state_dict(const fsdp_optimizer *optimizer, const fsdp_state_dict *state,
                                                     bool to_ids, fsdp_state_dict **out);

/* ---- state partitioned by whole parameters (torch's ZeroRedundancyOptimizer) ----
 *
 * This is ZeRO-1 for modules that are whole on every rank and whose gradients are equal on all ranks, because
 * replication has averaged them (a parameter has a gradient on all ranks or on none). Each rank has the state of some
 * parameters, steps those, and broadcasts them. The results are bit-equal to the optimizer's without partitioning.
 * Sharded parameters do not need this: their state is sharded like them. */

typedef struct fsdp_partition_options {
    fsdp_process_group *group;      /* NULL: all ranks of the context. Borrowed for the optimizer's life */
    bool parameters_as_bucket_view; /* one broadcast per rank, of its packed parameters; else one per parameter */
} fsdp_partition_options;

/* Partitions the state. Parameters are assigned from the largest to the smallest, each to the rank that has the fewest
 * elements so far (the lowest of several), in every parameter group, also in groups added later. From here on
 * fsdp_optimizer_step steps this rank's parameters and is [collective]: it broadcasts the parameters of rank 0 first
 * and of the last rank last, the largest first. A failure on one rank ends the world. Groups, learning rates, clipping
 * and the scaler work as before, and must be the same on all ranks. Existing state stays on its rank and is dropped on
 * the others. `options` may be NULL. Errors name the parameter: sharded (if later, an error of the step), or on another
 * device than the others; FSDP_STATE: called twice. */
FSDP_API fsdp_status fsdp_optimizer_partition_state(fsdp_optimizer *optimizer, const fsdp_partition_options *options);
/* Returns the name of the `index`-th parameter of a group that `rank` steps, in the order of its broadcasts; NULL:
 * there are no more. */
FSDP_API const char *fsdp_optimizer_partition(const fsdp_optimizer *optimizer, int rank, int group, int64_t index);
/* Collects the state of all ranks on rank `to` of the group, as copies in host memory, which fsdp_optimizer_state_dict
 * returns there until the next step or load; on other ranks that is FSDP_STATE. No rank holds more than one tensor of
 * others besides its own. Every rank may load the resulting state dict (fsdp_optimizer_load_state_dict) and keeps the
 * state of its own parameters. fsdp_optimizer_load_full_state_dict takes it from rank 0, and meanwhile needs memory for
 * all of it on every rank. [collective] */
FSDP_API fsdp_status fsdp_optimizer_consolidate_state_dict(fsdp_optimizer *optimizer, int to);

#ifdef __cplusplus
}
#endif
#endif
