"""Writes sampler.npy: which items the DistributedSampler of PyTorch 2.15.0 gives to each rank.

    python tests/numbers/sampler.py

A row is length, world, rank, shuffle, drop_last, seed, epoch, the number of items, and the items."""

import pathlib

import numpy
from torch.utils.data.distributed import DistributedSampler

MOST = 32  # items
rows = []
for length, world, shuffle, drop, seed, epoch in ((10, 1, True, False, 0, 0), (10, 3, True, False, 0, 1),
                                                  (11, 4, True, True, 7, 2), (11, 4, False, False, 0, 0),
                                                  (10, 4, False, True, 0, 5), (3, 8, True, False, 5, 4),
                                                  (3, 8, True, True, 5, 4), (60, 2, True, False, 2**32 + 3, 10)):
    for rank in range(world):
        sampler = DistributedSampler(range(length), world, rank, shuffle, seed, drop)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        rows.append([length, world, rank, shuffle, drop, seed, epoch, len(indices)] + indices)
        rows[-1] += [-1] * (MOST - len(indices))
numpy.save(pathlib.Path(__file__).with_suffix(".npy"), numpy.array(rows, dtype="<i8"))
