#!/usr/bin/env python3
"""Draws time and memory of a sharded model's step against layers, width, sequence, ranks and blocks per group, as one
SVG.

    bench/grow.py [--build build] [--out docs/growth.svg] [--steps 5]

The model is gpt-10m over 2 ranks, with 4 sequences of 256 tokens on each; one thing is changed at a time. Each time is
shown with its floor (the model's FLOPs at the rate of a large matrix product on all cores), and the memory (PSS of all
ranks) with what the ledger says they hold together."""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import flop_rate, run_step

# title: (values, ranks and options for a value)
SERIES = {
    "layers": ([2, 4, 6, 9, 12], lambda x: (2, {"--layers": str(x)})),
    "width": ([128, 256, 384, 512, 768], lambda x: (2, {"--dim": str(x)})),
    "sequence": ([64, 128, 256, 512, 1024], lambda x: (2, {"--seq": str(x)})),
    "ranks": ([1, 2, 4, 8], lambda x: (x, {"--batch": str(8 // x)})),
    "blocks per group": ([1, 2, 3, 6], lambda x: (2, {"--group": str(x)})),
}
PANEL, LEFT, TOP, GAP = 170, 52, 34, 62


def measure(build, steps, ranks, changed):
    options = {"--model": "gpt-10m", "--batch": "4", "--seq": "256", "--steps": str(steps), "--warmup": "3", **changed}
    return run_step(build, ranks, [word for pair in options.items() for word in pair])


def line(xs, ys, place, style):
    points = " ".join(f"{place(x, y)[0]:.1f},{place(x, y)[1]:.1f}" for x, y in zip(xs, ys))
    return f'<polyline points="{points}" fill="none" {style}/>'


def panel(x0, y0, title, xs, measured, floor, unit):
    most_x, most_y = max(xs), max(measured + floor) * 1.1

    def place(x, y):
        return x0 + PANEL * x / most_x, y0 + PANEL - PANEL * y / most_y

    parts = [f'<rect x="{x0}" y="{y0}" width="{PANEL}" height="{PANEL}" fill="none" stroke="#bbb"/>',
             f'<text x="{x0}" y="{y0 - 8}">{unit} against {title}</text>']
    for part in (0, 0.5, 1):
        value = most_y * part
        parts.append(f'<text x="{x0 - 4}" y="{y0 + PANEL - PANEL * part + 4}" text-anchor="end">{value:,.0f}</text>')
    apart = -100
    for x in xs:
        if place(x, 0)[0] - apart < 24:
            continue  # no room for its number
        apart = place(x, 0)[0]
        parts.append(f'<text x="{place(x, 0)[0]:.1f}" y="{y0 + PANEL + 14}" text-anchor="middle">{x}</text>')
    parts.append(line(xs, floor, place, 'stroke="#999" stroke-dasharray="4 3"'))
    parts.append(line(xs, measured, place, 'stroke="#06c" stroke-width="2"'))
    parts += [f'<circle cx="{place(x, y)[0]:.1f}" cy="{place(x, y)[1]:.1f}" r="2.5" fill="#06c"/>'
              for x, y in zip(xs, measured)]
    return "\n".join(parts)


def draw(columns, out):
    body = []
    for column, (title, xs, times, floors, memory, ledger) in enumerate(columns):
        x0 = LEFT + column * (PANEL + GAP)
        body.append(panel(x0, TOP, title, xs, times, floors, "ms a step"))
        body.append(panel(x0, TOP + PANEL + GAP, title, xs, memory, ledger, "MB"))
    width, height = LEFT + len(SERIES) * (PANEL + GAP), TOP + 2 * PANEL + GAP + 60
    body.append(f'<text x="{LEFT}" y="{height - 14}">blue: measured; dashed: the floor of the time, the ledger of the '
                f'memory. gpt-10m, 2 ranks x 4 sequences of 256 tokens (8 in all against ranks).</text>')
    with open(out, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
                   f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default="docs/growth.svg")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    rate, columns = flop_rate(args.build), []

    print("| changed | value | ms a step | floor ms | MB, PSS of all ranks | MB in the ledger |\n|---|---|---|---|---|---|")
    for title, (xs, run) in SERIES.items():
        results = [measure(args.build, args.steps, *run(x)) for x in xs]
        times = [r["ms"] for r in results]
        floors = [r["tflops"] * 1e12 * r["ms"] / rate for r in results]
        memory = [r["pss_sum_mb"] for r in results]
        ledger = [r["ledger_sum_mb"] for r in results]
        for row in zip(xs, times, floors, memory, ledger):
            print(f"| {title} | " + " | ".join(f"{value:.0f}" for value in row) + " |", flush=True)
        columns.append((title, xs, times, floors, memory, ledger))
    draw(columns, args.out)


if __name__ == "__main__":
    main()
