/* unicode_data.h - tables of Unicode properties, written by tools/unicode_tables.py. */
#pragma once

#include <stdint.h>

enum {
    FSDP__CATEGORY_RUNS = 3086,
    FSDP__SCRIPT_RUNS = 434,
    FSDP__SCRIPTS = 170,
    FSDP__COMBINING_RUNS = 673,
    FSDP__DECOMPOSED = 230,
    FSDP__DECOMPOSITIONS = 2060,
    FSDP__SECOND_PARTS = 85,
    FSDP__COMPOSITIONS = 940
};

/* Runs of characters that have the same value, in order. Each entry is the first character of a run times 256, plus the
 * value: an fsdp__category or one of the two after them, for letters that take turns (unicode.c). */
extern const uint32_t fsdp__category_runs[FSDP__CATEGORY_RUNS];
/* The value is the index of the script's name. Characters that are not assigned, for private use or surrogates have no
 * script, and lie in the runs of others. */
extern const uint32_t fsdp__script_runs[FSDP__SCRIPT_RUNS];
/* The value is the canonical combining class. It is FSDP__JOINS for a character of class 0 that may join with the one
 * before it, or that form C replaces. */
extern const uint32_t fsdp__combining_runs[FSDP__COMBINING_RUNS];

extern const char *const fsdp__script_names[FSDP__SCRIPTS];

/* Says what characters are made of, in their order: the first part times 256, plus the index of the second part. The
 * second part 0 says that the character is another spelling of the first. Second parts are in order. */
extern const uint32_t fsdp__decompositions[FSDP__DECOMPOSITIONS];
extern const uint32_t fsdp__second_parts[FSDP__SECOND_PARTS];
/* Says whose decompositions these are: each entry is the first of several consecutive characters times 4096, plus the
 * index of its decomposition. */
extern const uint32_t fsdp__decomposed[FSDP__DECOMPOSED];
/* Lists the decompositions that form C composes again: indices into the list above, in the order of both parts. */
extern const uint16_t fsdp__compositions[FSDP__COMPOSITIONS];
