/* bpe.h - encodes one word into tokens, by byte pair encoding. */
#pragma once

#include "fsdp/tokenizer.h"
#include "tokenizer/vocabulary.h"

/* Says which two tokens merge into one, and which merge goes first. */
typedef struct fsdp__merge {
    int32_t left, right, result;
    uint32_t rank; /* the lowest goes first */
} fsdp__merge;

typedef struct fsdp__merges {
    fsdp__merge *slots; /* a hash table; left is -1 where it is free */
    uint64_t mask;
} fsdp__merges;

/* Makes room for `count` merges. */
fsdp_status fsdp__merges_init(fsdp__merges *merges, int64_t count);
/* Adds one. If a pair is added twice, the later rank counts. */
void fsdp__merges_add(fsdp__merges *merges, const fsdp__merge *merge);
void fsdp__merges_release(fsdp__merges *merges);

static inline uint64_t fsdp__merges_hash(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ (pair >> 32);
}

/* Returns the merge of the two tokens, or NULL if they do not merge. */
static inline const fsdp__merge *fsdp__merges_find(const fsdp__merges *merges, int32_t left, int32_t right)
{
    for (uint64_t i = fsdp__merges_hash(left, right) & merges->mask;; i = (i + 1) & merges->mask) {
        const fsdp__merge *merge = &merges->slots[i];

        if (merge->left == left && merge->right == right)
            return merge;
        if (merge->left < 0)
            return NULL;
    }
}

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
    int32_t begin, end;     /* the bytes of the word that it stands for */
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

/* A token of a word, with the bytes of the word that it stands for: of a character whose bytes are tokens, the whole
 * character. Bytes without a token are left out. */
typedef struct fsdp__subword {
    int32_t token, begin, end;
} fsdp__subword;
typedef struct fsdp__subwords {
    fsdp__subword *items;
    int64_t count, capacity;
} fsdp__subwords;
fsdp_status fsdp__subwords_add(fsdp__subwords *subwords, int32_t token, size_t begin, size_t end);

/* Appends the tokens of `bytes`; `count` must be below 2^31. */
fsdp_status fsdp__word_tokens(const fsdp__bpe *bpe, fsdp__word_scratch *scratch, const char *bytes, size_t count,
                              fsdp__subwords *out);
void fsdp__word_scratch_release(fsdp__word_scratch *scratch);
