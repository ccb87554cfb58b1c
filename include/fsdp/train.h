/* fsdp/train.h - a whole training run: config, model, sharding, optimizer, data, metrics, export.
 *
 * What `fsdp train config.yaml` does, as calls:
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
 * fsdp_train_run_create, fsdp_train_step and fsdp_train_export are its parts, for a loop of one's own.
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

#ifdef __cplusplus
extern "C" {
#endif

/* ---- config ---- */

typedef enum fsdp_train_optimizer {
    FSDP_TRAIN_ADAMW,
    FSDP_TRAIN_ADAM,
    FSDP_TRAIN_SGD
} fsdp_train_optimizer;
typedef enum fsdp_train_format {
    FSDP_TRAIN_AUTO,
    FSDP_TRAIN_TEXT,
    FSDP_TRAIN_TOKENS
} fsdp_train_format;
/* What becomes of a step whose loss or gradient norm is NaN or infinite. */
typedef enum fsdp_train_on_nan {
    FSDP_TRAIN_STOP,    /* the run ends, and exports nothing */
    FSDP_TRAIN_SKIP,    /* the step is left out: its gradients are dropped */
    FSDP_TRAIN_CONTINUE /* the step is taken */
} fsdp_train_on_nan;

/* What weights of linear layers are sent as when they are gathered. */
typedef enum fsdp_train_gather {
    FSDP_TRAIN_GATHER_NONE,   /* the compute dtype */
    FSDP_TRAIN_GATHER_FLOAT8, /* fsdp_gather_float8 */
    FSDP_TRAIN_GATHER_INT8    /* fsdp_gather_int8 */
} fsdp_train_gather;

/* What is sharded, by the name that people know. */
typedef enum fsdp_train_strategy {
    FSDP_TRAIN_FSDP2, /* fsdp_fully_shard as the keys say */
    FSDP_TRAIN_ZERO1, /* its options.zero_stage 1, 2, 3 */
    FSDP_TRAIN_ZERO2,
    FSDP_TRAIN_ZERO3,
    FSDP_TRAIN_HSDP,  /* as FSDP2, over several copies of the parameters */
    FSDP_TRAIN_FSDP1, /* fsdp_fsdp1_wrap */
    FSDP_TRAIN_DDP    /* fsdp_replicate */
} fsdp_train_strategy;

/* Which modules are sharded together: see fsdp/wrap.h. */
typedef enum fsdp_train_wrap {
    FSDP_TRAIN_WRAP_BLOCKS, /* every block, and the root */
    FSDP_TRAIN_WRAP_ROOT,   /* all in one */
    FSDP_TRAIN_WRAP_SIZE,   /* FSDP_WRAP_SIZE, FSDP_WRAP_CLASSES, FSDP_WRAP_ALWAYS */
    FSDP_TRAIN_WRAP_CLASS,
    FSDP_TRAIN_WRAP_ALWAYS
} fsdp_train_wrap;

/* Whose weights are exported: of the last step, or of the step with the best validation. */
typedef enum fsdp_train_which {
    FSDP_TRAIN_LAST,
    FSDP_TRAIN_BEST
} fsdp_train_which;

/* One field per key of the YAML file; `fsdp train --help` lists them with type, range and default. Strings and lists
 * belong to the config: change them with fsdp_train_config_set. "Not set" is NULL, 0 for the model's sizes, -1 for a
 * choice and NaN for a number that has no fixed default. */
