/* fsdp/train.h - a whole training run: model, sharding, optimizer, data, metrics, export, as a config says
 * (fsdp/train_config.h).
 *
 * `fsdp train config.yaml` makes these calls:
 *
 *     fsdp_train_config *config = NULL;
 *     fsdp_context *context = NULL;
 *
 *     FSDP_TRY(fsdp_train_config_create(&config));                       // defaults
 *     FSDP_TRY(fsdp_train_config_load(config, "config.yaml"));
 *     FSDP_TRY(fsdp_train_config_set(config, "training.steps", "200"));  // as --training.steps=200
 *     FSDP_TRY(fsdp_context_from_env(&context));
 *     FSDP_TRY(fsdp_train(context, config, NULL));
 *
 * For your own loop, call its parts: fsdp_train_run_create, fsdp_train_step and fsdp_train_export.
 */
#ifndef FSDP_TRAIN_H
#define FSDP_TRAIN_H

#include <stdio.h>

#include "fsdp/checkpoint.h"
#include "fsdp/data.h"
#include "fsdp/dataset.h"
#include "fsdp/hub.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "fsdp/train_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a run ---- */

typedef struct fsdp_train_run fsdp_train_run;

typedef struct fsdp_train_summary {
    const char *model; /* name of the preset, or the folder */
    fsdp_model_config model_config;
    int64_t parameters;         /* elements, tied parameters counted once */
    int64_t trained_parameters; /* those that are not frozen */
    int64_t local_parameters;   /* elements that this rank holds */
    int world_size, machines;
    int64_t units;             /* modules that are sharded together, including the root */
    int64_t checkpointed;      /* blocks that recompute their forward in the backward */
    int replicas;              /* copies of the parameters, each on world_size / replicas ranks */
    int team;                  /* consecutive ranks that have the same sequences (tensor and context parallel) */
    int64_t microbatches;      /* per step and rank */
    int64_t tokens_per_step;   /* all ranks */
    int64_t data_tokens;       /* that are used for training */
    const char *tokenizer;     /* folder or file of the tokenizer that has read text; NULL: none has */
    bool bytes;                /* each byte of text is a token */
    int64_t held_out_tokens;   /* tokens of data.path that are not trained on: validation.share */
    int64_t validation_tokens; /* predicted in a validation; 0: no validation */
    int64_t validation_pairs;  /* compared in a validation of preference tuning, whose tokens count with them */
    int64_t held_out_pairs;    /* of data.path, that are not trained on; their tokens are held_out_tokens */
    const char *device;        /* its name; of a GPU also the card, its memory and how much of that was free */
    size_t device_bytes;       /* memory of a GPU; 0: the device is none, or does not say */
    bool gpus_exchange;        /* there are several ranks, and they compute on GPUs */
    size_t memory_bytes;       /* live on this rank when the run has been created, on its device and on the host */
    size_t optimizer_bytes;    /* thereof optimizer state, which at that time only a resumed run has */
    bool offloaded;            /* shards are on the host, away from the device: false if the run's device is the CPU */
    double flops_per_token;    /* forward and backward */
    /* FLOPs as MFU counts them (fsdp_model_config_mfu_flops_per_token, fewer if parameters are frozen), and the FLOP/s
     * of all ranks' devices, of which MFU is a share; 0: not known. peak_source says where the latter comes from, or
     * why it is not known: "NVIDIA H200: ...". */
    double mfu_flops_per_token, peak_flops;
    const char *peak_source;
    const char *run; /* its id, 16 random hexadecimal digits, the same on all ranks; each start has its own */
    /* The checkpoint from which the run is resumed; NULL: it starts from the beginning. */
    const char *resumed_from; /* path of the run's checkpoint */
    const char *resumed_run;  /* id of the run that wrote it; NULL: it does not say, as one of an older version */
    int64_t resumed_step;     /* steps that have been done */
    int resumed_ranks;        /* ranks that wrote it */
    bool stopped_early;       /* because of training.early_stop, no steps are left */
    double checkpoint_bytes;  /* of each checkpoint, all ranks; 0: the run keeps none */
    double snapshot_bytes;    /* this rank's part, which asynchronous checkpoints copy in memory; otherwise 0 */
    int64_t adapter_layers;   /* that have an adapter; 0: the model itself is trained */
    int64_t resumed_tokens;   /* that the steps before took */
    int64_t steps;            /* that the run goes to: training.steps, or what training.epochs takes */
} fsdp_train_summary;

