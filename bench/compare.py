#!/usr/bin/env python3
"""Runs bench_step and a peer alternately and prints a Markdown table of medians and ratios.

    bench/compare.py --peer "PYTHON /path/to/torch_bench.py" [--build build] [--rows gpt-10m-1,...] [--repeats 3]
    bench/compare.py --against OTHER_BUILD            two builds of ours: did a change make a step slower?
    bench/compare.py --teams                          what tensor parallel costs beside FSDP alone
    bench/compare.py ... --write docs/performance.md  puts the table between the file's "table" comments

A peer is a program that takes --model, --batch, --seq, --steps, --warmup, --mode (fsdp2 | ddp | none), --threads and
--bf16, reads RANK and WORLD_SIZE, and prints one JSON line with tok_s, params, loss and rss_mb on rank 0. Without a
peer only our own rows are measured. Both sides must train the same model: equal parameter counts, first loss near the
logarithm of the vocabulary. The floor is the model's FLOPs at the rate of a large matrix product on all cores, measured
at the start."""
import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys

# name: model, ranks, batch per rank, our mode, the peer's mode, extra options for both
ROWS = {
    "gpt-10m-1": ("gpt-10m", 1, 8, "none", "none", []),
    "gpt-10m-2": ("gpt-10m", 2, 4, "fsdp2", "fsdp2", []),
    "gpt-10m-2-fsdp1": ("gpt-10m", 2, 4, "fsdp1", "fsdp2", []),
    "gpt-10m-2-ddp": ("gpt-10m", 2, 4, "ddp", "ddp", []),
    "gpt-10m-2-zero1": ("gpt-10m", 2, 4, "zero1", "ddp", []),
    "gpt-10m-2-zero2": ("gpt-10m", 2, 4, "zero2", "ddp", []),
    "gpt-10m-4": ("gpt-10m", 4, 2, "fsdp2", "fsdp2", []),
    "llama-100m-1": ("llama-100m", 1, 4, "none", "none", []),
    "llama-100m-2": ("llama-100m", 2, 2, "fsdp2", "fsdp2", []),
    "llama-100m-2-bf16": ("llama-100m", 2, 2, "fsdp2", "fsdp2", ["--bf16"]),
    "llama-100m-2-ddp": ("llama-100m", 2, 2, "ddp", "ddp", []),
    "llama-100m-2-zero1": ("llama-100m", 2, 2, "zero1", "ddp", []),
    "llama-100m-4": ("llama-100m", 4, 1, "fsdp2", "fsdp2", []),
    "gpt2-124m-2": ("gpt2-124m", 2, 2, "fsdp2", "fsdp2", []),
}
# ranks: what is run in turns, with as many sequences of llama-100m a step in each row; the first is what others cost
TEAMS = {
    2: [("FSDP alone", 2, []), ("tp 2", 4, ["--tensor", "2"]),
        ("tp 2, sequences cut", 4, ["--tensor", "2", "--sequence"]),
        ("the same, asynchronous", 4, ["--tensor", "2", "--async"])],
    4: [("FSDP alone", 1, []), ("dp 2 x tp 2", 2, ["--tensor", "2"]),
        ("dp 2 x tp 2, sequences cut", 2, ["--tensor", "2", "--sequence"]),
        ("the same, asynchronous", 2, ["--tensor", "2", "--async"]),
        ("tp 4, sequences cut", 4, ["--tensor", "4", "--sequence"]),
        ("the same, asynchronous", 4, ["--tensor", "4", "--async"])],
}
TEAMS_HEADER = ("| ranks | | processor time, of FSDP alone (min-max) | tok/s | MB sent: dp, tp | ledger's peak, MB | "
                "gemm / attention / other / optimizer / comm / waiting ms |\n|---|---|---|---|---|---|---|")
VOCABULARY = {"gpt-10m": 256, "llama-100m": 32000, "gpt2-124m": 50304}
HEADER = ("| model | ranks x batch | tok/s (min-max) | of the floor | {peer} tok/s (min-max) | ratio | "
          "MB: sum of PSS, largest rank | {peer} MB a rank | gemm / attention / other / optimizer / comm / waiting ms | "
          "faults a step |\n|---|---|---|---|---|---|---|---|---|---|")


def fail(message):
    sys.exit("compare: " + message)


def last_json(text, what):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    fail(f"{what} printed no result:\n{text}")


def check_builds(*builds):
    """Fails if a build lacks a program that is started, of which the last one may be minutes from now."""
    for build in builds:
        for program in ("fsdp", "bench/bench_step", "bench/bench_kernels"):
            if not os.access(os.path.join(build, program), os.X_OK):
                fail(f"'{build}' has no program {program}: build it with cmake --build {shlex.quote(build)} "
                     "--target fsdp benchmarks")


def run_step(build, ranks, options):
    """Runs bench_step once on so many ranks, and returns what it reports."""
    command = [os.path.join(build, "fsdp"), "run", "-n", str(ranks), "--", os.path.join(build, "bench", "bench_step")]
    command += options
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)} failed:\n{done.stderr}")
    return last_json(done.stdout, "bench_step")


def run_ours(build, row, steps, warmup):
    model, ranks, batch, mode, _, extra = ROWS[row]
    return run_step(build, ranks, ["--model", model, "--batch", str(batch), "--seq", "256", "--steps", str(steps),
                                   "--warmup", str(warmup), "--mode", mode] + extra)


def run_peer(peer, row, steps, warmup):
    model, ranks, batch, _, mode, extra = ROWS[row]
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


