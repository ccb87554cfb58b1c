/* run.h - the inside of a training run. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "fsdp/data.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"
#include "fsdp/wrap.h"
#include "train/metrics.h"

/* Of a dry run, what the caller has in the place of the config's: a model and its loss, or units, or both. See
 * fsdp/explain.h. */
typedef struct fsdp__train_own {
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    const fsdp_wrap_policy *policy; /* NULL: the config's */
} fsdp__train_own;

struct fsdp_train_run {
    fsdp_context *context;
    fsdp_device *device;             /* that the run computes on */
    const fsdp_train_config *config; /* borrowed */
    const fsdp_train_listener *listener;
    const fsdp__train_own *own; /* borrowed; NULL: all is the config's */
    fsdp_model_config model_config;
    int64_t microbatches;       /* per step */
    int64_t sequences;          /* per step, all ranks */
    int64_t step;               /* steps done */
    int64_t skipped;            /* of them left out */
    bool not_finite;            /* the last one was not */
    int64_t trained_parameters; /* elements, all ranks; 0 until the model is built */
    int64_t local_parameters;   /* elements on this rank */

    fsdp_tokens *tokens;
    fsdp_loader *loader; /* NULL of a dry run: tokens are zero */
    fsdp_mesh *mesh;     /* NULL: one dimension, of all ranks */
    fsdp_module *model;
    fsdp_wrap_units units; /* until they are sharded */
    int64_t unit_count;
    fsdp_optimizer *optimizer;
    fsdp_grad_scaler *scaler; /* of float16; else NULL */
    fsdp_schedule schedule;
    bool offloaded;             /* asked for, and there is somewhere to move to: see training.enable_cpu_offload */
    bool steps_early;           /* each group in the backward, as soon as its gradients are there: see early.c */
    bool last_microbatch;       /* of the step: the one whose gradients are all there are */
    fsdp__metrics *metrics;     /* rank 0 only: when the config asks for them */
    fsdp_status metrics_status; /* of the first line that could not be written: none is after it */
    char metrics_message[512];
    fsdp_hub_hold *hold; /* rank 0 only: of export.path, until it is written */
};

/* ---- agree.c ---- */

/* fsdp_agree, but a rank that failed itself keeps its own words. [collective] */
fsdp_status fsdp__train_agree(fsdp_train_run *run, fsdp_status mine);

/* ---- build.c ---- */

/* What a model must have to be trained by the config. */
fsdp_status fsdp__train_check_model(const fsdp_train_run *run);
void fsdp__train_count_batches(fsdp_train_run *run);
/* The model, shapes only, and its units. */
fsdp_status fsdp__train_make_model(fsdp_train_run *run);
/* First values, once it is sharded. */
fsdp_status fsdp__train_fill_model(fsdp_train_run *run);
fsdp_status fsdp__train_make_optimizer(fsdp_train_run *run);

/* ---- checkpoint.c ---- */

/* Of the model's block with this index. */
fsdp_checkpoint_mode fsdp__train_checkpoint_of(const fsdp_train_config *config, int64_t block);
int64_t fsdp__train_checkpoints(const fsdp_train_config *config, int64_t blocks); /* how many are */
fsdp_status fsdp__train_set_checkpoints(const fsdp_train_config *config, fsdp_module *model);

/* ---- dry.c ---- */

/* A run without data, of which nothing is computed, in a fake world: the model is built and sharded as the config says
 * and trained on the dry device (fsdp__dry) by fsdp_train_step. Of a folder only config.json is read. Keys of data,
 * metrics and export are ignored. */
fsdp_status fsdp__train_run_create_dry(fsdp_context *context, const fsdp_train_config *config,
                                       const fsdp__train_own *own, fsdp_train_run **out);

/* ---- early.c ---- */

/* Once the optimizer is there: whether its steps need no common decision, and are taken by a host that has nothing else
 * to do meanwhile; then the model is told to take them in the backward. */
fsdp_status fsdp__train_step_early(fsdp_train_run *run);

/* ---- frozen.c ---- */

/* Freezes what model.frozen names, before the model is sharded, and counts the rest: frozen parameters get no gradient
 * and no optimizer state. A pattern that matches nothing is an error that names the parameter it comes nearest to. */
fsdp_status fsdp__train_freeze(fsdp_train_run *run);

/* ---- needs.c ---- */

/* Refuses a run that cannot fit, before it takes memory: what all local ranks surely need, against memory and swap or
 * the control group's limit; what this rank needs, against its own limits. More than is free just now is a warning. */
fsdp_status fsdp__train_check_needs(const fsdp_train_run *run);

/* ---- export.c ---- */

/* Rank 0 takes hold of export.path, if it is set: who cannot write there learns it now. */
fsdp_status fsdp__export_hold(fsdp_train_run *run);
/* And, once the model is there, whether it fits. */
fsdp_status fsdp__export_check(fsdp_train_run *run);
/* Removes what the hold has made, unless the model was written. */
void fsdp__export_release(fsdp_train_run *run);

/* ---- finite.c ---- */

/* Fails when a parameter that is to be exported is not finite, unless training.on_nan is continue. */
fsdp_status fsdp__check_finite(fsdp_train_run *run);

/* ---- units.c ---- */

/* Which modules are sharded together, once the model is there. An error begins with the key. */
fsdp_status fsdp__train_choose_units(fsdp_train_run *run);
/* parallelism.prefetch: every unit lists the next ones, and those before it, the nearest first. */
fsdp_status fsdp__train_set_prefetch(const fsdp_train_run *run);

/* ---- shard.c ---- */

/* From here on each rank has its own part of the parameters, with memory and without values. [collective] */
fsdp_status fsdp__train_shard_model(fsdp_train_run *run);

/* ---- same_config.c ---- */

/* Compares what must be the same on all ranks: the keys, the model's sizes and the headers of its weights, the data's
 * tokens. A difference is FSDP_INVALID on all of them, with the same words. Needs the run's inputs. [collective] */
fsdp_status fsdp__same_config(const fsdp_train_run *run);

/* ---- meter.c ---- */

/* What is counted over one step. */
typedef struct fsdp__meter {
    int64_t began_ns;
    int64_t gather_ns, reduce_ns; /* when it began */
    fsdp_comm_stats comm;
} fsdp__meter;

fsdp_status fsdp__meter_begin(fsdp__meter *meter, const fsdp_train_run *run);
/* Fills the report's time, memory and communication. */
fsdp_status fsdp__meter_end(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report);
/* Mean of `mine` over all ranks, uncounted among the step's collectives. [collective] */
fsdp_status fsdp__mean_over_ranks(fsdp_context *context, double mine, double *mean);

#endif
