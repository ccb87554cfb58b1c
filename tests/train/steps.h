/* train/steps.h - the first steps of a run, for tests that look at what they report. */
#ifndef TESTS_TRAIN_STEPS_H
#define TESTS_TRAIN_STEPS_H

#include "fsdp/train.h"
#include "support/ranks.h"

/* Rank 0 keeps the reports. [collective] */
void train_steps(fsdp_context *context, fsdp_train_config *config, int steps, fsdp_train_report *reports);

#endif