/* Reports one step. metrics.jsonl has a JSON object per line, and every run appends to it: first a header, written when
 * all ranks are ready for the first step,
 *
 *     {"run": "90aff1...", "id": "90aff1...", "started": "2026-03-01T09:30:00Z", "version": "0.1.0",
 *      "config": "51c0...", "model": "llama-1m", "device": "cpu", "parameters": 985472, "world_size": 2, "steps": 1000,
 *      "tokens_per_step": 4096, "settings": {"model.preset": "llama-1m", ...}}
 *
 * where "run" is the summary's, "config" is a hash of all keys, "device" is rank 0's as the summary describes it (of a
 * GPU also its memory, "device_bytes"), and "settings" has the keys that are not the default; then a line per step with
 * the fields below, "step" first, and last, as in all other lines, too, the run's "id": several runs may write to a
 * file, even at once. The header of a run that resumes from a checkpoint has "resumed_from", a step, and "continues",
 * the id of the run that wrote the checkpoint: what that one wrote of later steps is no part of this run. Versions that
 * wrote no "id" and no "continues" wrote the lines of one run after those of another. A number that is NaN or infinite
 * is written as null. A file with other contents, or one that is the config or belongs to the data or the model, under
 * any name, is refused before anything is written. Its folder is made if there is none.
 *
 * A run on several machines has "machines" in its header, and "network_sent", "network_received", "gather_ms" and
 * "reduce_ms" in each step's line: rank 0's traffic with other machines and its waiting times. A run on several GPUs
 * of one machine has the two waiting times. "mfu" is there if it is known. Then a line has the peaks of memory by
 * kind, "memory_peak_bytes_of_activation" and so on. A step that is left out has "left_out": true, and no "loss",
 * "grad_norm", "tokens_per_second" and "mfu".
 *
 * Each problem is reported once, in the log and, after the step's line, in {"warning": 62, "of": "waiting", "text":
 * "..."}: a loss that does not fall; a gradient norm that jumps, grows or is 0; a step that waits for its data, for
 * gathers and reductions (on several machines, or GPUs), or for one rank that is slow; with metrics.histogram_freq also
 * units whose gradients are all 0, vanish, or are not finite or too small in float16, and weights that a step changes
 * by much of their norm. TensorBoard has them as texts "warning/...".
 *
 * The other places of metrics have these quantities, too, and the live memory by kind (memory_live_bytes_of).
 * metrics.csv has a row for each step and each validation, with the columns "run" (the id), "step", one for each
 * quantity ("memory_peak_bytes_of_gradient"), and "validation_loss" and so on; what is not there or not finite is
 * empty. metrics.prometheus has the gauges fsdp_train_step, fsdp_train_loss, fsdp_train_validation_loss and so on,
 * with the labels run, rank and, of memory, kind; the file is replaced with each log line and each validation. In
 * metrics.tensorboard they are "train/loss", "speed/mfu", "memory/memory_peak_bytes_of/gradient", "validation/loss"
 * and so on; with metrics.histogram_freq there are histograms "gradient/<unit>" and "weight/<unit>", their norms
 * "gradient norm/<unit>" and "weight norm/<unit>", "update ratio/<unit>" (norm of the step's change to that of the
 * weights), and "gradient not finite/<unit>" if there are such elements. The root's unit is called "root". Texts are
 * "config" and, with metrics.sample_prompt, "sample". */
