/* fsdp/generate.h - text from a model, token after token. */
#ifndef FSDP_GENERATE_H
#define FSDP_GENERATE_H

#include "fsdp/models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_generate_options {
    int64_t max_new_tokens;
    float temperature; /* 0: always the most likely token; 1: as the model says; above: more evenly */
    int64_t top_k;     /* draws among the k most likely tokens; 0: among all */
    float top_p;       /* then among the fewest of these that have this share of their probability; 0 or 1: all */
    uint64_t seed;
    const int32_t *stop_tokens; /* each of them ends the text */
    int64_t stop_token_count;
    /* Of a sharded model: gathers for every token, as the model is set. Else each rank has it whole from the first
     * token to the last, by fsdp_module_set_keep_unsharded. */
    bool reshard;
    bool no_cache; /* computes all tokens anew for each that comes: the same text, but for rounding, slowly */
} fsdp_generate_options;

/* Appends tokens to `tokens` (capacity count + max_new_tokens), one by one: the first computes the prompt, each later
 * one a token alone, with a cache of keys and values (fsdp_kv_cache). *count grows. It ends after max_new_tokens, with
 * a stop token, which is then the last of `tokens`, or where `each` (may be NULL), which sees every new token but that,
 * returns false: rank 0's answer counts. (The others wait for it, so of several ranks `each` makes no collective
 * call: no forward of a sharded model, no save.) The same seed gives the same tokens.
 *
 * The model sees at most max_seq_len tokens: of a longer prompt the last ones. When they are full it goes on with the
 * later half of them, which is computed like a prompt, and grows again.
 *
 * The model is evaluated (fsdp_module_train false) without gradients; afterwards each of its modules is in the mode in
 * which it was, what fsdp_module_set_keep_unsharded and fsdp_model_set_last_logits_only have said holds again, and a
 * sharded one that is not to be kept is resharded. Gradients that have added up stay, and a backward that is to come
 * finds what its forward has left. Every rank of a world calls it, with the same options and rank 0's tokens, and gets
 * the same tokens: rank 0's draw counts, also where each has a model of its own. [collective] */
FSDP_API fsdp_status fsdp_generate(fsdp_module *model, int32_t *tokens, int64_t *count,
                                   const fsdp_generate_options *options, bool (*each)(void *arg, int32_t token),
                                   void *arg);

#ifdef __cplusplus
}
#endif
#endif
