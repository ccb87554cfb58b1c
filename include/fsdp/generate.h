/* fsdp/generate.h - text from a model, token after token. */
#ifndef FSDP_GENERATE_H
#define FSDP_GENERATE_H

#include "fsdp/models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_generate_options {
    int64_t max_new_tokens;
    float temperature; /* 0: the most likely token */
    int64_t top_k;     /* 0: all */
    uint64_t seed;
} fsdp_generate_options;

/* Appends tokens to `tokens` (capacity count + max_new_tokens), one by one over the last max_seq_len of them; `each`
 * (may be NULL) sees every new token and ends the generation by returning false: rank 0's answer counts. Every rank of
 * a world calls it, with rank 0's arguments, and gets the same tokens. Same seed, same tokens. *count grows.
 * [collective] */
FSDP_API fsdp_status fsdp_generate(fsdp_module *model, int32_t *tokens, int64_t *count,
                                   const fsdp_generate_options *options, bool (*each)(void *arg, int32_t token),
                                   void *arg);

#ifdef __cplusplus
}
#endif
#endif
