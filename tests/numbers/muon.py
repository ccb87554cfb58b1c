#!/usr/bin/env python3
"""Writes muon.npy and muon.txt: matrices after some steps of torch.optim.Muon.

    python tests/numbers/muon.py
"""
import torch

import tensors
from tensors import put

SHAPES = [(6, 10), (12, 5), (7, 7)]
STEPS = 4
KEPT = [1, 4]
CASES = [
    ("original", dict(lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True, adjust_lr_fn="original")),
    ("match", dict(lr=0.05, momentum=0.9, weight_decay=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw")),
]


def flat(values):
    return torch.cat([value.detach().flatten() for value in values])


def main():
    torch.manual_seed(1)
    start = [torch.randn(shape) for shape in SHAPES]
    grads = [[torch.randn(shape) for shape in SHAPES] for _ in range(STEPS)]
    put("all.start", flat(start))
    put("all.grads", torch.stack([flat(step) for step in grads]))
    for name, options in CASES:
        params = [torch.nn.Parameter(p.clone()) for p in start]
        optimizer = torch.optim.Muon(params, **options)
        kept = []
        for step in range(STEPS):
            for param, grad in zip(params, grads[step]):
                param.grad = grad.clone()
            optimizer.step()
            if step + 1 in KEPT:
                kept.append(flat(params))
        put(name + ".kept", torch.stack(kept))
    tensors.write("muon")


if __name__ == "__main__":
    main()
