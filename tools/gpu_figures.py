#!/usr/bin/env python3
"""Reads what runs of tools/gpu_check.sh have left: losses, traces, times and memory.

    gpu_figures.py COMMAND ARGUMENTS      each function below that has no _ in front is a command

A command prints what its first line says. It ends with 1 where that is not as it should be."""
import collections
import ctypes
import glob
import gzip
import json
import math
import re
import statistics
import subprocess
import sys

# TB/s that a copy reads and writes, and TFLOP/s of products in bf16 under load: docs/gpu.md.
RATES = {"NVIDIA H200": (4.27, 676), "NVIDIA H100 80GB HBM3": (3.03, 683)}

# Shares of a copy's rate in a step of Llama-1B and of GPT-2 124M on an H200, in %, as foretold by the instructions and
# bytes of the kernels: docs/gpu.md, "What limits the kernels".
FORETOLD = {"norm_forward": (89, 88), "norm_backward": (85, 83), "cross_entropy": (86, 84), "rope": (84, None),
            "embedding_backward": (72, 35), "power_sum": (79, 79), "swiglu_forward": (94, None),
            "swiglu_backward": (83, None)}


def _rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _numbers(path):
    with open(path, encoding="utf-8") as file:
        return [float(line) for line in file]


def exports():
    """What the driver says that a GPU can do for other ranks."""
    value = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SystemExit(f"there is no driver: {error}")
    driver.cuInit(0)
    for name, attribute in (("memory as a file descriptor", 103), ("events of other processes", 125),
                            ("streams that wait for words of 64 bits", 122), ("multicast", 132)):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        print(f"{name}: {'yes' if value.value else 'no'}")


def losses(path):
    """The losses of a run, one a line."""
    for row in _rows(path):
        if "loss" in row:
            print(repr(row["loss"]))


def apart(a, b):
    """The largest difference of two runs' losses, over the loss."""
    a, b = _numbers(a), _numbers(b)
    assert len(a) == len(b) > 0, f"other numbers of steps: {len(a)} and {len(b)}"
    print(f"{max(abs(x - y) / abs(x) for x, y in zip(a, b)):.2e}")


def within(bound, far):
    """Nothing: whether `far` is at most `bound`; a NaN is not."""
    return float(far) <= float(bound)


def said(work):
    """What was said of a stage's points, and their sum."""
    points = []
    for name in sorted(glob.glob(work + "/said/*")):
        with open(name, encoding="utf-8") as file:
            points.append(file.read().rstrip("\n").split("\t"))
    for name, verdict, text, _, _ in points:
        print(f"{name:24} {verdict:5} {text}")
    line = f"{sum(p[1] == 'right' for p in points)} of {len(points)} right"
    for bound in sorted({p[3] for p in points if p[3]}, key=float):
        far = max((float(p[4]), p[0]) for p in points if p[3] == bound)
        line += f"; within {bound} of the CPU: at most {far[0]:.2e} ({far[1]})"
    print(line + "".join(f"; WRONG {p[0]}: {p[2]}" for p in points if p[1] != "right"))
    return points and all(p[1] == "right" for p in points)


