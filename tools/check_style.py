"""Checks what a reader would trip over: long files, functions and lines of prose, calls that the library must not make,
comments and pages that name a file which is not there, and more than one hand: how headers begin, one name for a
status, one form of sizeof, one format for int64_t; calls that FSDP__MIN and FSDP__MAX would make twice; and tests that
would take their seeds from one variable."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["src", "include", "tests", "examples", "bench"]
ENDINGS = {".c", ".h", ".cu", ".cuh", ".cpp"}
FILE_LINES, EXAMPLE_LINES, FUNCTION_LINES, PROSE_COLUMNS = 600, 150, 49, 120

# call: folders where it is allowed
BANNED = {
    "gets alloca": [],
    "strcpy strcat sprintf vsprintf strtok": ["tests", "bench"],
    "exit _exit _Exit quick_exit abort": ["src/cli", "tests", "examples", "bench"],
    "printf vprintf puts putchar perror": ["src/cli", "tests", "examples", "bench"],
    "getenv secure_getenv setenv putenv": ["src/launch", "src/cli", "src/check", "tests", "examples", "bench"],
    "malloc calloc realloc free strdup strndup asprintf vasprintf": ["src/base/alloc.c", "tests", "examples", "bench"],
}
# (file, call): reason. For memory that a vendor's library hands out or wants back.
ALLOWED = {
    ("src/base/text.c", "vasprintf"): "base/alloc.c reports its errors by messages that are made here",
    ("src/base/text.c", "free"): "vasprintf hands out memory of the C library",
    ("src/format/weights_plan.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/checkpoint/manifest_write.c", "free"): "json_dumps hands out memory of jansson's own",
    ("src/nn/print_module.c", "free"): "open_memstream hands out memory of the C library",
    ("src/shard/state/lazy_init.c", "free"): "open_memstream hands out memory of the C library",
    ("src/shard/doors/replicate.c", "free"): "open_memstream hands out memory of the C library",
    ("src/backend/cuda/cuda_activity.c", "free"): "__cxa_demangle hands out memory of the C library",
    ("src/cli/restarts.c", "free"): "fsdp_checkpoint_find hands out memory of the C library",
    ("src/train/checkpoint_values.c", "free"): "open_memstream hands out memory of the C library",
    ("src/train/resume.c", "free"): "fsdp_checkpoint_find hands out memory of the C library",
    ("src/comm/transport/network/deadline.c", "_exit"): "nobody is left to return to: what waits is in the carrier",
    ("src/launch/spawn.c", "_exit"): "a child that could not become the rank",
    ("src/launch/guardian.c", "_exit"): "a child that has nothing to return to",
    ("src/comm/mpi/start.c", "getenv"): "the environment says which MPI has started a process",
    ("src/base/find_plugin.c", "getenv"): "the environment says where plug-ins lie",
    ("src/data/parquet.c", "getenv"): "the environment says where Arrow's library lies",
    ("src/backend/cuda/libraries.c", "getenv"): "the environment says where NVIDIA's libraries lie",
    ("src/comm/mpi/plugin/plugin.c", "calloc"): "a plug-in uses nothing of the library",
    ("src/comm/mpi/plugin/plugin.c", "free"): "a plug-in uses nothing of the library",
    ("src/comm/mpi/plugin/messages.c", "malloc"): "a plug-in uses nothing of the library",
    ("src/comm/mpi/plugin/messages.c", "free"): "a plug-in uses nothing of the library",
}

# file: why it may be longer.
LONG = {
    "src/tokenizer/nfc_data.c": "a table made by a script",
    "examples/08_cnn.c": "makes its own files, too",
    "examples/11_own_kernel.cu": "a module with its kernels, and what checks it",
    "examples/load_both_ways.c": "two programs, with what they have in common",
}

# FSDP__MIN and FSDP__MAX evaluate what they give twice. These only compute it, from the same numbers and in no time.
COMPUTES = set("""FSDP__COUNT_OF FSDP__MAX FSDP__MIN FSDP__ROOM FSDP__SHOWN_NAME atof bytes_of ceil cell_text
    digits_of end_of_run fabs fmax fsdp__ahead fsdp__ceil_div fsdp__device_rounded fsdp__end_query fsdp__first_key
    fsdp__first_query fsdp__flight_wall fsdp__keys_seen fsdp__layer_code_of fsdp__messages_of fsdp__mixture_count
    fsdp__operand_turned fsdp__param_numel fsdp__part_box fsdp__peers_fresh_ticks fsdp__reduce_dtype fsdp__rotary_dim
    fsdp__shape_numel fsdp__sum_of_calls fsdp__svg_range_place fsdp__threads fsdp_checkpoint_at fsdp_checkpoint_file_at
    fsdp_checkpoint_value_at fsdp_dtype_size half_ns integer_at is_behind log numel_bytes numel_of operand_bytes
    packed_bytes part_bytes part_numel policy_of range_of remaining resident_of result_bytes room_for room_for_rows
    rounded sizeof sqrt strlen strtoll sum_of tick_distance whole_steps without_workspace""".split())

FILE_NAME = re.compile(r"(?<![\w./<-])[a-z0-9_]+(?:/[\w-]+)*\.(?:c|h|cu|cuh)\b(?![\w*>-])")
NOT_OURS = {"fsdp.c": "this project", "llm.c": "another project", "my_program.c": "a file of the reader's"}


def sources():
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS)


NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_noise(text):
    """Returns the text with comments and literals blanked, and every line where it was."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions(lines):
    """Yields (line, length of the body) of each function."""
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


