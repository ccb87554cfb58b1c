/* fsdp/models.h - GPT-2 and Llama with Hugging Face's module tree and parameter names.
 *
 * Both are called with tokens (B,T) i32 for logits (B,T,V), or with tokens and targets (B,T) for the mean cross-
 * entropy, a scalar of shape (), without ever holding all logits. Positions start at 0; GPT-2 takes at most max_seq_len
 * of them.
 *
 *     fsdp_call(model, tokens)            logits
 *     fsdp_call(model, tokens, targets)   loss
 */
#ifndef FSDP_MODELS_H
#define FSDP_MODELS_H

#include "fsdp/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_architecture {
    FSDP_GPT2,
    FSDP_LLAMA
} fsdp_architecture;

typedef struct fsdp_model_config {
    fsdp_architecture architecture;
    /* GPT-2: n_kv_heads = n_heads and head_dim = dim / n_heads. Whoever changes dim or n_heads of a preset sets the
     * other two as well. */
    int64_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size, max_seq_len;
    float norm_eps;
    float rope_theta; /* Llama */
    bool rope_llama3; /* Llama 3.1 frequency scaling with the four values below */
    float rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_max_seq_len;
    bool tie_word_embeddings;
    bool attention_bias, mlp_bias;     /* Llama variants; GPT-2 always has them */
    bool gelu_erf;                     /* GPT-2: the erf form instead of the tanh form */
    float embd_dropout, dropout;       /* GPT-2: after the embeddings, and at the end of each residual branch */
    float attention_dropout;           /* above 0 the model can be run, but training it is an error */
    float init_std;                    /* GPT-2's residual projections: divided by sqrt(2 n_layers) */
    bool has_bos_token, has_eos_token; /* what config.json says of them; the model does not use it */
    int64_t bos_token, eos_token;
} fsdp_model_config;

/* gpt-10m gpt2-124m llama-1m llama-100m llama-1b llama-8b. An unknown name is an error that lists them. */
FSDP_API fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *out);
FSDP_API const char *const *fsdp_model_preset_names(void); /* NULL-terminated */
/* Checks sizes against each other (dim % heads, heads % kv heads, even head_dim, ...): the error names the field. */
FSDP_API fsdp_status fsdp_model_config_check(const fsdp_model_config *config);
FSDP_API int64_t fsdp_model_config_parameters(const fsdp_model_config *config); /* number of elements, tied once */
/* FLOPs of forward and backward for one token in sequences of seq_len: 6 x (elements of weight matrices that take part
 * in products, the head once) + 6 x layers x heads x head_dim x seq_len for causal attention. */
FSDP_API double fsdp_model_config_flops_per_token(const fsdp_model_config *config, int64_t seq_len);

/* The whole model on `device` (meta: shapes only). The caller owns the module, NULL on failure. */
FSDP_API fsdp_module *fsdp_model_create(fsdp_context *context, fsdp_device *device, const fsdp_model_config *config);
/* Transformer blocks of a model made above, in order: what to give to fsdp_fully_shard before the model itself. */
FSDP_API int64_t fsdp_model_block_count(fsdp_module *model);               /* 0 if made otherwise */
FSDP_API fsdp_module *fsdp_model_block(fsdp_module *model, int64_t index); /* borrowed; NULL and a last error beyond */
FSDP_API const fsdp_model_config *fsdp_model_get_config(fsdp_module *model); /* NULL if made otherwise */
/* Logits of the last position only, (B,1,V): what generation needs. Off at first. */
FSDP_API fsdp_status fsdp_model_set_last_logits_only(fsdp_module *model, bool on);

#ifdef __cplusplus
}
#endif
#endif
