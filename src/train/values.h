/* values.h - what a checkpoint of a run says of it beside tensors. */
#ifndef TRAIN_VALUES_H
#define TRAIN_VALUES_H

#include "fsdp/checkpoint.h"
#include "fsdp/train.h"

/* Sections. */
#define FSDP__SECTION_MODEL "model"
#define FSDP__SECTION_OPTIMIZER "optimizer"

/* Values. */
#define FSDP__VALUE_SEQUENCES "train.sequences_per_step"
#define FSDP__VALUE_TOKENS "train.tokens"
#define FSDP__VALUE_SKIPPED "train.skipped_steps"
#define FSDP__VALUE_WINDOW "data.window"         /* fsdp_loader_position */
#define FSDP__VALUE_SCHEDULE "lr_scheduler.step" /* at which the schedule began */
#define FSDP__VALUE_DRAWS "dropout.draws"        /* fsdp_module_draws */
#define FSDP__VALUE_SCALE "grad_scaler.scale"    /* of float16 */
#define FSDP__VALUE_GROWTH "grad_scaler.growth"  /* the same: growth_tracker */
#define FSDP__VALUE_BEST "validation.best_loss"  /* where there has been a validation */
#define FSDP__VALUE_BEST_STEP FSDP_CHECKPOINT_BEST_STEP
#define FSDP__VALUE_IMPROVED "validation.improved_loss"
#define FSDP__VALUE_WITHOUT "validation.without_improvement"
#define FSDP__VALUE_VALIDATED_ON "validation.tokens" /* a hash of what these are losses of */
#define FSDP__VALUE_SAMPLED_ON "validation.data"     /* of older checkpoints: of some of it */
#define FSDP__VALUE_DIGEST "data.digest"             /* of all tokens; missing where it was not made yet */
#define FSDP__VALUE_FILES "data.files"               /* fsdp__tokens_identity, where it is certain */
#define FSDP__VALUE_FINITE "checkpoint.finite_step"  /* the newest whose weights are finite, where these are not */
#define FSDP__VALUE_MODEL "facts.model"              /* facts.h: what a run that goes on must have, too */
#define FSDP__VALUE_DATA "facts.data"                /* what its place in the data is of */
#define FSDP__VALUE_KEYS "facts.keys"                /* what it may have otherwise, and is told */

enum {
    FSDP__VALUES_MOST = 24
};

typedef struct fsdp__values {
    fsdp_checkpoint_value items[FSDP__VALUES_MOST];
    int count;
    char *texts[3]; /* that items point to */
} fsdp__values;

/* Of the run as it stands. Release it, also after a failure. */
fsdp_status fsdp__values_of(fsdp_train_run *run, fsdp__values *out);
void fsdp__values_release(fsdp__values *values);
/* FSDP__VALUE_MODEL, DATA or KEYS of this run; free() it. NULL and a last error when out of memory. */
char *fsdp__values_facts(const fsdp_train_run *run, const char *name);

#endif
