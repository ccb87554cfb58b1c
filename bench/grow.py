#!/usr/bin/env python3
"""Lists how time and memory of a sharded model's step grow with layers, width, sequence, ranks and blocks per group.

    bench/grow.py [--build build] [--steps 5]

The model is gpt-10m over 2 ranks, with 4 sequences of 256 tokens on each; one thing is changed at a time. Each time is
shown with its floor (the model's FLOPs at the rate of a large matrix product on all cores), and the memory (PSS of all
ranks) with what the ledger says they hold together."""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import check_builds, flop_rate, run_step

# title: (values, ranks and options for a value)
SERIES = {
    "layers": ([2, 4, 6, 9, 12], lambda x: (2, {"--layers": str(x)})),
    "width": ([128, 256, 384, 512, 768], lambda x: (2, {"--dim": str(x)})),
    "sequence": ([64, 128, 256, 512, 1024], lambda x: (2, {"--seq": str(x)})),
    "ranks": ([1, 2, 4, 8], lambda x: (x, {"--batch": str(8 // x)})),
    "blocks per group": ([1, 2, 3, 6], lambda x: (2, {"--group": str(x)})),
}


def measure(build, steps, ranks, changed):
    options = {"--model": "gpt-10m", "--batch": "4", "--seq": "256", "--steps": str(steps), "--warmup": "3", **changed}
    return run_step(build, ranks, [word for pair in options.items() for word in pair])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    check_builds(args.build)
    rate = flop_rate(args.build)

    print("| changed | value | ms a step | floor ms | MB, PSS of all ranks | MB in the ledger |\n|---|---|---|---|---|---|")
    for title, (xs, run) in SERIES.items():
        results = [measure(args.build, args.steps, *run(x)) for x in xs]
        times = [r["ms"] for r in results]
        floors = [r["tflops"] * 1e12 * r["ms"] / rate for r in results]
        memory = [r["pss_sum_mb"] for r in results]
        ledger = [r["ledger_sum_mb"] for r in results]
        for row in zip(xs, times, floors, memory, ledger):
            print(f"| {title} | " + " | ".join(f"{value:.0f}" for value in row) + " |", flush=True)


if __name__ == "__main__":
    main()