typedef struct fsdp_train_report {
    int64_t step; /* from 1 */
    /* Mean over all microbatches of all ranks, added in the order of the data. It is computed for every tenth step and
     * for steps that are logged, written, validated or not_finite; on others it is NaN. */
    double loss;
    double grad_norm;  /* before clipping */
    bool not_finite;   /* the loss or norm of this step is NaN or infinite: see training.on_nan */
    bool left_out;     /* no token of the step is an answer: it has no loss (NaN), norm, speed or MFU */
    int64_t skipped;   /* steps skipped so far, including this one, and those left out */
    double loss_scale; /* for float16: the scale of this step's loss (fsdp_grad_scaler); otherwise 0 */
    double lr;
    double tokens_per_second, step_ms;           /* tokens: of all ranks */
    size_t memory_live_bytes, memory_peak_bytes; /* this rank's device: at the end of the step, and within it */
    /* Calls of this rank in the step. */
    int64_t all_gather, reduce_scatter, all_reduce, broadcast, all_to_all;
    int64_t bytes_sent;                     /* by these calls, as a ring algorithm counts */
    int64_t team_bytes_sent;                /* of these, within a team */
    fsdp_comm_stats comm;                   /* all collectives, by kind */
    fsdp_memory_stats memory;               /* this rank's device: live at the end, peaks within the step */
    double gather_ms, reduce_ms, data_ms;   /* parts of step_ms: fsdp_module_exposed_time; waiting for batches */
    double mfu;                             /* share of the summary's peak_flops, from 0 to 1; 0: that is not known */
    int64_t network_sent, network_received; /* bytes of buffers, to and from other machines: docs/cluster.md */
    int64_t epoch;                          /* of the step's last window, from 0 */
    int64_t tokens;                         /* seen so far, all ranks, without padding */
    int64_t answer_tokens;                  /* learned in this step, all ranks, of data that has rows; otherwise 0 */
    double padded_tokens_per_second;        /* all ranks, with padding: what the devices have computed with */
    int64_t pairs; /* of the step, with training.objective: dpo; otherwise 0. Means over them, known as the loss is: */
    double reward_chosen, reward_rejected, reward_margin, reward_accuracy;
} fsdp_train_report;

/* Reports one validation: the mean loss of a stream's tokens, each predicted once from the tokens before it in its
 * window; the last window may be shorter. Of pairs it is the mean loss of all of them. In metrics.jsonl its line
 * follows that of its step:
 *
 *     {"validation": 100, "loss": 3.21, "perplexity": 24.8, "tokens": 40960, "best": true, ...}
 */
typedef struct fsdp_train_validation {
    int64_t step;      /* steps taken before it */
    double loss;       /* mean over the tokens; the same bits for every world size if the parameters are the same */
    double perplexity; /* exp(loss); 0 of pairs */
    int64_t tokens;    /* predicted, all ranks */
    bool best;         /* lower than in all earlier validations */
    double best_loss;  /* lowest of those and this one */
    int64_t best_step;
    int64_t without_improvement; /* validations in a row, including this one: see training.early_stop */
    bool stops;                  /* training.early_stop ends the run here */
    double ms, tokens_per_second;
    int64_t pairs; /* compared, with training.objective: dpo; otherwise 0. Means over them, as in the report: */
    double reward_chosen, reward_rejected, reward_margin, reward_accuracy;
} fsdp_train_validation;

/* Creates a run: the model on the meta device, sharded by parallelism.strategy and parallelism.wrap_policy, with this
 * rank's part loaded or initialised, the optimizer and the data loader. `config` is borrowed, checked, and compared
 * with that of the other ranks: keys that differ are an error on all ranks that names them (paths and data.workers may
 * differ, but not what they lead to). On several machines each must see what the config names and share the folders
 * that it writes into, or the error names the machine. Strategy hsdp then has a copy of the parameters on each machine,
 * unless the config sets the number of copies. A failure on one rank is a failure on all, with that rank's message.
 * [collective] */
FSDP_API fsdp_status fsdp_train_run_create(fsdp_context *context, const fsdp_train_config *config,
                                           fsdp_train_run **out);
FSDP_API void fsdp_train_run_free(fsdp_train_run *run); /* NULL is allowed */
FSDP_API void fsdp_train_run_summary(fsdp_train_run *run, fsdp_train_summary *out);
FSDP_API fsdp_module *fsdp_train_run_model(fsdp_train_run *run); /* borrowed */

