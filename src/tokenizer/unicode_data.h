/* unicode_data.h - tables of Unicode properties, written by tools/unicode_tables.py. */
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

/* Runs of characters that have the same value, in order. Each entry is the first character of a run times 256, plus the
 * value. */
extern const uint32_t fsdp__category_runs[FSDP__CATEGORY_RUNS];   /* fsdp__category */
extern const uint32_t fsdp__script_runs[FSDP__SCRIPT_RUNS];       /* the index of the script's name; 255: none */
extern const uint32_t fsdp__combining_runs[FSDP__COMBINING_RUNS]; /* the canonical combining class */
/* The value is 1 if the character may join with the one before it, or if form C replaces it. */
extern const uint32_t fsdp__doubtful_runs[FSDP__DOUBTFUL_RUNS];

extern const char *const fsdp__script_names[FSDP__SCRIPTS];

typedef struct fsdp__decomposition {
    uint32_t character, first, second; /* second is 0 if the character is another spelling of first */
} fsdp__decomposition;
extern const fsdp__decomposition fsdp__decompositions[FSDP__DECOMPOSITIONS]; /* in order of the characters */
/* The decompositions that form C composes again: indices into the list above, in the order of first and second. */
extern const uint16_t fsdp__compositions[FSDP__COMPOSITIONS];

#endif
