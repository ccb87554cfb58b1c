/* rewards.h - what pairs of a chosen and a rejected answer are worth beside a reference. */
#pragma once

#include <stdint.h>

/* Means over pairs: dpo.c has the formulas. */
typedef struct fsdp__rewards {
    double loss, chosen, rejected, margin;
    double accuracy; /* share of pairs whose chosen answer has the greater reward */
} fsdp__rewards;

/* Computes the means from two sums of log-probabilities of each pair, the chosen answer's first, and the same of the
 * reference. */
fsdp__rewards fsdp__rewards_of(const float *sums, const float *reference, int64_t pairs, double beta,
                               double label_smoothing);
