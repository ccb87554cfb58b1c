/* unicode.c - sets of characters, as bits. */
#include "tokenizer/unicode.h"

#include <string.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "tokenizer/unicode_data.h"
#include "tokenizer/utf8.h"

#define LETTERS (1u << FSDP__LL | 1u << FSDP__LM | 1u << FSDP__LO | 1u << FSDP__LT | 1u << FSDP__LU)
#define MARKS (1u << FSDP__MC | 1u << FSDP__ME | 1u << FSDP__MN)
#define WITHOUT_SCRIPT (1u << FSDP__CN | 1u << FSDP__CO | 1u << FSDP__CS)
#define WORD (LETTERS | MARKS | 1u << FSDP__ND | 1u << FSDP__NL | 1u << FSDP__PC)

/* Lists circled and squared letters, whose category is symbol, but which are alphabetic. */
static const uint32_t alphabetic_symbols[][2] = {
    {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

size_t fsdp__last_up_to(const uint32_t *entries, size_t count, uint32_t mask, uint64_t key)
{
    size_t low = 0;

    while (count > 1) { /* it is one of `count` from `low` on */
        size_t half = count / 2;

        low += (entries[low + half] & mask) <= key ? half : 0; /* not a branch, which no processor could foretell */
        count -= half;
    }
    return low;
}

/* Returns the index of the run that `character` is in. */
static size_t run_of(const uint32_t *runs, size_t count, uint32_t character)
{
    return fsdp__last_up_to(runs, count, UINT32_MAX, (uint64_t)character << 8 | 0xff);
}

static uint32_t end_of_run(const uint32_t *runs, size_t count, size_t run)
{
    return run + 1 < count ? runs[run + 1] >> 8 : FSDP__CHARACTERS;
}

/* Returns the category of a character in a run with this value. The two values after all categories are those of runs
 * in which small and capital letters take turns: even characters are small in the first, and odd ones in the second. */
static fsdp__category category_in(uint32_t value, uint32_t character)
{
    if (value < FSDP__CATEGORIES)
        return (fsdp__category)value;
    return (value - FSDP__CATEGORIES + character) % 2 ? FSDP__LU : FSDP__LL;
}

fsdp__category fsdp__category_of(uint32_t character)
{
    size_t run = run_of(fsdp__category_runs, FSDP__CATEGORY_RUNS, character);

    return category_in(fsdp__category_runs[run] & 0xff, character);
}

unsigned fsdp__combining_class(uint32_t character)
{
    return fsdp__combining_runs[run_of(fsdp__combining_runs, FSDP__COMBINING_RUNS, character)] & 0xff;
}

uint64_t fsdp__unicode_hash(uint64_t hash)
{
    hash = fsdp__hash_bytes(hash, fsdp__category_runs, sizeof fsdp__category_runs);
    hash = fsdp__hash_bytes(hash, fsdp__script_runs, sizeof fsdp__script_runs);
    for (int i = 0; i < FSDP__SCRIPTS; i++)
        hash = fsdp__hash_bytes(hash, fsdp__script_names[i], strlen(fsdp__script_names[i]) + 1);
    hash = fsdp__hash_bytes(hash, fsdp__combining_runs, sizeof fsdp__combining_runs);
    hash = fsdp__hash_bytes(hash, fsdp__decomposed, sizeof fsdp__decomposed);
    hash = fsdp__hash_bytes(hash, fsdp__decompositions, sizeof fsdp__decompositions);
    hash = fsdp__hash_bytes(hash, fsdp__second_parts, sizeof fsdp__second_parts);
    return fsdp__hash_bytes(hash, fsdp__compositions, sizeof fsdp__compositions);
}

bool fsdp__is_word_character(uint32_t character)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(alphabetic_symbols); i++)
        if (character >= alphabetic_symbols[i][0] && character <= alphabetic_symbols[i][1])
            return true;
    return WORD >> fsdp__category_of(character) & 1 || character == 0x200c || character == 0x200d; /* the joiners */
}

/* ---- sets ---- */

void fsdp__charset_clear(fsdp__charset *set)
{
    memset(set, 0, sizeof *set);
}

void fsdp__charset_add(fsdp__charset *set, uint32_t first, uint32_t last)
{
    for (uint32_t word = first / 64; word <= last / 64; word++) {
        uint64_t bits = UINT64_MAX;

        if (word == first / 64)
            bits &= UINT64_MAX << first % 64;
        if (word == last / 64)
            bits &= UINT64_MAX >> (63 - last % 64);
        set->words[word] |= bits;
    }
}

