/* randperm.h - PyTorch's permutations. */
#ifndef DATA_RANDPERM_H
#define DATA_RANDPERM_H

#include <stdint.h>

/* Computes torch.randperm(n) of a CPU generator seeded with `seed`, of which only the lower 32 bits count. */
void fsdp__randperm(int64_t n, uint64_t seed, int64_t *out);

#endif
