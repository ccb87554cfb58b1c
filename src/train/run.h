/* run.h - the inside of a training run. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

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
#include "train/comm_schedule.h"
#include "train/dpo.h"
#include "train/extras.h"
#include "train/metrics.h"
#include "train/model_folder.h"

/* For a dry run: what the caller has in place of the config's parts: a model and its loss, or units, or both. See
 * fsdp/explain.h. */
typedef struct fsdp__train_own {
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    const fsdp_wrap_policy *policy;      /* NULL: the config's */
    const fsdp__comm_schedule *schedule; /* NULL: the config's */
} fsdp__train_own;

/* What a run is trained on: data.path, or an entry of data.mixture. */
typedef struct fsdp__run_source {
    char key[40];       /* "data.path", "data.mixture[0]" */
    char *const *paths; /* borrowed */
    int64_t path_count;
    double weight;
    fsdp__open_data data;
    fsdp__packed *packed; /* of rows; NULL: tokens */
    int64_t tokens;       /* that are trained on, from the first; the rest is held out */
} fsdp__run_source;

/* What validation.* asks for, and the results so far. */
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

/* Where a run begins: all zero, or as its checkpoint says. */
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
    bool made;                    /* the folder was made for this run */
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

/* What is counted over one step. */
typedef struct fsdp__meter {
    int64_t tokens; /* of all ranks, without padding */
    int64_t began_ns;
    int64_t gather_ns, reduce_ns, data_ns; /* their values at the beginning */
    fsdp_comm_stats comm, team;            /* of all groups; of the run's team */
} fsdp__meter;

enum {
    FSDP__AHEAD = 2 /* steps that the host has queued and not heard of, at most */
};

/* Steps that are decided on the device: see ahead.c. */
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

