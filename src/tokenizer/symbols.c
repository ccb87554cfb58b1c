/* symbols.c - separates kinds of characters, and turns text into their symbols. */
#include "tokenizer/symbols.h"

#include <string.h>

#include "base/alloc.h"

fsdp_status fsdp__symbols_init(fsdp__symbols *symbols)
{
    *symbols = (fsdp__symbols){.count = 1, .members = {FSDP__CHARACTERS}};
    symbols->of = fsdp__calloc(1, FSDP__CHARACTERS);
    return symbols->of ? FSDP_OK : FSDP_NO_MEMORY;
}

void fsdp__symbols_release(fsdp__symbols *symbols)
{
    FSDP__FREE_ALL(symbols->of, symbols->pages);
    *symbols = (fsdp__symbols){0};
}

/* Counts the members of the set by their symbols. */
static void count_inside(const fsdp__symbols *symbols, const fsdp__charset *set, int64_t *inside)
{
    for (size_t word = 0; word < FSDP__CHARACTERS / 64; word++)
        for (uint64_t bits = set->words[word]; bits; bits &= bits - 1)
            inside[symbols->of[word * 64 + (size_t)__builtin_ctzll(bits)]]++;
}

static void rename_inside(fsdp__symbols *symbols, const fsdp__charset *set, const uint8_t *renamed)
{
    for (size_t word = 0; word < FSDP__CHARACTERS / 64; word++)
        for (uint64_t bits = set->words[word]; bits; bits &= bits - 1) {
            uint8_t *symbol = &symbols->of[word * 64 + (size_t)__builtin_ctzll(bits)];

            *symbol = renamed[*symbol];
        }
}

bool fsdp__symbols_part(fsdp__symbols *symbols, const fsdp__charset *set)
{
    int64_t inside[FSDP__SYMBOLS_MOST] = {0};
    uint8_t renamed[FSDP__SYMBOLS_MOST];
    int count = symbols->count;

    count_inside(symbols, set, inside);
    for (int s = 0; s < count; s++) {
        renamed[s] = (uint8_t)s;
        if (inside[s] == 0 || inside[s] == symbols->members[s])
            continue;
        if (symbols->count == FSDP__SYMBOLS_MOST)
            return false;
        renamed[s] = (uint8_t)symbols->count;
        symbols->members[s] -= inside[s];
        symbols->members[symbols->count++] = inside[s];
    }
    if (symbols->count > count)
        rename_inside(symbols, set, renamed);
    return true;
}

static fsdp_status add_page(fsdp__symbols *symbols, const uint8_t *page, uint16_t *out)
{
    int64_t at = symbols->page_count;

    for (int64_t i = 0; i < at; i++)
        if (memcmp(symbols->pages + i * FSDP__PAGE, page, FSDP__PAGE) == 0) {
            *out = (uint16_t)i;
            return FSDP_OK;
        }
    FSDP_TRY(fsdp__grow(&symbols->pages, at, &symbols->page_capacity, FSDP__PAGE));
    memcpy(symbols->pages + at * FSDP__PAGE, page, FSDP__PAGE);
    symbols->page_count++;
    *out = (uint16_t)at;
    return FSDP_OK;
}

fsdp_status fsdp__symbols_seal(fsdp__symbols *symbols)
{
    for (uint32_t c = 0; c < FSDP__CHARACTERS; c++)
        symbols->example[symbols->of[c]] = c;
    for (uint32_t page = 0; page < FSDP__CHARACTERS / FSDP__PAGE; page++)
        FSDP_TRY(add_page(symbols, symbols->of + (size_t)page * FSDP__PAGE, &symbols->page_of[page]));
    fsdp__free(fsdp__take(&symbols->of));
    return FSDP_OK;
}

static size_t of_ascii(const uint8_t *symbols, const unsigned char *text, size_t bytes, uint8_t *out)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = symbols[text[i]];
    return bytes;
}

size_t fsdp__symbols_of(const fsdp__symbols *symbols, const char *text, size_t bytes, char *out, uint32_t *places)
{
    const unsigned char *begin = (const unsigned char *)text, *at = begin, *end = begin + bytes;
    const uint8_t *ascii = symbols->pages; /* the first page has the first characters */
    uint8_t *to = (uint8_t *)out;

    if (!places)
        return of_ascii(ascii, begin, bytes, to);
    while (at < end) {
        uint32_t character;

        *places++ = (uint32_t)(at - begin);
        if (*at < 0x80) {
            *to++ = ascii[*at++];
            continue;
        }
        if (*at < 0xe0) {
            character = (uint32_t)(at[0] & 0x1f) << 6 | (at[1] & 0x3f);
            at += 2;
        } else if (*at < 0xf0) {
            character = (uint32_t)(at[0] & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f);
            at += 3;
        } else {
            character = (uint32_t)(at[0] & 0x07) << 18 | (uint32_t)(at[1] & 0x3f) << 12 |
                        (uint32_t)(at[2] & 0x3f) << 6 | (at[3] & 0x3f);
            at += 4;
        }
        *to++ = symbols->pages[symbols->page_of[character / FSDP__PAGE] * FSDP__PAGE + character % FSDP__PAGE];
    }
    *places = (uint32_t)bytes;
    return (size_t)(to - (uint8_t *)out);
}