/* Takes one optimizer step over training.global_batch_size sequences; rank 0 appends it to metrics.jsonl. On a failure
 * the world is aborted, so that no peer waits. If a line of metrics cannot be written, this is a warning, and no more
 * lines are written. `report` may be NULL.
 *
 * Whether the step is finite is decided before the optimizer steps, from the gradient norm, which is the same on all
 * ranks; a rank whose own loss is not finite makes the norm NaN (except under `continue`, which changes nothing). In
 * float16 a gradient that is not finite is no failure: the scaler skips the step and lowers the scale. A float16 step
 * is then not finite only if its mean loss is not, or if it is skipped at a scale below 1.
 *
 * With training.on_nan: stop such a step fails with FSDP_NOT_FINITE on every rank; the world remains usable, the
 * parameters are those of the step before, and report and metrics.jsonl contain the step. Otherwise rank 0 logs a
 * warning, one for all such steps in a row.
 *
 * On a GPU, in a world of one rank and without offload, the device decides about a step, and the host does not wait for
 * it if `report` is NULL, metrics.exact is not set and nothing is float16. It hears of a step when it has queued the
 * next one, and then writes the line of metrics, warns, or fails: FSDP_NOT_FINITE is of the step that the message
 * names. If the call fails, the step that was queued meanwhile has changed nothing and does not count; its data and its
 * draws of dropout are passed over. So weights, optimizer state and lines are the same as in a run that waits.
 * fsdp_train_validate, fsdp_train_save, fsdp_train_export and a step with a report hear of all steps before they do
 * anything, and fail in the same way. [collective] */
FSDP_API fsdp_status fsdp_train_step(fsdp_train_run *run, fsdp_train_report *report);
/* Evaluates the model between two steps and appends a line to metrics.jsonl. It does not change a bit of the training
 * that follows: parameters, gradients, optimizer, position in the data and future dropout draws stay the same. Ranks
 * without a batch take part, too. A run without a validation (validation.enable) refuses the call; on another failure
 * the world is aborted. `out` may be NULL. [collective] */
FSDP_API fsdp_status fsdp_train_validate(fsdp_train_run *run, fsdp_train_validation *out);
/* Writes export.path, which the run has held since its start; does nothing if it is not set. The weights are the
 * model's or, if export.which says so, those of the best validation so far; the model does not change. The best weights
 * come from the copy that fsdp_train_validate has made or, in a run that keeps checkpoints, from the checkpoint of that
 * step, which must exist. If they are not available, the model's are written, and the error says so. If the folder
 * cannot be written, the model is written to export.fallback_path, if necessary without its tokenizer, and the error
 * says where it is. [collective] */
FSDP_API fsdp_status fsdp_train_export(fsdp_train_run *run);

/* Saves a checkpoint of the run to checkpoint.folder, between two steps; does nothing if there is one of this step.
 * With checkpoint.async_mode it exists once the next call has begun: call it again before fsdp_train_run_free, which
 * abandons what is not written yet. FSDP_STATE: the run keeps no checkpoints. [collective] */
FSDP_API fsdp_status fsdp_train_save(fsdp_train_run *run);

/* Reports a checkpoint that has been saved. */
typedef struct fsdp_train_saved {
    int64_t step;
    const char *path;
    double bytes;                   /* of all its tensors */
    double seconds, waited_seconds; /* until it was complete; during which training waited */
} fsdp_train_saved;

/* Says what the program demands of a run that keeps checkpoints. */
typedef enum fsdp_train_demand {
    FSDP_TRAIN_GO_ON,
    FSDP_TRAIN_SAVE, /* once */
    FSDP_TRAIN_END   /* save, then end with FSDP_INTERRUPTED, without an export */
} fsdp_train_demand;

/* Observes a whole run; every function may be NULL. They are called on every rank, except `failed`: if all ranks learn
 * of a failure at a point where they agree, it is called on rank 0 only; otherwise on each rank that failed, with
 * FSDP_COMM on ranks that were ended by another's failure. */
