/* symbols.h - the kinds of characters that a pattern tells apart, each with a byte of its own: its symbol. */
#ifndef TOKENIZER_SYMBOLS_H
#define TOKENIZER_SYMBOLS_H

#include "fsdp/status.h"
#include "tokenizer/unicode.h"

enum {
    FSDP__SYMBOLS_MOST = 256,
    FSDP__PAGE = 256 /* characters */
};

typedef struct fsdp__symbols {
    int count;
    uint32_t example[FSDP__SYMBOLS_MOST]; /* a character of each kind */
    uint16_t page_of[FSDP__CHARACTERS / FSDP__PAGE];
    uint8_t *pages; /* FSDP__PAGE symbols each; no two are alike */
    int64_t page_count, page_capacity;

    uint8_t *of; /* while kinds are told apart: the symbol of each character */
    int64_t members[FSDP__SYMBOLS_MOST];
} fsdp__symbols;

/* At first all characters are of one kind. */
fsdp_status fsdp__symbols_init(fsdp__symbols *symbols);
/* Tells what is in the set from what is not; false: there would be too many kinds. */
bool fsdp__symbols_part(fsdp__symbols *symbols, const fsdp__charset *set);
/* Makes the pages and examples: no more kinds are told apart. */
fsdp_status fsdp__symbols_seal(fsdp__symbols *symbols);
void fsdp__symbols_release(fsdp__symbols *symbols);

/* The symbols of `text`, which is UTF-8, into `out`, which has room for one a byte; into `places`, where each stands in
 * the text, and at last the text's end: one more. NULL: the text is ASCII. Returns how many. */
size_t fsdp__symbols_of(const fsdp__symbols *symbols, const char *text, size_t bytes, char *out, uint32_t *places);

#endif
