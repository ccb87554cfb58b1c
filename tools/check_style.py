"""Checks what a reader would trip over: long files, long functions, calls that the library must not make."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "include", "tests", "examples", "bench"]
FILE_LINES, EXAMPLE_LINES, FUNCTION_LINES = 600, 150, 100

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
    ("src/hub/layout.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/hub/save.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/backend/sim/sim_device.c", "getenv"): "its tests choose its timing",
    ("src/nn/print.c", "free"): "open_memstream hands out memory of the C library",
}

# file: why it may be longer.
LONG = {
    "tests/ops/reference.h": "numbers made by a script",
    "tests/backend/reference.h": "a list of plain kernels, read one at a time",
}

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_noise(text):
    """The text with comments and literals blanked, every line where it was."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def check_length(path, lines):
    limit = EXAMPLE_LINES if path.parts[0] == "examples" else FILE_LINES
    if len(lines) > limit and str(path) not in LONG:
        yield f"{path}:{limit}: {len(lines)} lines, at most {limit}"
    if path.parts[:2] == ("src", "backend"):
        return  # kernels are long
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            if number - start - 1 > FUNCTION_LINES:
                yield f"{path}:{start}: a function of {number - start - 1} lines, at most {FUNCTION_LINES}"
            start = None


def check_calls(path, text):
    for calls, places in BANNED.items():
        if any(str(path) == place or str(path).startswith(place + "/") for place in places):
            continue
        for match in re.finditer(r"(?<![\w.>])(" + calls.replace(" ", "|") + r")\s*\(", text):
            if (str(path), match.group(1)) not in ALLOWED:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match.group(1)}() must not be called here"


def main():
    problems, count = [], 0
    for folder in FOLDERS:
        for full in sorted((ROOT / folder).rglob("*.[ch]")):
            path = full.relative_to(ROOT)
            text = full.read_text()
            count += 1
            problems += check_length(path, text.splitlines())
            problems += check_calls(path, without_noise(text))
    print("\n".join(problems) if problems else f"style: ok ({count} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
