/* fsdp/train_config.h - the config of a training run: a struct with a field for each key, read from YAML and changed
 * key by key. fsdp/train.h runs it.
 */
#ifndef FSDP_TRAIN_CONFIG_H
#define FSDP_TRAIN_CONFIG_H

#include <stdio.h>

#include "fsdp/data.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_train_optimizer {
    FSDP_TRAIN_ADAMW,
    FSDP_TRAIN_ADAM,
    FSDP_TRAIN_SGD,
    FSDP_TRAIN_ADAMW8BIT, /* AdamW, whose moments of hidden matrices are bytes */
    FSDP_TRAIN_LION,
    FSDP_TRAIN_MUON, /* for hidden matrices, and AdamW for all else */
    FSDP_TRAIN_ADAFACTOR
} fsdp_train_optimizer;
typedef enum fsdp_train_format {
    FSDP_TRAIN_AUTO,
    FSDP_TRAIN_TEXT,
    FSDP_TRAIN_TOKENS
} fsdp_train_format;
/* Says what happens to a step whose loss or gradient norm is NaN or infinite. */
typedef enum fsdp_train_on_nan {
    FSDP_TRAIN_STOP,    /* the run ends, and exports nothing */
    FSDP_TRAIN_SKIP,    /* the step is skipped: its gradients are dropped */
    FSDP_TRAIN_CONTINUE /* the step is taken */
} fsdp_train_on_nan;

/* Says in which format weights of linear layers are sent when they are gathered. */
typedef enum fsdp_train_gather {
    FSDP_TRAIN_GATHER_NONE,   /* the compute dtype */
    FSDP_TRAIN_GATHER_FLOAT8, /* fsdp_gather_float8 */
    FSDP_TRAIN_GATHER_INT8    /* fsdp_gather_int8 */
} fsdp_train_gather;

/* Says what is sharded, by its common name. */
typedef enum fsdp_train_strategy {
    FSDP_TRAIN_FSDP2, /* fsdp_fully_shard, configured by the other keys */
    FSDP_TRAIN_ZERO1, /* its options.zero_stage 1, 2, 3 */
    FSDP_TRAIN_ZERO2,
    FSDP_TRAIN_ZERO3,
    FSDP_TRAIN_HSDP,  /* like FSDP2, with several copies of the parameters */
    FSDP_TRAIN_FSDP1, /* fsdp_fsdp1_wrap */
    FSDP_TRAIN_DDP    /* fsdp_replicate */
} fsdp_train_strategy;
/* Says which modules are sharded together: see fsdp/wrap.h. */
typedef enum fsdp_train_wrap {
    FSDP_TRAIN_WRAP_BLOCKS, /* every block, and the root */
    FSDP_TRAIN_WRAP_ROOT,   /* one unit */
    FSDP_TRAIN_WRAP_SIZE,   /* FSDP_WRAP_SIZE, FSDP_WRAP_CLASSES, FSDP_WRAP_ALWAYS */
    FSDP_TRAIN_WRAP_CLASS,
    FSDP_TRAIN_WRAP_ALWAYS
} fsdp_train_wrap;

/* Says which weights are exported: of the last step, of the step with the best validation, or the average of the
 * weights over the steps (training.ema_decay). Also says which are validated: LAST or EMA. */
typedef enum fsdp_train_which {
    FSDP_TRAIN_LAST,
    FSDP_TRAIN_BEST,
    FSDP_TRAIN_EMA
} fsdp_train_which;

/* Says which tokens of rows are learned: those that the rows say, or all. */
typedef enum fsdp_train_on {
    FSDP_TRAIN_ON_ALL,
    FSDP_TRAIN_ON_ANSWERS
} fsdp_train_on;
/* Says what is learned. */
typedef enum fsdp_train_objective {
    FSDP_TRAIN_NEXT_TOKEN,
    FSDP_TRAIN_DPO /* to prefer the chosen of two answers to the rejected one */
} fsdp_train_objective;
/* Describes a source of a mixture. */
typedef struct fsdp_train_source {
    char *path;    /* as an entry of data.path */
    double weight; /* its share of the windows is weight / the sum of all weights */
} fsdp_train_source;
/* Says which peak of the devices MFU is a share of. */
typedef enum fsdp_train_mfu {
    FSDP_TRAIN_MFU_AUTO,     /* that of a known GPU's data sheet; none for others and for CPUs */
    FSDP_TRAIN_MFU_MEASURED, /* the rate of a large product, which the run measures at its start */
    FSDP_TRAIN_MFU_NONE
} fsdp_train_mfu;

