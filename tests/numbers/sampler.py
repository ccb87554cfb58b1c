"""Writes sampler.h: which items PyTorch's DistributedSampler gives to each rank.

    python tests/numbers/sampler.py > tests/numbers/sampler.h
"""

import torch
from torch.utils.data.distributed import DistributedSampler

print("/* numbers/sampler.h - made by sampler.py with PyTorch", torch.__version__.split("+")[0] + ". */")
print("#ifndef TESTS_NUMBERS_SAMPLER_H\n#define TESTS_NUMBERS_SAMPLER_H\n\n#include <stdbool.h>\n#include <stdint.h>\n")
print("typedef struct sampler_number {\n    int64_t length;\n    int world, rank;\n    bool shuffle, drop_last;\n"
      "    int64_t seed, epoch, count;\n    int64_t indices[32];\n} sampler_number;\n")
print("/* clang-format off */\nstatic const sampler_number sampler_numbers[] = {")
for length, world, shuffle, drop, seed, epoch in ((10, 1, True, False, 0, 0), (10, 3, True, False, 0, 1),
                                                  (11, 4, True, True, 7, 2), (11, 4, False, False, 0, 0),
                                                  (10, 4, False, True, 0, 5), (3, 8, True, False, 5, 4),
                                                  (3, 8, True, True, 5, 4), (60, 2, True, False, 2**32 + 3, 10)):
    for rank in range(world):
        sampler = DistributedSampler(range(length), world, rank, shuffle, seed, drop)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        text = [str(v).lower() for v in (length, world, rank, shuffle, drop, seed, epoch, len(indices))]
        print(f"{{{', '.join(text)}, {{{', '.join(map(str, indices)) or '0'}}}}},")
print("};\n/* clang-format on */\n\n#endif")
