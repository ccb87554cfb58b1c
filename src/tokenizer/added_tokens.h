/* added_tokens.h - tokens that are searched for in the text before it is split. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__added_token {
    char *text;
    size_t bytes;
    int32_t id;
    bool special;
    bool single_word;    /* matches only where no word character stands before or after it */
    bool lstrip, rstrip; /* white space before or after it becomes part of it */
} fsdp__added_token;

/* Holds added tokens that are searched for together: before the text is normalized, or after. */
typedef struct fsdp__added_tokens {
    fsdp__added_token *tokens; /* sorted by first byte; of those with the same one, the longest first */
    int64_t count, capacity;
    int64_t first[257]; /* where the tokens with this first byte begin */
} fsdp__added_tokens;

/* Adds a copy of `token`, whose text has at least one byte. */
fsdp_status fsdp__added_tokens_add(fsdp__added_tokens *added, const fsdp__added_token *token);
void fsdp__added_tokens_remove(fsdp__added_tokens *added, int32_t id); /* does nothing if there is no such token */
void fsdp__added_tokens_order(fsdp__added_tokens *added);              /* call it once all tokens are added */
void fsdp__added_tokens_release(fsdp__added_tokens *added);

typedef struct fsdp__added_match {
    size_t begin, end;
    const fsdp__added_token *token; /* NULL: no match; begin and end are the text's end */
} fsdp__added_match;

/* Finds the next match from `*from` on, and advances `*from`. The matches before have taken the text up to `done`: the
 * new match may begin before that, in white space that they took. */
fsdp__added_match fsdp__added_tokens_next(const fsdp__added_tokens *added, bool plain_specials, const char *text,
                                          size_t bytes, size_t *from, size_t done);
/* Returns whether one of the tokens may lie across this place of a text, or touch it, or come within one character of
 * white space of it. That includes a token of which the text holds only the beginning, at its end. */
bool fsdp__added_tokens_cross(const fsdp__added_tokens *added, const char *text, size_t bytes, size_t at);
