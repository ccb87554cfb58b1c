/* plan/drawn.h - configs for plans, from a seed. */
#pragma once

#include <stdint.h>

#include "fsdp/train_config.h"

/* Draws strategy, units, recomputation, teams, batch and device of a small model. Some of them exclude each other: then
 * a plan refuses the config, which belongs to the case. */
fsdp_train_config *plan_drawn_config(uint64_t *dice);
