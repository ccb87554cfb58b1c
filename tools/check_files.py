"""check_files.py BUILD-DIRECTORY [SOURCE-DIRECTORY LAYER...]: finds circles between the files of a layer, or its rooms.

A file is a .c with the .h of its name. It needs another file if its objects use a symbol that the other's objects
define, or if its header includes the other's header. Files that need each other, directly or through others, are one
file in several places.

A room is a folder of a layer that a line "rooms" in src/LAYERS names; "." is the layer's own folder. A room may use
those named before it, by symbols and by any #include. Each folder with files must be named, or lie in one that is
named. If the layer's own folder is not named, its uses do not count.

All layers of src/LAYERS are checked, or those given."""

import collections
import json
import fnmatch
import pathlib
import re
import shlex
import subprocess
import sys

from check_layers import INCLUDE, ROOT, read_rules


TESTS = re.compile(r"/CMakeFiles/((fsdp_)?(test|program|bench)_|fake)")
# A plug-in gives the library's functions there under their own names.
FORWARDS = {"backend/cuda/host_functions"}


def objects_of(build, source):
    """Returns what the build folder was told to compile: object -> its source as layer/.../name, without the ending.
    Leaves out what tests and benchmarks compile once more for themselves, because it need not be built."""
    result = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path, command = pathlib.Path(entry["file"]), shlex.split(entry["command"])
        object_path = pathlib.Path(entry["directory"], command[command.index("-o") + 1])
        if path.is_relative_to(source) and not TESTS.search(str(object_path)):
            result[str(object_path)] = str(path.relative_to(source).with_suffix(""))
    return result


def uses(objects):
    """Returns what nm says: (file, file whose symbol it uses, symbol)."""
    text = subprocess.run(["nm", "-A", "-P", *objects], check=True, capture_output=True, text=True).stdout
    lines = [line.partition(": ") for line in text.splitlines()]
    found = [(objects[path], *rest.split()[:2]) for path, _, rest in lines]
    home = {symbol: file for file, symbol, kind in found if kind.isupper() and kind != "U"}
    return [(file, home[symbol], symbol) for file, symbol, kind in found if kind == "U" and symbol in home]


def includes(source, layer):
    """Yields what files of a layer include: (path, header), both as layer/.../name with the ending."""
    for path in sorted(path for path in (source / layer).rglob("*") if path.suffix in {".c", ".h", ".cu", ".cuh"}):
        for match in INCLUDE.finditer(path.read_text()):
            if match.group(1) == '"' and match.group(2).startswith(f"{layer}/"):
                yield str(path.relative_to(source)), match.group(2)


def circles(graph):
    """Returns the sets of nodes that all reach each other (Tarjan's algorithm)."""
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


def check_rooms(layer, rooms, arrows):
    """Returns the uses (file, file, why) of a room that is named later."""

    def room_of(file):
        folder = file.partition("/")[2].rpartition("/")[0]
        inside = [room for room in rooms if f"{folder}/".startswith(f"{room}/")]
        return max(inside, key=len, default=folder or ".")

    for folder in sorted({room_of(file) for file, _, _ in arrows} - {*rooms, "."}):
        yield f"src/{layer}: the line 'rooms {layer}' in src/LAYERS does not name {folder}"
    for file, other, why in arrows:
        room, needed = room_of(file), room_of(other)
        if room in rooms and needed in rooms and rooms.index(needed) > rooms.index(room):
            yield f"src/{layer}: {room} may not use {needed}: {why}"


def check(objects, source, layer, rooms):
    if not (source / layer).is_dir():
        yield f"src/{layer}: no such folder"
    needs = collections.defaultdict(dict)  # file -> other file -> why
    arrows = []
    for path, header in includes(source, layer):
        file, other, why = path.rpartition(".")[0], header.rpartition(".")[0], f"{path} includes {header}"
        arrows.append((file, other, why))
        if path.endswith((".h", ".cuh")):
            needs[file][other] = why
    own = {path: file for path, file in objects.items() if file.startswith(f"{layer}/") and file not in FORWARDS}
    for file, other, symbol in uses(own) if own else ():
        if file != other:
            needs[file][other] = why = f"{file}.c uses {symbol} of {other}.c"
            arrows.append((file, other, why))
    for circle in circles(needs):
        yield f"src/{layer}: {len(circle)} files go round in a circle:"
        for file in circle:
            yield from (f"    {why}" for other, why in sorted(needs[file].items()) if other in circle)
    if rooms:
        yield from check_rooms(layer, rooms, arrows)


def check_listed_rooms(source):
    """The page's list of the rooms of shard/ has all of its files, and no other."""
    text = (ROOT / "docs/design.md").read_text().split("### The rooms of `shard/`", 1)[1].split("```")[1]
    files = {str(f.relative_to(source / "shard"))[:-2] for f in (source / "shard").rglob("*.[ch]")}
    listed, room = [], ""
    for line in text.strip().split("\n"):
        if not line.startswith(" "):
            room = line.split("/")[0]
        else:
            listed += [f"{room}/{name}" for name in re.split(", *", line[2:38].strip().rstrip(","))]
    for name in listed:
        if not fnmatch.filter(files, name):
            yield f"docs/design.md lists shard/{name}, which is no file"
    for file in sorted(files):
        if not any(fnmatch.fnmatch(file, name) for name in listed):
            yield f"docs/design.md does not list shard/{file}"


def main():
    build, source, *layers = [*sys.argv[1:3], *([ROOT / "src"] if len(sys.argv) == 2 else []), *sys.argv[3:]]
    build, source = pathlib.Path(build).resolve(), pathlib.Path(source).resolve()
    rules = read_rules(source)
    objects, rooms = objects_of(build, source), rules[3]
    layers = layers or rules[0]
    problems = [problem for layer in layers for problem in check(objects, source, layer, rooms.get(layer))]
    if source == ROOT / "src":
        problems += check_listed_rooms(source)
    print("\n".join(problems) if problems else f"files: ok ({len(layers)} layers without circles, {len(rooms)} with rooms)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
