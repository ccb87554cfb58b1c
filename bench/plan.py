#!/usr/bin/env python3
"""Compares what `fsdp plan` says a step takes with what `fsdp train` takes, in turns.

    bench/plan.py [--fsdp build/fsdp] [--repeats 3] [--steps 6] [ROW ...]

Each repeat measures the machine (`fsdp plan --measure`), trains some steps of each row, and plans them by what was just
measured. It prints both, and the median of their ratio.
On a machine that others use the ratio says more than the times, and little if the load changes between the two.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROWS = {  # as in docs/performance.md: name, ranks, keys
    "gpt-10m-1": ("gpt-10m", 1, ["--training.local_batch_size=8", "--training.seq_len=256"]),
    "gpt-10m-2": ("gpt-10m", 2, ["--training.local_batch_size=4", "--training.seq_len=256"]),
    "gpt-10m-4": ("gpt-10m", 4, ["--training.local_batch_size=2", "--training.seq_len=256"]),
    "llama-100m-1": ("llama-100m", 1, ["--training.local_batch_size=4", "--training.seq_len=256"]),
    "llama-100m-2": ("llama-100m", 2, ["--training.local_batch_size=2", "--training.seq_len=256"]),
}


def train(fsdp, folder, row, steps):
    """Returns the milliseconds of the steps after the first two."""
    model, ranks, keys = ROWS[row]
    config, metrics = os.path.join(folder, "c.yaml"), os.path.join(folder, "m.jsonl")
    with open(config, "w") as f:
        f.write(f"model:\n  preset: {model}\ndata:\n  path: [{folder}/data.txt]\n  tokenizer: bytes\n  workers: 0\n")
    if os.path.exists(metrics):
        os.remove(metrics)
    subprocess.run([fsdp, "train", config, "-n", str(ranks), *keys, f"--training.steps={steps + 2}",
                    f"--metrics.jsonl={metrics}"], check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as f:
        lines = [json.loads(line) for line in f]
    return [line["step_ms"] for line in lines if "step_ms" in line][2:]


def plan(fsdp, row, prices):
    model, ranks, keys = ROWS[row]
    out = subprocess.run([fsdp, "plan", model, "-n", str(ranks), *keys, "--device", prices, "--json"], check=True,
                         capture_output=True, text=True).stdout
    return 1e3 * json.loads(out)["time"]["step_seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", default="build/fsdp")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    args = parser.parse_args()
    ratios = {row: [] for row in args.rows}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "data.txt"), "wb") as f:
            f.write(bytes(32 + (i * i * 7 + i) % 90 for i in range(1 << 19)))
        for _ in range(args.repeats):
            for row in args.rows:
                prices = os.path.join(folder, "prices.json")
                subprocess.run([args.fsdp, "plan", "--measure", prices], check=True, stdout=subprocess.DEVNULL)
                took = statistics.median(train(args.fsdp, folder, row, args.steps))
                said = plan(args.fsdp, row, prices)
                ratios[row].append(said / took)
                print(f"{row}: planned {said:.0f} ms, took {took:.0f} ms, {said / took:.2f}", flush=True)
    print("\n| model, ranks | planned / taken, median (least-most) |\n|---|---|")
    for row, all_ratios in ratios.items():
        print(f"| {row} | {statistics.median(all_ratios):.2f} ({min(all_ratios):.2f}-{max(all_ratios):.2f}) |")


if __name__ == "__main__":
    main()
