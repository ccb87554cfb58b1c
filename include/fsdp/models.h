/* fsdp/models.h - GPT-2, Llama and models with Llama's architecture, with Hugging Face's module tree and parameter
 * names.
 *
 * All models are called with tokens (B,T) i32 and return logits (B,T,V), or with tokens and targets (B,T) and return
 * the mean cross-entropy, a scalar of shape (), without ever holding all logits. Targets of FSDP_IGNORE_TARGET do not
 * count. Positions start at 0; GPT-2 takes at most max_seq_len of them.
 *
 *     fsdp_call(model, tokens)                       logits
 *     fsdp_call(model, tokens, targets)              loss
 *     fsdp_call(model, tokens, targets, positions)   loss of rows that hold several documents
 *
 * Positions (B,T) i32 say where each token stands in its document: 0 begins one, every other is one more than the token
 * before, and each row begins with 0; other values are an error that names the first. A token sees only its own
 * document, and attention takes time for what is seen only. So a row has the losses that its documents have alone, and
 * may be longer than GPT-2's max_seq_len if none of its documents is. Where rotary frequencies depend on the length
 * (FSDP_ROPE_DYNAMIC, FSDP_ROPE_LONGROPE), the length of the call's longest document counts for all its documents.
 */
#ifndef FSDP_MODELS_H
#define FSDP_MODELS_H

#include "fsdp/nn.h"
#include "fsdp/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lists the architectures. All but GPT-2 are Llamas with some differences. */
typedef enum fsdp_architecture {
    FSDP_GPT2,
    FSDP_LLAMA,   /* also SmolLM and SmolLM2 */
    FSDP_MISTRAL, /* local layers */
    FSDP_QWEN2,   /* biases of query, key and value */
    FSDP_QWEN3,   /* norms of each head of query and key */
    FSDP_OLMO2,   /* norms after attention and MLP instead of before; norms of the whole query and key */
    FSDP_SMOLLM3, /* layers without rotary positions */
    FSDP_PHI3,    /* query, key and value in one projection, and gate and up in one; also Phi-4 */
    FSDP_GEMMA2,  /* norms before and after, by 1 + weight; scaled embeddings; gelu; soft caps; local layers */
    FSDP_GEMMA3   /* a Gemma 2 (its text model) with Qwen3's norms and a second rope_theta instead of soft caps */
} fsdp_architecture;

/* Returns "GPT-2", "Llama", "Mistral", "Qwen2", ... */
FSDP_API const char *fsdp_architecture_name(fsdp_architecture architecture);

/* Says how the rotary frequencies are scaled for more positions. */
typedef enum fsdp_rope_type {
    FSDP_ROPE_DEFAULT,
    FSDP_ROPE_LINEAR,  /* all are divided by rope_factor */
    FSDP_ROPE_LLAMA3,  /* low ones are divided, high ones kept */
    FSDP_ROPE_DYNAMIC, /* in calls longer than max_seq_len, rope_theta grows with their length */
    FSDP_ROPE_YARN,    /* low ones are divided, high ones kept, and attention is sharper */
    FSDP_ROPE_LONGROPE /* each is divided by a factor of its own; in calls of more than rope_original_max_seq_len
                        * tokens by another; and attention is sharper */
} fsdp_rope_type;

FSDP_API const char *fsdp_rope_type_name(fsdp_rope_type type); /* as in config.json: "default", ... */

