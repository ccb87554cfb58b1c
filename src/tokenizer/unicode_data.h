/* unicode_data.h - what Unicode says of characters, as tables; tools/unicode_tables.py writes them. */
#ifndef TOKENIZER_UNICODE_DATA_H
#define TOKENIZER_UNICODE_DATA_H

#include <stdint.h>

enum {
    FSDP__CATEGORY_RUNS = 4099,
    FSDP__SCRIPT_RUNS = 1708,
    FSDP__SCRIPTS = 170,
    FSDP__COMBINING_RUNS = 496,
    FSDP__DOUBTFUL_RUNS = 493,
    FSDP__DECOMPOSITIONS = 2060,
    FSDP__COMPOSITIONS = 940
};

/* Runs of characters that have the same value, from the first character to the last: each is the first character of the
 * run times 256, plus the value. */
extern const uint32_t fsdp__category_runs[FSDP__CATEGORY_RUNS];   /* fsdp__category */
extern const uint32_t fsdp__script_runs[FSDP__SCRIPT_RUNS];       /* the place of its name; 255: it has none */
extern const uint32_t fsdp__combining_runs[FSDP__COMBINING_RUNS]; /* the canonical combining class */
/* 1: the character may join the one before it, or form C has another in its place. */
extern const uint32_t fsdp__doubtful_runs[FSDP__DOUBTFUL_RUNS];

extern const char *const fsdp__script_names[FSDP__SCRIPTS];

typedef struct fsdp__decomposition {
    uint32_t character, first, second; /* second 0: it is another spelling of first */
} fsdp__decomposition;
extern const fsdp__decomposition fsdp__decompositions[FSDP__DECOMPOSITIONS]; /* in the order of characters */
/* Those that form C puts together: places in the list above, in the order of first and second. */
extern const uint16_t fsdp__compositions[FSDP__COMPOSITIONS];

#endif
