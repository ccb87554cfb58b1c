/* open_data.h - what a run reads: a stream of tokens, or a file of rows. */
#pragma once

#include "data/rows.h"
#include "fsdp/data.h"

/* Has one of the two, which it owns; the other is NULL. */
typedef struct fsdp__open_data {
    fsdp_tokens *tokens;
    fsdp__rows *rows;
} fsdp__open_data;

void fsdp__open_data_close(fsdp__open_data *data); /* one of zeros is allowed */
/* Returns the number of tokens. */
int64_t fsdp__open_data_tokens(const fsdp__open_data *data);
/* Computes a hash of all that is read. Of rows it is that of their checksums. Returns FSDP_INTERRUPTED once `*stop` is
 * true; with NULL nothing stops it. */
fsdp_status fsdp__open_data_digest(const fsdp__open_data *data, const _Atomic bool *stop, uint64_t out[2]);
/* Returns a hash that says which files these are, and in which state (fsdp__tokens_identity); 0: not certain. */
uint64_t fsdp__open_data_identity(const fsdp__open_data *data);
