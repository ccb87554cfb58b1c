#!/usr/bin/env python3
"""Draws what examples/04_trace_a_step.c printed as one SVG: when each group is unsharded and used, and the live memory.

    fsdp run -n 2 -- build/examples/04_trace_a_step | bench/draw_trace.py > docs/step.svg

Several files become several steps below each other, each under the name of its file ('_' becomes a blank):

    bench/draw_trace.py auto.txt never.txt > docs/steps.svg"""
import os
import sys

WIDTH, LEFT, RIGHT, ROW, MEMORY, GAP = 860, 110, 36, 18, 150, 46
KINDS = ["shards", "optimizer", "unsharded", "gradients", "activations"]
COLORS = ["#8a9bb4", "#c3cad6", "#e08a2b", "#4f9d58", "#7f6bb3"]
GATHERED, USED = "#f3cfa1", {"pre_forward": "#3b78c2", "pre_backward": "#b0413e"}
ENDS = {"pre_forward": "post_forward", "pre_backward": "post_backward"}


def title_of(path):
    return os.path.splitext(os.path.basename(path))[0].replace("_", " ")


def read(lines):
    """Returns [(ms, event, group, [KiB of each kind])]."""
    events = []
    for text in lines:
        words = text.split()
        if len(words) == 3 + len(KINDS) and words[0][0].isdigit():
            events.append((float(words[0]), words[1], words[2], [float(word) for word in words[3:]]))
    if not events:
        sys.exit("draw_trace.py: no events in the input: give it what 04_trace_a_step printed")
    return events


def spans(events, group, begins, ends):
    """Returns the times between an event of the group and the next one that ends it."""
    begun, found = None, []
    for ms, event, whose, _ in events:
        if whose != group:
            continue
        if event in begins and begun is None:
            begun = ms
        elif event in ends and begun is not None:
            found.append((begun, ms))
            begun = None
    return found


def box(x0, x1, y, height, fill):
    return f'<rect x="{x0:.1f}" y="{y:.1f}" width="{max(x1 - x0, 1):.1f}" height="{height}" fill="{fill}"/>'


def draw_groups(events, groups, place, y0):
    parts = []
    for row, group in enumerate(groups):
        y = y0 + row * ROW
        parts.append(f'<text x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{group}</text>')
        for begin, end in spans(events, group, ("unshard",), ("reshard", "keep")):
            parts.append(box(place(begin), place(end), y + 1, ROW - 2, GATHERED))
        for begin, end in ENDS.items():
            for start, stop in spans(events, group, (begin,), (end,)):
                parts.append(box(place(start), place(stop), y + 5, ROW - 10, USED[begin]))
        for ms, event, whose, _ in events:
            if whose == group and event == "reduce":
                x = place(ms)
                parts.append(f'<path d="M{x:.1f} {y + ROW - 1} l-4 -6 h8 z" fill="{COLORS[3]}"/>')
    return parts


def draw_memory(events, place, y0):
    most = max(sum(kinds) for _, _, _, kinds in events)
    parts = [f'<text x="{LEFT - 6}" y="{y0 + 10}" text-anchor="end">{most / 1024:.1f} MiB</text>',
             f'<text x="{LEFT - 6}" y="{y0 + MEMORY}" text-anchor="end">0</text>']
    for kind in range(len(KINDS) - 1, -1, -1):
        corners = [(place(events[0][0]), y0 + MEMORY)]
        before = 0
        for ms, _, _, kinds in events:
            height = MEMORY * sum(kinds[:kind + 1]) / most
            corners += [(place(ms), y0 + MEMORY - before), (place(ms), y0 + MEMORY - height)]
            before = height
        corners.append((place(events[-1][0]), y0 + MEMORY))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<polygon points="{points}" fill="{COLORS[kind]}"/>')
    return parts


def draw_step(title, events, y0):
    last = events[-1][0]
    groups = list(dict.fromkeys(group for _, _, group, _ in events))

    def place(ms):
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / last

    y = y0 + 22
    parts = [f'<text x="{LEFT}" y="{y0 + 12}" font-weight="bold">{title}</text>'] if title else []
    parts += draw_groups(events, groups, place, y)
    y += len(groups) * ROW + 8
    parts += draw_memory(events, place, y)
    y += MEMORY
    for ms, event, _, _ in events:
        if event in ("step", "backward", "optimizer"):
            parts.append(f'<line x1="{place(ms):.1f}" x2="{place(ms):.1f}" y1="{y0 + 18}" y2="{y}" stroke="#666" '
                         f'stroke-dasharray="2 3"/>')
            parts.append(f'<text x="{place(ms) + 3:.1f}" y="{y + 13}">'
                         f'{"forward" if event == "step" else "step" if event == "optimizer" else event}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{y + 28}" text-anchor="end">{last:.0f} ms</text>')
    return parts, y + GAP


def legend(y):
    entries = [(GATHERED, "unsharded"), (USED["pre_forward"], "in its forward"), (USED["pre_backward"], "in its backward"),
               (COLORS[3], "\u25bc reduced")] + [(color, f"memory: {kind}") for kind, color in zip(KINDS, COLORS)]
    parts = []
    for i, (color, text) in enumerate(entries):
        x = LEFT + i % 5 * 148
        parts.append(box(x, x + 10, y + i // 5 * 16, 10, color))
        parts.append(f'<text x="{x + 14}" y="{y + 9 + i // 5 * 16}">{text}</text>')
    return parts, y + 40


def main():
    if any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit(__doc__)
    traces = [(title_of(name), read(open(name, encoding="utf-8"))) for name in sys.argv[1:]]
    parts, y = [], 6
    for title, events in traces or [("", read(sys.stdin))]:
        step, y = draw_step(title, events, y)
        parts += step
    keys, y = legend(y)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="11">\n'
          f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts + keys) + "\n</svg>")


if __name__ == "__main__":
    main()
