/* checkpoint_values.h - what a run's checkpoint says about it apart from tensors. */
#pragma once

#include "fsdp/checkpoint.h"
#include "fsdp/train.h"

/* Name sections. */
#define FSDP__SECTION_MODEL "model"
#define FSDP__SECTION_OPTIMIZER "optimizer"
#define FSDP__SECTION_EMA "ema"                     /* with training.ema_decay */
#define FSDP__SECTION_DPO "dpo"                     /* with training.objective: dpo */
#define FSDP__SECTION_DPO_VALIDATED "dpo_validated" /* the same of what is validated on */

/* Name values. */
#define FSDP__VALUE_SEQUENCES "train.sequences_per_step"
#define FSDP__VALUE_TOKENS "train.tokens"
#define FSDP__VALUE_RUN "train.run" /* the run's id; older checkpoints have none */
#define FSDP__VALUE_SKIPPED "train.skipped_steps"
#define FSDP__VALUE_WINDOW "data.window"         /* fsdp_loader_position */
#define FSDP__VALUE_SCHEDULE "lr_scheduler.step" /* the step at which the schedule began */
#define FSDP__VALUE_DRAWS "dropout.draws"        /* fsdp_module_draws */
#define FSDP__VALUE_SCALE "grad_scaler.scale"    /* for float16 */
#define FSDP__VALUE_GROWTH "grad_scaler.growth"  /* for float16: growth_tracker */
#define FSDP__VALUE_BEST "validation.best_loss"  /* if there has been a validation */
#define FSDP__VALUE_BEST_STEP FSDP_CHECKPOINT_BEST_STEP
#define FSDP__VALUE_IMPROVED "validation.improved_loss"
#define FSDP__VALUE_WITHOUT "validation.without_improvement"
#define FSDP__VALUE_VALIDATED_ON "validation.tokens"    /* a hash of the data that these losses are of */
#define FSDP__VALUE_SAMPLED_ON "validation.data"        /* in older checkpoints: a hash of some of it */
#define FSDP__VALUE_DPO_VALIDATED_ON "dpo.validated_on" /* fsdp__dpo_validated_on */
#define FSDP__VALUE_DIGEST "data.digest"                /* of all tokens; missing if it was not ready yet */
#define FSDP__VALUE_FILES "data.files"                  /* fsdp__tokens_identity, if it is certain */
/* Names the newest checkpoint whose weights are finite, if these are not. */
#define FSDP__VALUE_FINITE "checkpoint.finite_step"
#define FSDP__VALUE_MODEL "facts.model" /* same_facts.h: what a run that goes on must have, too */
#define FSDP__VALUE_DATA "facts.data"   /* the data that its place is in */
#define FSDP__VALUE_KEYS "facts.keys"   /* what it may have otherwise; a difference is reported */

enum {
    FSDP__VALUES_MOST = 24
};

typedef struct fsdp__values {
    fsdp_checkpoint_value items[FSDP__VALUES_MOST];
    int count;
    char *texts[3]; /* the items point to these */
} fsdp__values;

/* Gets the values of the run as it stands. Release them, also after a failure. */
fsdp_status fsdp__values_of(fsdp_train_run *run, fsdp__values *out);
void fsdp__values_release(fsdp__values *values);
/* Returns FSDP__VALUE_MODEL, DATA or KEYS of this run; free() it. NULL and a last error when out of memory. */
char *fsdp__values_facts(const fsdp_train_run *run, const char *name);
