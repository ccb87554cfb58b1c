/* dpo.h - preference tuning: does nothing with another training.objective. */
#pragma once

#include "data/rows.h"
#include "fsdp/data.h"
#include "fsdp/train.h"

/* Holds the log-probabilities of pairs, by the model that others are compared with. */
typedef struct fsdp__reference {
    fsdp_state_dict *state; /* has them (pairs,2); NULL: there are none */
    float *values;          /* the same */
} fsdp__reference;

/* Holds what training.objective: dpo needs; all zero with another objective. */
typedef struct fsdp__dpo {
    fsdp__reference trained, validated; /* of the pairs that are trained on, and validated on */
    float *batch;                       /* room for two numbers of each pair of a microbatch */
    float *validated_sums;              /* and of each pair that is validated on */
    double sums[3]; /* over this rank's pairs in the step: chosen and rejected rewards, pairs in order */
} fsdp__dpo;

/* Says what pairs are worth beside a reference, as means over them. */
typedef struct fsdp__rewards {
    double loss, chosen, rejected, margin;
    double accuracy; /* share of pairs whose chosen answer has the greater reward */
} fsdp__rewards;

/* Computes the means from two sums of log-probabilities of each pair, the chosen answer's first, and the same of the
 * reference. */
fsdp__rewards fsdp__rewards_of(const float *sums, const float *reference, int64_t pairs, double beta,
                               double label_smoothing);

/* Checks that rows are pairs, or are none, as the objective needs; `rows` NULL: there are none. */
fsdp_status fsdp__dpo_check_rows(const fsdp_train_run *run, const char *key, const fsdp__rows *rows);
/* Evaluates the run's pairs: `found` gets the loss, no perplexity, tokens and seconds; `out` the number of pairs and
 * their rewards. [collective] */
fsdp_status fsdp__dpo_validate(fsdp_train_run *run, const fsdp_evaluate_options *options, fsdp_evaluation *found,
                               fsdp_train_validation *out);
/* Returns the loss of a microbatch, from that of each token (B,T). */
fsdp_tensor *fsdp__dpo_loss(fsdp_train_run *run, const fsdp_batch *batch, fsdp_tensor *losses);
/* Completes the report of a step: if `wanted`, with the means over all pairs. [collective] */
fsdp_status fsdp__dpo_report(fsdp_train_run *run, bool wanted, fsdp_train_report *report);

/* ---- dpo_reference.c ---- */

/* Computes the reference, once the model is filled, or loads it from the run's checkpoint. [collective] */
fsdp_status fsdp__dpo_begin(fsdp_train_run *run);
void fsdp__dpo_release(fsdp_train_run *run);
/* Returns a name for the pairs that are validated on, and for their order. */
int64_t fsdp__dpo_validated_on(const fsdp_train_run *run);
