"""Writes src/tokenizer/unicode_data.c and nfc_data.c: what Hugging Face's tokenizers knows of every character.

    pip install tokenizers==0.23.3 unicodedata2==16.0.0 fonttools
    python3 tools/unicode_tables.py

Categories and scripts are those that its regular expressions match; they are of Unicode 16, and the script fails if
unicodedata2 disagrees. Form C is what its normalizer makes of each character: its tables are of Unicode 9, so no later
character is moved or joined. fonttools gives the names of scripts."""

import pathlib

import unicodedata2 as unicode
from fontTools.unicodedata import Scripts
from tokenizers import Regex, normalizers, pre_tokenizers

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "src" / "tokenizer"
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
JOINS = 255  # no combining class has this number
CATEGORIES = "Cc Cf Cn Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def members(regex):
    """Returns the code points that a regular expression of one character matches."""
    split, found = pre_tokenizers.Split(Regex(regex), "removed"), set()
    for at in range(0, len(CHARACTERS), 4096):
        block = CHARACTERS[at:at + 4096]
        left = set("".join(word for word, _ in split.pre_tokenize_str("".join(block))))
        found.update(ord(c) for c in block if c not in left)
    return found


def runs(value, usual):
    """Returns (first, value) of each run of equal values, from 0 to the last code point."""
    before = None
    for code in range(0x110000):
        now = value.get(code, usual)
        if now != before:
            yield code, now
        before = now


def in_turn(of):
    """Returns the categories with two more, for stretches in which capital and small letters take turns: after all
    categories the one in which even characters are small, and then the one in which odd characters are."""
    small, capital = CATEGORIES.index("Ll"), CATEGORIES.index("Lu")
    turned = dict(of)
    for code in range(1, 0x10FFFF):
        if {of[code - 1], of[code]} == {small, capital} and of[code + 1] == of[code - 1]:
            turn = len(CATEGORIES) + (code + (of[code] == capital)) % 2
            turned.update(dict.fromkeys(range(code - 1, code + 2), turn))
    return turned


def array(declaration, items, columns=120):
    lines, line = [f"{declaration} = {{"], "   "
    for item in items:
        if len(line) + len(item) + 2 > columns:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line, "};\n"])


def joined_runs(value):
    """Returns (first, value) of each run of equal values, where those without a value belong to the run before."""
    before = None
    for code in sorted(value):
        if value[code] != before:
            yield code, value[code]
        before = value[code]


def packed(pairs):
    return [f"0x{first << 8 | value:x}" for first, value in pairs]


# ---- categories and scripts ----

def categories():
    of = {code: CATEGORIES.index("Cs") for code in range(0xD800, 0xE000)}
    for index, name in enumerate(CATEGORIES):
        if name != "Cs":
            of.update(dict.fromkeys(members(rf"\p{{{name}}}"), index))
    assert unicode.unidata_version == "16.0.0"
    for code in range(0x110000):
        assert CATEGORIES[of[code]] == unicode.category(chr(code)), hex(code)
    return of


def scripts():
    names, of = [], {}
    for name in sorted(set(Scripts.NAMES.values()) - {"Unknown"}):
        try:
            found = members(rf"\p{{{name}}}")
        except Exception:  # of a later Unicode
            continue
        assert found and not found & of.keys(), name
        of.update(dict.fromkeys(found, len(names)))
        names.append(name)
    return names, of


# ---- form C ----

def combining_class(code):
    """Returns 0 for a character that the normalizer does not move."""
    c = chr(code)
    moves = nfd("q\u0301" + c) != "q\u0301" + nfd(c) or nfd("q" + c + "\u0334") != "q" + nfd(c) + "\u0334"
    return unicode.combining(c) if moves else 0


