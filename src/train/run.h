/* run.h - the inside of a training run. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "format/staging.h"
#include "fsdp/checkpoint.h"
#include "fsdp/data.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"
#include "fsdp/wrap.h"
#include "train/extras.h"
#include "train/metrics.h"
#include "train/model_folder.h"

/* Of a dry run, what the caller has in the place of the config's: a model and its loss, or units, or both. See
 * fsdp/explain.h. */
typedef struct fsdp__train_own {
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    const fsdp_wrap_policy *policy; /* NULL: the config's */
} fsdp__train_own;

/* What validation.* asks for, and what has come of it. */
typedef struct fsdp__validation {
    const fsdp_tokens *tokens; /* NULL: there is none */
    fsdp_tokens *own;          /* of validation.path; NULL: the last ones of the run's */
    int64_t first;             /* of the tokens */
    int64_t data;              /* a hash of what the losses are of, of a run that saves; else 0 */
    double best, improved;     /* the lowest loss; that of the last improvement; infinite at first */
    int64_t best_step;
    int64_t without_improvement; /* validations since */
    bool stops;                  /* the run ends */
} fsdp__validation;

/* Where a run begins: all zero, or as its checkpoint says. */
typedef struct fsdp__resume {
    fsdp_checkpoint_reader *from; /* until all of it is loaded; NULL: the run begins */
    char *path;                   /* of the checkpoint; NULL: the run begins */
    int ranks;                    /* that wrote it */
    int64_t step;                 /* steps that earlier runs have done */
    int64_t tokens, skipped;      /* in them */
    int64_t sequences;            /* a step, of the last of them */
    int64_t window;               /* of the data, to begin with */
    int64_t schedule_step;        /* at which the schedule began */
    int64_t draws;                /* of dropouts */
    int64_t finite_step;          /* the newest checkpoint whose weights are finite; -1: none is known */
} fsdp__resume;

typedef struct fsdp__data_digest fsdp__data_digest;

/* The checkpoints that a run writes. */
typedef struct fsdp__saves {
    fsdp_checkpoint_saver *saver; /* NULL: it keeps none */
    fsdp__extras extras;          /* rank 0 only, and so are the next ones */
    fsdp__staging hold;           /* of the folder */
    fsdp__directory folder;       /* that is held, too */
    bool made;                    /* for this run */
    double own_bytes;             /* of the next: that this rank writes */
    double bytes;                 /* of a checkpoint, all ranks; of its tensors */
    int64_t last;                 /* step of the newest that was saved; -1: none was */
    int64_t finite_step;          /* the same of those whose weights are all finite; -1: none is known */
    bool ends;                    /* none follows the one that is being saved */
    bool finite;                  /* the weights of the one that is being saved */
    int64_t began_ns, waited_ns;  /* when; how long training stood still for it */
    fsdp_status failure;          /* of the newest; of the message */
    char message[512];
} fsdp__saves;

struct fsdp_train_run {
    fsdp_context *context;
    fsdp_device *device;             /* that the run computes on */
    const fsdp_train_config *config; /* borrowed, or `resolved` */
    fsdp_train_config resolved;      /* a copy with what the world decides; its strings are borrowed */
    const fsdp_train_listener *listener;
    const fsdp__train_own *own; /* borrowed; NULL: all is the config's */
    fsdp_model_config model_config;
    int64_t microbatches;       /* per step */
    double *losses;             /* of this rank's microbatches of the last step */
    int64_t sequences;          /* per step, all ranks */
    int64_t step;               /* steps done */
    int64_t skipped;            /* of them left out */
    int64_t tokens_seen;        /* in them, all ranks */
    bool not_finite;            /* the last one was not */
    int64_t trained_parameters; /* elements, all ranks; 0 until the model is built */
    int64_t kept_parameters;    /* the same of frozen ones whose optimizer state is kept */
    int64_t local_parameters;   /* elements on this rank */

    fsdp_tokens *tokens;
    int64_t training_tokens;   /* of them, from the first: the rest is held out */
    fsdp__data_digest *digest; /* of all of them; NULL: of nobody's concern */
    fsdp__validation validation;
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
    fsdp_state_dict *best;      /* weights to export in place of the model's; NULL: none */
    fsdp_hub_hold *hold;        /* rank 0 only: of export.path, until it is written */
    fsdp__model_folder initial; /* of checkpoint.initial_load_path, unless the run goes on */
    fsdp__resume resume;
    char *tokenizer; /* of text (text.c) */
    bool tokenizes;  /* there is text that it has read */
    fsdp__saves saves;
};

