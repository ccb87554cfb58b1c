#!/usr/bin/env python3
"""null_arguments.py INCLUDE: writes a C function for each public function that is declared in INCLUDE/fsdp. It calls the
function with the arguments that null_arguments.c has for their types and names, except that those of `nulls` are NULL;
numbers are `number`, and values of enums one less.
"""
import re
import sys
from pathlib import Path

SKIPPED = {"fsdp_launch", "fsdp_objects_free"}  # the first starts programs; the second frees what it is given
SCALAR = re.compile(r"(u?int\d*(_t)?|size_t|float|double|bool)$")


def declared(text):
    """Yields the type, the name and the parameters of each function that does not take a variable number."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    for match in re.finditer(r"FSDP_API\s+([^;{]*?)(fsdp_\w+)\(([^;]*)\)\s*;", text):
        kind, name, rest = (" ".join(group.split()) for group in match.groups())
        if "..." not in rest and name not in SKIPPED:
            yield kind, name, [] if rest == "void" else re.split(r",(?![^(]*\))", rest)


def split(parameter):
    """Returns the type and the name of a parameter; a function's own type is left to the compiler."""
    parameter = parameter.strip()
    if "(*" in parameter:
        return None, ""
    match = re.match(r"(.*?[\s*])(\w+)(\[\w*\])?$", parameter)
    return match[1].strip() + (" *" if match[3] else ""), match[2]


def argument(index, parameter, opaque, enums, functions):
    kind, name = split(parameter)
    if kind is None or kind in functions:
        return "NULL"
    if "*" in kind:
        pointee = kind[: kind.rindex("*")].strip()
        plain = re.sub(r"\bconst *", "", pointee).strip()
        found = f'object_of("{plain}", {"NULL" if plain in opaque else "zeros"})'
        if pointee == "const char":
            found = f'text_of("{name}")'
        return f"nulls >> {index} & 1 ? NULL : ({kind}){found}"
    if kind in enums:
        return f"({kind})(number - 1)"
    return f"({kind})number" if SCALAR.match(kind) else f"({kind}){{0}}"


def main():
    names = []
    texts = [header.read_text() for header in sorted(Path(sys.argv[1], "fsdp").glob("*.h"))]
    seen = set(re.findall(r"struct (\w+) {", "".join(texts)))
    enums = set(re.findall(r"typedef enum (\w+)", "".join(texts)))
    functions = set(re.findall(r"typedef [^;{]*\(\*(\w+)\)", "".join(texts)))
    opaque = {name for tag, name in re.findall(r"typedef struct (\w+) (\w+);", "".join(texts)) if tag not in seen}
    for text in texts:
        for kind, name, parameters in declared(text):
            arguments = ", ".join(argument(i, p, opaque, enums, functions) for i, p in enumerate(parameters))
            pointers = sum(1 << i for i, p in enumerate(parameters) if "*" in p and "(*" not in p)
            body = f"    check_result({name}({arguments}));" if "*" in kind else f"    (void){name}({arguments});"
            print(f"static void call_{name}(unsigned nulls)\n{{\n    (void)nulls;\n{body}\n}}\n")
            names.append(f'    {{"{name}", call_{name}, {pointers}u, {len(parameters)}}},')
    print("static const struct call calls[] = {", *names, "};", sep="\n")


main()
