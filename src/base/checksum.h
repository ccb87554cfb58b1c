/* checksum.h - XXH3: checksums of bytes in one place, and digests of bytes that come one after the other. Both detect
 * damage, and do not protect against attackers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

/* Returns 64 bits. */
uint64_t fsdp__checksum(const void *data, size_t bytes);
uint64_t fsdp__checksum_seeded(const void *data, size_t bytes, uint64_t seed);
/* Computes 128 bits, the high ones first. */
void fsdp__checksum_wide(const void *data, size_t bytes, uint64_t seed, uint64_t out[2]);

/* Computes a digest of 128 bits of all bytes that were added. */
typedef struct XXH3_state_s fsdp__digest;

/* Returns the digest of nothing; NULL and a last error when out of memory. */
fsdp__digest *fsdp__digest_create(void);
void fsdp__digest_add(fsdp__digest *digest, const void *data, size_t bytes);
/* Gets the 128 bits of what was added so far, the high ones first. */
void fsdp__digest_bits(const fsdp__digest *digest, uint64_t out[2]);
void fsdp__digest_free(fsdp__digest *digest); /* NULL is allowed */

FSDP__SCOPED_POINTER(fsdp__digest, fsdp__digest_free)
