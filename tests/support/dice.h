/* support/dice.h - what is drawn from a seed: splitmix64, the same everywhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* 0 to count - 1. */
int dice_below(uint64_t *state, int count);
bool dice_chance(uint64_t *state, int percent);
/* Returns element `index` of the standard normal stream under a key of base/rng.h, one at a time; the same bits as the
 * kernels that draw. */
float dice_normal(uint64_t key, uint64_t index);

/* Holds the seeds of a test that draws: each from `first` up to `end`, without it. */
typedef struct dice_seeds {
    uint64_t first, end;
    bool only; /* the environment names one */
} dice_seeds;
/* Returns the first `usual` seeds from 1 on, or those that the environment names:
 *     FSDP_<name>_SEED=n     only n
 *     FSDP_<name>_FROM=n     from n on
 *     FSDP_<name>_COUNT=n    so many */
dice_seeds dice_seeds_of(const char *name, uint64_t usual);
