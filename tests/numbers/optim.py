#!/usr/bin/env python3
"""Writes optim.npy and optim.txt: parameters after some steps of torch.optim's optimizers.

    python tests/numbers/optim.py

There are three parameters. The second one has no gradient in step 2, and the third one has gradients only from step 3
on, so steps must be counted for each parameter. If max_norm is not 0, gradients are clipped before each step, and the
norms are kept.
"""
import torch

import tensors
from tensors import put

SHAPES = [(5, 3), (7,), (2, 2)]
STEPS = 6
KEPT = [1, 3, 6]
CASES = [
    # name, class, options, max_norm
    ("sgd", torch.optim.SGD, dict(lr=0.1), 0),
    ("sgd_weight_decay", torch.optim.SGD, dict(lr=0.1, weight_decay=0.05), 0),
    ("sgd_momentum", torch.optim.SGD, dict(lr=0.05, momentum=0.9), 0),
    ("sgd_dampening", torch.optim.SGD, dict(lr=0.05, momentum=0.8, dampening=0.3, weight_decay=0.01), 0),
    ("sgd_nesterov", torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True), 1.0),
    ("adam", torch.optim.Adam, dict(lr=1e-3), 0),
    ("adam_weight_decay", torch.optim.Adam, dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1), 0),
    ("adamw", torch.optim.AdamW, dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), 1.0),
    ("adamw_no_decay", torch.optim.AdamW, dict(lr=1e-2, betas=(0.0, 0.5), eps=1e-2, weight_decay=0.0), 100.0),
]


def has_gradient(param, step):
    return not (param == 1 and step == 2 or param == 2 and step < 3)


def flat(values):
    return torch.cat([value.detach().flatten() for value in values])


def run(cls, options, max_norm, start, grads):
    params = [torch.nn.Parameter(p.clone()) for p in start]
    optimizer = cls(params, foreach=False, fused=False, **options)
    kept, norms = [], []
    for step in range(1, STEPS + 1):
        for i, param in enumerate(params):
            param.grad = grads[step - 1][i].clone() if has_gradient(i, step) else None
        if max_norm:
            norms.append(torch.nn.utils.clip_grad_norm_(params, max_norm).item())
        optimizer.step()
        if step in KEPT:
            kept.append(flat(params))
    return torch.stack(kept), norms


def main():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in SHAPES]
    grads = [[torch.randn(shape) * (0.05 if step % 2 else 0.4) for shape in SHAPES] for step in range(STEPS)]
    put("all.start", flat(start))
    put("all.grads", torch.stack([flat(step) for step in grads]))
    for name, cls, options, max_norm in CASES:
        kept, norms = run(cls, options, max_norm, start, grads)
        put(f"{name}.kept", kept)
        if norms:
            put(f"{name}.norms", torch.tensor(norms))
    tensors.write("optim")


if __name__ == "__main__":
    main()
