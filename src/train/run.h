/* run.h - the inside of a training run. */
#pragma once

#include "base/clock.h"
#include "base/probe.h"
#include "data/loader.h"
#include "data/open_data.h"
#include "device/kernels.h"
#include "format/staging.h"
#include "fsdp/adapter.h"
#include "fsdp/checkpoint.h"
#include "fsdp/data.h"
#include "fsdp/hub.h"
#include "fsdp/trace.h"
#include "fsdp/train.h"
#include "fsdp/wrap.h"
#include "hub/hub.h"
#include "parallel/meshes.h"
#include "train/checkpoint_extras.h"
#include "train/comm_schedule.h"
#include "train/dpo.h"
#include "train/metrics.h"
#include "train/model_folder.h"

/* Has what the caller of a dry run gives in place of the config's parts: a model and its loss, or units, or both. See
 * fsdp/explain.h. */
typedef struct fsdp__train_own {
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    const fsdp_wrap_policy *policy;      /* NULL: the config's */
    const fsdp__comm_schedule *schedule; /* NULL: the config's */
} fsdp__train_own;

/* Holds what a run is trained on: data.path, or an entry of data.mixture. */
typedef struct fsdp__run_source {
    char key[40];       /* "data.path", "data.mixture[0]" */
    char *const *paths; /* borrowed */
    int64_t path_count;
    double weight;
    fsdp__open_data data;
    fsdp__packed *packed; /* of rows; NULL: tokens */
    int64_t tokens;       /* that are trained on, from the first; the rest is held out */
} fsdp__run_source;

/* Holds what validation.* asks for, and the results so far. */
typedef struct fsdp__validation {
    bool on;                   /* there is something to validate on: tokens or rows */
    const fsdp_tokens *tokens; /* NULL: rows */
    fsdp__packed *packed;      /* of rows; NULL: tokens */
    fsdp__open_data own;       /* of validation.path; of zeros: the last ones of the run's data */
    int64_t first;             /* the first of the tokens */
    int64_t held_rows_from;    /* the first row that is held out; 0: none is */
    int64_t data;              /* for a run that saves, a hash of the data that the losses are of; otherwise 0 */
    double best, improved;     /* the lowest loss, and that of the last improvement; infinite at first */
    int64_t best_step;
    int64_t without_improvement; /* number of validations since then */
    bool stops;                  /* the run is to end */
} fsdp__validation;

enum {
    FSDP__RUN_ID = 17 /* bytes: 16 hexadecimal digits, and a terminating zero */
};

/* Says where a run begins: all zero, or as its checkpoint says. */
typedef struct fsdp__resume {
    fsdp_checkpoint_reader *from; /* open until all of it is loaded; NULL: the run starts anew */
    char *path;                   /* of the checkpoint; NULL: the run starts anew */
    int ranks;                    /* number of ranks that wrote it */
    int64_t step;                 /* steps that earlier runs have done */
    int64_t tokens, skipped;      /* tokens and skipped steps in them */
    int64_t sequences;            /* per step, in the last of them */
    int64_t window;               /* where the data continues */
    int64_t schedule_step;        /* the step at which the schedule began */
    int64_t draws;                /* number of draws for dropouts */
    int64_t finite_step;          /* step of the newest checkpoint whose weights are finite; -1: none is known */
    char run[FSDP__RUN_ID];       /* id of the run that wrote it; "": it does not say */
} fsdp__resume;

/* The average of the weights over the steps. */
typedef struct fsdp__ema {
    fsdp_state_dict *average; /* NULL: there is none */
    fsdp_state_dict *weights; /* of the model */
    fsdp__span *spans;        /* one for each average */
} fsdp__ema;

typedef struct fsdp__data_digest fsdp__data_digest;
typedef struct fsdp__samples fsdp__samples;
typedef struct fsdp__notice fsdp__notice;

/* The checkpoints that a run writes. */
typedef struct fsdp__saves {
    fsdp_checkpoint_saver *saver; /* NULL: the run keeps no checkpoints */
    fsdp__extras extras;          /* on rank 0 only, as are the fields that follow for the folder */
    fsdp__staging hold;           /* holds the folder */
    fsdp__directory folder;       /* the folder, which stays open too */
    int made;                     /* number of folders that were made for this run: the last ones of the path */
    double own_bytes;             /* bytes that this rank writes of the next checkpoint */
    double bytes;                 /* bytes of a checkpoint's tensors, of all ranks */
    int64_t last;                 /* step of the newest that was saved; -1: none */
    int64_t finite_step;          /* step of the newest saved one whose weights are all finite; -1: none is known */
    bool ends;                    /* no other follows the one that is being saved */
    bool finite;                  /* the weights of the one that is being saved are finite */
    int64_t began_ns, waited_ns;  /* when the save began; how long training stood still for it */
    fsdp_status failure;          /* the newest failure, whose text is `message` */
    char message[512];
} fsdp__saves;