/* ---- agree.c ---- */

/* fsdp_agree, but a rank that failed itself keeps its own words. [collective] */
fsdp_status fsdp__train_agree(fsdp_train_run *run, fsdp_status mine);

/* ---- best.c: nothing where the last weights are exported ---- */

/* A validation was the best so far: copies the weights, unless a checkpoint will have them. [collective] */
fsdp_status fsdp__best_note(fsdp_train_run *run);
/* Once the run stands where its checkpoint says: whether there is, or can be, a best one to export. */
fsdp_status fsdp__best_check(const fsdp_train_run *run);
/* Whether the weights to export are not those that the model has. */
bool fsdp__best_is_earlier(const fsdp_train_run *run);
/* Returns the weights of the best validation, cut as the model's `state` is; they belong to the run. */
fsdp_status fsdp__best_state(fsdp_train_run *run, const fsdp_state_dict *state, const fsdp_state_dict **out);
void fsdp__best_release(fsdp_train_run *run);

/* ---- build.c ---- */

/* What a model must have to be trained by the config. */
fsdp_status fsdp__train_check_model(const fsdp_train_run *run);
/* And makes room for their losses. */
fsdp_status fsdp__train_count_batches(fsdp_train_run *run);
/* hsdp on several machines without a number of copies: one on each, for what is gathered inside a machine crosses no
 * network. */
void fsdp__train_resolve_replicas(fsdp_train_run *run);
/* The model, shapes only, and its units. */
fsdp_status fsdp__train_make_model(fsdp_train_run *run);
/* First values, once it is sharded. */
fsdp_status fsdp__train_fill_model(fsdp_train_run *run);
fsdp_status fsdp__train_make_optimizer(fsdp_train_run *run);

/* ---- digest.c ---- */

enum {
    FSDP__DIGEST_TEXT = 33,        /* 128 bits, and an end */
    FSDP__DIGEST_AT_ONCE = 4 << 20 /* tokens that are hashed before the first step: that takes some milliseconds */
};
/* Once the data is open, of a run that saves: begins to hash all of it, on rank 0, and on one rank of each machine
 * where the run goes on from a checkpoint whose digest is compared. */
fsdp_status fsdp__digest_begin(fsdp_train_run *run);
/* Waits until the hash that this rank has begun is made. No save calls it. */
void fsdp__digest_wait(fsdp_train_run *run);
/* The hash, and an identity of the files that it is of (0: none is certain); NULL on a rank that has none, or none yet.
 */
fsdp_status fsdp__digest_get(const fsdp_train_run *run, const char **out_text, int64_t *out_files);
/* Returns the digest in the checkpoint that the run goes on from, NULL where there is none, and the state of the files
 * that it is of, 0 where that is not known. */
const char *fsdp__digest_of_checkpoint(const fsdp_train_run *run, int64_t *out_files);
void fsdp__digest_release(fsdp_train_run *run); /* before the data is closed */

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
 * and no optimizer state, but keep what they have of it in the checkpoint that the run goes on from, which is said. A
 * pattern that matches nothing is an error that names the parameter it comes nearest to. */
fsdp_status fsdp__train_freeze(fsdp_train_run *run);
/* Once it is sharded, around the making of the optimizer, which takes no frozen parameters: thaws those that have state
 * to keep, and freezes them again. `thawed` has a place for each. */
fsdp_status fsdp__train_thaw_kept(const fsdp_train_run *run, const fsdp_parameters *parameters, bool *thawed);
fsdp_status fsdp__train_freeze_kept(const fsdp_parameters *parameters, const bool *thawed);

/* ---- visible.c ---- */

/* Whether all machines see what the config names; of one machine: nothing. A failure of one rank is everybody's.
 * [collective] */
fsdp_status fsdp__train_check_visible(fsdp_train_run *run);

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

enum {
    FSDP__FINITE_NAME = 200
};
/* Fails when a parameter that is to be exported is not finite, unless training.on_nan is continue. */
fsdp_status fsdp__check_finite(fsdp_train_run *run);
/* Name of a parameter that is not finite on some rank, "" when all are; of shards. [collective] */
fsdp_status fsdp__find_not_finite(fsdp_train_run *run, char name[FSDP__FINITE_NAME]);

/* ---- validation.c ---- */

