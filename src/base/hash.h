/* hash.h - a hash of bytes (FNV-1a), for tables and for comparing what ranks hold; and a hash of words. Neither
 * protects against attackers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FSDP__HASH_OF_NOTHING 0xcbf29ce484222325u

/* Returns the hash of the data that `hash` is the hash of, followed by `bytes` of `data`. */
static inline uint64_t fsdp__hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

/* Returns a hash of `hash` and a word. It loses no information of either: both steps can be undone. */
static inline uint64_t fsdp__mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}
