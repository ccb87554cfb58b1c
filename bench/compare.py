#!/usr/bin/env python3
"""Runs bench_step and a peer alternately in one session and prints a Markdown table of medians and ratios.

    bench/compare.py --peer "PYTHON /path/to/torch_bench.py" [--build build] [--rows gpt-10m-1,...] [--repeats 3]

The peer is a program that takes --model, --batch, --seq, --steps, --warmup, --mode (fsdp2 | ddp | none), --threads and
--bf16, reads RANK and WORLD_SIZE, and prints one JSON line with tok_s, params, loss and rss_mb on rank 0. Without
--peer only our own rows are measured. Both sides must train the same model: equal parameter counts, first loss near
the logarithm of the vocabulary."""
import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys

# name: model, ranks, batch per rank, peer mode, extra options of both
ROWS = {
    "gpt-10m-1": ("gpt-10m", 1, 8, "none", []),
    "gpt-10m-2": ("gpt-10m", 2, 4, "fsdp2", []),
    "gpt-10m-2-ddp": ("gpt-10m", 2, 4, "ddp", []),
    "gpt-10m-4": ("gpt-10m", 4, 2, "fsdp2", []),
    "llama-100m-1": ("llama-100m", 1, 4, "none", []),
    "llama-100m-2": ("llama-100m", 2, 2, "fsdp2", []),
    "llama-100m-2-bf16": ("llama-100m", 2, 2, "fsdp2", ["--bf16"]),
    "llama-100m-4": ("llama-100m", 4, 1, "fsdp2", []),
    "gpt2-124m-2": ("gpt2-124m", 2, 2, "fsdp2", []),
}
VOCABULARY = {"gpt-10m": 256, "llama-100m": 32000, "gpt2-124m": 50304}


def fail(message):
    sys.exit("compare: " + message)


def last_json(text, what):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    fail(f"{what} printed no result:\n{text}")


def run_ours(build, row, steps, warmup):
    model, ranks, batch, _, extra = ROWS[row]
    bench = [os.path.join(build, "bench", "bench_step"), "--model", model, "--batch", str(batch), "--seq", "256",
             "--steps", str(steps), "--warmup", str(warmup)] + extra
    if ranks > 1:
        bench = [os.path.join(build, "fsdp"), "run", "-n", str(ranks), "--"] + bench
    done = subprocess.run(bench, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(bench)} failed:\n{done.stderr}")
    return last_json(done.stdout, "bench_step")


def run_peer(peer, row, steps, warmup):
    model, ranks, batch, mode, extra = ROWS[row]
    threads = max(1, os.cpu_count() // ranks)
    command = shlex.split(peer) + ["--model", model, "--batch", str(batch), "--seq", "256", "--mode", mode, "--threads",
                                   str(threads), "--steps", str(steps), "--warmup", str(warmup)] + extra
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), OMP_NUM_THREADS=str(threads))
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = [p.communicate() for p in processes]
    for process, (_, errors) in zip(processes, results):
        if process.returncode != 0:
            fail(f"{' '.join(command)} failed:\n{errors}")
    return last_json(results[0][0], "the peer")


def check_same_model(row, ours, peer):
    if ours["params"] != peer["params"]:
        fail(f"{row}: {ours['params']} parameters here, {peer['params']} there")
    for loss in (ours["loss"],):
        if abs(loss - math.log(VOCABULARY[ROWS[row][0]])) > 0.5:
            fail(f"{row}: first loss {loss} is not near ln(vocabulary)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="")
    parser.add_argument("--build", default="build")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()

    print("| row | ranks x batch | ours tok/s (min-max) | peer tok/s (min-max) | ratio | ours MB, largest rank / sum | "
          "peer MB, one rank | gemm / attention / other / optimizer / comm / waiting ms |")
    print("|---|---|---|---|---|---|---|---|")
    for row in args.rows.split(","):
        if row not in ROWS:
            fail(f"unknown row '{row}': one of {', '.join(ROWS)}")
        ours, peers = [], []
        for _ in range(args.repeats):
            ours.append(run_ours(args.build, row, args.steps, args.warmup))
            if args.peer:
                peers.append(run_peer(args.peer, row, args.steps, args.warmup))
                check_same_model(row, ours[-1], peers[-1])
        speed = [r["tok_s"] for r in ours]
        peer_speed = [r["tok_s"] for r in peers]
        ratios = [a / b for a, b in zip(speed, peer_speed)]
        middle = sorted(ours, key=lambda r: r["tok_s"])[len(ours) // 2]
        split = " / ".join(f"{middle[k]:.0f}" for k in ("gemm_ms", "attention_ms"))
        split += f" / {middle['elementwise_ms'] + middle['memory_ms']:.0f} / {middle['optimizer_ms']:.0f}"
        split += f" / {middle['comm_ms']:.0f} / {middle['wait_ms']:.0f}"
        model, ranks, batch, mode, extra = ROWS[row]
        name = f"{model}, {mode if ranks > 1 else 'one process'}{', bf16' if extra else ''}"
        peer_text = f"{statistics.median(peer_speed):,.0f} ({min(peer_speed):,.0f}-{max(peer_speed):,.0f})" if peers else ""
        ratio_text = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if peers else ""
        print(f"| {name} | {ranks} x {batch} | {statistics.median(speed):,.0f} ({min(speed):,.0f}-{max(speed):,.0f}) | "
              f"{peer_text} | {ratio_text} | {middle['rss_mb']:.0f} / {middle['pss_sum_mb']:.0f} | "
              f"{peers[0]['rss_mb'] if peers else ''} | {split} |", flush=True)


if __name__ == "__main__":
    main()