/* Once the run's tokens are there: what to evaluate on, and how many are left to train on. */
fsdp_status fsdp__validation_open(fsdp_train_run *run);
void fsdp__validation_close(fsdp_train_run *run);
int64_t fsdp__validation_tokens(const fsdp_train_run *run); /* that one predicts; 0: there is none */
/* What an older checkpoint keeps as a hash of what was validated on: of some of it. */
fsdp_status fsdp__validation_sample(const fsdp_train_run *run, int64_t *out);
/* After the step that was taken last, by the config alone. */
bool fsdp__validation_due(const fsdp_train_run *run);
/* With training.on_nan: stop a loss that is NaN or infinite is an error, which names a parameter that is. [collective]
 */
fsdp_status fsdp__validation_check(fsdp_train_run *run, const fsdp_train_validation *v);

/* ---- lines.c ---- */

/* Lines of metrics.jsonl, on rank 0 where the config asks for them. A full disk does not cost the model: the run goes
 * on without them, and says so at its end. */
void fsdp__train_write_step(fsdp_train_run *run, const fsdp_train_report *report);
void fsdp__train_write_validation(fsdp_train_run *run, const fsdp_train_validation *validation);

/* ---- units.c ---- */

/* Which modules are sharded together, once the model is there. An error begins with the key. */
fsdp_status fsdp__train_choose_units(fsdp_train_run *run);
/* parallelism.keep_last_unit, once they are sharded. */
fsdp_status fsdp__train_keep_last_unit(const fsdp_train_run *run);
/* parallelism.prefetch: every unit lists the next ones, and those before it, the nearest first. */
fsdp_status fsdp__train_set_prefetch(const fsdp_train_run *run);

/* ---- initial.c ---- */

/* Whether there are first weights that fit: of checkpoint.initial_load_path, or else of model.path. */
fsdp_status fsdp__initial_check(fsdp_train_run *run);
/* Those of checkpoint.initial_load_path, for those of the model, which are sharded. */
fsdp_status fsdp__initial_fill_model(fsdp_train_run *run);

/* ---- recompute.c ---- */

/* Of the model's block with this index. */
fsdp_checkpoint_mode fsdp__train_recompute_of(const fsdp_train_config *config, int64_t block);
int64_t fsdp__train_recomputed(const fsdp_train_config *config, int64_t blocks); /* how many are */
fsdp_status fsdp__train_set_recompute(const fsdp_train_config *config, fsdp_module *model);

/* ---- resume.c: nothing where the run begins ---- */

/* The checkpoint that the run goes on from, with where it stood. */
fsdp_status fsdp__resume_find(fsdp_train_run *run);
/* Whether it fits: the batch, the model's sizes, and the data, once each of them is known. */
fsdp_status fsdp__resume_check_batch(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_model(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_data(fsdp_train_run *run);
/* Its weights, for those of the model, which are sharded; and of all else the rest, last. */
fsdp_status fsdp__resume_fill_model(fsdp_train_run *run);
fsdp_status fsdp__resume_optimizer(fsdp_train_run *run);
void fsdp__resume_release(fsdp_train_run *run);

/* ---- saves.c: nothing where the run keeps no checkpoints ---- */

/* Rank 0 takes hold of checkpoint.folder: a second run is refused. */
fsdp_status fsdp__saves_hold(fsdp_train_run *run);
/* FSDP_STATE while a run keeps its checkpoints in the folder, which would remove those of others by its own rules. */
fsdp_status fsdp__saves_check_free(const char *folder);
/* Once model and optimizer are there: whether there is room for a checkpoint. */
fsdp_status fsdp__saves_begin(fsdp_train_run *run);
/* Saves where it is time, or somebody asks for it; *out_stop: to end the run. One that fails is a warning.
 * [collective] */
fsdp_status fsdp__saves_after_step(fsdp_train_run *run, bool *out_stop);
/* Of the newest checkpoint, when it could not be written. */
fsdp_status fsdp__saves_failure(const fsdp_train_run *run);
void fsdp__saves_release(fsdp_train_run *run);

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
/* Mean of the losses of all ranks' microbatches, added in the order of their data: as many microbatches have the same
 * mean on any number of ranks. Uncounted among the step's collectives. [collective] */
fsdp_status fsdp__mean_loss(const fsdp_train_run *run, double *mean);

/* ---- text.c ---- */

/* The tokens of `paths`, which `key` has: of token files theirs; of text, which a tokenizer reads, those of a file in
 * the folder of data.cache, which is made when it is not there; of other text its bytes. Warnings and news are rank
 * 0's. */
fsdp_status fsdp__text_open(fsdp_train_run *run, const char *key, char *const *paths, int64_t count, fsdp_tokens **out);
/* The folder whose tokenizer goes with the model, to checkpoints and exports; NULL: none does. */
const char *fsdp__text_tokenizer_folder(const fsdp_train_run *run);

#endif
