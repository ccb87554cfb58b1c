#!/usr/bin/env python3
"""batches.py FOLDER MOST LIST=SOURCE...: makes batches of up to MOST sources of each list, files FOLDER/LIST_<i>.<suffix>
that include them, and prints what to compile, as LIST=FILE: each of these files, and each source that is left by itself.

Sources meet in a batch only where what one of them names at its file's level (macros, types, variables and functions of
its own, and of kernels' headers) means nothing in another. All their headers come first. So it does not matter to a
source which others are compiled before it."""
import functools
import os
import re
import sys

NO_CODE = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|__launch_bounds__\([^()]*\)""", re.S)
WORD = re.compile(r"([A-Za-z_]\w*)(\(?)")  # and whether it is called
HEADER = re.compile(r"^#include .*", re.M)
KERNEL_HEADER = re.compile(r'^#include "(.*/)?(\w+\.cuh)"', re.M)
CONDITION = re.compile(r"^#\s*(?:define|undef|if)", re.M)  # headers below one may be no headers
# Code is formatted: what stands at a file's level begins in the first column.
MACRO = re.compile(r"^#\s*define\s+(\w+)", re.M)
TYPE = re.compile(r"^(?:typedef +)?(?:enum|struct|union) +(\w+)|^\} *(\w+)|^(?:typedef|using)\b[^\n]*?(\w+)(?:;| =)", re.M)
ENUM = re.compile(r"^(?:typedef )?enum\b[^{;]*\{(.*?)^\}", re.M | re.S)
CONSTANT = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)")
VARIABLE = re.compile(r"^(?!typedef|#|\})\w[^\n(]*?\b(\w+)(?:\[[^\n=;]*\])*\s*(?:=|;)", re.M)
FUNCTION = re.compile(r"^(?!typedef|#)\w[^\n;=]*?\b(\w+)\(", re.M)
MADE_BY_MACRO = re.compile(r"^([A-Z][A-Z0-9_]*)\(\s*(\w*)", re.M)
# Others may define the same function in each file.
NAMED_BY_ARGUMENT = {"TEST", "TEST_WITH", "TEST_OF", "CONTEXT_TEST", "CALL_TEST", "RANKS_TEST", "WORLDS_TEST"}
NAMED_BY_ARGUMENT |= {"RUN_TEST", "WAYS_TEST", "WAYS_TEST_BY", "ENTRY", "ENTRY_LIKE"}


class Source:
    def __init__(self, path):
        self.path = path
        with open(path, encoding="utf-8") as file:
            raw = file.read()
        self.headers = HEADER.findall(CONDITION.split(raw)[0])
        text = NO_CODE.sub(" ", raw)
        made = MADE_BY_MACRO.findall(text)
        types = [name for row in TYPE.findall(text) for name in row]
        constants = [name for body in ENUM.findall(text) for name in CONSTANT.findall(body)]
        functions = [name for name in FUNCTION.findall(text) if not name.startswith("fsdp_")]
        words = set(WORD.findall(text))
        self.words = {word for word, _ in words}
        self.calls = {word for word, called in words if called}
        self.names = {name for name in MACRO.findall(text) + types + constants + VARIABLE.findall(text) if name}
        self.functions = set(functions) | {name for row in made for name in row} - NAMED_BY_ARGUMENT

        self.parts = {path: self}
        for _, header in KERNEL_HEADER.findall(raw):
            self.parts |= source_of(os.path.join(os.path.dirname(path), header)).parts

    def disturbs(self, other):
        mine = [part for path, part in self.parts.items() if path not in other.parts]
        others = [part for path, part in other.parts.items() if path not in self.parts]
        return any(a.names & b.words or a.functions & (b.calls | b.functions) for a in mine for b in others)


@functools.lru_cache(maxsize=None)
def source_of(path):
    return Source(path)


def batches_of(sources, most):
    batches = []
    for source in sources:
        fits = (b for b in batches if len(b) < most and not any(source.disturbs(o) or o.disturbs(source) for o in b))
        batch = next(fits, None)
        if batch is None:
            batches.append([source])
        else:
            batch.append(source)
    return batches


def write(path, batch):
    lines = [line for source in batch for line in source.headers] + [f'#include "{source.path}"' for source in batch]
    text = "\n".join(lines) + "\n"
    if not os.path.exists(path) or open(path, encoding="utf-8").read() != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def main(folder, most, *arguments):
    os.makedirs(folder, exist_ok=True)
    lists = {}
    for name, _, path in (argument.partition("=") for argument in arguments):
        lists.setdefault(name, []).append(path)
    for name, paths in lists.items():
        for i, batch in enumerate(batches_of([source_of(path) for path in sorted(paths)], int(most))):
            made = batch[0].path
            if len(batch) > 1:
                made = os.path.join(folder, f"{name}_{i}{os.path.splitext(made)[1]}")
                write(made, batch)
            print(f"{name}={made}")


if __name__ == "__main__":
    main(*sys.argv[1:])
