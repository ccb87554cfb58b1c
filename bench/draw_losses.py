#!/usr/bin/env python3
"""Draws the losses of several runs as one SVG, from the files that their metrics.jsonl named:

    bench/draw_losses.py none.jsonl float8.jsonl int8.jsonl > docs/gather_dtype.svg

Each run is labelled with its file's name ('_' becomes a blank) and the bytes that a rank sent in a step. Losses are
means over WINDOW steps. Below them are the differences from the first file's losses, on a scale of their own."""
import json
import os
import sys

WIDTH, LEFT, RIGHT, TOP, HEIGHT, BELOW, GAP, WINDOW = 860, 70, 24, 16, 240, 110, 34, 10
COLORS = ["#3b78c2", "#e08a2b", "#4f9d58", "#b0413e", "#7f6bb3"]


def read(path):
    """Returns the losses of the last run in the file by step, and the bytes sent in a step."""
    losses, sent = [], 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if "loss" not in entry:
                continue
            if entry["step"] == 1:
                losses = []
            losses.append(entry["loss"])
            sent = entry["bytes_sent"]
    if len(losses) < 2 * WINDOW:
        sys.exit(f"draw_losses.py: {path} has {len(losses)} losses, expected at least {2 * WINDOW}")
    return losses, sent


def smooth(losses):
    return [sum(losses[i:i + WINDOW]) / WINDOW for i in range(0, len(losses) - WINDOW + 1, WINDOW)]


def line(values, low, high, y0, height, color):
    points = []
    for i, value in enumerate(values):
        x = LEFT + (WIDTH - LEFT - RIGHT) * i / (len(values) - 1)
        points.append(f"{x:.1f},{y0 + height * (high - value) / (high - low):.1f}")
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def axis(low, high, y0, height, digits):
    parts = []
    for k in range(5):
        value = high - (high - low) * k / 4
        y = y0 + height * k / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.{digits}f}</text>')
    return parts


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    names = [os.path.splitext(os.path.basename(path))[0].replace("_", " ") for path in sys.argv[1:]]
    runs = [read(path) for path in sys.argv[1:]]
    curves = [smooth(losses) for losses, _ in runs]
    count = min(len(curve) for curve in curves)
    curves = [curve[:count] for curve in curves]
    low, high = min(map(min, curves)), max(map(max, curves))
    differences = [[a - b for a, b in zip(curve, curves[0])] for curve in curves[1:]]
    most = max(abs(d) for difference in differences for d in difference) or 1e-9
    parts = axis(low, high, TOP, HEIGHT, 2)
    below = TOP + HEIGHT + GAP
    parts += axis(-most, most, below, BELOW, 4)
    for i, curve in enumerate(curves):
        parts.append(line(curve, low, high, TOP, HEIGHT, COLORS[i % len(COLORS)]))
        y = TOP + 18 + 17 * i
        parts.append(f'<rect x="{WIDTH - 330}" y="{y - 9}" width="10" height="10" fill="{COLORS[i % len(COLORS)]}"/>')
        parts.append(f'<text x="{WIDTH - 314}" y="{y}">{names[i]}: loss {curve[-1]:.4f}, '
                     f'{runs[i][1] / 1e6:.2f} MB sent a step</text>')
    for i, difference in enumerate(differences):
        parts.append(line(difference, -most, most, below, BELOW, COLORS[(i + 1) % len(COLORS)]))
    parts.append(f'<text x="{LEFT}" y="{below - 8}">difference to {names[0]}</text>')
    bottom = below + BELOW + 22
    parts.append(f'<text x="{LEFT}" y="{bottom}">step 1</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom}" text-anchor="end">step {count * WINDOW}</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 12}" font-family="sans-serif" '
          f'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>")


if __name__ == "__main__":
    main()
