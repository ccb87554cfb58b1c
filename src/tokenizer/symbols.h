/* symbols.h - the kinds of characters that a pattern distinguishes. Each kind is a byte: its symbol. */
#pragma once

#include "fsdp/status.h"
#include "tokenizer/unicode.h"

enum {
    FSDP__SYMBOLS_MOST = 256,
    FSDP__PAGE = 256 /* in characters */
};

typedef struct fsdp__symbols {
    int count;
    uint32_t example[FSDP__SYMBOLS_MOST]; /* a character of each kind */
    uint16_t page_of[FSDP__CHARACTERS / FSDP__PAGE];
    uint8_t *pages; /* FSDP__PAGE symbols each; no two pages are equal */
    int64_t page_count, page_capacity;

    uint8_t *of; /* the symbol of each character; only until fsdp__symbols_seal */
    int64_t members[FSDP__SYMBOLS_MOST];
} fsdp__symbols;

/* Starts with all characters in one kind. */
fsdp_status fsdp__symbols_init(fsdp__symbols *symbols);
/* Separates the characters in the set from those that are not in it. Returns false if there would be too many kinds. */
bool fsdp__symbols_part(fsdp__symbols *symbols, const fsdp__charset *set);
/* Makes the pages and examples. No more kinds can be separated after that. */
fsdp_status fsdp__symbols_seal(fsdp__symbols *symbols);
void fsdp__symbols_release(fsdp__symbols *symbols);

/* Writes the symbols of `text`, which is UTF-8, to `out`, which needs room for one per byte. `places` gets the offset
 * of each in the text, and then the end of the text: one more than there are symbols. `places` may be NULL if the text
 * is ASCII. Returns the number of symbols. */
size_t fsdp__symbols_of(const fsdp__symbols *symbols, const char *text, size_t bytes, char *out, uint32_t *places);