typedef struct fsdp_train_listener {
    void *arg;
    void (*started)(void *arg, const fsdp_train_summary *summary);
    void (*stepped)(void *arg, const fsdp_train_report *report); /* on a GPU perhaps a step late: fsdp_train_step */
    void (*validating)(void *arg, int64_t done, int64_t all);    /* batches of the validation in progress */
    void (*validated)(void *arg, const fsdp_train_validation *validation);
    void (*trained)(void *arg, int64_t step); /* after the last step and validation, before the export */
    void (*exported)(void *arg, const char *path);
    /* `message` is a line. If memory has run out (FSDP_NO_MEMORY), or a start is refused because it would, further
     * lines say who has it: fsdp_device_owners. */
    void (*failed)(void *arg, fsdp_status status, const char *message);
    /* Rank 0: the run is about to create files on disk which a program that is being ended should remove, with
     * fsdp_hub_abandon. This holds until the next call. NULL: there are none any more, and the `hold` of the call
     * before is freed when this function returns. */
    void (*holds)(void *arg, fsdp_hub_hold *hold);
    /* The same for checkpoints, on every rank: fsdp_checkpoint_saver_abandon. */
    void (*saver)(void *arg, fsdp_checkpoint_saver *saver);
    void (*saved)(void *arg, const fsdp_train_saved *saved);
    /* Rank 0 of a run whose parallelism.schedule is plan: writes what 'fsdp plan --schedule FILE' writes to the file,
     * while the other ranks wait. NULL: such a run is refused. */
    fsdp_status (*plan)(void *arg, FILE *out);
    /* Called once after every step of a run that keeps checkpoints, of which `stepped` may not have told yet; the
     * strongest answer of all ranks counts. NULL: GO_ON. */
    fsdp_train_demand (*demand)(void *arg);
} fsdp_train_listener;

/* Does a whole run: create, training.steps steps, export, free; it validates after every validation.freq steps and
 * after the last one. training.early_stop may end the steps early. If a checkpoint could not be written, this is a
 * warning, and the next one is tried; if none has succeeded after it, the run fails at its end, after the export.
 * Parameters that are not finite are not exported, unless training.on_nan is continue. [collective] */
FSDP_API fsdp_status fsdp_train(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_listener *listener);

/* ---- evaluation ---- */

typedef struct fsdp_evaluate_options {
    int64_t seq_len;     /* tokens per window */
    int64_t local_batch; /* windows per batch; a batch belongs to one rank */
    int64_t steps;       /* batches, all ranks; 0: all there are */
    int64_t first;       /* first token of the stream */
    int64_t vocab_size;  /* a token id this high is an error that names file and position; 0: not checked */
    void (*progress)(void *arg, int64_t done, int64_t all); /* of all batches; may be NULL */
    void *arg;
    int ranks_per_batch; /* consecutive ranks that compute each batch together (tensor parallel); 0: 1 */
} fsdp_evaluate_options;

typedef struct fsdp_evaluation {
    double loss, perplexity; /* as in fsdp_train_validation */
    int64_t tokens;          /* predicted, all ranks */
    double seconds;
} fsdp_evaluation;

/* Computes the mean cross-entropy of `module` over the stream, window after window, each once. The module is called
 * with tokens and targets (B,T) on its own device, like the models of fsdp/models.h. Batch k belongs to rank k modulo
 * the number of ranks (of teams of ranks_per_batch ranks, which divides the world); places without a token have the
 * target -100, which a loss ignores. The mean of each batch is float32; they are added in double, in the order of the
 * batches, so that the sum does not depend on the ranks. The evaluation runs in evaluation mode and without a graph.
 * Afterwards modules are in the mode in which they were. Sharded modules are sharded again; a module that was gathered
 * before the call is as a forward leaves it. Invalid options are refused; on another failure the world is aborted.
 * [collective] */
FSDP_API fsdp_status fsdp_evaluate(fsdp_module *module, const fsdp_tokens *tokens, const fsdp_evaluate_options *options,
                                   fsdp_evaluation *out);

/* ---- batches of your own data (fsdp/dataset.h) ---- */

/* Returns field `field` of a batch as a tensor on `device`: a copy, with the field's shape and dtype. It belongs to the
 * scope. */
FSDP_API fsdp_tensor *fsdp_batch_tensor(fsdp_device *device, const fsdp_data_batch *batch, int field);

#ifdef __cplusplus
}
#endif
#endif