/* Says which parameters optimizer.weight_decay is for. */
typedef enum fsdp_train_decay {
    FSDP_TRAIN_DECAY_ALL,
    FSDP_TRAIN_DECAY_MATRICES /* those of two or more dimensions: neither biases nor the weights of norms */
} fsdp_train_decay;

/* Gives the parameters whose names match a pattern their own values, in place of the optimizer's. */
typedef struct fsdp_train_group {
    char *pattern;       /* as in fnmatch(3) */
    double weight_decay; /* NaN: the optimizer's */
    double lr_scale;     /* factor of optimizer.lr */
    double beta1, beta2; /* NaN: the optimizer's */
    int hidden;          /* 1, 0: whether muon and adamw8bit take them as hidden matrices; -1: by name and shape */
} fsdp_train_group;

/* Has one field per key of the YAML file; `fsdp train --help` lists the keys with type, range and default. Strings and
 * lists belong to the config: change them with fsdp_train_config_set. "Not set" is NULL, 0 for the model's sizes, -1
 * for a choice, and NaN for a number without a fixed default. */
typedef struct fsdp_train_config {
    struct {
        char *path, *preset; /* set one of the two */
        int pretrained;      /* 1, 0, -1: pretrained if path is set */
        int load_by_leader;  /* 0, 1 */
        /* replace the preset's, or the folder's if its weights are not loaded; 0: unchanged */
        int64_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, vocab_size, max_seq_len;
        int tie_word_embeddings; /* 1, 0, -1: unchanged */
        char **frozen;           /* patterns, as in fnmatch(3), of the names of parameters that are not trained */
        int64_t frozen_count;
        double dropout; /* of embeddings and residual branches, none in attention; NaN: as in folder or preset */
    } model;
    struct {
        char **paths;
        int64_t path_count;
        int format;      /* fsdp_train_format */
        int token_bytes; /* 2, 4, -1: as header or file name say */
        int shuffle;     /* 0, 1 */
        int64_t workers;
        /* For text: a folder or file, "model": that of model.path, "bytes": each byte is a token. NULL: that of
         * model.path or of checkpoint.initial_load_path if they have one, otherwise bytes. */
        char *tokenizer;
        char *field;        /* for JSON lines; NULL: "text" */
        int skip_bad_lines; /* 0, 1: for JSON lines */
        char *cache;        /* folder for the tokens of text; must be set if a tokenizer makes them */
        /* For rows, which are texts of unequal length (conversations): */
        int train_on;               /* fsdp_train_on; -1: ANSWERS for rows, ALL for anything else */
        int packing;                /* fsdp_packing; -1: NEXT_FIT for rows */
        int long_row;               /* fsdp_long_row */
        fsdp_train_source *mixture; /* in place of paths; none: paths */
        int64_t mixture_count;
        char *chat_template; /* a file, for conversations; NULL: that of the tokenizer's folder */
    } data;
    struct {
        int64_t steps, seq_len;
        int64_t global_batch_size; /* per step, all ranks; -1: local_batch_size x ranks, or the checkpoint's */
        int64_t local_batch_size;  /* sequences per microbatch and rank */
        double max_norm;           /* 0: no clipping */
        int64_t seed;
        int64_t threads; /* per rank, for the program that creates its context; 0: OMP_NUM_THREADS, or its share */
        int mixed_precision_param;  /* fsdp_dtype: F32, BF16 or F16, which enables a gradient scaler */
        int mixed_precision_reduce; /* fsdp_dtype: F32, BF16 or F16 */
        bool split_shards;          /* fsdp_mp_policy's, for all groups */
        int no_sync;                /* 1: reduce gradients on the last microbatch only; 0; -1: the strategy's default */
        bool enable_cpu_offload;    /* fsdp_offload_policy for all groups */
        int on_nan;                 /* fsdp_train_on_nan */
        int64_t early_stop;         /* validations in a row without improvement that end the run; 0: never */
        double early_stop_min_delta; /* a loss must be lower by this much to be an improvement */
        /* "cpu", "cuda" (each rank the GPU of its local rank), "cuda:N", or "auto" (GPUs if every rank has one, else
         * the CPU). All ranks give the same except for N. NULL: the CPU. */
        char *device;
        double epochs;    /* times that the data is gone through, in place of `steps`; NaN: not set */
        double ema_decay; /* of the average of the weights; 0: there is none */
        int objective;    /* fsdp_train_objective */
    } training;
    struct {
        int name; /* fsdp_train_optimizer */
        double lr, beta1;
        double beta2; /* NaN: 0.99 for lion, otherwise 0.95 */
        double eps;
        double weight_decay; /* NaN: 0.1 for adamw, adamw8bit and muon, otherwise 0 */
        double momentum;     /* NaN: 0.95 for muon, otherwise 0 */
        bool nesterov;
        int decay;                /* fsdp_train_decay */
        fsdp_train_group *groups; /* the first one that matches a parameter is its own */
        int64_t group_count;
        int muon_adjust; /* fsdp_muon_adjust */
    } optimizer;
    struct {
        int64_t warmup_steps;
        int decay_type; /* fsdp_decay */
        double min_lr_factor;
        int64_t warmup_tokens; /* in place of warmup_steps: as many steps as have them, rounded up; 0: not set */
        int64_t decay_steps;   /* of WSD; 0: a tenth of training.steps, rounded up */
        int decay_shape;       /* fsdp_fall of WSD */
        int64_t timescale;     /* of INVERSE_SQRT; 0: as in fsdp_schedule */
    } lr_scheduler;
    struct {
        int strategy;                           /* fsdp_train_strategy */
        int64_t data_parallel_replicate_degree; /* copies of the parameters */
        int64_t data_parallel_shard_degree;     /* teams per copy (fsdp_train_summary); -1: all teams / copies */
        int64_t context_parallel_degree;        /* ranks that share each sequence */
        int64_t tensor_parallel_degree;         /* ranks that share each layer's computation */
        bool sequence_parallel, loss_parallel;  /* with it: norms on parts of the sequence; a sharded vocabulary */
        bool enable_async_tensor_parallel;      /* with both: collectives in pieces beside the products */
        int reshard_after_forward;              /* a negated fsdp_reshard, or reshard_after_forward_ranks */
        int fsdp1_strategy;                     /* fsdp_sharding_strategy; -1: depends on the number of copies */
        int fsdp1_use_orig_params;              /* 1, 0, -1: 0 */
        int fsdp1_backward_prefetch;            /* fsdp_backward_prefetch; -1: PRE */
        int fsdp1_forward_prefetch;             /* 1, 0, -1: 0 */
        double ddp_bucket_cap_mb;               /* as in fsdp_replicate_options; NaN: its default */
        int ddp_find_unused_parameters, ddp_static_graph, ddp_gradient_as_bucket_view; /* 1, 0, -1: 0 */
        int ddp_compress;            /* fsdp_dtype: NONE, BF16, F16; -1: NONE */
        int wrap_policy;             /* fsdp_train_wrap */
        int64_t wrap_min_num_params; /* for SIZE; 0: its default */
        char **wrap_classes;         /* for CLASS: names of module types */
        int64_t wrap_class_count;
        int64_t prefetch;        /* units to gather ahead; 0: the engine's default */
        bool keep_last_unit;     /* keep it unsharded from a forward to its backward */
        char *schedule;          /* "plan", or a file of a schedule; NULL: units as wrap_policy says */
        int64_t schedule_memory; /* bytes of a rank that a planned schedule may take; 0: all that there is */
        char *schedule_prices;   /* the prices of a plan, as --device of fsdp plan; NULL: this device, measured */
        int gather_dtype;        /* fsdp_train_gather */
    } parallelism;
    struct {
        int mode;                /* fsdp_recompute_mode of the blocks; SELECTIVE: see the next field */
        int selective_ac_option; /* n: every n-th block, completely; 0 ("op"): all, except expensive operations */
    } activation_checkpoint;
    struct {
        int enable;   /* 1, 0, -1: enabled if path or share is set */
        char **paths; /* as data.path; none: use the share */
        int64_t path_count;
        double share;             /* the last windows of data.path, as a share of them: never trained on */
        int64_t freq;             /* steps between validations */
        int64_t steps;            /* batches, all ranks; -1: all there are */
        int64_t local_batch_size; /* sequences per batch; 0: training.local_batch_size */
        bool keep_best;           /* keep the checkpoint of the best validation so far */
        int which;                /* fsdp_train_which: LAST or EMA */
    } validation;
    struct {
        int attention; /* fsdp_attention_kernels */
    } kernels;
    struct {
        double timeout;   /* seconds to wait for a rank that is stuck; 0: for ever */
        int carrier;      /* fsdp_carrier */
        int reduce;       /* 1: NCCL adds (fsdp_context_set_nccl_sums); 0: sums are exact */
        int nccl_buffers; /* fsdp_nccl_buffers */
        /* The program fsdp logs at level DEBUG, each group and collective. Your own context: fsdp_context_set_log. */
        bool trace;
    } comm;
    struct {
        int64_t log_freq;
        char *jsonl, *csv, *prometheus, *tensorboard; /* three files and a folder; NULL: none */
        bool exact;                                   /* wait for the numbers of each step: see fsdp_train_step */
        int64_t histogram_freq;                       /* steps between looks at gradients and weights; 0: none */
        int mfu;                                      /* fsdp_train_mfu */
        double peak_tflops;                           /* of a device, for MFU, in place of the table's; 0: not set */
        char *sample_prompt;                          /* text to continue; NULL: none */
        int64_t sample_freq, sample_tokens;           /* steps; new tokens */
        struct {
            char *path;  /* file; NULL: none */
            char *steps; /* which, as "3-5, 100"; NULL: the second to the fourth that are taken */
        } trace;
        /* Where fsdp has ranks record their last calls; NULL: it chooses. Your own context: fsdp_flight_start. */
        char *flight_recorder;
    } metrics;
    struct {
        int enable;                        /* 1, 0, -1: enabled if there is a folder */
        char *folder;                      /* NULL: none */
        int64_t interval;                  /* steps */
        int64_t keep_latest_k, keep_every; /* 0: keep all, none */
        int async_mode;                    /* 0, 1 */
        int64_t load_step;                 /* or FSDP_CHECKPOINT_NEWEST, FSDP_CHECKPOINT_BEST */
        char *initial_load_path;
        char **exclude_from_loading; /* some of "optimizer", "lr_scheduler", "dataloader" */
        int64_t exclude_count;
    } checkpoint;
    struct {
        char *path;             /* folder; NULL: none */
        bool overwrite;         /* replace files of the same names in a folder that no export wrote */
        char *fallback_path;    /* where to write if `path` fails at the end; NULL: chosen then */
        int which;              /* fsdp_train_which; -1: BEST with training.early_stop, if it is kept, otherwise LAST */
        int dtype;              /* fsdp_dtype: F32, BF16 or F16 */
        int64_t max_shard_size; /* maximum bytes of a file of weights */
        int merge;              /* 1, 0, -1: 0. With an adapter: the model with the adapter in its weights */
    } save;                     /* section "export" */
    struct {
        char *path;            /* peft's folder of an adapter to begin with; NULL: none */
        int64_t rank;          /* of a new one; 0: there is none */
        double alpha, dropout; /* NaN: the rank, none */
        char **targets;        /* none, and no target_pattern: all-linear */
        int64_t target_count;
        char *target_pattern;
        char **exclude;
        int64_t exclude_count;
        char **rank_pattern; /* "down_proj=6" */
        int64_t rank_pattern_count;
        char **alpha_pattern;
        int64_t alpha_pattern_count;
        char **modules_to_save;
        int64_t modules_to_save_count;
        int rslora, dora, base_dtype, quantize; /* 1, 0, -1: 0, both; of the frozen: fsdp_dtype, fsdp_quantization */
    } adapter;
    struct {
        double beta, label_smoothing; /* NaN: 0.1, 0 */
    } dpo;
    char *loaded_from; /* the file that was read last; NULL: none */
    char *usual_cache; /* stands for data.cache where that is not set; no key: it is not printed, and not kept */
} fsdp_train_config;