typedef struct fsdp_train_config {
    struct {
        char *path, *preset; /* one of the two */
        int pretrained;      /* 1, 0, -1: pretrained when path is set */
        int load_by_leader;  /* 0, 1 */
        /* in place of the preset's, or of the folder's when its weights are not loaded; 0: as there */
        int64_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, vocab_size, max_seq_len;
        int tie_word_embeddings; /* 1, 0, -1: as there */
        char **frozen;           /* patterns, as of fnmatch(3), of names of parameters that are not trained */
        int64_t frozen_count;
        double dropout; /* of embeddings and residual branches, none in attention; NaN: as folder or preset */
    } model;
    struct {
        char **paths;
        int64_t path_count;
        int format;      /* fsdp_train_format */
        int token_bytes; /* 2, 4, -1: as header or name say */
        int shuffle;     /* 0, 1 */
        int64_t workers;
        /* Of text: folder or file, "model": model.path's, "bytes": its bytes are its tokens. NULL: that of model.path,
         * or of checkpoint.initial_load_path, where these have one; else bytes. */
        char *tokenizer;
        char *field;        /* of JSON lines; NULL: "text" */
        int skip_bad_lines; /* 0, 1: of JSON lines */
        char *cache; /* folder in which the tokens of text are kept; where a tokenizer makes some it must be set */
    } data;
    struct {
        int64_t steps, seq_len;
        int64_t global_batch_size; /* sequences a step, all ranks; -1: local_batch_size x ranks, or the checkpoint's */
        int64_t local_batch_size;  /* sequences a microbatch and rank */
        double max_norm;           /* 0: no clipping */
        int64_t seed;
        int64_t threads; /* a rank's, for who makes its context (the program fsdp); 0: OMP_NUM_THREADS, or its share */
        int mixed_precision_param;   /* fsdp_dtype: F32, BF16 or F16, which switches a gradient scaler on */
        int mixed_precision_reduce;  /* the same */
        int no_sync;                 /* 1: reduce gradients on the last microbatch only; 0; -1: as the strategy is */
        bool enable_cpu_offload;     /* fsdp_offload_policy of all groups */
        int on_nan;                  /* fsdp_train_on_nan */
        int64_t early_stop;          /* validations in a row without an improvement that end the run; 0: none do */
        double early_stop_min_delta; /* by which a loss must be lower to be an improvement */
    } training;
    struct {
        int name; /* fsdp_train_optimizer */
        double lr, beta1, beta2, eps;
        double weight_decay; /* NaN: 0.1 for adamw, else 0 */
        double momentum;
        bool nesterov;
    } optimizer;
    struct {
        int64_t warmup_steps;
        int decay_type; /* fsdp_decay */
        double min_lr_factor;
    } lr_scheduler;
    struct {
        int strategy;                           /* fsdp_train_strategy */
        int64_t data_parallel_replicate_degree; /* copies of the parameters */
        int64_t data_parallel_shard_degree;     /* ranks of each; -1: all / copies */
        int reshard_after_forward;              /* minus an fsdp_reshard, or reshard_after_forward_ranks */
        int fsdp1_strategy;                     /* fsdp_sharding_strategy; -1: by the number of copies */
        int fsdp1_use_orig_params;              /* 1, 0, -1: 0 */
        int fsdp1_backward_prefetch;            /* fsdp_backward_prefetch; -1: PRE */
        int fsdp1_forward_prefetch;             /* 1, 0, -1: 0 */
        double ddp_bucket_cap_mb;               /* fsdp_replicate_options; NaN: its default */
        int ddp_find_unused_parameters;         /* 1, 0, -1: 0 */
        int ddp_static_graph;                   /* the same */
        int ddp_gradient_as_bucket_view;        /* the same */
        int ddp_compress;                       /* fsdp_dtype: NONE, BF16, F16; -1: NONE */
        int wrap_policy;                        /* fsdp_train_wrap */
        int64_t wrap_min_num_params;            /* of SIZE; 0: its default */
        char **wrap_classes;                    /* of CLASS: names of modules' types */
        int64_t wrap_class_count;
        int64_t prefetch;    /* units to gather ahead; 0: the engine's default */
        bool keep_last_unit; /* whole from a forward to its backward */
        int gather_dtype;    /* fsdp_train_gather */
    } parallelism;
    struct {
        int mode;                /* fsdp_checkpoint_mode of blocks, SELECTIVE: as the next says */
        int selective_ac_option; /* every n-th block, all of it; 0: every block, all but dear operations ("op") */
    } activation_checkpoint;
    struct {
        int enable;   /* 1, 0, -1: where path or share is set */
        char **paths; /* as data.path; none: the share */
        int64_t path_count;
        double share;             /* of the windows of data.path, its last ones: never trained on */
        int64_t freq;             /* steps between validations */
        int64_t steps;            /* batches of all ranks; -1: all there are */
        int64_t local_batch_size; /* sequences a batch; 0: training.local_batch_size */
        bool keep_best;           /* the checkpoint of the best validation so far stays */
    } validation;
    struct {
        double timeout; /* seconds to wait for a rank that stands still; 0: for ever */
        /* The program fsdp logs at level DEBUG: what happens to each group, and each collective. Of a context of one's
         * own: fsdp_context_set_log. */
        bool trace;
    } comm;
    struct {
        int64_t log_freq;
        char *jsonl; /* file; NULL: none */
    } metrics;
    struct {
        int enable;            /* 1, 0, -1: 1 where there is a folder */
        char *folder;          /* NULL: none */
        int64_t interval;      /* steps */
        int64_t keep_latest_k; /* 0: all */
        int64_t keep_every;    /* 0: none */
        int async_mode;        /* 0, 1 */
        int64_t load_step;     /* or FSDP_CHECKPOINT_NEWEST, FSDP_CHECKPOINT_BEST */
        char *initial_load_path;
        char **exclude_from_loading; /* of "optimizer", "lr_scheduler", "dataloader" */
        int64_t exclude_count;
    } checkpoint;
    struct {
        char *path;          /* folder; NULL: none */
        bool overwrite;      /* files of the same names in a folder that no export wrote */
        char *fallback_path; /* where to write when `path` fails at the end; NULL: chosen then */
        int which;           /* fsdp_train_which; -1: BEST with training.early_stop, as far as it is kept, else LAST */
        int dtype;           /* fsdp_dtype: F32, BF16 or F16 */
        int64_t max_shard_size; /* bytes of a file of weights at most */
    } save;                     /* section "export" */
    char *loaded_from;          /* the file that was read last; NULL: none */
} fsdp_train_config;