def flop_rate(build):
    """Returns the FLOP/s of a large matrix product with one thread for each core."""
    command = [os.path.join(build, "bench", "bench_kernels"), "-t", str(os.cpu_count()), "nothing"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"threads: ([0-9.]+) GF/s", text)
    return float(found[1]) * 1e9 if found else fail(f"{' '.join(command)} printed no rate:\n{text}")


def check_same_model(row, ours, peer):
    if ours["params"] != peer["params"]:
        fail(f"{row}: {ours['params']} parameters here, {peer['params']} there")
    if abs(ours["loss"] - math.log(VOCABULARY[ROWS[row][0]])) > 0.5:
        fail(f"{row}: first loss {ours['loss']} is not near ln(vocabulary)")


def spread(values, digits):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def describe(row, ours, peers, rate):
    model, ranks, batch, mode, peer_mode, extra = ROWS[row]
    speed = [r["tok_s"] for r in ours]
    middle = sorted(ours, key=lambda r: r["tok_s"])[len(ours) // 2]
    other = middle["elementwise_ms"] + middle["memory_ms"]
    split = [middle["gemm_ms"], middle["attention_ms"], other, middle["optimizer_ms"], middle["comm_ms"],
             middle["wait_ms"]]
    return " | ".join([
        f"| {model}, {mode if ranks > 1 else 'one process'}{', bf16' if extra else ''}"
        f"{f' (beside {peer_mode})' if peers and peer_mode != mode else ''}", f"{ranks} x {batch}",
        spread(speed, 0), f"{statistics.median(r['tflops'] for r in ours) * 1e12 / rate:.0%}",
        spread([r["tok_s"] for r in peers], 0) if peers else "",
        spread([a / r["tok_s"] for a, r in zip(speed, peers)], 2) if peers else "",
        f"{middle['pss_sum_mb']:.0f}, {middle['rss_mb']:.0f}", f"{peers[0]['rss_mb']:.0f}" if peers else "",
        " / ".join(f"{ms:.0f}" for ms in split), f"{middle['faults']:.0f} |"])


def describe_team(ranks, name, ours, alone):
    ratios = [a["cpu_ms"] / b["cpu_ms"] for a, b in zip(ours, alone)]
    middle = sorted(ours, key=lambda r: r["cpu_ms"])[len(ours) // 2]
    other = middle["elementwise_ms"] + middle["memory_ms"]
    split = [middle["gemm_ms"], middle["attention_ms"], other, middle["optimizer_ms"], middle["comm_ms"],
             middle["wait_ms"]]
    return (f"| {ranks} | {name} | {spread(ratios, 3)} | {statistics.median(r['tok_s'] for r in ours):,.0f} | "
            f"{middle['sent_mb']:.1f}, {middle['sent_in_teams_mb']:.1f} | {middle['ledger_peak_mb']:.0f} | "
            f"{' / '.join(f'{ms:.0f}' for ms in split)} |")


def compare_teams(args):
    """Runs all rows of a world in turns, so that each is compared with its neighbours in time."""
    print(TEAMS_HEADER, flush=True)
    for ranks, rows in TEAMS.items():
        results = [[] for _ in rows]
        for _ in range(args.repeats):
            for (_, batch, extra), result in zip(rows, results):
                options = ["--model", "llama-100m", "--batch", str(batch), "--seq", "256", "--steps", str(args.steps)]
                result.append(run_step(args.build, ranks, options + ["--warmup", str(args.warmup)] + extra))
        for (name, _, _), result in zip(rows, results):
            print(describe_team(ranks, name, result, results[0]), flush=True)


def put_between_comments(path, text):
    with open(path, encoding="utf-8") as file:
        old = file.read()
    parts = re.split(r"(<!-- table: compare\.py -->\n|<!-- end -->)", old, maxsplit=2)
    if len(parts) != 5:
        fail(f"{path} has no line '<!-- table: compare.py -->' with a '<!-- end -->' after it")
    with open(path, "w", encoding="utf-8") as file:
        file.write(parts[0] + parts[1] + text + "\n" + parts[3] + parts[4])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="")
    parser.add_argument("--against", default="", metavar="BUILD")
    parser.add_argument("--teams", action="store_true")
    parser.add_argument("--build", default="build")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--write", metavar="FILE")
    args = parser.parse_args()
    rows = args.rows.split(",")

    for row in rows:
        if row not in ROWS:
            fail(f"unknown row '{row}': one of {', '.join(ROWS)}")
    if args.peer and args.against:
        fail("--peer and --against exclude each other")
    check_builds(args.build, *([args.against] if args.against else []))
    if args.teams:
        return compare_teams(args)
    rate = flop_rate(args.build)
    table = [HEADER.format(peer="PyTorch" if args.peer else "other")]
    print(f"A large matrix product on all cores: {rate / 1e9:.0f} GFLOP/s\n\n{table[0]}", flush=True)
    for row in rows:
        ours, peers = [], []
        for _ in range(args.repeats):
            ours.append(run_ours(args.build, row, args.steps, args.warmup))
            if args.peer or args.against:
                peers.append(run_peer(args.peer, row, args.steps, args.warmup) if args.peer
                             else run_ours(args.against, row, args.steps, args.warmup))
                check_same_model(row, ours[-1], peers[-1])
        table.append(describe(row, ours, peers, rate))
        print(table[-1], flush=True)
    if args.write:
        put_between_comments(args.write, f"A large matrix product on all cores: {rate / 1e9:.0f} GFLOP/s.\n\n" +
                             "\n".join(table))


if __name__ == "__main__":
    main()
