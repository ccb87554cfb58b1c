/* evaluate.h - the mean loss of rows. */
#pragma once

#include "data/packing.h"
#include "fsdp/train.h"

/* Does what fsdp_evaluate does, for windows of rows: the mean is that over all targets that are learned.
 * options->first is not used. [collective] */
fsdp_status fsdp__evaluate_packed(fsdp_module *module, const fsdp__packed *packed, const fsdp_evaluate_options *options,
                                  fsdp_evaluation *out);
/* Sums the log-probabilities of the chosen and the rejected answers of windows of pairs: two tensors (B), from the loss
 * of each target (B,T) and its position on the host; `positions` NULL: nothing is summed (a dry run). */
fsdp_status fsdp__pair_sums(fsdp_tensor *losses, const int32_t *positions, fsdp_tensor *sums[2]);
/* Computes these sums for the windows of pairs that options->steps asks for, two numbers for each, with a model that
 * returns the loss of each target (FSDP_LOSS_NONE). `found` gets tokens and seconds. [collective] */
fsdp_status fsdp__evaluate_pairs(fsdp_module *module, const fsdp__packed *packed, const fsdp_evaluate_options *options,
                                 float *out, fsdp_evaluation *found);
/* Counts these windows. */
int64_t fsdp__evaluate_windows(const fsdp__packed *packed, const fsdp_evaluate_options *options);
/* Counts these targets in the first `windows` windows; 0: in all. What cannot be read counts as none. */
int64_t fsdp__evaluate_answers(const fsdp__packed *packed, int64_t windows);
