/* digest.h - hashes of all that a run goes through. */
#ifndef DATA_DIGEST_H
#define DATA_DIGEST_H

#include "fsdp/data.h"

/* fsdp_tokens_digest of tokens [first, first + count) alone; FSDP_INTERRUPTED once `*stop` is true. NULL: nobody stops
 * it. */
fsdp_status fsdp__tokens_digest(const fsdp_tokens *tokens, int64_t first, int64_t count, const _Atomic bool *stop,
                                uint64_t out[2]);
/* Which files these are, in which state, by their inodes, sizes and times: as long as it is the same their tokens are,
 * too, on any machine that shares them. 0 where that is not certain: a file was changed less than two seconds ago, or
 * its name is another's now. */
uint64_t fsdp__tokens_identity(const fsdp_tokens *tokens);

#endif
