/* data_source.h - what a run reads: a stream of tokens, or a file of rows. */
#ifndef DATA_DATA_SOURCE_H
#define DATA_DATA_SOURCE_H

#include "data/rows.h"
#include "fsdp/data.h"

/* Has one of the two, which it owns; the other is NULL. */
typedef struct fsdp__data_source {
    fsdp_tokens *tokens;
    fsdp__rows *rows;
} fsdp__data_source;

void fsdp__data_source_close(fsdp__data_source *source); /* one of zeros is allowed */
/* Returns the number of tokens. */
int64_t fsdp__data_source_tokens(const fsdp__data_source *source);
/* Computes a hash of all that is read. Of rows it is that of their checksums. Returns FSDP_INTERRUPTED once `*stop` is
 * true; with NULL nothing stops it. */
fsdp_status fsdp__data_source_digest(const fsdp__data_source *source, const _Atomic bool *stop, uint64_t out[2]);
/* Returns a hash that says which files these are, and in which state (fsdp__tokens_identity); 0: not certain. */
uint64_t fsdp__data_source_identity(const fsdp__data_source *source);

#endif
