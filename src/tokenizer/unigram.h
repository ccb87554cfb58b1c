/* unigram.h - encodes one word into tokens, by the scores of its pieces: of all ways to cut it the one whose scores add
 * up to the most. */
#pragma once

#include "tokenizer/bpe.h"

typedef struct fsdp__unigram {
    bool on;        /* whether the tokenizer is one of these */
    bool in_single; /* sums are rounded to float32, as SentencePiece adds them */
    double *scores; /* by id */
    int32_t *order; /* ids of the pieces that text may become, sorted by their bytes */
    int64_t count;
    double unknown_score; /* of a character that no piece has */
} fsdp__unigram;

/* Holds the memory of one thread for encoding words. */
typedef struct fsdp__unigram_place {
    double score; /* of the best way to get here */
    int64_t from; /* where its last piece begins; -1: there is no way yet */
    int32_t token;
} fsdp__unigram_place;
typedef struct fsdp__unigram_scratch {
    fsdp__unigram_place *places; /* after each byte */
    int64_t capacity;
    fsdp__unigram_place *path; /* places of the best way, last first */
    int64_t path_capacity;
} fsdp__unigram_scratch;

/* Makes `order` of the ids in it, which are `count`, once the vocabulary is whole. */
void fsdp__unigram_sort(fsdp__unigram *unigram, const fsdp__vocabulary *vocabulary);
/* Appends the tokens of `bytes`, which are UTF-8. `bpe` has the vocabulary, and the tokens of bytes and of the
 * unknown. */
fsdp_status fsdp__unigram_tokens(const fsdp__unigram *unigram, const fsdp__bpe *bpe, fsdp__unigram_scratch *scratch,
                                 const char *bytes, size_t count, fsdp__subwords *out);
void fsdp__unigram_release(fsdp__unigram *unigram);
void fsdp__unigram_scratch_release(fsdp__unigram_scratch *scratch);