/* Adds the characters from `from` to before `to` whose categories are in the mask. */
static void add_between(fsdp__charset *set, uint32_t mask, uint32_t from, uint32_t to)
{
    for (size_t run = run_of(fsdp__category_runs, FSDP__CATEGORY_RUNS, from); from < to; run++) {
        uint32_t value = fsdp__category_runs[run] & 0xff;
        uint32_t end = FSDP__MIN(end_of_run(fsdp__category_runs, FSDP__CATEGORY_RUNS, run), to);
        bool one = mask >> category_in(value, from) & 1, other = mask >> category_in(value, from + 1) & 1;

        if (one && other)
            fsdp__charset_add(set, from, end - 1);
        else if (one || other)
            for (from += other; from < end; from += 2)
                fsdp__charset_add(set, from, from);
        from = end;
    }
}

void fsdp__charset_add_categories(fsdp__charset *set, uint32_t mask)
{
    add_between(set, mask, 0, FSDP__CHARACTERS);
}

static void add_script(fsdp__charset *set, unsigned script)
{
    for (size_t i = 0; i < FSDP__SCRIPT_RUNS; i++)
        if ((fsdp__script_runs[i] & 0xff) == script)
            add_between(set, ~WITHOUT_SCRIPT, fsdp__script_runs[i] >> 8,
                        end_of_run(fsdp__script_runs, FSDP__SCRIPT_RUNS, i));
}

void fsdp__charset_add_white_space(fsdp__charset *set)
{
    for (uint32_t character = 0; character <= FSDP__LAST_WHITE_SPACE; character++)
        if (fsdp__is_white_space(character))
            fsdp__charset_add(set, character, character);
}

void fsdp__charset_add_word(fsdp__charset *set, bool in_class)
{
    /* the fractions and superscripts of Latin-1, and no others */
    static const char fractions[] = "\xb2\xb3\xb9\xbc\xbd\xbe";

    fsdp__charset_add_categories(set, WORD);
    for (size_t i = 0; i < FSDP__COUNT_OF(alphabetic_symbols); i++)
        fsdp__charset_add(set, alphabetic_symbols[i][0], alphabetic_symbols[i][1]);
    for (const char *at = fractions; *at && !in_class; at++)
        fsdp__charset_add(set, (unsigned char)*at, (unsigned char)*at);
}

void fsdp__charset_unite(fsdp__charset *set, const fsdp__charset *other, bool inverted)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(set->words); i++)
        set->words[i] |= inverted ? ~other->words[i] : other->words[i];
}

bool fsdp__charset_has(const fsdp__charset *set, uint32_t character)
{
    return set->words[character / 64] >> character % 64 & 1;
}

uint32_t fsdp__charset_next(const fsdp__charset *set, uint32_t from)
{
    while (from < FSDP__CHARACTERS) {
        uint64_t bits = set->words[from / 64] >> from % 64;

        if (bits)
            return from + (uint32_t)__builtin_ctzll(bits);
        from = (from / 64 + 1) * 64;
    }
    return FSDP__CHARACTERS;
}

/* ---- properties ---- */

static size_t plain_name(const char *name, size_t bytes, char *out, size_t room)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes && count + 1 < room; i++)
        if (name[i] != ' ' && name[i] != '_' && name[i] != '-')
            out[count++] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + ('a' - 'A') : name[i]);
    out[count] = '\0';
    return count;
}

/* Returns the mask of the categories whose names begin with `name`. */
static uint32_t categories_of(const char *name, size_t bytes)
{
    static const char names[FSDP__CATEGORIES][3] = {"cc", "cf", "cn", "co", "cs", "ll", "lm", "lo", "lt", "lu",
                                                    "mc", "me", "mn", "nd", "nl", "no", "pc", "pd", "pe", "pf",
                                                    "pi", "po", "ps", "sc", "sk", "sm", "so", "zl", "zp", "zs"};
    uint32_t mask = 0;

    for (int i = 0; i < FSDP__CATEGORIES && bytes > 0; i++)
        mask |= (uint32_t)(strncmp(name, names[i], bytes) == 0) << i;
    return mask;
}

bool fsdp__charset_add_property(fsdp__charset *set, const char *name, size_t bytes)
{
    char plain[64], script[64];
    size_t count = plain_name(name, bytes, plain, sizeof plain);
    uint32_t mask = categories_of(plain, count);

    if (strcmp(plain, "lc") == 0)
        mask = 1u << FSDP__LL | 1u << FSDP__LT | 1u << FSDP__LU;
    if (strcmp(plain, "any") == 0)
        mask = UINT32_MAX;
    if (mask) {
        fsdp__charset_add_categories(set, mask);
        return true;
    }
    if (strcmp(plain, "whitespace") == 0 || strcmp(plain, "space") == 0) {
        fsdp__charset_add_white_space(set);
        return true;
    }
    for (unsigned i = 0; i < FSDP__SCRIPTS; i++) {
        plain_name(fsdp__script_names[i], strlen(fsdp__script_names[i]), script, sizeof script);
        if (strcmp(plain, script) == 0) {
            add_script(set, i);
            return true;
        }
    }
    return false;
}
