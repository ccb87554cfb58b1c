/* randperm.h - PyTorch's permutations. */
#ifndef DATA_RANDPERM_H
#define DATA_RANDPERM_H

#include <stdint.h>

/* torch.randperm(n) of a CPU generator seeded with `seed` (of which it uses the lower 32 bits). */
void fsdp__randperm(int64_t n, uint64_t seed, int64_t *out);

#endif
