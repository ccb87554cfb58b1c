#!/usr/bin/env python3
"""Draws what examples/05_three_policies.c printed as one SVG: which units are whole at each point of a forward.

    for p in size class lambda; do build/fsdp run -n 3 -- build/examples/05_three_policies $p; done |
        bench/draw_whole.py "by size" "by class" "all" > policies.svg

tests/tools/docs.py --write draws docs/policies.svg again."""
import re
import sys

WIDTH, LEFT, TOP, HEIGHT, BAR, GAP = 860, 70, 30, 120, 62, 14
UNIT, KEPT, MODEL = "#e08a2b", "#f3cfa1", "#8a9bb4"


def read(lines):
    """Returns for each run (bytes of the model, [(unit or "before" or "after", bytes that are whole)])."""
    runs, model = [], 0
    for line in lines:
        words = line.split()
        if re.match(r"\S+\.(weight|bias)\s+\d+ ", line):
            model += 4 * int(words[1])
        elif " bytes are whole:" in line:
            if words[0] == "before":
                runs.append([0, []])
            runs[-1][0] = model or runs[-1][0]
            runs[-1][1].append((words[1] if words[0] == "in" else words[0], int(line.split(" bytes")[0].split()[-1])))
            model = 0 if words[0] == "after" else model
    if not runs:
        sys.exit("draw_whole.py: no runs in the input: give it what 05_three_policies printed")
    return runs


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{words}</text>'


def draw(title, model, moments, most, y0):
    kept = moments[-1][1]  # the root's, until its backward
    base = y0 + TOP + HEIGHT

    def height(count):
        return HEIGHT * count / most

    y = base - height(model)
    parts = [text(LEFT, y0 + 14, title, "start", ' font-weight="bold"'),
             f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{base}" y2="{base}" stroke="#666"/>',
             f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{MODEL}" stroke-dasharray="4 3"/>',
             text(LEFT - 6, f"{y + 4:.1f}", f"{model}", "end")]
    for i, (name, count) in enumerate(moments):
        x = LEFT + GAP + i * (2 * BAR + GAP) * 0.82
        root = min(kept, count)
        parts.append(f'<rect x="{x:.1f}" y="{base - height(count):.1f}" width="{BAR}" '
                     f'height="{height(count - root):.1f}" fill="{UNIT}"/>')
        parts.append(f'<rect x="{x:.1f}" y="{base - height(root):.1f}" width="{BAR}" height="{height(root):.1f}" '
                     f'fill="{KEPT}"/>')
        parts.append(text(f"{x + BAR / 2:.1f}", f"{base - height(count) - 4:.1f}", count))
        parts.append(text(f"{x + BAR / 2:.1f}", base + 14, name))
    return parts, base + 28


def main():
    runs = read(sys.stdin)
    most = max(max(model, *(count for _, count in moments)) for model, moments in runs)
    parts, y = [], 4
    for title, (model, moments) in zip(sys.argv[1:], runs):
        drawn, y = draw(title, model, moments, most, y)
        parts += drawn
    for i, (color, words) in enumerate([(UNIT, "the unit whose forward runs"), (KEPT, "the root's, kept for the backward"),
                                        (MODEL, "all parameters, in bytes")]):
        parts.append(f'<rect x="{LEFT + 240 * i}" y="{y}" width="10" height="10" fill="{color}"/>')
        parts.append(text(LEFT + 240 * i + 15, y + 9, words, "start"))
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20}" font-family="sans-serif" '
          f'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>")


if __name__ == "__main__":
    main()