enum {
    FSDP_MODEL_MAX_EOS_TOKENS = 64,
    FSDP_MODEL_MAX_MARKED_LAYERS = 512, /* layers beyond it cannot differ from others */
    FSDP_MODEL_MAX_ROPE_FACTORS = 128   /* of longrope: a head that rotates has at most twice as many elements */
};
typedef struct fsdp_model_config {
    fsdp_architecture architecture;
    /* GPT-2: n_kv_heads = n_heads and head_dim = dim / n_heads. If you change dim or n_heads of a preset, set the other
     * two as well. */
    int64_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, max_seq_len;
    float norm_eps;
    float rope_theta; /* Llama, like the other rope fields */
    fsdp_rope_type rope_type;
    float rope_factor;                                 /* all but default */
    float rope_low_freq_factor, rope_high_freq_factor; /* llama3 */
    int64_t rope_original_max_seq_len;                 /* llama3, yarn and longrope */
    bool tie_word_embeddings;
    bool attention_bias, mlp_bias; /* where the architecture lets one choose; GPT-2 always has them */
    bool gelu_erf;                 /* GPT-2: the erf form instead of the tanh form */
    float embd_dropout, dropout;   /* GPT-2: after the embeddings, and at the end of each residual branch */
    float attention_dropout;       /* above 0 the model can run, but training it is an error */
    float init_std;                /* for GPT-2's residual projections divided by sqrt(2 n_layers) */
    /* Tokens named in config.json; the model does not use them. */
    bool has_bos_token, has_pad_token, has_unk_token;
    int64_t bos_token, pad_token, unk_token;
    int eos_token_count; /* tokens that end a text: one, several or none */
    int64_t eos_tokens[FSDP_MODEL_MAX_EOS_TOKENS];
    /* These fields describe variants of Llama. In the lists of layers, bit i % 64 of word i / 64 stands for layer i. */
    int64_t window; /* a token of a local layer sees so many keys, its own is the last of them; 0: all are full */
    uint64_t local_layers[FSDP_MODEL_MAX_MARKED_LAYERS / 64];
    uint64_t no_rope_layers[FSDP_MODEL_MAX_MARKED_LAYERS / 64]; /* do not rotate queries and keys */
    float rotary_fraction;                                      /* of each head that rotates; 0: all of it */
    float local_rope_theta;                  /* Gemma 3: of local layers, which are not scaled; 0: as the others */
    float query_scalar;                      /* attention's scale is 1 / sqrt(query_scalar); 0: head_dim */
    float attention_softcap, logits_softcap; /* cap x tanh(scores / cap); 0: none */
    float rope_attention_factor;             /* yarn, longrope: of queries and of keys. 0: follows from rope_factor */
    float rope_mscale, rope_mscale_all_dim;  /* yarn: where both are given, that factor follows from them; or 0 */
    float rope_beta_fast, rope_beta_slow;    /* yarn: turns in the original context from which, and below which */
    bool rope_keep_ramp;                     /* yarn: the ends of the ramp between them are not rounded */
    /* For longrope: frequency i is divided by factor i. */
    float rope_short_factors[FSDP_MODEL_MAX_ROPE_FACTORS], rope_long_factors[FSDP_MODEL_MAX_ROPE_FACTORS];
} fsdp_model_config;

/* Return whether this layer is local, and whether it has rotary positions. */
FSDP_API bool fsdp_model_layer_is_local(const fsdp_model_config *config, int64_t layer);
FSDP_API bool fsdp_model_layer_has_rope(const fsdp_model_config *config, int64_t layer);

/* Returns a preset: gpt-10m gpt2-124m llama-1m llama-100m llama-1b llama-8b. An unknown name is an error that lists
 * them. */
FSDP_API fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *out);
FSDP_API const char *const *fsdp_model_preset_names(void); /* NULL-terminated */
/* Checks sizes against each other (dim % heads, heads % kv heads, even head_dim, ...). The error names the field. */
FSDP_API fsdp_status fsdp_model_config_check(const fsdp_model_config *config);
/* Returns the number of elements, tied ones once. This and the two below are 0, with a last error, if a size is out of
 * range. */
FSDP_API int64_t fsdp_model_config_parameters(const fsdp_model_config *config);
/* Returns the FLOPs of forward and backward for one token in sequences of seq_len: 6 x (elements of weight matrices
 * that take part in products, the head once) + 12 x layers x heads x head_dim x keys for attention, where a token sees
 * seq_len / 2 keys, and fewer in local layers. */
FSDP_API double fsdp_model_config_flops_per_token(const fsdp_model_config *config, int64_t seq_len);
/* Returns the FLOPs for one token that others count for MFU (PaLM's appendix B): 6 x (parameters without the tables of
 * embeddings and positions; a table that is also the head counts) + 12 x layers x heads x head_dim x seq_len, as if
 * attention were not causal. */
FSDP_API double fsdp_model_config_mfu_flops_per_token(const fsdp_model_config *config, int64_t seq_len);