def _late(path):
    steps = [row["step_ms"] for row in _rows(path) if "step_ms" in row]
    return statistics.median(steps[len(steps) // 2:])


def ratio(a, b):
    """The median times of a step in runs' second halves, one over the other: of as many pairs as there are, the median.
    The runs are a.1, a.2 .. and b.1, b.2 .."""
    pairs = zip(sorted(glob.glob(f"{a}.[0-9].jsonl")), sorted(glob.glob(f"{b}.[0-9].jsonl")))
    print(f"{statistics.median(_late(one) / _late(other) for one, other in pairs):.3f}")


# ---- several GPUs ----

# What nccl-tests multiplies bytes over time with, for the bus bandwidth of each collective (bench/bench_gpus.c).
BUS = {"all_gather": "(n-1)/n", "gather_buffers": "(n-1)/n", "reduce_scatter": "(n-1)/n", "reduce_buffers": "(n-1)/n",
       "all_reduce": "2 (n-1)/n", "broadcast": "1", "all_to_all": "(n-1)/n"}
WAYS = {"exact": "{}", "nccl": "{}, its own sums", "copies": "{} by copies", "plain": "{}, nothing shown"}


def _lines(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []  # not measured yet


def _links(path):
    """Lines of bench_gpus: bus bandwidths by (collective, dtype, bytes for two GPUs, way) and number of GPUs. A size is
    rounded to a multiple of the GPUs, so sizes are numbered in the order of their lines."""
    table, numbers, first = {}, collections.Counter(), {}
    for line in _lines(path):
        carrier, sums, ranks, _, collective, dtype, size, _, _, bus = line.split()
        way, ranks = WAYS[sums].format(carrier), int(ranks)
        number = numbers[way, ranks, collective, dtype]
        numbers[way, ranks, collective, dtype] += 1
        size = first.setdefault((collective, dtype, number), int(size))
        table.setdefault((collective, dtype, size, way), {})[ranks] = float(bus)
    return table


def steps(model, ranks, way, path):
    """A line of the table of steps, from the second half of a run."""
    rows = [row for row in _rows(path) if "step_ms" in row]
    tokens = rows[-1]["tokens"] - rows[-2]["tokens"]
    rows = rows[len(rows) // 2:]
    ms = statistics.median(row["step_ms"] for row in rows)
    exposed = statistics.median(row.get("gather_ms", 0) + row.get("reduce_ms", 0) for row in rows)
    carrier, sums = way.split("-")
    print(json.dumps({"model": model, "ranks": int(ranks), "way": WAYS[sums].format(carrier), "exposed": exposed,
                      "ms": ms, "tok_s": tokens / ms * 1e3}))


def _models(path):
    """Those lines, by model: the smallest number of GPUs that it ran on, and by way the line of each number. One GPU
    exchanges nothing, so its line is that of every way."""
    models = {}
    for row in map(json.loads, _lines(path)):
        models.setdefault(row["model"], {}).setdefault(row["way"], {})[row["ranks"]] = row
    for name, ways in models.items():
        least = min(ranks for rows in ways.values() for ranks in rows)
        alone = next(rows[1] for rows in ways.values() if 1 in rows) if least == 1 else None
        if alone:
            ways = {way: {1: alone, **rows} for way, rows in ways.items()}
        models[name] = (least, ways)
    return models


def _model_rows(name, least, ways):
    """Four rows of a model by each way: (what, way, unit, {GPUs: text})."""
    figures = (("a step", "ms", lambda row, _: f"{row['ms']:.2f}"),
               ("exposed communication of it", "ms (share of the step)",
                lambda row, _: f"{row['exposed']:.2f} ({100 * row['exposed'] / row['ms']:.0f} %)"),
               ("tokens", "tokens/s of all GPUs", lambda row, _: f"{row['tok_s']:,.0f}"),
               ("scaling", f"a GPU's tokens/s over those with {least}",
                lambda row, base: f"{100 * row['tok_s'] / row['ranks'] / base:.0f} %"))
    for what, unit, cell in figures:
        for way, rows in ways.items():
            if least in rows:
                base = rows[least]["tok_s"] / least
                yield f"{name}: {what}", way, unit, {n: cell(row, base) for n, row in rows.items()}


def _print_table(counts, rows):
    print(f"| | by | unit | {' | '.join(f'{n} GPU' + 's' * (n > 1) for n in counts)} |")
    print("|---|---|---|" + "---:|" * len(counts))
    for what, way, unit, cells in rows:
        print(f"| {what} | {way} | {unit} | {' | '.join(cells.get(n, '') for n in counts)} |")


def _bandwidths(table, wanted):
    """The rows of those collectives whose (dtype, bytes) are wanted; of each, by way."""
    for collective, factor in BUS.items():
        for (name, dtype, size, way), row in table.items():
            if name == collective and wanted(dtype, size):
                yield (f"{name}, {dtype}, {size:,} bytes", way, f"GB/s: bytes / time x {factor}",
                       {n: f"{bus:.2f}" for n, bus in row.items()})


def many(links_path, steps_path, gpus):
    """The report on several GPUs, which begins with one table: bus bandwidths of the largest size, as nccl-tests counts
    them, then each model's steps, on the same numbers of GPUs. The other sizes follow."""
    table, models = _links(links_path), _models(steps_path)
    counts = sorted({n for row in table.values() for n in row} |
                    {n for _, ways in models.values() for rows in ways.values() for n in rows})
    largest = max((size for _, dtype, size, _ in table if dtype == "bfloat16"), default=0)
    print(f"# {gpus}\n")
    print("n is the number of GPUs. gather_buffers and reduce_buffers are how a step gathers parameters and reduces\n"
          "gradients; the other collectives are those of nccl-tests.\n")
    _print_table(counts, [*_bandwidths(table, lambda dtype, size: dtype == "bfloat16" and size == largest),
                          *(row for name, (least, ways) in models.items() for row in _model_rows(name, least, ways))])
    print("\n## Collectives of other sizes and dtypes\n")
    _print_table(counts, _bandwidths(table, lambda dtype, size: dtype != "bfloat16" or size != largest))
    return bool(table) and bool(models)


def summary(links_path, steps_path):
    """One line of that report: gathers, and how models scale, on the most GPUs."""
    table, models = _links(links_path), _models(steps_path)
    most = max(n for row in table.values() for n in row)
    best = {}
    for (collective, _, _, way), row in table.items():
        if collective == "gather_buffers" and most in row:
            best[way] = max(row[most], best.get(way, 0))
    shares = (f"{name} {rows[most]['tok_s'] / most / rows[least]['tok_s'] * least:.0%} by {way}"
              for name, (least, ways) in models.items() for way, rows in ways.items() if most in rows and least in rows)
    print(f"{most} GPUs: gathers at " + ", ".join(f"{bus:.1f} GB/s by {way}" for way, bus in best.items()) + "; " +
          ", ".join(shares))


def collectives(work):
    """The ratio of an older build's time to this one's: the median over sizes, of the shortest of three turns."""
    def cells(which):
        turns = []
        for turn in range(1, 4):
            with open(f"{work}/collectives.{which}.{turn}", encoding="utf-8") as file:
                turns.append([[float(x) for x in line.split()[4:]] for line in file if re.match(r" +\d+ KB ", line)])
        return [min(t[i][j] for t in turns) for i in range(len(turns[0])) for j in range(len(turns[0][i]))]
    print(f"{statistics.median(b / n for n, b in zip(cells('now'), cells('before')) if n >= 2):.2f}")


# ---- traces ----

def _trace(path):
    with gzip.open(path) as file:
        return json.load(file)


def _own_record(events):
    """The GPU's own rows, and which row of ours has issued how many of them."""
    gpu = [e for e in events if e.get("cat", "").startswith("gpu_") and e["ph"] == "X"]
    own = {e["tid"] for e in gpu}
    rows = {(e["tid"], e["ts"]): e for e in events if e["ph"] == "X" and not e.get("cat", "").startswith("gpu_")}
    ends = collections.defaultdict(list)
    for e in events:
        if e["ph"] in "sf":
            ends[e["id"]].append(e)
    runs, tells = {}, collections.defaultdict(list)
    for s, f in (sorted(pair, key=lambda e: e["ph"] != "s") for pair in ends.values()):
        if f["tid"] in own:
            tells[s["tid"], s["ts"]].append(f["ts"])
        else:
            runs[s["tid"], s["ts"]] = rows.get((f["tid"], f["ts"]))
    return gpu, runs, tells


def record(path):
    """How much of what was issued a trace has in the GPU's own record: all, each with an arrow, and the kernels of
    calls that launch one inside the times that events gave (or 20 us beside)."""
    trace = _trace(path)
    own = trace["otherData"]["ranks"][0].get("gpu_record", {"missing": "no GPU"})
    if "missing" in own:
        print(own["missing"])
        return False
    gpu, runs, tells = _own_record(trace["traceEvents"])
    arrows = sum(len(t) for t in tells.values())
    alone = [(t[0], runs[k]) for k, t in tells.items() if len(t) == 1 and runs.get(k)]
    inside = sum(r["ts"] - 20 <= t <= r["ts"] + r["dur"] + 20 for t, r in alone)
    print(f"{own['told']} of at least {own['issued']}, {own['dropped']} dropped, {arrows} arrows, {inside} of "
          f"{len(alone)} begin inside the times of events")
    return (own["told"] >= own["issued"] and own["dropped"] == 0 and len(gpu) == own["told"] and
            arrows >= 0.95 * len(gpu) and alone and inside >= 0.95 * len(alone))


def _rates(given):
    if given:
        return tuple(float(x) for x in given)
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return RATES.get(subprocess.run(query, capture_output=True, check=True, text=True).stdout.split("\n")[0])
    except (OSError, subprocess.CalledProcessError):
        return None


def _foretold(name, llama):
    share = FORETOLD.get(name, (None, None))[0 if llama else 1]
    return f"{share} %" if share else ""


def kernels(path, steps, *rates):
    """What each kernel of a traced step takes: calls, ms, GB, TFLOP, the ms of its floor, its share of that, and what
    share was foretold; then the idle time between the GPU's own kernels. The floor is its bytes at the rate of a copy,
    or its products' FLOPs at that of products."""
    trace, steps = _trace(path), int(steps)
    rates = _rates(rates)
    sums = collections.defaultdict(lambda: [0, 0.0, 0, 0])
    for e in trace["traceEvents"]:
        args = e.get("args", {})
        if e["ph"] == "X" and e.get("cat") == "kernel":
            row = sums[e["name"]]
            for i, x in enumerate((1, args["ns"] * 1e-6, args.get("bytes", 0), args.get("flops", 0))):
                row[i] += x
    if not sums:
        print("there is no kernel in the trace")
        return False
    print("| kernel | calls | ms | GB | TFLOP | floor, ms | of the floor | foretold |\n|---|---|---|---|---|---|---|---|")
    whole = [0.0, 0.0]
    for name, row in sorted(sums.items(), key=lambda item: -item[1][1]):
        calls, ms, moved, flops = (x / steps for x in row)
        floor = max(moved / rates[0] * 1e-9, flops / rates[1] * 1e-9) if rates else math.nan
        whole = [whole[0] + ms, whole[1] + floor]
        print(f"| {name} | {calls:.0f} | {ms:.3f} | {moved * 1e-9:.3f} | {flops * 1e-12:.3f} | {floor:.3f} | "
              f"{100 * floor / ms if ms else math.nan:.0f} % | {_foretold(name, 'rope' in sums)} |")
    gpu, _, _ = _own_record(trace["traceEvents"])
    busy = sum(e["dur"] for e in gpu) * 1e-3 / steps
    span = (max(e["ts"] + e["dur"] for e in gpu) - min(e["ts"] for e in gpu)) * 1e-3 / steps if gpu else math.nan
    print(f"{whole[0]:.2f} ms of kernels a step, floor {whole[1]:.2f} ms{'' if rates else ' (card not known: RATES)'}; by "
          f"the GPU's own record busy {busy:.2f} of {span:.2f} ms")
    return True


# ---- beside a peer ----

def peer(model, turn, path):
    """A line of the bench table from the peer's last line of output, a JSON object."""
    row = _rows(path)[-1]
    print(json.dumps({"who": "peer", "model": model, "turn": int(turn), "tok_s": row["tok_s"],
                      "peak": row["cuda_peak_mb"], "reserved": row["cuda_reserved_mb"], "params": row["params"]}))


def ours(who, model, turn, path, used):
    """The same of a run of ours; `used` is the most of the card's memory by nvidia-smi, in MiB."""
    rows = _rows(path)
    steps = [row for row in rows if "step_ms" in row][3:]
    params = next(row["parameters"] for row in rows if "parameters" in row)
    print(json.dumps({"who": who, "model": model, "turn": int(turn), "used": used, "params": params,
                      "tok_s": statistics.median(row["tokens_per_second"] for row in steps),
                      "peak": max(row["memory_peak_bytes"] for row in steps) >> 20,
                      "reserved": max(row["memory_reserved_bytes"] for row in steps) >> 20}))


def bench(path):
    """The table of a model's turns, ours beside the peer's, and the ratios."""
    rows, line = _rows(path), ""
    print("| model | | tok/s, by turn | peak, MiB | reserved, MiB | nvidia-smi, MiB |\n|---|---|---|---|---|---|")
    for model in dict.fromkeys(row["model"] for row in rows):
        of = {}
        for row in rows:
            if row["model"] == model:
                of.setdefault(row["who"], []).append(row)
        for who, turns in of.items():
            print(f"| {model} | {who} | {', '.join(format(r['tok_s'], ',.0f') for r in turns)} | "
                  f"{turns[-1]['peak']:,} | {turns[-1]['reserved']:,} | {turns[-1].get('used', '')} |")
        theirs = of.pop("peer", None)
        if not of or not theirs:
            line += f"{model}: no {'peer' if of else 'run of ours'}; "
            continue
        for who, turns in of.items():
            if turns[0]["params"] != theirs[0]["params"]:
                line += f"{model}: {turns[0]['params']} parameters, and the peer's has {theirs[0]['params']}; "
            speed = [statistics.median(r["tok_s"] for r in some) for some in (turns, theirs)]
            line += (f"{model}, {who}: {speed[0] / speed[1]:.3f} of the peer's tok/s, "
                     f"{turns[-1]['peak'] / theirs[-1]['peak']:.3f} of its memory; ")
    print(line.rstrip("; "))


def main(name, *arguments):
    commands = {key: f for key, f in globals().items() if callable(f) and key[0] != "_" and key != "main"}
    if name not in commands:
        sys.exit(f"gpu_figures: there is no '{name}': one of {', '.join(commands)}")
    sys.exit(commands[name](*arguments) in (False, []))


if __name__ == "__main__":
    main(*sys.argv[1:])