/* Holds what is counted over one step. */
typedef struct fsdp__meter {
    int64_t tokens; /* of all ranks, without padding */
    int64_t began_ns;
    int64_t gather_ns, reduce_ns, data_ns; /* their values at the beginning */
    fsdp_comm_stats comm, team;            /* of all groups; of the run's team */
} fsdp__meter;

enum {
    FSDP__AHEAD = 2 /* steps that the host has queued and not heard of, at most */
};

/* Steps that are decided on the device: see steps_ahead.c. */
typedef struct fsdp__ahead {
    void *device;               /* the verdict and the losses, there; NULL: the host decides about each step */
    void *reports[FSDP__AHEAD]; /* copies, in memory of the host that the device reaches */
    size_t bytes;               /* of each */
    fsdp_event *done[FSDP__AHEAD];
    fsdp_train_report steps[FSDP__AHEAD]; /* what is known of them already */
    fsdp__meter meters[FSDP__AHEAD];
    int first, count;   /* the oldest that is not settled, and how many there are */
    int64_t settled_ns; /* when the last one was */
} fsdp__ahead;

enum {
    FSDP__MICROBATCHES_TAKEN = 3 /* before some may be passed over: from the second one on all but the last are alike */
};

struct fsdp_train_run {
    fsdp_context *context;
    char id[FSDP__RUN_ID];           /* random, the same on all ranks; "" in a dry run */
    fsdp_device *device;             /* the device that the run computes on */
    char device_text[160];           /* what fsdp__device_describe says of it, when the run began */
    double peak_flops;               /* of all ranks' devices; 0: not known (mfu.c) */
    char peak_source[160];           /* what says so */
    const fsdp_train_config *config; /* borrowed, or `resolved` */
    fsdp_train_config resolved;      /* a copy of the config with what the world decides; its strings are borrowed */
    const fsdp_train_listener *listener;
    const fsdp__train_own *own; /* borrowed; NULL: the config decides everything */
    fsdp_model_config model_config;
    int data_ranks, data_rank; /* teams (fsdp__train_team), each of which has data of its own; and this rank's */
    int64_t microbatches;      /* per step */
    int64_t passed_over;       /* of these, in a dry run: those that are like number FSDP__MICROBATCHES_TAKEN */
    double *losses;      /* of this rank's microbatches in the last step, and behind them its fsdp__rank_times, and
                          * a hash of all batches so far (fsdp__note_batch) */
    int64_t sequences;   /* per step, on all ranks */
    int64_t step;        /* steps done */
    int64_t skipped;     /* steps that were skipped among these */
    int64_t tokens_seen; /* tokens in these steps, on all ranks */
    bool not_finite;     /* the last step was not finite */
    int64_t trained_parameters; /* elements, on all ranks; 0 until the model is built */
    int64_t trained_products;   /* those of the model that MFU counts */
    int64_t adapter_products;   /* those of adapters */
    int64_t kept_parameters;    /* the same for frozen parameters whose optimizer state is kept */
    int64_t local_parameters;   /* elements on this rank */
    double parameter_bytes;     /* of the whole model as it is held; 0 before it is built */