/* Every key at its default. */
FSDP_API fsdp_status fsdp_train_config_create(fsdp_train_config **out);
FSDP_API void fsdp_train_config_free(fsdp_train_config *config); /* NULL is allowed */

/* Sets the keys that the YAML file names. An unknown key, a wrong type or a value out of range is an error with file,
 * line, key and what is allowed: "c.yaml:9: optimizer.lr is 'abc': expected a number greater than 0". A file is one
 * document of sections, keys, values and lists in UTF-8, without anchors, aliases and tags, of at most 4 MiB; it may be
 * a pipe, which is read once. File names in the config are relative to the working directory. On a failure the keys up
 * to there may be set. */
FSDP_API fsdp_status fsdp_train_config_load(fsdp_train_config *config, const char *path);
/* `key` is "section.name"; `value` as it would stand in the file ("[a.txt, b.txt]" is a list). */
FSDP_API fsdp_status fsdp_train_config_set(fsdp_train_config *config, const char *key, const char *value);
/* The same, but a list (data.path, model.frozen, ...) gets what `value` names behind what it has. */
FSDP_API fsdp_status fsdp_train_config_add(fsdp_train_config *config, const char *key, const char *value);
/* What one key alone cannot show: batch sizes against ranks, a model and data given at all, what excludes what, metrics
 * that would be written into what is read. */
FSDP_API fsdp_status fsdp_train_config_check(const fsdp_train_config *config, int world_size);

/* As YAML that fsdp_train_config_load reads; keys that are not set stand as comments. */
FSDP_API fsdp_status fsdp_train_config_print(const fsdp_train_config *config, FILE *stream);
/* Every key of a section, or of all (NULL), with type, range, default and meaning. A section that is none is an error
 * that names the nearest. */
FSDP_API fsdp_status fsdp_train_config_help(const char *section, FILE *stream);

/* ---- a run ---- */

typedef struct fsdp_train_run fsdp_train_run;

