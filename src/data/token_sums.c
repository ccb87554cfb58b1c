/* token_sums.c - computes the checksum of each block. The seal hashes the header and then the table, so that neither
 * can be changed, cut or exchanged alone. */
#include "data/token_sums.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/compiler.h"
#include "data/token_header.h"

/* Lists offsets in the header, after those of token_header.c. */
enum {
    BLOCK_AT = 56, /* int32: bytes of a block; 0: there is no table */
    NAME_AT = 64,
    SEAL_AT = 72
};

uint64_t fsdp__token_sums_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    return fsdp__checksum(name, strlen(name));
}

size_t fsdp__token_sums_blocks(size_t token_bytes)
{
    return token_bytes / FSDP__SUM_BLOCK_BYTES + (token_bytes % FSDP__SUM_BLOCK_BYTES != 0);
}

/* Computes the seal. The seal's own field counts as zero. */
static uint64_t seal_of(const unsigned char *header, const void *table, size_t table_bytes)
{
    unsigned char own[FSDP__TOKEN_HEADER_BYTES];

    memcpy(own, header, sizeof own);
    memset(own + SEAL_AT, 0, sizeof(uint64_t));
    return fsdp__checksum_seeded(table, table_bytes, fsdp__checksum(own, sizeof own));
}

void fsdp__token_sums_seal(unsigned char *header, const void *table, size_t table_bytes, uint64_t name)
{
    int32_t block = FSDP__SUM_BLOCK_BYTES;
    uint64_t seal;

    memcpy(header + BLOCK_AT, &block, sizeof block);
    memcpy(header + NAME_AT, &name, sizeof name);
    seal = seal_of(header, table, table_bytes);
    memcpy(header + SEAL_AT, &seal, sizeof seal);
}

bool fsdp__token_sums_follow(const unsigned char *header)
{
    int32_t block;

    memcpy(&block, header + BLOCK_AT, sizeof block);
    return block == FSDP__SUM_BLOCK_BYTES && fsdp__token_header_is_ours(header);
}

fsdp_status fsdp__token_sums_open(const char *path, const unsigned char *file, size_t token_bytes,
                                  fsdp__token_sums *out)
{
    size_t blocks = fsdp__token_sums_blocks(token_bytes), table_bytes = blocks * sizeof(uint64_t);
    uint64_t seal;

    memcpy(&seal, file + SEAL_AT, sizeof seal);
    if (seal != seal_of(file, file + FSDP__TOKEN_HEADER_BYTES + token_bytes, table_bytes))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its header or its checksums are damaged", path);
    FSDP__TRY_NEW(out->compared = fsdp__calloc(FSDP__MAX(blocks, (size_t)1), sizeof *out->compared));
    out->token_bytes = token_bytes;
    out->table_bytes = table_bytes;
    memcpy(&out->name, file + NAME_AT, sizeof out->name);
    return FSDP_OK;
}

/* Returns whether a block matches its checksum. Two threads that come to a block at the same time both compare it. */
static bool fits(const fsdp__token_sums *sums, const unsigned char *tokens, size_t block)
{
    size_t at = block * FSDP__SUM_BLOCK_BYTES;
    uint64_t sum;

    if (atomic_load_explicit(&sums->compared[block], memory_order_relaxed))
        return true;
    memcpy(&sum, tokens + sums->token_bytes + block * sizeof sum, sizeof sum);
    if (sum != fsdp__checksum(tokens + at, FSDP__MIN(sums->token_bytes - at, (size_t)FSDP__SUM_BLOCK_BYTES)))
        return false;
    atomic_store_explicit(&sums->compared[block], true, memory_order_relaxed);
    return true;
}

fsdp_status fsdp__token_sums_compare(const fsdp__token_sums *sums, const char *path, const unsigned char *file,
                                     size_t begin, size_t end)
{
    const unsigned char *tokens = file + FSDP__TOKEN_HEADER_BYTES;

    for (size_t block = begin / FSDP__SUM_BLOCK_BYTES; block * FSDP__SUM_BLOCK_BYTES < end; block++)
        if (!fits(sums, tokens, block))
            return FSDP_FAIL(
                FSDP_FORMAT,
                "cannot read '%s': the tokens at offset %zu (a block of %d bytes) do not fit their checksum: the file "
                "has been damaged; in the folder of data.cache the next start makes it again; elsewhere, remove it",
                path, FSDP__TOKEN_HEADER_BYTES + block * FSDP__SUM_BLOCK_BYTES, (int)FSDP__SUM_BLOCK_BYTES);
    return FSDP_OK;
}

void fsdp__token_sums_release(fsdp__token_sums *sums)
{
    fsdp__free((void *)sums->compared);
    *sums = (fsdp__token_sums){0};
}
