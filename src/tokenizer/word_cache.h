/* word_cache.h - caches the tokens of words: most of a text consists of few words. */
#ifndef TOKENIZER_WORD_CACHE_H
#define TOKENIZER_WORD_CACHE_H

#include "fsdp/tokenizer.h"

enum {
    FSDP__CACHED_BYTES = 30,
    FSDP__CACHED_IDS = 8
};

/* One word and its tokens, of the size of a cache line. */
typedef struct fsdp__cached_word {
    uint8_t bytes, count; /* bytes is 0: the entry is free */
    char word[FSDP__CACHED_BYTES];
    int32_t ids[FSDP__CACHED_IDS];
} fsdp__cached_word;

typedef struct fsdp__word_cache {
    fsdp__cached_word *words; /* for each hash, the latest word that had it */
} fsdp__word_cache;

fsdp_status fsdp__word_cache_init(fsdp__word_cache *cache);
void fsdp__word_cache_release(fsdp__word_cache *cache);
/* Returns the entry for a word of 1 to FSDP__CACHED_BYTES bytes; fsdp__cached_word_is tells whether it holds the
 * word. */
fsdp__cached_word *fsdp__word_cache_at(const fsdp__word_cache *cache, const char *word, size_t bytes);
bool fsdp__cached_word_is(const fsdp__cached_word *cached, const char *word, size_t bytes);
void fsdp__cached_word_set(fsdp__cached_word *cached, const char *word, size_t bytes, const int32_t *ids,
                           int64_t count);

#endif