typedef struct fsdp_train_summary {
    const char *model; /* the preset's name or the folder */
    fsdp_model_config model_config;
    int64_t parameters;         /* elements, tied ones once */
    int64_t trained_parameters; /* of them those that are not frozen */
    int64_t local_parameters;   /* elements that this rank holds */
    int world_size, machines;
    int64_t units;             /* modules that are sharded together, the root among them */
    int64_t checkpointed;      /* blocks that compute their forward again in the backward */
    int replicas;              /* copies of the parameters: each on world_size / replicas ranks */
    int64_t microbatches;      /* per step and rank */
    int64_t tokens_per_step;   /* all ranks */
    int64_t data_tokens;       /* that are trained on */
    const char *tokenizer;     /* that has read text, its folder or file; NULL: none has */
    bool bytes;                /* text is its own tokens */
    int64_t held_out_tokens;   /* of data.path that are not: validation.share */
    int64_t validation_tokens; /* that a validation predicts; 0: there is none */
    size_t memory_bytes;       /* live on this rank once the run stands, on its device and on the host */
    size_t optimizer_bytes;    /* of them those of optimizer state, which only a run that goes on has by then */
    bool offloaded; /* shards lie on the host, away from the device: not where the device of the run is the CPU */
    double flops_per_token; /* forward and backward */
    /* The checkpoint that the run goes on from; NULL: it begins. */
    const char *resumed_from; /* the run's */
    int64_t resumed_step;     /* steps that are done already */
    int resumed_ranks;        /* that wrote it */
    bool stopped_early;       /* training.early_stop leaves it nothing to do */
    double checkpoint_bytes;  /* of each checkpoint, all ranks; 0: the run keeps none */
    double snapshot_bytes;    /* of them this rank's, which asynchronous checkpoints copy in memory; else 0 */
} fsdp_train_summary;

/* One step. metrics.jsonl is a JSON object a line, and every run adds to what is there: first a header, written when
 * all ranks are ready for the first step,
 *
 *     {"run": "90aff1...", "started": "2026-03-01T09:30:00Z", "version": "0.1.0", "config": "51c0...",
 *      "model": "llama-1m", "parameters": 985472, "world_size": 2, "steps": 1000, "tokens_per_step": 4096}
 *
 * where "run" is drawn anew for each and "config" is a hash of all keys; then a line per step with the fields below,
 * "step" first. A run that goes on from a checkpoint has "resumed_from", a step, in its header: lines of later steps
 * before it are of what was lost. A number that is NaN or infinite is null there. A file that holds something else, or
 * that is the config, of the data or of the model, under whatever name, is refused before anything is written.
 *
 * A run on several machines has "machines" in its header, and in a step's line "network_sent", "network_received",
 * "gather_ms" and "reduce_ms": what rank 0 has exchanged with other machines, and waited for. */
typedef struct fsdp_train_report {
    int64_t step; /* from 1 */
    /* Mean over all microbatches of all ranks, added in the order of the data. NaN on steps that are neither logged,
     * written, validated nor not_finite, but for every tenth. */
    double loss;
    double grad_norm;  /* before clipping */
    bool not_finite;   /* this step's loss or norm is NaN or infinite: training.on_nan says what becomes of it */
    int64_t skipped;   /* steps left out so far, this one included */
    double loss_scale; /* of float16: what this step's loss was multiplied by (fsdp_grad_scaler); else 0 */
    double lr;
    double tokens_per_second; /* all ranks */
    double step_ms;
    size_t memory_live_bytes;                       /* this rank's device, at the end of the step */
    size_t memory_peak_bytes;                       /* the same, within the step */
    int64_t all_gather, reduce_scatter, all_reduce; /* calls of this rank in the step */
    int64_t bytes_sent;                             /* by them, as a ring algorithm counts */
    fsdp_comm_stats comm;                           /* the same and all others, by kind */
    fsdp_memory_stats memory;                       /* this rank's device: live at the end, peaks within the step */
    double gather_ms, reduce_ms;                    /* of step_ms: fsdp_module_exposed_time */
    int64_t network_sent, network_received;         /* bytes of buffers, to and from other machines: docs/cluster.md */
    int64_t epoch;                                  /* that the step's last microbatch is of, from 0 */
    int64_t tokens;                                 /* seen so far, all ranks */
} fsdp_train_report;

/* One validation: the mean loss of a stream's tokens, each predicted once from those before it in its window; the last
 * window may be shorter. Its line in metrics.jsonl, behind that of its step:
 *
 *     {"validation": 100, "loss": 3.21, "perplexity": 24.8, "tokens": 40960, "best": true, ...}
 */
