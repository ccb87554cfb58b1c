/* rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * 2011). A draw is a pure function of (key, index), so any rank can make any part of a tensor, and the values do not
 * depend on how many ranks there are. */
#pragma once

#include <stdint.h>

/* Runs the generator itself, as published. */
void fsdp__philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Returns four 32-bit words for counter `index` under `key`: low words first, the counter's upper half zero. */
void fsdp__philox(uint64_t key, uint64_t index, uint32_t out[4]);
/* Returns a key for a named stream of draws, from a seed and a name (a parameter's full name, "shuffle", ...). */
uint64_t fsdp__rng_key(uint64_t seed, const char *name);
/* Returns element `index` of the stream, uniform in [0, 1): it uses word i % 4 of counter i / 4. Kernels also draw from
 * the standard normal distribution, by Box-Muller, with the pair i / 2 of the words (backend/cpu/kernels/random.c). */
float fsdp__rng_uniform(uint64_t key, uint64_t index);