struct fsdp_train_run {
    fsdp_context *context;
    fsdp_device *device;             /* the device that the run computes on */
    char device_text[160];           /* what fsdp__device_describe says of it, when the run began */
    double peak_flops;               /* of all ranks' devices; 0: not known (mfu.c) */
    char peak_source[160];           /* what says so */
    const fsdp_train_config *config; /* borrowed, or `resolved` */
    fsdp_train_config resolved;      /* a copy of the config with what the world decides; its strings are borrowed */
    const fsdp_train_listener *listener;
    const fsdp__train_own *own; /* borrowed; NULL: the config decides everything */
    fsdp_model_config model_config;
    int data_ranks, data_rank;  /* teams (fsdp__train_team), each of which has data of its own; and this rank's */
    int64_t microbatches;       /* per step */
    double *losses;             /* of this rank's microbatches in the last step, and behind them its fsdp__rank_times */
    int64_t sequences;          /* per step, on all ranks */
    int64_t step;               /* steps done */
    int64_t skipped;            /* steps that were skipped among these */
    int64_t tokens_seen;        /* tokens in these steps, on all ranks */
    bool not_finite;            /* the last step was not finite */
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
    fsdp_loader *loader; /* NULL in a dry run: tokens are zero */
    fsdp__load load;     /* of the step, on all ranks */
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

/* ---- step_report.c ---- */

/* Returns whether a validation is due after the latest step, by the config alone. */
bool fsdp__validation_due(const fsdp_train_run *run);
/* Completes the report of a step, which was taken or not, by its loss, and writes its line of metrics: does what all
 * ranks must do together. */
fsdp_status fsdp__step_report(fsdp_train_run *run, bool stepped, fsdp_train_report *report);
/* Tells the listener what a step has reported. With training.on_nan: stop one that is not finite fails instead. */
fsdp_status fsdp__step_tell(fsdp_train_run *run, const fsdp_train_report *report);

/* ---- ahead.c ---- */

/* Decides, once the optimizer exists, whether the host runs ahead of the device, and makes what that takes. */
fsdp_status fsdp__ahead_begin(fsdp_train_run *run);
void fsdp__ahead_release(fsdp_train_run *run);
/* For a run that does. Keep the loss of a microbatch for the verdict; decide about the step, and take it; and queue its
 * report behind it, of which `report` has what is known. */
fsdp_status fsdp__ahead_note_loss(fsdp_train_run *run, int64_t microbatch, const fsdp_tensor *loss);
fsdp_status fsdp__ahead_step(fsdp_train_run *run);
fsdp_status fsdp__ahead_queue(fsdp_train_run *run, const fsdp__meter *meter, const fsdp_train_report *report);
/* Waits until at most `leave` steps are open; reports and tells each that is settled: a failure is fsdp__step_tell's,
 * or has aborted the world. `out` gets the report of the last; it may be NULL. Does nothing where none is open.
 * [blocks] */
fsdp_status fsdp__ahead_settle(fsdp_train_run *run, int leave, fsdp_train_report *out);

/* ---- agree.c ---- */

/* Does what fsdp_agree does, except that a rank that failed itself keeps its own message. [collective] */
fsdp_status fsdp__train_agree(fsdp_train_run *run, fsdp_status mine);

/* ---- best_weights.c: does nothing where the last weights are exported ---- */

/* Notes that a validation was the best so far: copies the weights, unless a checkpoint will have them. [collective] */
fsdp_status fsdp__best_note(fsdp_train_run *run);
/* Checks whether there is, or can be, a best model to export. Call it once the run stands where its checkpoint says. */
fsdp_status fsdp__best_check(const fsdp_train_run *run);
/* Returns whether the weights to export are not those that the model has now. */
bool fsdp__best_is_earlier(const fsdp_train_run *run);
/* Returns the weights of the best validation, divided as the model's `state` is; they belong to the run. */
fsdp_status fsdp__best_state(fsdp_train_run *run, const fsdp_state_dict *state, const fsdp_state_dict **out);
void fsdp__best_release(fsdp_train_run *run);

/* ---- build_run.c ---- */

/* Checks that the model has what the config needs to train it. */
fsdp_status fsdp__train_check_model(const fsdp_train_run *run);
/* Counts the microbatches, and allocates room for their losses. */
fsdp_status fsdp__train_count_batches(fsdp_train_run *run);
/* Counts data_ranks, once the config is known to fit the ranks. */
void fsdp__train_count_ranks(fsdp_train_run *run);
/* Sets the number of copies for hsdp on several machines, if none is given: one copy on each machine, since what is
 * gathered inside a machine crosses no network. */
void fsdp__train_resolve_replicas(fsdp_train_run *run);
/* Makes the model, shapes only, and its units. */
fsdp_status fsdp__train_make_model(fsdp_train_run *run);
/* Gives the model its first values, once it is sharded. */
fsdp_status fsdp__train_fill_model(fsdp_train_run *run);
fsdp_status fsdp__train_make_optimizer(fsdp_train_run *run);

/* ---- ema.c: does nothing without training.ema_decay ---- */

/* Begins the average, once the model is filled: as the weights are, or as the checkpoint has it that the run goes on
 * from. */
fsdp_status fsdp__ema_begin(fsdp_train_run *run);
void fsdp__ema_release(fsdp_train_run *run);
/* Moves it after a step; not if the device leaves that out, by the verdict, which may be NULL. [stream] */
fsdp_status fsdp__ema_step(const fsdp_train_run *run, const void *verdict);
/* Has average and weights change places; if that fails, those that have go back. */
fsdp_status fsdp__ema_swap(const fsdp_train_run *run);

/* ---- run.c ---- */

/* Does what fsdp_train_run_create does, for somebody who listens to what happens before the first step: parallelism.
 * schedule plan needs that. The listener is borrowed as long as the run lives. [collective] */
fsdp_status fsdp__train_run_create_heard(fsdp_context *context, const fsdp_train_config *config,
                                         const fsdp_train_listener *listener, fsdp_train_run **out);

/* ---- same_data.c ---- */

enum {
    FSDP__DIGEST_TEXT = 33,        /* 128 bits, and a terminating zero */
    FSDP__DIGEST_AT_ONCE = 4 << 20 /* tokens that are hashed before the first step, which takes some milliseconds */
};
/* Begins to hash all of the data of a run that saves, once the data is open: on rank 0, and on one rank of each machine
 * where the run goes on from a checkpoint whose digest is compared. */
fsdp_status fsdp__digest_begin(fsdp_train_run *run);
/* Waits until the hash that this rank has begun is ready. Saves do not call it. */
void fsdp__digest_wait(fsdp_train_run *run);
/* Gets the hash, and an identity of the files that it is of (0: none is certain); NULL on a rank that has no hash, or
 * none yet. */
fsdp_status fsdp__digest_get(const fsdp_train_run *run, const char **out_text, int64_t *out_files);
/* Returns the digest in the checkpoint that the run goes on from, or NULL if there is none, and the state of the files
 * that it is of, 0 if that is not known. */
const char *fsdp__digest_of_checkpoint(const fsdp_train_run *run, int64_t *out_files);
void fsdp__digest_release(fsdp_train_run *run); /* before the data is closed */

/* ---- dry_run.c ---- */

/* Makes a run without data, of which nothing is computed, in a fake world: the model is built and sharded as the config
 * says and trained by fsdp_train_step on the dry device, or where training.device is cuda on the one that stands for a
 * GPU (fsdp__dry, fsdp__dry_gpu). Of a folder only config.json is read. Keys of data, metrics and export are ignored.
 */
fsdp_status fsdp__train_run_create_dry(fsdp_context *context, const fsdp_train_config *config,
                                       const fsdp__train_own *own, fsdp_train_run **out);

/* ---- step_in_backward.c ---- */

/* Decides, once the optimizer exists, whether its steps need no common decision, and are taken by a host that has
 * nothing else to do meanwhile; if so the model is told to take them in the backward. */
fsdp_status fsdp__train_step_early(fsdp_train_run *run);

/* ---- adapter.c ---- */

/* Finds out what adapter the config asks for, before anything large is read. */
fsdp_status fsdp__train_read_adapter(fsdp_train_run *run);
/* Writes what a run that goes on must have: the adapter's options, and what its base is. */
void fsdp__train_facts_of_adapter(const fsdp_train_run *run, FILE *out);
/* Adds the adapter to the model, which is on the meta device. */
fsdp_status fsdp__train_add_adapter(fsdp_train_run *run);
/* Makes a state dict of what checkpoints keep of the model: all of it, or the adapter. */
fsdp_status fsdp__train_state(const fsdp_train_run *run, fsdp_state_dict **out);
/* Makes what is exported, with an adapter: it alone, by peft's names, or the merged model. `trained` has its values.
 * [collective] */
fsdp_status fsdp__train_export_state(const fsdp_train_run *run, const fsdp_state_dict *trained, fsdp_state_dict **out);
/* Gives the text of adapter_config.json; free() it. */
fsdp_status fsdp__train_adapter_config(const fsdp_train_run *run, char **out);

/* ---- frozen.c ---- */

/* Freezes what model.frozen names, before the model is sharded, and counts the rest. Frozen parameters get no gradient
 * and no optimizer state, but keep the state that they have in the checkpoint that the run goes on from; this is
 * reported. A pattern that matches nothing is an error that names the parameter it comes nearest to. */
fsdp_status fsdp__train_freeze(fsdp_train_run *run);
/* Called, once the model is sharded, around the making of the optimizer, which takes no frozen parameters: the first
 * thaws those that have state to keep, the second freezes them again. `thawed` has a place for each. */
fsdp_status fsdp__train_thaw_kept(const fsdp_train_run *run, const fsdp_parameters *parameters, bool *thawed);
fsdp_status fsdp__train_freeze_kept(const fsdp_parameters *parameters, const bool *thawed);

/* Returns the name of the parameter that matches the longest beginning of a pattern, for messages. */
const char *fsdp__train_nearest_parameter(const char *pattern, const fsdp_parameters *parameters);

/* ---- create_optimizer.c ---- */

/* Checks that each pattern of optimizer.groups is the first to match some parameter. */
fsdp_status fsdp__train_check_groups(const fsdp_train_run *run);
/* Makes the schedule of the learning rate, once it is known how many steps there are, and tokens in each. */
fsdp_status fsdp__train_make_schedule(fsdp_train_run *run);
/* Makes the optimizer of the config for those of the parameters that require a gradient, and the factors of its groups'
 * learning rates. */
fsdp_status fsdp__train_create_optimizer(fsdp_train_run *run, const fsdp_parameters *parameters);

/* ---- visible_files.c ---- */

/* Checks that all machines see what the config names; does nothing on one machine. A failure of one rank is
 * everybody's. [collective] */
fsdp_status fsdp__train_check_visible(fsdp_train_run *run);

/* ---- memory_needs.c ---- */

/* Refuses a run that cannot fit, before it takes memory: compares what all local ranks surely need with memory and swap
 * or the control group's limit, and what this rank needs with its own limits. Needing more than is free just now is
 * only a warning. */
fsdp_status fsdp__train_check_needs(const fsdp_train_run *run);

/* ---- memory_owners.c ---- */

enum {
    FSDP__TRAIN_OWNERS = 2048 /* bytes of the table of owners */
};
/* Writes who has the memory, or would have it, of a run that has failed with `status`, a line each; "" unless this rank
 * has run out of memory. `run` may be NULL. Call it while the model is there. */
void fsdp__train_note_owners(const fsdp_context *context, const fsdp_train_run *run, fsdp_status status, char *text);

/* ---- export.c ---- */

/* Takes hold of export.path on rank 0, if it is set: if it cannot be written to, the run fails now and not at its
 * end. */
fsdp_status fsdp__export_hold(fsdp_train_run *run);
/* Checks, once the model exists, whether it fits there. */
fsdp_status fsdp__export_check(fsdp_train_run *run);
/* Removes what the hold has made, unless the model was written. */
void fsdp__export_release(fsdp_train_run *run);

/* ---- finite.c ---- */

enum {
    FSDP__FINITE_NAME = 200
};
/* Fails when a parameter that is to be exported is not finite, unless training.on_nan is continue. */
fsdp_status fsdp__check_finite(fsdp_train_run *run);
/* Finds the name of a parameter that is not finite on some rank, "" when all are; looks at shards. [collective] */
fsdp_status fsdp__find_not_finite(fsdp_train_run *run, char name[FSDP__FINITE_NAME]);

/* ---- validation.c ---- */

/* Decides, once the run's tokens are open, what to evaluate on, and how many tokens are left to train on. */
fsdp_status fsdp__validation_open(fsdp_train_run *run);
void fsdp__validation_close(fsdp_train_run *run);
/* tokens that a validation predicts; 0: there is no validation */
int64_t fsdp__validation_tokens(const fsdp_train_run *run);
/* Gets what older checkpoints keep as a hash of what was validated on: a hash of some of it. */
fsdp_status fsdp__validation_sample(const fsdp_train_run *run, int64_t *out);
/* Checks the loss: with training.on_nan: stop, one that is NaN or infinite is an error, which names a parameter that is
 * not finite. [collective] */
fsdp_status fsdp__validation_check(fsdp_train_run *run, const fsdp_train_validation *v);

/* ---- traced_steps.c: does nothing where the config asks for no trace ---- */

/* Checks, on rank 0, whether there can be a trace where the config wants it. */
fsdp_status fsdp__trace_check(const fsdp_train_config *config);
/* Begins the trace, goes on with it or pauses it, before a step. A trace that cannot be written does not cost the
 * model: it is a warning, and the run reports it at its end. `step` takes one, of a dry run for the planned line: it is
 * fsdp_train_step. [collective] */
typedef fsdp_status fsdp__train_step_taker(fsdp_train_run *run, fsdp_train_report *report);
fsdp_status fsdp__trace_before_step(fsdp_train_run *run, fsdp__train_step_taker *step);
/* Writes it, after the last of its steps. [collective] */
fsdp_status fsdp__trace_after_step(fsdp_train_run *run);
/* Writes what there is when no more steps come. [collective] */
fsdp_status fsdp__trace_after_steps(fsdp_train_run *run);
/* Returns why there is no trace, or not one of all steps. */
fsdp_status fsdp__trace_failure(const fsdp_train_run *run);

/* Tells of a part of a run (base/probe.h). */
#define FSDP__STAGE(run, which, text, step)                                                          \
    FSDP__TELL(STAGE_##which, .context = (run)->context, .name = (text), .number = (uint64_t)(step), \
               .ns = fsdp__clock_ns())

/* ---- samples.c ---- */

/* Opens what metrics.sample_prompt needs, once the data is open; does nothing if it is not set. */
fsdp_status fsdp__samples_open(fsdp_train_run *run);
void fsdp__samples_release(fsdp_train_run *run);
/* Generates and writes a text after every metrics.sample_freq steps, always by the most likely tokens. The training
 * that follows does not change by a bit. [collective] */
fsdp_status fsdp__samples_after_step(fsdp_train_run *run);

/* ---- units.c ---- */

/* Chooses which modules are sharded together, once the model exists. An error begins with the key. */
fsdp_status fsdp__train_choose_units(fsdp_train_run *run);
/* Applies parallelism.keep_last_unit, once the units are sharded. */
fsdp_status fsdp__train_keep_last_unit(const fsdp_train_run *run);
/* Applies parallelism.prefetch: every unit lists the next ones, and those before it, the nearest first. */
fsdp_status fsdp__train_set_prefetch(const fsdp_train_run *run);

/* ---- scheduled_units.c: parallelism.schedule ---- */

/* Gets the schedule of a dry run, or reads the config's file; does nothing if there is none, or if one will be planned.
 * Errors begin with the key. */
fsdp_status fsdp__train_read_schedule(fsdp_train_run *run);
/* Where the config says plan: rank 0 makes a schedule, and then all ranks take it. */
fsdp_status fsdp__train_plan_schedule(fsdp_train_run *run);
fsdp_status fsdp__train_share_schedule(fsdp_train_run *run); /* [collective] */
void fsdp__train_release_schedule(fsdp_train_run *run);
/* Checks that the run's schedule is for its model. */
fsdp_status fsdp__train_check_scheduled(const fsdp_train_run *run);
/* Returns whether a schedule (`schedule`) names a module: a wrap policy's function. */
bool fsdp__train_is_scheduled(void *schedule, const fsdp_module *module, const char *name);
/* Shards the model by the run's schedule. [collective] */
fsdp_status fsdp__train_shard_scheduled(const fsdp_train_run *run, const fsdp_shard_options *options);

/* ---- initial_weights.c ---- */

/* Checks whether there are first weights that fit: those of checkpoint.initial_load_path, or else of model.path. */
fsdp_status fsdp__initial_check(fsdp_train_run *run);
/* Fills the model, which is sharded, with the weights of checkpoint.initial_load_path. */
fsdp_status fsdp__initial_fill_model(fsdp_train_run *run);

/* ---- recompute_blocks.c ---- */

/* Returns the mode of the model's block with this index. */
fsdp_recompute_mode fsdp__train_recompute_of(const fsdp_train_config *config, int64_t block);
int64_t fsdp__train_recomputed(const fsdp_train_config *config, int64_t blocks); /* returns how many blocks recompute */
fsdp_status fsdp__train_set_recompute(const fsdp_train_config *config, fsdp_module *model);

/* ---- resume.c: does nothing where the run starts anew ---- */

/* Finds the checkpoint that the run goes on from, and where it stood. */
fsdp_status fsdp__resume_find(fsdp_train_run *run);
/* Check whether the checkpoint fits: the batch, the model's sizes, and the data, each once it is known. */
fsdp_status fsdp__resume_check_batch(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_model(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_data(fsdp_train_run *run);
/* Fill the model, which is sharded, with its weights; and then load everything else. */
fsdp_status fsdp__resume_fill_model(fsdp_train_run *run);
fsdp_status fsdp__resume_optimizer(fsdp_train_run *run);
void fsdp__resume_release(fsdp_train_run *run);

/* ---- saves.c: does nothing where the run keeps no checkpoints ---- */

/* Takes hold of checkpoint.folder on rank 0: a second run is refused. */
fsdp_status fsdp__saves_hold(fsdp_train_run *run);
/* Returns FSDP_STATE while a run keeps its checkpoints in the folder: it would remove those of others by its own
 * rules. */
fsdp_status fsdp__saves_check_free(const char *folder);
/* Checks, once model and optimizer exist, whether there is room for a checkpoint. */
fsdp_status fsdp__saves_begin(fsdp_train_run *run);
/* Saves where it is time, or somebody asks for it; *out_stop tells whether to end the run. A save that fails is a
 * warning. [collective] */
fsdp_status fsdp__saves_after_step(fsdp_train_run *run, bool *out_stop);
/* Returns the failure of the newest checkpoint, when it could not be written. */
fsdp_status fsdp__saves_failure(const fsdp_train_run *run);
void fsdp__saves_release(fsdp_train_run *run);

/* ---- shard.c ---- */

/* Shards the model: from here on each rank has its own part of the parameters, with memory and without values.
 * [collective] */
fsdp_status fsdp__train_shard_model(fsdp_train_run *run);

/* ---- same_config.c ---- */

/* Compares what must be the same on all ranks: the keys, the model's sizes and the headers of its weights, the data's
 * tokens. A difference is FSDP_INVALID on all of them, with the same message. Needs the run's inputs. [collective] */
fsdp_status fsdp__same_config(const fsdp_train_run *run);

/* ---- notice.c: what stands out is said once, in the log and the metrics (watch/signs.h) ---- */

enum {
    FSDP__RANK_TIMES = 5 /* numbers of fsdp__rank_times */
};

/* Begins to look, on rank 0, once the model is sharded. */
fsdp_status fsdp__notice_begin(fsdp_train_run *run);
void fsdp__notice_free(fsdp__notice *notice); /* NULL is allowed */
/* Notes what the step took on this rank. */
void fsdp__notice_step(fsdp_train_run *run, const fsdp_train_report *report);
/* Looks at the times of all ranks: `all` has each rank's losses, and its times behind them. Those of this rank begin
 * again. */
void fsdp__notice_ranks(fsdp_train_run *run, void *const *all, int ranks);
/* Looks at the step's loss, if that is known, and its norm. */
void fsdp__notice_report(fsdp_train_run *run, const fsdp_train_report *report);
/* Looks at the histograms, which have just been added up. */
void fsdp__notice_units(fsdp_train_run *run, const fsdp_train_report *report);

/* ---- meter.c ---- */

/* Gets the counters of the groups within this rank's team; zeros if this rank computes alone. */
void fsdp__team_stats(const fsdp_train_run *run, fsdp_comm_stats *out);
fsdp_status fsdp__meter_begin(fsdp__meter *meter, const fsdp_train_run *run);
/* Fills in the report's time, once the device has done the step's work. */
void fsdp__meter_time(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report);
/* Fills in the report's memory and communication. */
fsdp_status fsdp__meter_end(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report);
/* Computes the mean of the losses of all ranks' microbatches, added in the order of their data: the same microbatches
 * have the same mean on any number of ranks. It does not count among the step's collectives. The ranks' times go along
 * with it: fsdp__notice_ranks. [collective] */
fsdp_status fsdp__mean_loss(fsdp_train_run *run, double *mean);

/* ---- run_data.c ---- */

/* Opens what the run is trained and validated on, and makes its loader. With training.epochs the number of steps is
 * known from here on. */
fsdp_status fsdp__train_open_data(fsdp_train_run *run);
void fsdp__train_close_data(fsdp_train_run *run);
/* Counts the tokens that are trained on; and those of the data that are held out. */
int64_t fsdp__train_tokens(const fsdp_train_run *run);
int64_t fsdp__train_held_out(const fsdp_train_run *run);
/* Returns whether bytes of text are tokens in some source. */
bool fsdp__train_has_bytes(const fsdp_train_run *run);
/* Writes what decides which rows are in which window, of data that has rows or is a mixture. */
void fsdp__train_facts_of_windows(const fsdp_train_run *run, FILE *out);

/* ---- pack_rows.c ---- */

/* Packs rows as the config says: `count` of them from `first` on; 0: all up to the end. */
fsdp_status fsdp__train_pack(const fsdp_train_run *run, const char *key, const fsdp__rows *rows, int64_t first,
                             int64_t count, fsdp__packed **out);
/* Says on rank 0 what there is: rows, tokens, answers, windows, how full these are, and what became of rows that are
 * too long. */
void fsdp__train_tell_rows(const fsdp_train_run *run, const fsdp__run_source *source);

/* ---- text_data.c ---- */

/* Opens what `paths` hold, which `key` names: of token files their own tokens; of text that a tokenizer reads, those of
 * a file in the folder of data.cache, which is made when it is missing; of other text its bytes; of a file of rows its
 * rows. Only rank 0 logs warnings and news. */
fsdp_status fsdp__text_open(fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                            fsdp__open_data *out);
/* Returns the folder of the tokenizer that goes along with the model to checkpoints and exports; NULL: none does. */
const char *fsdp__text_tokenizer_folder(const fsdp_train_run *run);

#endif