typedef struct fsdp_train_validation {
    int64_t step;      /* steps taken before it */
    double loss;       /* mean over the tokens; the same bits in any world that has the same parameters */
    double perplexity; /* exp(loss) */
    int64_t tokens;    /* predicted, all ranks */
    bool best;         /* lower than in all validations before */
    double best_loss;  /* of those and this one */
    int64_t best_step;
    int64_t without_improvement; /* validations in a row, this one included: see training.early_stop */
    bool stops;                  /* training.early_stop ends the run here */
    double ms, tokens_per_second;
} fsdp_train_validation;

/* Builds everything: the model on the meta device, every unit of parallelism.wrap_policy given to fsdp_fully_shard,
 * this rank's rows loaded or initialised, optimizer and loader. `config` is borrowed and checked, and compared with
 * that of the other ranks: keys that differ are an error on all which names them (paths and data.workers may differ,
 * what they lead to may not). Of several machines each must see what the config names, and share the folders that it
 * writes into: else the error names the machine. Strategy hsdp then has a copy of the parameters on each machine where
 * the config does not say how many. What fails on one rank fails on all, with that rank's message. [collective] */
FSDP_API fsdp_status fsdp_train_run_create(fsdp_context *context, const fsdp_train_config *config,
                                           fsdp_train_run **out);
FSDP_API void fsdp_train_run_free(fsdp_train_run *run); /* NULL is allowed */
FSDP_API void fsdp_train_run_summary(fsdp_train_run *run, fsdp_train_summary *out);
FSDP_API fsdp_module *fsdp_train_run_model(fsdp_train_run *run); /* borrowed */

/* One optimizer step over training.global_batch_size sequences; rank 0 appends it to metrics.jsonl. On a failure the
 * world is aborted, so that no peer waits; that of a line of metrics is a warning, and none is written after it.
 * `report` may be NULL.
 *
 * Whether the step is finite is decided before the optimizer's, from the gradient norm, which all ranks have in common;
 * a rank whose own loss is not finite makes the norm NaN (but not under `continue`, which lets everything be as it is).
 * In float16 a gradient that is not finite is no failure: the scaler leaves the step out and scales less. Then only the
 * mean loss decides, and a step that is left out at a scale below 1.
 * With training.on_nan: stop such a step fails with FSDP_NOT_FINITE on every rank, the world stays, the parameters are
 * those of the step before, and report and metrics.jsonl have the step. Otherwise rank 0 logs a warning, one for all
 * such steps in a row. [collective] */
FSDP_API fsdp_status fsdp_train_step(fsdp_train_run *run, fsdp_train_report *report);
/* Evaluates the model as it is, between two steps, and appends a line to metrics.jsonl. Of the training that goes on it
 * changes no bit: neither parameters, gradients and optimizer, nor the position in the data, nor what dropout will
 * draw. A rank for which no batch is left takes part all the same. A run without a validation (validation.enable)
 * refuses; on another failure the world is aborted. `out` may be NULL. [collective] */
FSDP_API fsdp_status fsdp_train_validate(fsdp_train_run *run, fsdp_train_validation *out);
/* Writes export.path, which the run has held since its start; nothing when it is not set. The weights are the model's,
 * or as export.which says those of the best validation so far, and the model stays as it is; these are of the copy that
 * fsdp_train_validate has made, or, of a run that keeps checkpoints, of the one of that step, which has to be there.
 * Where they cannot be had the model's are written, and the error says so. When the folder cannot be written the model
 * is written to export.fallback_path, if need be without its tokenizer, and the error says where it is. [collective] */
FSDP_API fsdp_status fsdp_train_export(fsdp_train_run *run);

/* Writes a checkpoint of the run as it stands to checkpoint.folder, between two steps; nothing when it has one of this
 * step. With checkpoint.async_mode it is there when a later step has ended, or the next call begins. FSDP_STATE when
 * the run keeps none. [collective] */
FSDP_API fsdp_status fsdp_train_save(fsdp_train_run *run);

/* A checkpoint that is there. */
typedef struct fsdp_train_saved {
    int64_t step;
    const char *path;
    double bytes;                   /* of all its tensors */
    double seconds, waited_seconds; /* until it was there; that training stood still */
} fsdp_train_saved;

