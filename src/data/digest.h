/* digest.h - hashes of everything that a run reads. */
#pragma once

#include "fsdp/data.h"

/* Computes fsdp_tokens_digest of tokens [first, first + count) alone. Returns FSDP_INTERRUPTED once `*stop` is true;
 * with NULL nothing stops it. */
fsdp_status fsdp__tokens_digest(const fsdp_tokens *tokens, int64_t first, int64_t count, const _Atomic bool *stop,
                                uint64_t out[2]);
/* Returns a hash that says which files these are, and in which state, by their inodes, sizes and times. As long as it
 * is the same, their tokens are the same, on any machine that shares the files. Returns 0 where that is not certain: a
 * file was changed less than two seconds ago, or its name now belongs to another file. */
uint64_t fsdp__tokens_identity(const fsdp_tokens *tokens);
