/* token_sums.h - checksums of the tokens in a file of the cache: behind the tokens a table with one for each block
 * (base/checksum.h), and a seal in the header. Whoever reads tokens compares their blocks first, each once. */
#pragma once

#include "fsdp/status.h"

enum {
    FSDP__SUM_BLOCK_BYTES = 1 << 16
};

/* The checksums of an open file; all zero: it has none. */
typedef struct fsdp__token_sums {
    size_t token_bytes, table_bytes;
    uint64_t name;          /* a hash of the name that the file was made for */
    _Atomic bool *compared; /* one per block: the block was compared and is intact */
} fsdp__token_sums;

/* Returns a hash of the name at the end of a path. */
uint64_t fsdp__token_sums_name(const char *path);
/* Returns how many blocks this many bytes of tokens take. */
size_t fsdp__token_sums_blocks(size_t token_bytes);
/* Completes a header that is otherwise whole: notes that a table follows the tokens, and adds the hash of the name and
 * the seal of header and table. */
void fsdp__token_sums_seal(unsigned char *header, const void *table, size_t table_bytes, uint64_t name);

/* Returns whether a header made by fsdp says that a table follows. */
bool fsdp__token_sums_follow(const unsigned char *header);
/* Opens the checksums of a whole file: header, tokens and table, whose sizes match. Returns FSDP_FORMAT if the seal
 * does not match. The caller releases them. `path` is for messages, here and below. */
fsdp_status fsdp__token_sums_open(const char *path, const unsigned char *file, size_t token_bytes,
                                  fsdp__token_sums *out);
/* Compares the blocks that hold bytes [begin, end) of the tokens, except those compared before. FSDP_FORMAT names the
 * place of a block that does not match. [thread-safe] */
fsdp_status fsdp__token_sums_compare(const fsdp__token_sums *sums, const char *path, const unsigned char *file,
                                     size_t begin, size_t end);
void fsdp__token_sums_release(fsdp__token_sums *sums);