/* What the program wants of a run that keeps checkpoints. */
typedef enum fsdp_train_demand {
    FSDP_TRAIN_GO_ON,
    FSDP_TRAIN_SAVE, /* once */
    FSDP_TRAIN_END   /* save, and end with FSDP_INTERRUPTED, without an export */
} fsdp_train_demand;

/* Sees a whole run; every function may be NULL. Called on every rank, except `failed`: when all ranks learn of a
 * failure at a point where they agree, rank 0 alone is called; else each rank that failed, with FSDP_COMM those that
 * were ended by another's failure. */
typedef struct fsdp_train_listener {
    void *arg;
    void (*started)(void *arg, const fsdp_train_summary *summary);
    void (*stepped)(void *arg, const fsdp_train_report *report);
    void (*validating)(void *arg, int64_t done, int64_t all); /* batches of the validation that runs */
    void (*validated)(void *arg, const fsdp_train_validation *validation);
    void (*trained)(void *arg, int64_t step); /* after the last step and validation, before the export */
    void (*exported)(void *arg, const char *path);
    void (*failed)(void *arg, fsdp_status status, const char *message);
    /* Rank 0: the run is about to make files on disk that a program which is to be ended should not leave behind, and
     * fsdp_hub_abandon removes them, until the next call; NULL: there are none any more, and `hold` of the call before
     * is freed when this returns. */
    void (*holds)(void *arg, fsdp_hub_hold *hold);
    /* The same of checkpoints, on every rank: fsdp_checkpoint_saver_abandon. */
    void (*saver)(void *arg, fsdp_checkpoint_saver *saver);
    void (*saved)(void *arg, const fsdp_train_saved *saved);
    /* Asked after every step of a run that keeps checkpoints; the strongest answer of all ranks counts. NULL: GO_ON. */
    fsdp_train_demand (*demand)(void *arg);
} fsdp_train_listener;

/* The whole run: create, training.steps steps, export, free; a validation after every validation.freq steps and after
 * the last one. training.early_stop may end the steps before. A checkpoint that could not be written is a warning,
 * and the next one is tried; where none has come after it, the run fails at its end, behind the export. Parameters
 * that are not finite are not exported, unless training.on_nan is continue. [collective] */
FSDP_API fsdp_status fsdp_train(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_listener *listener);

/* ---- evaluation ---- */

typedef struct fsdp_evaluate_options {
    int64_t seq_len;     /* tokens of a window */
    int64_t local_batch; /* windows of a batch, which is one rank's */
    int64_t steps;       /* batches of all ranks; 0: all there are */
    int64_t first;       /* token of the stream to begin at */
    int64_t vocab_size;  /* a token at or beyond it is an error naming file and position; 0: not checked */
    void (*progress)(void *arg, int64_t done, int64_t all); /* of all batches; NULL: nobody looks */
    void *arg;
} fsdp_evaluate_options;

typedef struct fsdp_evaluation {
    double loss, perplexity; /* as in fsdp_train_validation */
    int64_t tokens;          /* predicted, all ranks */
    double seconds;
} fsdp_evaluation;

/* Mean cross-entropy of `module`, called with tokens and targets (B,T) as the models of fsdp/models.h are, over the
 * stream: window after window, each once. Batch k is of rank k modulo the ranks; places without a token have the target
 * -100, which a loss leaves out. Each batch has a mean in float32; those are added up in double, in the order of the
 * batches, so that the sum does not depend on the ranks. In evaluation mode and without a graph; afterwards modules are
 * in the mode in which they were, and those that were sharded are; one that was gathered is as a forward leaves it.
 * Wrong options are refused; on another failure the world is aborted. [collective] */
FSDP_API fsdp_status fsdp_evaluate(fsdp_module *module, const fsdp_tokens *tokens, const fsdp_evaluate_options *options,
                                   fsdp_evaluation *out);

/* ---- batches of one's own data (fsdp/dataset.h) ---- */

/* Field `field` of a batch as a tensor on `device`: a copy, of the field's shape and dtype. Belongs to the scope. */
FSDP_API fsdp_tensor *fsdp_batch_tensor(fsdp_device *device, const fsdp_data_batch *batch, int field);

#ifdef __cplusplus
}
#endif
#endif
