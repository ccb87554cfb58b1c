/* rng.c - Philox4x32-10 and what is drawn from it. */
#include "base/rng.h"

#include <string.h>

#include "base/hash.h"

void fsdp__philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void fsdp__philox(uint64_t key, uint64_t index, uint32_t out[4])
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), 0, 0};
    uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};

    fsdp__philox4x32(counter, words, out);
}

/* Is the finaliser of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t fsdp__rng_key(uint64_t seed, const char *name)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, name, strlen(name));

    return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ hash);
}

float fsdp__rng_uniform(uint64_t key, uint64_t index)
{
    uint32_t words[4];

    fsdp__philox(key, index / 4, words);
    return (float)(words[index % 4] >> 8) * 0x1p-24f;
}
