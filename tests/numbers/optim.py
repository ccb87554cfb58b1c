#!/usr/bin/env python3
"""Writes tests/numbers/optim.h: parameters after some steps of torch.optim's optimizers (made with torch 2.15).

    python3 tests/numbers/optim.py > tests/numbers/optim.h

Three parameters; the second one has no gradient in step 2 and the third only from step 3 on, so that steps are counted
per parameter. Where max_norm is not 0, gradients are clipped before each step and the norms are kept.
"""
import torch

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


def array(name, values, kind="float"):
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for value in values:
        text = f" {value:.9g},"
        if len(line) + len(text) > 118:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


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
            kept += [x for param in params for x in param.detach().flatten().tolist()]
    return kept, norms or [0.0] * STEPS


def main():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in SHAPES]
    grads = [[torch.randn(shape) * (0.05 if step % 2 else 0.4) for shape in SHAPES] for step in range(STEPS)]
    print("/* numbers/optim.h - what torch.optim makes of three parameters; written by optim.py. */")
    print("#ifndef TESTS_NUMBERS_OPTIM_H\n#define TESTS_NUMBERS_OPTIM_H\n")
    print("/* clang-format off */")
    array("numbers_start", [x for p in start for x in p.flatten().tolist()])
    array("numbers_grads", [x for step in grads for p in step for x in p.flatten().tolist()])
    for name, cls, options, max_norm in CASES:
        kept, norms = run(cls, options, max_norm, start, grads)
        array(f"numbers_{name}", kept)
        array(f"numbers_{name}_norms", norms)
    print("/* clang-format on */\n\n#endif")


if __name__ == "__main__":
    main()
