"""Checks what a reader would trip over: long files, long functions, calls that the library must not make.

    check_style.py [--hand [--count]]

--hand: also that it reads as if one hand had written it: shorter functions, kernels and tests included; one name for a
status, one form of sizeof, one format for int64_t; prose of at most 120 columns. --count: only how often each rule is
broken, by folder."""

import argparse
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "include", "tests", "examples", "bench"]
FILE_LINES, EXAMPLE_LINES, FUNCTION_LINES = 600, 150, 100
HAND_FUNCTION_LINES, PROSE_COLUMNS = 49, 120
STATUS = "status"  # what a local fsdp_status is called

# call: folders where it is allowed
BANNED = {
    "gets alloca": [],
    "strcpy strcat sprintf vsprintf strtok": ["tests", "bench"],
    "exit abort": ["src/cli", "tests", "examples", "bench"],
    "printf vprintf puts putchar perror": ["src/cli", "tests", "examples", "bench"],
    "getenv secure_getenv setenv putenv": ["src/launch", "src/cli", "tests", "examples", "bench"],
    "malloc calloc realloc free strdup strndup asprintf vasprintf": ["src/base/alloc.c", "tests", "examples", "bench"],
}
# (file, call): reason. For memory that a vendor's library hands out or wants back.
ALLOWED = {
    ("src/format/plan.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/hub/save.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/backend/sim/sim_device.c", "getenv"): "its tests choose its timing",
    ("src/nn/print.c", "free"): "open_memstream hands out memory of the C library",
}

# file: why it may be longer.
LONG = {
    "tests/numbers/ops.h": "numbers made by a script",
}

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_noise(text):
    """The text with comments and literals blanked, every line where it was."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions(lines):
    """(line, length of the body) of each function."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            yield start, number - start - 1
            start = None


def check_length(path, lines):
    limit = EXAMPLE_LINES if path.parts[0] == "examples" else FILE_LINES
    if len(lines) > limit and str(path) not in LONG:
        yield f"{path}:{limit}: {len(lines)} lines, at most {limit}"
    if path.parts[:2] == ("src", "backend"):
        return  # kernels are long
    for start, length in functions(lines):
        if length > FUNCTION_LINES:
            yield f"{path}:{start}: a function of {length} lines, at most {FUNCTION_LINES}"


def check_calls(path, text):
    for calls, places in BANNED.items():
        if any(str(path) == place or str(path).startswith(place + "/") for place in places):
            continue
        for match in re.finditer(r"(?<![\w.>])(" + calls.replace(" ", "|") + r")\s*\(", text):
            if (str(path), match.group(1)) not in ALLOWED:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(1)}() must not be called here"


# ---- as if by one hand: (rule, line, message) ----


def read_types():
    """Names of types: what sizeof(NAME) may stand for."""
    names = set("void char short int long float double bool unsigned signed size_t struct union enum const".split())
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.[ch]"):
            text = without_noise(path.read_text())
            names.update(re.findall(r"^typedef [^;{]*?(\w+)(?:\[\w*\])?;", text, re.M))
            names.update(re.findall(r"^}[^;{]*?(\w+);", text, re.M))
            names.update(re.findall(r"^typedef [^;{]*\(\*(\w+)\)", text, re.M))
    return names


def in_macro(text, at):
    before = text[:at].splitlines()
    return before[-1].startswith("#define") or (len(before) > 1 and before[-2].endswith("\\"))


def check_forms(text, types):
    """`text` is without comments and literals."""
    other = "status" if STATUS == "st" else "st"
    for match in re.finditer(rf"^[ \t]+(?:static )?fsdp_status [^;(){{}}]*?\b{other}\b", text, re.M):
        yield "status", match.end(), f"a status is called '{STATUS}' here"
    for match in re.finditer(r"\bsizeof\s*\(\s*(\w*)", text):
        name = match.group(1)
        if name not in types and not name.endswith("_t") and not in_macro(text, match.start()):
            yield "sizeof", match.start(), "sizeof of an expression has no parentheses"


def check_formats(text):
    for match in re.finditer(r"\bPRI[diux]64\b", text):
        yield "format", match.start(), "an int64_t is printed with %lld, as (long long)"


def check_comments(text):
    for match in NOISE.finditer(text):
        if match.group()[0] != "/":
            continue
        for line in re.finditer(r"[^\n]+", match.group()):
            at = match.start() + line.start()
            begin = text.rfind("\n", 0, at) + 1
            if len(text[begin : match.start() + line.end()]) > PROSE_COLUMNS:
                yield "prose", at, f"a comment goes past column {PROSE_COLUMNS}"


def check_hand(path, text, types):
    clean = without_noise(text)
    found = [*check_forms(clean, types), *check_formats(text), *check_comments(text)]
    problems = [(rule, text.count("\n", 0, at) + 1, message) for rule, at, message in found]
    for start, length in functions(text.splitlines()):
        if length > HAND_FUNCTION_LINES:
            problems.append(("function", start, f"a function of {length} lines, at most {HAND_FUNCTION_LINES}"))
    return [(rule, f"{path}:{line}: {message}") for rule, line, message in sorted(problems, key=lambda p: p[1])]


def check_document(path, text):
    """Prose of a page: tables, code and links that do not fit a line are let be."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        code = fenced or line.startswith(("    ", "|", "```"))
        if len(line) > PROSE_COLUMNS and not code and " " in line[:PROSE_COLUMNS].strip():
            yield "prose", f"{path}:{number}: {len(line)} columns, at most {PROSE_COLUMNS}"


def check_pages():
    for full in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        yield from check_document(full.relative_to(ROOT), full.read_text())


# ---- all of it ----


def check_tree(hand):
    """Problems as (rule, message), and how many files were looked at."""
    types = read_types() if hand else None
    problems, count = [], 0
    for folder in FOLDERS:
        for full in sorted((ROOT / folder).rglob("*.[ch]")):
            path = full.relative_to(ROOT)
            text = full.read_text()
            count += 1
            problems += [("length", p) for p in check_length(path, text.splitlines())]
            problems += [("call", p) for p in check_calls(path, without_noise(text))]
            if hand:
                problems += check_hand(path, text, types)
    if hand:
        problems += check_pages()
    return problems, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hand", action="store_true", help="hold the rules of one hand, too")
    parser.add_argument("--count", action="store_true", help="only how often each rule is broken, by folder")
    options = parser.parse_args()
    problems, count = check_tree(options.hand)
    if options.count:
        for (rule, folder), times in sorted(collections.Counter((r, re.split("[/:]", p)[0]) for r, p in problems).items()):
            print(f"{rule:9} {folder:30} {times}")
    elif problems:
        print("\n".join(message for _, message in problems))
    else:
        print(f"style: ok ({count} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