# ---- as if by one hand: (place in the text, message) ----


def read_types():
    """Returns the names of types, which sizeof(NAME) may have."""
    names = set("void char short int long float double bool unsigned signed size_t struct union enum const typename atomic_int".split())
    for path in sources():
        text = without_noise(path.read_text())
        names.update(re.findall(r"^typedef [^;{]*?(\w+)(?:\[\w*\])?;", text, re.M))
        names.update(re.findall(r"^}[^;{]*?(\w+);", text, re.M))
        names.update(re.findall(r"^typedef [^;{]*\(\*(\w+)\)", text, re.M))
        if path.suffix not in {".c", ".h"}:
            names.update(re.findall(r"^struct (?:.*[)\]] )?(\w+)", text, re.M))
            names.update(re.findall(r"\b(?:class|typename) (\w+)", text))
    return names


def in_macro(text, at):
    before = text[:at].splitlines()
    return before[-1].startswith("#define") or (len(before) > 1 and before[-2].endswith("\\"))


def argument_text(text, start):
    """Returns the text from `start`, behind a parenthesis, to the one that closes it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start:end]


def check_forms(text, types):
    """Checks that things are written in one way. `text` is without comments and literals."""
    for match in re.finditer(r"^[ \t]+(?:static )?fsdp_status [^;(){}]*?\bst\b", text, re.M):
        yield match.end(), "a status is called 'status'"
    for match in re.finditer(r"\bsizeof\s*\(\s*(\w*)", text):
        name = match.group(1)
        if name not in types and not name.endswith("_t") and not in_macro(text, match.start()):
            yield match.start(), "sizeof of an expression has no parentheses"
    for match in re.finditer(r"\bPRI[diux]64\b", text):
        yield match.start(), "an int64_t is printed with %lld, as (long long)"
    for match in re.finditer(r"\bFSDP__(?:MIN|MAX)\(", text):
        for call in sorted(set(re.findall(r"\b([A-Za-z_]\w*)\(", argument_text(text, match.end()))) - COMPUTES):
            yield match.start(), f"{call}() would be called twice: give its value a name before"


def read_file_names():
    """Returns the names by which a text may mean a file: the ends of its path."""
    paths = [full.relative_to(ROOT).parts for full in sources()]
    return {"/".join(parts[i:]) for parts in paths for i in range(len(parts))}


def check_names(text, names):
    for match in FILE_NAME.finditer(text):
        if match.group() not in names and match.group() not in NOT_OURS:
            yield match.start(), f"no file is called {match.group()}"


def check_comments(text, names):
    for match in NOISE.finditer(text):
        if match.group()[0] != "/":
            continue
        for at, message in check_names(match.group(), names):
            yield match.start() + at, message
        for line in re.finditer(r"[^\n]+", match.group()):
            at = match.start() + line.start()
            begin = text.rfind("\n", 0, at) + 1
            if len(text[begin : match.start() + line.end()]) > PROSE_COLUMNS:
                yield at, f"a comment goes past column {PROSE_COLUMNS}"


SEEDS = re.compile(r'(?:dice_seeds_of\(|tree_trial trial = \{\.name = )"(\w+)"')


def check_seeds(path, text, owners):
    """Checks that the variables of a test's seeds belong to one file, and notes them in `owners`."""
    for match in SEEDS.finditer(text):
        owner = owners.setdefault(match.group(1), path)
        if owner != path:
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: FSDP_{match.group(1)}_SEED is of {owner}: give these seeds a name of their own"


# This one is included twice, with other macros.
TWICE = {"src/device/activations.h"}


def check_guard(path, text):
    """Checks that a header cannot be included twice. Public ones have guards: they may lie in two places."""
    if path.suffix not in {".h", ".cuh"} or str(path) in TWICE:
        return
    if path.parts[0] == "include" and not re.search(r"^#ifndef (\w+)\n#define \1\n", text, re.M):
        yield f"{path}:1: a public header has a guard: #ifndef FSDP_NAME_H"
    if path.parts[0] != "include" and "\n#pragma once\n" not in text:
        yield f"{path}:1: a header begins with #pragma once"


def check_hand(path, text, types, names):
    for at, message in sorted([*check_forms(without_noise(text), types), *check_comments(text, names)]):
        line = text.count("\n", 0, at) + 1
        yield f"{path}:{line}: {message}"


def check_page(path, lines, names):
    """Checks the prose of a page. Tables, code and links may be longer than a line."""
    fenced = False
    for number, line in enumerate(lines, 1):
        for _, message in check_names(line, names):
            yield f"{path}:{number}: {message}"
        fenced ^= line.startswith("```")
        code = fenced or line.startswith(("    ", "|", "```"))
        if len(line) > PROSE_COLUMNS and not code and " " in line[:PROSE_COLUMNS].strip():
            yield f"{path}:{number}: {len(line)} columns, at most {PROSE_COLUMNS}"


def main():
    types, names, owners = read_types(), read_file_names(), {}
    problems, count = [], 0
    for full in sources():
        path, text = full.relative_to(ROOT), full.read_text()
        count += 1
        problems += check_length(path, text.splitlines())
        problems += check_calls(path, without_noise(text))
        problems += check_guard(path, text)
        problems += check_hand(path, text, types, names)
        problems += check_seeds(path, text, owners)
    for full in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        count += 1
        problems += check_page(full.relative_to(ROOT), full.read_text().splitlines(), names)
    if problems:
        print("\n".join(problems))
        return 1
    print(f"style: ok ({count} files)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
