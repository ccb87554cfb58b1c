/* added_tokens.h - tokens that are looked for in the text before it is split. */
#ifndef TOKENIZER_ADDED_TOKENS_H
#define TOKENIZER_ADDED_TOKENS_H

#include "fsdp/status.h"

typedef struct fsdp__added_token {
    char *text;
    size_t bytes;
    int32_t id;
    bool special;
    bool single_word;    /* only where no word goes on before or behind it */
    bool lstrip, rstrip; /* white space before, behind it is part of it */
} fsdp__added_token;

/* Those that are looked for together: before the text is normalized, or after. */
typedef struct fsdp__added_tokens {
    fsdp__added_token *tokens; /* by first byte, and of those the longest first */
    int64_t count, capacity;
    int64_t first[257]; /* by first byte: where its tokens begin */
} fsdp__added_tokens;

/* Takes a copy of `token`, whose text has a byte or more. */
fsdp_status fsdp__added_tokens_add(fsdp__added_tokens *added, const fsdp__added_token *token);
void fsdp__added_tokens_remove(fsdp__added_tokens *added, int32_t id); /* where it is one of them */
void fsdp__added_tokens_order(fsdp__added_tokens *added);              /* when all are there */
void fsdp__added_tokens_release(fsdp__added_tokens *added);

typedef struct fsdp__added_match {
    size_t begin, end;
    const fsdp__added_token *token; /* NULL: there is none; begin and end are the text's end */
} fsdp__added_match;

/* The next one from `*from` on; `*from` goes on. Those before it have taken the text up to `done`: it may begin before
 * that, in white space that they took. */
fsdp__added_match fsdp__added_tokens_next(const fsdp__added_tokens *added, bool plain_specials, const char *text,
                                          size_t bytes, size_t *from, size_t done);
/* Whether any of them may lie across this place of a text, or but for a character of white space touch it; also where
 * the text ends before it is whole. */
bool fsdp__added_tokens_cross(const fsdp__added_tokens *added, const char *text, size_t bytes, size_t at);

#endif
