/* checksum.c - computes checksums and digests with xxHash. */
#include "base/checksum.h"

#include <xxhash.h>

#include "base/status.h"

uint64_t fsdp__checksum(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t fsdp__checksum_seeded(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

static void put(XXH128_hash_t hash, uint64_t out[2])
{
    out[0] = hash.high64;
    out[1] = hash.low64;
}

void fsdp__checksum_wide(const void *data, size_t bytes, uint64_t seed, uint64_t out[2])
{
    put(XXH3_128bits_withSeed(data, bytes, seed), out);
}

fsdp__digest *fsdp__digest_create(void)
{
    fsdp__digest *digest = XXH3_createState();

    if (digest && XXH3_128bits_reset(digest) == XXH_OK)
        return digest;
    XXH3_freeState(digest);
    FSDP_FAIL(FSDP_NO_MEMORY, "no memory for a digest");
    return NULL;
}

void fsdp__digest_add(fsdp__digest *digest, const void *data, size_t bytes)
{
    XXH3_128bits_update(digest, data, bytes);
}

void fsdp__digest_bits(const fsdp__digest *digest, uint64_t out[2])
{
    put(XXH3_128bits_digest(digest), out);
}

void fsdp__digest_free(fsdp__digest *digest)
{
    XXH3_freeState(digest);
}
