/* bpe.h - encodes one word into tokens, by byte pair encoding. */
#pragma once

#include "fsdp/tokenizer.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/vocabulary.h"

typedef struct fsdp__bpe {
    fsdp__vocabulary vocabulary;
    fsdp__merges merges;
    int32_t byte_tokens[256]; /* FSDP__NO_TOKEN: the byte is left out, or becomes the unknown token */
    int32_t unknown;          /* FSDP__NO_TOKEN: there is none */
    bool fuse_unknown;        /* several unknown bytes in a row become one unknown token */
    bool ignore_merges;       /* a word that is a token becomes that token */
    bool characters;          /* words begin as characters, not as bytes */
    bool byte_fallback;       /* a character that is no token becomes the tokens of its bytes, if all are there */
} fsdp__bpe;

typedef struct fsdp__symbol {
    int32_t token;
    int32_t previous, next; /* only in a long word; -1: none. A symbol with token -1 has been merged into another */
    const fsdp__merge *merge;
} fsdp__symbol;

/* A pair of symbols in a long word that could be merged. */
typedef struct fsdp__candidate_merge {
    const fsdp__merge *merge;
    int32_t at;
} fsdp__candidate_merge;

/* Holds the memory of one thread for encoding words. */
typedef struct fsdp__word_scratch {
    fsdp__symbol *symbols;
    int64_t count, capacity;
    fsdp__candidate_merge *heap;
    int64_t heap_count, heap_capacity;
    int64_t left_out; /* bytes so far that no token stands for */
} fsdp__word_scratch;

fsdp_status fsdp__token_list_add(fsdp_token_list *list, int32_t id);
/* Appends the tokens of `bytes`; `count` must be below 2^31. */
fsdp_status fsdp__word_tokens(const fsdp__bpe *bpe, fsdp__word_scratch *scratch, const char *bytes, size_t count,
                              fsdp_token_list *out);
void fsdp__word_scratch_release(fsdp__word_scratch *scratch);
