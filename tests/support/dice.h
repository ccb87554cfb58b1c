/* support/dice.h - what is drawn from a seed: splitmix64, the same everywhere. */
#ifndef TESTS_SUPPORT_DICE_H
#define TESTS_SUPPORT_DICE_H

#include <stdbool.h>
#include <stdint.h>

/* 0 to count - 1. */
int dice_below(uint64_t *state, int count);
bool dice_chance(uint64_t *state, int percent);
/* Returns element `index` of the standard normal stream under a key of base/rng.h, one at a time; the same bits as the
 * kernels that draw. */
float dice_normal(uint64_t key, uint64_t index);

#endif
