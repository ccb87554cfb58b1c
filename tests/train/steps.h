/* train/steps.h - the first steps of a run, for tests that look at what they report. */
#pragma once

#include "fsdp/train.h"
#include "support/ranks.h"

/* Rank 0 keeps the reports. [collective] */
void train_steps(fsdp_context *context, fsdp_train_config *config, int steps, fsdp_train_report *reports);
