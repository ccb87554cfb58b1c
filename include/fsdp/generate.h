/* fsdp/generate.h - generates text with a model, token by token. */
#ifndef FSDP_GENERATE_H
#define FSDP_GENERATE_H

#include "fsdp/models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_generate_options {
    int64_t max_new_tokens;
    float temperature; /* 0: always the most likely token; 1: the model's probabilities; above 1: more uniform */
    int64_t top_k;     /* draw from the k most likely tokens; 0: from all */
    float top_p;       /* then from the fewest of these with this share of their probability; 1, or 0 (not set): all */
    uint64_t seed;
    const int32_t *stop_tokens; /* each of them ends the text */
    int64_t stop_token_count;
    /* If the model is sharded, true gathers it for every token, as its settings say. With false every rank has the
     * whole model from the first token to the last (fsdp_module_set_keep_unsharded). */
    bool reshard;
    bool no_cache; /* compute all tokens again for each new one: the same text up to rounding, but slow */
    /* The caller's own cache, which is kept for the next call; NULL: one is made for this call. It holds a beginning of
     * the tokens (or nothing) and has room for all that the model will see. It is empty afterwards if the first token
     * has left what the model sees. A cache of a different model is an error, and so is a cache together with no_cache.
     * Free it before the model's context. */
    fsdp_kv_cache *cache;
} fsdp_generate_options;

/* Appends tokens to `tokens` (capacity count + max_new_tokens), one at a time, and increases *count. The first forward
 * computes the prompt, each later one a single token, with a cache of keys and values (fsdp_kv_cache). Generation ends
 * after max_new_tokens; with a stop token, which is then the last of `tokens`; or when `each` returns false. `each`
 * (may be NULL) gets every new token but a stop token, and rank 0's answer counts. The other ranks wait for that
 * answer, so with several ranks `each` must make no collective call (a forward of a sharded model, a save). The same
 * seed gives the same tokens.
 *
 * The model sees at most max_seq_len tokens, of a longer prompt the last ones. When that many are reached, generation
 * continues with the later half of them, which is computed like a prompt and grows again. Where a text becomes longer
 * than rope_original_max_seq_len with FSDP_ROPE_LONGROPE, all of it is computed once more, with the other frequencies.
 *
 * The model runs in evaluation mode (fsdp_module_train false) without gradients. Afterwards each module is in its
 * former mode, the settings of fsdp_module_set_keep_unsharded and fsdp_model_set_last_logits_only apply again, and a
 * sharded model that is not to be kept unsharded is resharded. Accumulated gradients are kept, and a later backward of
 * an earlier forward still works. Every rank of the world calls it, with the same options and rank 0's tokens, and gets
 * the same new tokens: rank 0's draw counts, even if each rank has its own model. [collective] */
FSDP_API fsdp_status fsdp_generate(fsdp_module *model, int32_t *tokens, int64_t *count,
                                   const fsdp_generate_options *options, bool (*each)(void *arg, int32_t token),
                                   void *arg);

#ifdef __cplusplus
}
#endif
#endif
