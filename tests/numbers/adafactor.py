#!/usr/bin/env python3
"""Writes adafactor.npy and adafactor.txt: parameters and states after some steps of torch.optim.Adafactor.

    python tests/numbers/adafactor.py
"""
import torch

import tensors
from tensors import put

SHAPES = [(6, 10), (11,), (5, 3, 4), (17, 2), (2, 3, 2, 3), (1, 9)]
STEPS = 4
KEPT = [1, 4]
CASES = [
    ("usual", dict()),
    ("decayed", dict(lr=0.8, beta2_decay=-0.5, eps=(1e-3, 0.2), d=1.5, weight_decay=0.1)),
]


def flat(values):
    return torch.cat([value.detach().flatten() for value in values])


def main():
    torch.manual_seed(3)
    start = [torch.randn(shape) for shape in SHAPES]
    grads = [[torch.randn(shape) * 10 ** torch.randn(shape[-1]) for shape in SHAPES] for _ in range(STEPS)]
    put("all.start", flat(start))
    put("all.grads", torch.stack([flat(step) for step in grads]))
    for name, options in CASES:
        params = [torch.nn.Parameter(p.clone()) for p in start]
        optimizer = torch.optim.Adafactor(params, **options)
        kept = []
        for step in range(STEPS):
            for param, grad in zip(params, grads[step]):
                param.grad = grad.clone()
            optimizer.step()
            if step + 1 in KEPT:
                kept.append(flat(params))
        put(name + ".kept", torch.stack(kept))
        for i, param in enumerate(params):
            for key in ["row_var", "col_var", "variance"]:
                if key in optimizer.state[param]:
                    put(f"{name}.{i}.{key}", optimizer.state[param][key])
    tensors.write("adafactor")


if __name__ == "__main__":
    main()