def decompositions():
    found = {}
    for c in CHARACTERS:
        code = ord(c)
        if nfd(c) != c and not 0xAC00 <= code < 0xD7A4:
            parts = [int(part, 16) for part in unicode.decomposition(c).split()]
            found[code] = (parts + [0])[:2]
    whole = {}
    for code in found:  # parts come before or after what they are parts of
        def take_apart(part):
            return "".join(map(take_apart, filter(None, found[part]))) if part in found else chr(part)
        whole[code] = take_apart(code)
        assert whole[code] == nfd(chr(code)), hex(code)
    return found


def doubtful(found):
    """Returns JOINS for a character that may join the one before it, or that the normalizer changes."""
    of = dict.fromkeys(range(0x1160, 0x1200), JOINS)  # vowels and last consonants of Hangul
    for code, (first, second) in found.items():
        if nfc(chr(code)) != chr(code):
            of[code] = JOINS
        elif second:
            of[second] = JOINS
    return of


def write(name, text):
    (SOURCES / name).write_text(text)


def write_unicode():
    names, script_of = scripts()
    category_of = categories()
    missing = {CATEGORIES.index(name) for name in ("Cn", "Co", "Cs")}
    for code in range(0x110000):
        assert (code in script_of) == (category_of[code] not in missing), hex(code)
    category_runs = packed(runs(in_turn(category_of), None))
    script_runs = packed(joined_runs(script_of))
    write("unicode_data.c", f"""/* unicode_data.c - categories and scripts of Unicode {unicode.unidata_version}: made by tools/unicode_tables.py.
 * Derived from the Unicode Character Database: docs/dependencies.md has its notice. */
#include "tokenizer/unicode_data.h"

/* clang-format off */
{array(f"const uint32_t fsdp__category_runs[FSDP__CATEGORY_RUNS]", category_runs)}
{array(f"const uint32_t fsdp__script_runs[FSDP__SCRIPT_RUNS]", script_runs)}
{array(f"const char *const fsdp__script_names[FSDP__SCRIPTS]", [f'"{name}"' for name in names])}/* clang-format on */
""")
    return len(category_runs), len(script_runs), len(names)


def write_nfc():
    combining = {code: combining_class(code) for code in map(ord, CHARACTERS)}
    found = decompositions()
    classes = doubtful(found) | {code: value for code, value in combining.items() if value}
    class_runs = packed(runs(classes, 0))
    order = sorted(found)
    composed = sorted((found[code], order.index(code)) for code in order if nfc(nfd(chr(code))) == chr(code))
    stretches = [f"0x{code << 12 | at:x}" for at, code in enumerate(order) if code - 1 not in found]
    seconds = sorted({second for _, second in found.values()})
    pairs = packed((found[code][0], seconds.index(found[code][1])) for code in order)
    write("nfc_data.c", f"""/* nfc_data.c - combining classes, and what characters are made of: made by tools/unicode_tables.py.
 * Derived from the Unicode Character Database: docs/dependencies.md has its notice. */
#include "tokenizer/unicode_data.h"

/* clang-format off */
{array(f"const uint32_t fsdp__combining_runs[FSDP__COMBINING_RUNS]", class_runs)}
{array(f"const uint32_t fsdp__decomposed[FSDP__DECOMPOSED]", stretches)}
{array(f"const uint32_t fsdp__decompositions[FSDP__DECOMPOSITIONS]", pairs)}
{array(f"const uint32_t fsdp__second_parts[FSDP__SECOND_PARTS]", [f"0x{second:x}" for second in seconds])}
{array(f"const uint16_t fsdp__compositions[FSDP__COMPOSITIONS]", [str(at) for _, at in composed])}/* clang-format on */
""")
    return len(class_runs), len(stretches), len(pairs), len(seconds), len(composed)


if __name__ == "__main__":
    sizes = write_unicode() + write_nfc()
    kinds = ("CATEGORY_RUNS SCRIPT_RUNS SCRIPTS COMBINING_RUNS "
             "DECOMPOSED DECOMPOSITIONS SECOND_PARTS COMPOSITIONS").split()
    for kind, size in zip(kinds, sizes):
        print(f"    FSDP__{kind} = {size},")