/* Creates a config with every key at its default. */
FSDP_API fsdp_status fsdp_train_config_create(fsdp_train_config **out);
FSDP_API void fsdp_train_config_free(fsdp_train_config *config); /* NULL is allowed */

/* Sets the keys that a YAML file names. An unknown key, a wrong type or a value out of range is an error with file,
 * line, key and what is allowed: "c.yaml:9: optimizer.lr is 'abc': expected a number greater than 0". A file is one
 * UTF-8 document of sections, keys, values and lists, without anchors, aliases and tags, of at most 4 MiB; it may be a
 * pipe, which is read once. File names in the config are relative to the working directory. On a failure the keys
 * before the error may have been set. */
FSDP_API fsdp_status fsdp_train_config_load(fsdp_train_config *config, const char *path);
/* Sets one key. `key` is "section.name"; `value` is written as in the file ("[a.txt, b.txt]" is a list). */
FSDP_API fsdp_status fsdp_train_config_set(fsdp_train_config *config, const char *key, const char *value);
/* Does the same, but appends `value` to a list (data.path, model.frozen, ...). */
FSDP_API fsdp_status fsdp_train_config_add(fsdp_train_config *config, const char *key, const char *value);
/* Checks the fields, which a program may have written itself, as if they had been set by their keys, and what a single
 * key cannot show: batch sizes against the number of ranks, that a model and data are given, keys
 * that exclude each other, and metrics that would be written into a file that is read. */
FSDP_API fsdp_status fsdp_train_config_check(const fsdp_train_config *config, int world_size);

/* Prints the config as YAML that fsdp_train_config_load reads; keys that are not set are printed as comments. */
FSDP_API fsdp_status fsdp_train_config_print(const fsdp_train_config *config, FILE *stream);
/* Prints every key of a section, or of all sections (NULL), with type, range, default and meaning. An unknown section
 * is an error that names the nearest one. */
FSDP_API fsdp_status fsdp_train_config_help(const char *section, FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
