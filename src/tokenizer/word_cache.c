/* word_cache.c - a table that forgets: a word replaces whatever is in the entry of its hash. */
#include "tokenizer/word_cache.h"

#include <string.h>

#include "base/alloc.h"

enum {
    WORDS_LOG = 15 /* 2 MiB: about the fast memory of a core */
};

fsdp_status fsdp__word_cache_init(fsdp__word_cache *cache)
{
    cache->words = fsdp__calloc((size_t)1 << WORDS_LOG, sizeof *cache->words);
    return cache->words ? FSDP_OK : FSDP_NO_MEMORY;
}

void fsdp__word_cache_release(fsdp__word_cache *cache)
{
    fsdp__free(cache->words);
    cache->words = NULL;
}

static uint64_t load(const char *bytes, size_t count)
{
    uint64_t value = 0;

    memcpy(&value, bytes, count);
    return value;
}

static uint64_t hash_word(const char *word, size_t bytes)
{
    uint64_t hash = bytes;

    for (; bytes >= 8; word += 8, bytes -= 8)
        hash = (hash ^ load(word, 8)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ load(word, bytes) ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
    return hash >> (64 - WORDS_LOG);
}

fsdp__cached_word *fsdp__word_cache_at(const fsdp__word_cache *cache, const char *word, size_t bytes)
{
    return &cache->words[hash_word(word, bytes)];
}

bool fsdp__cached_word_is(const fsdp__cached_word *cached, const char *word, size_t bytes)
{
    return cached->bytes == bytes && memcmp(cached->word, word, bytes) == 0;
}

void fsdp__cached_word_set(fsdp__cached_word *cached, const char *word, size_t bytes, const int32_t *ids, int64_t count)
{
    if (count > FSDP__CACHED_IDS)
        return;
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)count;
    memcpy(cached->word, word, bytes);
    memcpy(cached->ids, ids, (size_t)count * sizeof *ids);
}