/* Creates the whole model on `device` (meta: shapes only). Returns a module that the caller owns, or NULL. */
FSDP_API fsdp_module *fsdp_model_create(fsdp_context *context, fsdp_device *device, const fsdp_model_config *config);
/* Return the transformer blocks of such a model, in order, to be given to fsdp_fully_shard before the model itself. */
FSDP_API int64_t fsdp_model_block_count(fsdp_module *model);               /* 0 for other modules */
FSDP_API fsdp_module *fsdp_model_block(fsdp_module *model, int64_t index); /* borrowed; out of range: NULL and error */
FSDP_API const fsdp_model_config *fsdp_model_get_config(fsdp_module *model); /* NULL for other modules */
/* Sets whether the model returns only the logits of the last position, (B,1,V), as generation needs them. Off by
 * default. Rows without tokens are an error then. */
FSDP_API fsdp_status fsdp_model_set_last_logits_only(fsdp_module *model, bool on);
FSDP_API bool fsdp_model_last_logits_only(fsdp_module *model); /* false for other modules */

/* Sets how the loss of calls with targets is reduced: to the mean (the default; scale is 0), or to a sum times `scale`,
 * as in fsdp_cross_entropy_options; FSDP_LOSS_NONE (scale 0): the loss of each target (B,T) f32, 0 where it is ignored,
 * for which all logits are held. FSDP_INVALID: another reduction, a scale of a mean, or one that is not finite. */
FSDP_API fsdp_status fsdp_model_set_loss(fsdp_module *model, fsdp_loss_reduction reduction, double scale);

/* ---- a cache of keys and values ----
 *
 * The cache keeps attention's keys and values of the tokens so far, so that a call takes only the next tokens:
 *
 *     fsdp_model_call_cached(model, cache, prompt)    (1,T) -> logits (1,T,V)
 *     fsdp_model_call_cached(model, cache, token)     (1,1) -> logits (1,1,V), as with all T + 1
 *
 * A call that makes the text longer than rope_original_max_seq_len, where FSDP_ROPE_LONGROPE changes the frequencies,
 * is FSDP_STATE unless the cache is empty: keys in it are rotated otherwise. Truncate it to 0 and give all tokens.
 *
 * Its contents were computed with the weights of that time and do not follow later changes: after a load or an
 * optimizer step clear it with fsdp_kv_cache_truncate(cache, 0), or logits will mix old and new weights. After
 * fsdp_module_to to another dtype, a call before clearing is FSDP_STATE.
 */
typedef struct fsdp_kv_cache fsdp_kv_cache;

/* Creates an empty cache for `batch` sequences of at most `capacity` tokens each (for GPT-2 at most max_seq_len). At
 * the first call it allocates 2 x n_layers x batch x n_kv_heads x capacity x head_dim elements of the dtype that
 * attention computes in, counted as activations; if attention is cut by heads, only for this rank's heads. It holds the
 * model, which may be sharded; every rank has its own cache. The caller owns `*out`, and frees it before the context of
 * the model: the cache holds the model, so fsdp_context_free must come after both. */
FSDP_API fsdp_status fsdp_kv_cache_create(fsdp_module *model, int64_t batch, int64_t capacity, fsdp_kv_cache **out);
FSDP_API void fsdp_kv_cache_free(fsdp_kv_cache *cache);            /* NULL is allowed */
FSDP_API int64_t fsdp_kv_cache_length(const fsdp_kv_cache *cache); /* tokens of each sequence in it; NULL: 0 */
/* Removes all tokens but the first `length`. */
FSDP_API fsdp_status fsdp_kv_cache_truncate(fsdp_kv_cache *cache, int64_t length);
/* Returns the logits of `tokens` (B,T), which follow those in the cache and are added to it. They equal those of a call
 * with all tokens up to rounding: products and sums of few rows add up in another order. For hooks and sharding it is a
 * forward like any other, so [collective] if that is, but without gradients: FSDP_STATE if they are recorded. Tokens
 * that do not fit are an error. A failed call leaves the cache as it was. */
FSDP_API fsdp_tensor *fsdp_model_call_cached(fsdp_module *model, fsdp_kv_cache *cache, fsdp_tensor *tokens);

#ifdef __cplusplus
}
#endif
#endif
