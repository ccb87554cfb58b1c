/* jinja_lexer.h - cuts a template into its plain text and the words of its tags. */
#pragma once

#include "chat/jinja_values.h"

typedef enum fsdp__word_kind {
    FSDP__WORD_END, /* of the template */
    FSDP__WORD_TEXT,
    FSDP__WORD_PRINT_BEGIN,
    FSDP__WORD_PRINT_END,
    FSDP__WORD_TAG_BEGIN,
    FSDP__WORD_TAG_END,
    FSDP__WORD_NAME,
    FSDP__WORD_STRING,
    FSDP__WORD_NUMBER,
    FSDP__WORD_SIGN /* "+", "==", "(" */
} fsdp__word_kind;

typedef struct fsdp__word {
    fsdp__word_kind kind;
    int line;
    fsdp__jinja_string text; /* of a string: what it stands for */
} fsdp__word;

/* Cuts a whole template. Texts lie in the pool of `r`, whose line is that of an error. */
fsdp_status fsdp__jinja_cut(fsdp__render *r, const char *text, size_t bytes, fsdp__word **out, int64_t *count);
