#!/usr/bin/env python3
"""Compares what `fsdp plan` says with what `fsdp train` does, in turns: the peak of a rank's memory, and a step's time.

    bench/plan.py [--fsdp build/fsdp] [--repeats 3] [--steps 4] [--prefix "COMMAND"] [ROW ...]
    bench/plan.py --configs     the rows of strategies and options (the table of docs/performance.md)

Each repeat plans a row, which measures the machine for some seconds, trains some steps of it, and plans it again; the
plan's time is the mean of both. The peak is that of the ledger in the third step, without the kernels' scratch, from a
trace of it. On a machine that others use the ratio says more than the times, and little if the load changes between the
two. A row of a GPU is trained on the tests' GPU, which is none: its ledger is real, and its times say nothing. --prefix
is put before each program: "chrt -f 1" runs it before all others, if the system allows that.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
import time

FAKE_GPU = os.path.join(os.path.dirname(__file__), "..", "build", "tests")
GPU = "--training.device=cuda"
SIZE = "--training.seq_len=256"
ROWS = {  # as in docs/performance.md: name, ranks, keys
    "gpt-10m-1": ("gpt-10m", 1, ["--training.local_batch_size=8", SIZE]),
    "gpt-10m-2": ("gpt-10m", 2, ["--training.local_batch_size=4", SIZE]),
    "gpt-10m-4": ("gpt-10m", 4, ["--training.local_batch_size=2", SIZE]),
    "llama-100m-1": ("llama-100m", 1, ["--training.local_batch_size=4", SIZE]),
    "llama-100m-2": ("llama-100m", 2, ["--training.local_batch_size=2", SIZE]),
}
SMALL = ["--training.local_batch_size=2", SIZE]
CONFIGS = {
    "ddp": ("gpt-10m", 2, SMALL + ["--parallelism.strategy=ddp"]),
    "fsdp2": ("gpt-10m", 2, SMALL),
    "fsdp2, kept whole": ("gpt-10m", 2, SMALL + ["--parallelism.fsdp_reshard_after_forward=never"]),
    "fsdp2, single layers": ("gpt-10m", 2, SMALL + ["--parallelism.wrap_policy=always"]),
    "zero2, 4 microbatches": ("gpt-10m", 2, SMALL + ["--parallelism.strategy=zero2", "--training.global_batch_size=16"]),
    "fsdp1": ("gpt-10m", 2, SMALL + ["--parallelism.strategy=fsdp1"]),
    "hsdp, 2 copies": ("gpt-10m", 4, SMALL + ["--parallelism.strategy=hsdp",
                                              "--parallelism.data_parallel_replicate_degree=2"]),
    "recomputation": ("gpt-10m", 2, SMALL + ["--activation_checkpoint.mode=full"]),
    "bfloat16": ("gpt-10m", 2, SMALL + ["--training.mixed_precision_param=bfloat16"]),
    "offload": ("gpt-10m", 2, ["--model.n_layers=2", "--training.local_batch_size=1", "--training.seq_len=64",
                               "--training.enable_cpu_offload=true", GPU]),
    "a million ranks": ("llama-8b", 1000000, ["--training.local_batch_size=1", "--parallelism.strategy=hsdp",
                                              "--parallelism.data_parallel_replicate_degree=125000",
                                              "--training.mixed_precision_param=bfloat16", GPU]),
}


def peak_of(trace):
    """Returns the most that rank 0 has in the traced step, without scratch."""
    with open(trace) as f:
        events = json.load(f)
    events = events if isinstance(events, list) else events["traceEvents"]
    live, most = {}, 0
    for event in events:
        name = re.fullmatch(r"memory: ([a-z ]+?)( \(cuda:\d+\))?", event["name"])  # without what is on a GPU's host
        if event.get("ph") == "C" and event["pid"] == 1 and name:
            kind = name[1]
            if kind not in ("all", "workspace"):
                live[kind] = event["args"]["bytes"]
            most = max(most, sum(live.values()) if kind == "all" else 0)
    return most


def train(args, folder, row):
    """Returns the milliseconds of the steps after the first two, and the peak of the third."""
    model, ranks, keys = row
    config, metrics, trace = (os.path.join(folder, name) for name in ("c.yaml", "m.jsonl", "t.json"))
    with open(config, "w") as f:
        f.write(f"model:\n  preset: {model}\ndata:\n  path: [{folder}/data.txt]\n  tokenizer: bytes\n  workers: 0\n")
    for path in (metrics, trace):
        if os.path.exists(path):
            os.remove(path)
    subprocess.run([*args.prefix, args.fsdp, "train", config, "-n", str(ranks), *keys,
                    f"--training.steps={args.steps + 2}", f"--metrics.jsonl={metrics}",
                    f"--metrics.trace.path={trace}", "--metrics.trace.steps=3"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, **({"FSDP_PLUGIN_PATH": FAKE_GPU} if GPU in keys else {})})
    with open(metrics) as f:
        lines = [json.loads(line) for line in f]
    return [line["step_ms"] for line in lines if "step_ms" in line][2:], peak_of(trace)


def plan(args, row, *options):
    """Returns the milliseconds of a step, the peak, and how long it took to say so."""
    model, ranks, keys = row
    began = time.monotonic()
    out = json.loads(subprocess.run([*args.prefix, args.fsdp, "plan", model, "-n", str(ranks), *keys, *options,
                                     "--json"], check=True, capture_output=True, text=True).stdout)
    return 1e3 * out.get("time", {}).get("step_seconds", 0), out["peak"]["bytes"], time.monotonic() - began


def compare(args, folder, row, ratios):
    """Returns the planned peak and the one that was."""
    before, peak, _ = plan(args, row)
    times, was = train(args, folder, row)
    said, took = (before + plan(args, row)[0]) / 2, statistics.median(times)
    ratios.append(said / took)
    print(f"  planned {said:.0f} ms, took {took:.0f} ms, {said / took:.2f}; peak {peak:,}, was {was:,}", flush=True)
    return peak, was


def on_paper(args, row):
    """Returns a row of what cannot be trained here."""
    _, peak, seconds = plan(args, row, "--no-time")
    return [f"{peak:,}", "", f"planned in {seconds:.1f} s"]


def on_no_gpu(args, folder, row):
    """Returns a row of a GPU that is not there."""
    return [f"{plan(args, row, '--no-time')[1]:,}", f"{train(args, folder, row)[1]:,}", ""]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", default="build/fsdp")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prefix", type=shlex.split, default=[])
    parser.add_argument("--configs", action="store_true")
    parser.add_argument("rows", nargs="*")
    args = parser.parse_args()
    rows = CONFIGS if args.configs else ROWS
    table = []
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "data.txt"), "wb") as f:
            f.write(bytes(32 + (i * i * 7 + i) % 90 for i in range(1 << 19)))
        for name in args.rows or rows:
            row, ratios = rows[name], []
            print(name, flush=True)
            if row[1] > 64 or GPU in row[2]:
                table.append([name, row[1], *(on_paper(args, row) if row[1] > 64 else on_no_gpu(args, folder, row))])
                continue
            peaks = {compare(args, folder, row, ratios) for _ in range(args.repeats)}
            planned, was = max(peaks, key=lambda pair: abs(pair[0] - pair[1]))
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            table.append([name, row[1], f"{planned:,}", f"{was:,}", spread])
    print("\n| | ranks | planned peak, bytes | measured peak | time: planned / taken, median (least-most) |")
    print("|---|---|---|---|---|")
    for line in table:
        print("|", " | ".join(str(cell) for cell in line), "|")


if __name__ == "__main__":
    main()
