"""check_files.py BUILD-DIRECTORY [SOURCE-DIRECTORY LAYER...]: no circles between the files of a layer.

A file is a .c with the .h of its name. It needs another one when its objects use a symbol that the other's define, or
when its header includes the other's. Files that need each other, by whatever way round, are one file in several places.
Looks at the layers of the line "oneway files" in src/LAYERS, or at those named."""

import collections
import json
import pathlib
import shlex
import subprocess
import sys

from check_layers import INCLUDE, ROOT, read_rules


def objects_of(build, source):
    """What the build folder was told to compile: object -> its source as layer/.../name, without the ending."""
    result = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path, command = pathlib.Path(entry["file"]), shlex.split(entry["command"])
        if path.is_relative_to(source):
            object_path = pathlib.Path(entry["directory"], command[command.index("-o") + 1])
            result[str(object_path)] = str(path.relative_to(source).with_suffix(""))
    return result


def uses(objects):
    """What nm says: (file, file whose symbol it uses, symbol)."""
    text = subprocess.run(["nm", "-A", "-P", *objects], check=True, capture_output=True, text=True).stdout
    lines = [line.partition(": ") for line in text.splitlines()]
    found = [(objects[path], *rest.split()[:2]) for path, _, rest in lines]
    home = {symbol: file for file, symbol, kind in found if kind.isupper() and kind != "U"}
    return [(file, home[symbol], symbol) for file, symbol, kind in found if kind == "U" and symbol in home]


def includes(source, layer):
    """What headers of a layer include: (file, file whose header it includes)."""
    for path in sorted((source / layer).rglob("*.h")):
        for match in INCLUDE.finditer(path.read_text()):
            if match.group(1) == '"' and match.group(2).startswith(f"{layer}/"):
                yield str(path.relative_to(source).with_suffix("")), match.group(2).removesuffix(".h")


def circles(graph):
    """Sets of nodes that all reach each other (Tarjan)."""
    index, low, stack, result = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                result.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return result


def check(objects, source, layer):
    if not (source / layer).is_dir():
        yield f"src/{layer}: no such folder"
    needs = collections.defaultdict(dict)  # file -> other file -> why
    for file, other in includes(source, layer):
        needs[file][other] = f"{file}.h includes {other}.h"
    own = {path: file for path, file in objects.items() if file.startswith(f"{layer}/")}
    for file, other, symbol in uses(own) if own else ():
        if file != other:
            needs[file][other] = f"{file}.c uses {symbol} of {other}.c"
    for circle in circles(needs):
        yield f"src/{layer}: {len(circle)} files go round in a circle:"
        for file in circle:
            yield from (f"    {why}" for other, why in sorted(needs[file].items()) if other in circle)


def main():
    build, source, *layers = [*sys.argv[1:3], *([ROOT / "src"] if len(sys.argv) == 2 else []), *sys.argv[3:]]
    build, source = pathlib.Path(build).resolve(), pathlib.Path(source).resolve()
    layers = layers or read_rules()[3]["files"]
    objects = objects_of(build, source)
    problems = [problem for layer in layers for problem in check(objects, source, layer)]
    print("\n".join(problems) if problems else f"files: ok ({len(layers)} layers without circles)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
