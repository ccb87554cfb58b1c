/* open_data.c - asks tokens or rows. */
#include "data/open_data.h"

#include "data/digest.h"

void fsdp__open_data_close(fsdp__open_data *data)
{
    fsdp_tokens_close(data->tokens);
    fsdp__rows_close(data->rows);
    *data = (fsdp__open_data){0};
}

int64_t fsdp__open_data_tokens(const fsdp__open_data *data)
{
    return data->rows ? data->rows->tokens : fsdp_tokens_count(data->tokens);
}

fsdp_status fsdp__open_data_digest(const fsdp__open_data *data, const _Atomic bool *stop, uint64_t out[2])
{
    if (!data->rows)
        return fsdp__tokens_digest(data->tokens, 0, fsdp_tokens_count(data->tokens), stop, out);
    fsdp__rows_digest(data->rows, out);
    return FSDP_OK;
}

uint64_t fsdp__open_data_identity(const fsdp__open_data *data)
{
    uint64_t hash[2];

    if (!data->rows)
        return fsdp__tokens_identity(data->tokens);
    fsdp__rows_digest(data->rows, hash); /* what it is made of is known as fast as which file it is */
    return hash[0];
}
