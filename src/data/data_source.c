/* data_source.c - asks tokens or rows. */
#include "data/data_source.h"

#include "data/digest.h"

void fsdp__data_source_close(fsdp__data_source *source)
{
    fsdp_tokens_close(source->tokens);
    fsdp__rows_close(source->rows);
    *source = (fsdp__data_source){0};
}

int64_t fsdp__data_source_tokens(const fsdp__data_source *source)
{
    return source->rows ? source->rows->tokens : fsdp_tokens_count(source->tokens);
}

fsdp_status fsdp__data_source_digest(const fsdp__data_source *source, const _Atomic bool *stop, uint64_t out[2])
{
    if (!source->rows)
        return fsdp__tokens_digest(source->tokens, 0, fsdp_tokens_count(source->tokens), stop, out);
    fsdp__rows_digest(source->rows, out);
    return FSDP_OK;
}

uint64_t fsdp__data_source_identity(const fsdp__data_source *source)
{
    uint64_t hash[2];

    if (!source->rows)
        return fsdp__tokens_identity(source->tokens);
    fsdp__rows_digest(source->rows, hash); /* what it is made of is known as fast as which file it is */
    return hash[0];
}
