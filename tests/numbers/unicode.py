"""Writes unicode.h: what Hugging Face's tokenizers makes of every character, and of random patterns.

    pip install tokenizers==0.23.3
    python3 tests/numbers/unicode.py > tests/numbers/unicode.h"""

import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CHARACTERS = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Cc Cf Cn Co Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs L M N P S Z C LC"
SCRIPTS = "Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari Common Inherited Garay"
KINDS = [rf"\p{{{name}}}" for name in f"{CATEGORIES} {SCRIPTS} Space".split()] + [
    r"\s", r"\S", r"\d", r"\w", r"[\w]", r"\W", r"\h", ".", r"[^\s\p{L}\p{N}]", r"[^\r\n\p{L}\p{N}]", r"\p{^L}", r"\P{M}",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{P}\p{S}]", "(?i:s)", "(?i:k)", "(?i:[a-z])",
    "(?i:[^a-z])", "(?i:t)", "[一-龥぀-ゟ゠-ヿ]"]


def number(text):
    """Returns the FNV-1a hash of what would be too long to keep."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"0x{value:016x}"


def literal(text):
    """Returns the text as a literal of C."""
    return '"' + "".join("\\" + c if c in '"\\' else c if " " <= c <= "~" and c != "?" else
                         "".join(f"\\{byte:03o}" for byte in c.encode()) for c in text) + '"'


def words(regex, text):
    return [word for word, _ in pre_tokenizers.Split(Regex(regex), "isolated").pre_tokenize_str(text)]


# ---- of every character ----

def members(regex):
    """Returns the characters that a pattern of one character matches."""
    split, found = pre_tokenizers.Split(Regex(regex), "removed", invert=True), []
    for at in range(0, len(CHARACTERS), 4096):
        found += [word for word, _ in split.pre_tokenize_str("".join(CHARACTERS[at:at + 4096]))]
    return "".join(found)


def word_characters():
    """Returns the characters that may not stand beside a token with single_word."""
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_tokens([AddedToken("a b", single_word=True, normalized=False)])
    return "".join(c for c in CHARACTERS if 1 not in tokenizer.encode("a b" + c).ids)


def digits():
    split = pre_tokenizers.Digits(individual_digits=True)
    return "".join(c for c in CHARACTERS if len(split.pre_tokenize_str("x" + c)) > 1)


def form_c():
    """Normalizes each character after a mark, and before one."""
    nfc = normalizers.NFC().normalize_str
    yield "behind", "".join(nfc("q\u0301" + c) for c in CHARACTERS)
    yield "before", "".join(nfc("q" + c + "\u0334") for c in CHARACTERS)


# ---- patterns ----

ATOMS = r"""a b c s f 1 \n . \d \w \s \S \D \W \h \p{L} \p{N} \p{Lu} \p{P} \p{^L} \P{M} \p{Han} [abc] [^abc] [a-c]
    [^\s\p{L}] [\p{Ll}\p{M}] [\w-] [-a] []a] [^]a] [+--] [^a-z] [A-Z] 中 é ' ’ - \. \{ { } ] , \x41 \x{4e2d} \u00e9 \v \z
    \A ^ $ [a-c-e] [&a] [.] [$^] [\]] [\h] [^\S\n] [^\p{^L}]""".split()
REPEATS = [""] * 8 + "* + ? *? +? ?? *+ ++ ?+ {2} {1,2} {2,} {,3} {,} {1,2}? {2}? {1,2}+ {2}+ {2 {0} {,0} {} +* +??".split()
GROUPS = "( (?: (?: (?= (?! (?> (?<= (?<! (?i: (?m: (?-i:".split()
TEXT = list("aabbccsftSK12  \n\r'’.,-{}]") + ["ſ", "\u212a", "ß", "é", "中", "\u0301", "½", "\u3000", "\u180e", "\u2028",
                                                "\x0b", "\x85", "\U0001fa77", "\ua7cb"]


def draw(dice, depth=0):
    pattern = ""
    for _ in range(dice.randint(1, 4)):
        kind = dice.random()
        if kind < 0.2 and depth < 3:
            pattern += dice.choice(GROUPS) + draw(dice, depth + 1) + ")" + dice.choice(REPEATS)
        elif kind < 0.3:
            pattern += dice.choice(["|", "|", "|", "(?i)"])
        else:
            pattern += dice.choice(ATOMS) + dice.choice(REPEATS)
    return pattern


def drawn(count):
    dice = random.Random(16)
    while count > 0:
        pattern, text = draw(dice), "".join(dice.choice(TEXT) for _ in range(dice.randint(4, 16)))
        try:
            parts = words(pattern, text)
        except Exception:  # Oniguruma refuses it
            continue
        if len(parts) > 1:
            count -= 1
            yield pattern, text, parts


print(f"/* numbers/unicode.h - made by unicode.py with tokenizers {tokenizers.__version__}. */")
print("#ifndef TESTS_NUMBERS_UNICODE_H\n#define TESTS_NUMBERS_UNICODE_H\n\n#include <stdint.h>\n\n/* clang-format off */")
print("/* Characters that a pattern matches: how many, and FNV-1a of them in their order. */")
print("static const struct {\n    const char *pattern;\n    int64_t count;\n    uint64_t number;\n} kinds[] = {")
for kind in KINDS:
    found = members(kind)
    print(f"    {{{literal(kind)}, {len(found)}, {number(found)}}},")
print("};\n")
for name, found in (("word_characters", word_characters()), ("digits", digits())):
    print(f"static const uint64_t {name} = {number(found)}; /* {len(found)} */")
for name, text in form_c():
    print(f"static const uint64_t form_c_{name} = {number(text)};")
print("\n/* Patterns, a text, and its words. */\nstatic const char *const drawn[][3] = {")
for pattern, text, parts in drawn(300):
    print(f"    {{{literal(pattern)}, {literal(text)}, {literal('|'.join(parts))}}},")
print("};\n/* clang-format on */\n\n#endif")