    fsdp__run_source *sources; /* NULL in a dry run */
    int source_count;
    bool has_rows;             /* some source has rows: a step's loss is the mean over all its answers */
    fsdp__data_digest *digest; /* of all data; NULL: nobody needs it */
    fsdp__validation validation;
    fsdp_loader *loader;    /* NULL in a dry run: tokens are zero */
    int32_t *dry_positions; /* of a microbatch of a dry run, if its windows would tell some; otherwise NULL */
    fsdp__load load;        /* of the step, on all ranks */
    fsdp__parallel_meshes meshes;
    fsdp_module *model;
    fsdp_lora_options *lora; /* of the adapter that is trained; NULL: all of the model is */
    fsdp_adapter *adapter;
    fsdp_wrap_units units; /* kept until they are sharded */
    int64_t unit_count;
    const fsdp__comm_schedule *comm_schedule; /* NULL: units as the config's policy says */
    fsdp__comm_schedule *own_schedule;        /* the same, if the run has read it; or one that was refused */
    char *schedule_text;                      /* of a schedule that rank 0 has planned */
    size_t schedule_bytes;
    uint64_t model_hash; /* fsdp__comm_schedule_parameters */
    fsdp_optimizer *optimizer;
    fsdp__ema ema;
    fsdp__dpo dpo;
    fsdp_grad_scaler *scaler; /* for float16; otherwise NULL */
    fsdp_schedule schedule;
    double *lr_scales; /* factors of the learning rate, of each group of the optimizer */
    bool offloaded;    /* asked for, and there is somewhere to move to: see training.enable_cpu_offload */
    fsdp__ahead ahead;
    bool steps_early;             /* each group steps in the backward, as soon as its gradients are ready */
    bool last_microbatch;         /* the step's last microbatch runs: after it the gradients are complete */
    fsdp__metrics *metrics;       /* on rank 0 only, when the config asks for them */
    fsdp__histograms *histograms; /* NULL: nobody asks for them */
    fsdp__notice *notice;         /* on rank 0 only; NULL in a dry run */
    int64_t data_ns;              /* spent waiting for batches */
    fsdp__samples *samples;       /* NULL: nobody asks for them */
    fsdp_trace *trace;            /* of the steps that the config names, while it is recorded or paused */
    bool traced;                  /* it has begun, or was refused */
    bool trace_replaces;          /* an earlier one */
    fsdp_status trace_status;
    char trace_message[512];
    fsdp_state_dict *best;      /* weights to export instead of the model's; NULL: none */
    fsdp_hub_hold *hold;        /* on rank 0 only: holds export.path until it is written */
    fsdp__model_folder initial; /* of checkpoint.initial_load_path, unless the run goes on */
    fsdp__resume resume;
    char *tokenizer;     /* for text (text_data.c) */
    bool tokenizes;      /* it has read text */
    char *chat_template; /* the text of data.chat_template; NULL: the tokenizer's folder has the template */
    fsdp__hub_talk talk; /* for the model's folder and checkpoints; used if it `talks` */
    bool talks;          /* it has read conversations */
    fsdp__saves saves;
};

/* Notifies subscribers of a part of a run (base/probe.h). */
#define FSDP__STAGE(run, which, text, step)                                                          \
    FSDP__TELL(STAGE_##which, .context = (run)->context, .name = (text), .number = (uint64_t)(step), \
               .ns = fsdp__clock_ns())

/* ---- agree.c ---- */

/* Does what fsdp_agree does, except that a rank that failed itself keeps its own message. [collective] */
fsdp_status fsdp__train_agree(fsdp_train_run *run, fsdp_status mine);

/* ---- run.c ---- */

/* Does what fsdp_train_run_create does, for somebody who listens to what happens before the first step: parallelism.
 * schedule plan needs that. The listener is borrowed as long as the run lives. [collective] */
fsdp_status fsdp__train_run_create_heard(fsdp_context *context, const fsdp_train_config *config,
                                         const fsdp_train_listener *listener, fsdp_train_run **out);
/* Says by what the GPUs of the ranks on this machine are joined: fsdp__device_links; "" on other ranks than 0, and
 * where all share one. */
void fsdp__train_links(const fsdp_train_run *run, char *text, size_t bytes);

/* ---- dry_run.c ---- */

/* Makes a run without data, of which nothing is computed, in a fake world: the model is built and sharded as the config
 * says and trained by fsdp_train_step on the dry device, or where training.device is cuda on the one that stands for a
 * GPU (fsdp__dry, fsdp__dry_gpu). Of a folder only config.json is read. Keys of data, metrics and export are ignored.
 */
fsdp_status fsdp__train_run_create_dry(fsdp_context *context, const fsdp_train_config *config,
                                       const fsdp__train_own *own, fsdp_train_run **out);

/* ---- memory_owners.c ---- */

enum {
    FSDP__TRAIN_OWNERS = 2048 /* bytes of the table of owners */
};
/* Writes who has the memory, or would have it, of a run that has failed with `status`, a line each; "" unless this rank
 * has run out of memory. `run` may be NULL. Call it while the model is there. */
void fsdp__train_note_owners(const fsdp_context *context, const fsdp_train_run *run, fsdp_status status, char *text);
