/* models.h - what the architectures share: a body that turns tokens into hidden states, and a head over it. */
#pragma once

#include "fsdp/models.h"
#include "nn/layers.h"

/* Says what to build, and where. */
typedef struct fsdp__model_plan {
    fsdp_context *context;
    fsdp_device *device;
    const fsdp_model_config *config;
} fsdp__model_plan;

/* Lists the parts of the body that the root needs; borrowed from it. */
typedef struct fsdp__model_body {
    fsdp_module *module;   /* tokens (B,T), and positions if any -> hidden states (B,T,C), normalised */
    fsdp_module *blocks;   /* ModuleList */
    fsdp_layer *embedding; /* its weight (V,C) is the head's when tied */
} fsdp__model_body;

/* Says how a family of Llama's like differs from Llama. */
typedef struct fsdp__family {
    const char *name;             /* in front of the names of its parts, as transformers has them */
    bool norm_before, norm_after; /* of what attention and MLP get, and of what they give */
    bool norm_heads, norm_whole;  /* of query and key before rotation: each head, or all heads together */
    bool qkv_bias;                /* always */
    bool may_bias, may_mlp_bias;  /* if the config says so */
    bool fused;                   /* query, key and value are one projection; so are gate and up */
    bool gemma; /* norms multiply by 1 + weight, embeddings by sqrt(dim), and the gate is gelu (tanh form) */
} fsdp__family;

/* Calls X(architecture, name of the family, name of its body, ...) for each. */
#define FSDP__FAMILIES(X, ...)                              \
    X(FSDP_LLAMA, "Llama", "LlamaModel", __VA_ARGS__)       \
    X(FSDP_MISTRAL, "Mistral", "MistralModel", __VA_ARGS__) \
    X(FSDP_QWEN2, "Qwen2", "Qwen2Model", __VA_ARGS__)       \
    X(FSDP_QWEN3, "Qwen3", "Qwen3Model", __VA_ARGS__)       \
    X(FSDP_OLMO2, "Olmo2", "Olmo2Model", __VA_ARGS__)       \
    X(FSDP_SMOLLM3, "SmolLM3", "SmolLM3Model", __VA_ARGS__) \
    X(FSDP_PHI3, "Phi3", "Phi3Model", __VA_ARGS__)          \
    X(FSDP_GEMMA2, "Gemma2", "Gemma2Model", __VA_ARGS__)    \
    X(FSDP_GEMMA3, "Gemma3", "Gemma3TextModel", __VA_ARGS__)

/* Returns the family; NULL for GPT-2, and for what is no architecture. */
const fsdp__family *fsdp__family_of(fsdp_architecture architecture);
/* Returns how many elements of a head rotate: the first ones. */
int64_t fsdp__rotary_dim(const fsdp_model_config *config);
/* Returns what attention of this layer multiplies scores by. The square of fsdp__rope_attention_factor is in it, unless
 * only a part of each head rotates. */
float fsdp__attention_scale(const fsdp_model_config *config, int64_t layer);
/* Returns what this layer multiplies the part of queries and keys that rotates by: that factor, or 1. */
float fsdp__rope_scale(const fsdp_model_config *config, int64_t layer);

/* Make a body; the caller owns out->module. */
fsdp_status fsdp__gpt2_body_create(const fsdp__model_plan *plan, fsdp__model_body *out);
fsdp_status fsdp__llama_body_create(const fsdp__model_plan *plan, fsdp__model_body *out);

/* ---- causal_lm.c: for those that compute a head in another way ---- */

/* Returns how a model's head reduces its loss, and the soft cap of its logits; NULL for other modules. */
const fsdp_cross_entropy_options *fsdp__head_loss(const fsdp_module *head);
/* Returns softcap tanh(logits / softcap), or the logits if it is 0. */
fsdp_tensor *fsdp__softcapped(fsdp_tensor *logits, float softcap);
/* Computes the loss of each target (B,T), from logits (B,T,V) that exist as a whole. */
fsdp_tensor *fsdp__loss_of_each(fsdp_tensor *logits, fsdp_tensor *targets);

/* ---- kv_cache.c ---- Modules of a body get what they need of a cache as the argument of their call; NULL: there is
 * none. */

/* Makes a cache for a model, whose config this is. */
fsdp_status fsdp__kv_cache_create(fsdp_module *model, const fsdp_model_config *config, int64_t batch, int64_t capacity,
                                  fsdp_kv_cache **out);
/* Holds one layer's keys and values. */
typedef struct fsdp__kv_layer fsdp__kv_layer;
/* Returns the part of the cache for block `layer`; NULL for no cache. */
fsdp__kv_layer *fsdp__kv_cache_layer(fsdp_kv_cache *cache, int64_t layer);
/* Returns whether the cache was made for the model. */
bool fsdp__kv_cache_is_of(const fsdp_kv_cache *cache, const fsdp_module *model);
/* Returns the position of the first of the tokens that are running. */
int64_t fsdp__kv_cache_position(const fsdp_kv_cache *cache);
int64_t fsdp__kv_layer_position(const fsdp__kv_layer *layer);
/* Appends *keys and *values (B,T,G,D) of the tokens that are running to those of the layer, and makes them all of the
 * layer's (B,S,G,D), views of the cache. Does nothing if `layer` is NULL. */
fsdp_status fsdp__kv_layer_extend(fsdp__kv_layer *layer, fsdp_tensor **keys, fsdp_tensor **values);
/* Returns whether keys in the cache are rotated as a call with `count` more tokens rotates. */
bool fsdp__kv_cache_can_grow(const fsdp_kv_cache *cache, int64_t count);
/* Checks whether a call of the model with these tokens fits. The second function ends the call: it counts them. */
fsdp_status fsdp__kv_cache_begin(fsdp_kv_cache *cache, const fsdp_module *model, const fsdp_tensor *tokens);
void fsdp__kv_cache_end(fsdp_kv_cache *cache, const fsdp_tensor *tokens);

/* Calls a module that has forward_many, as fsdp_call does, with such an argument and with positions (B,T), which are
 * NULL if rows are documents. */
static inline fsdp_tensor *fsdp__call_placed(fsdp_module *module, void *cached, fsdp_tensor *x, fsdp_tensor *positions)
{
    fsdp_tensor *const inputs[] = {x, positions};
    fsdp_tensor *output;

    (void)fsdp_module_call_many(module, cached, inputs, positions ? 2 : 1, &output, 1);
    return output;
}

static inline fsdp_tensor *fsdp__call_with(fsdp_module *module, void *cached, fsdp_tensor *x)
{
    return fsdp__call_placed(module, cached, x, NULL);
}

/* Returns the positions that a module was called with by fsdp__call_placed. */
static inline fsdp_tensor *fsdp__positions_of(fsdp_tensor *const *inputs, int count)
{
    return count > 1 ? inputs[1] : NULL;
}

/* Holds what computes attention of a module whose sequences are cut over ranks: the argument of hooks that the module
 * has under fsdp__cut_attention_key. Calls of parts of a sequence have positions: those in documents, or in the
 * sequence.
 */
typedef struct fsdp__cut_attention fsdp__cut_attention;
struct fsdp__cut_attention {
    fsdp_tensor *(*attend)(fsdp__cut_attention *self, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                           const fsdp_attention_options *options);
};
const void *fsdp__cut_attention_key(void);
/* Returns the module's; NULL: its sequences are whole. */
static inline fsdp__cut_attention *fsdp__cut_attention_of(const fsdp_module *module)
{
    return (fsdp__cut_attention *)fsdp__module_hooks_arg(module, fsdp__cut_attention_key());
}
/* Computes attention of such a module. */
fsdp_tensor *fsdp__attend(const fsdp_module *module, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                          const fsdp_attention_options *options);

/* Adds `made` (taken over, also on failure; NULL: the last error) under `name` and stores it in *slot. */
static inline fsdp_status fsdp__add_part(fsdp_module *parent, const char *name, fsdp_module *made, fsdp_module **slot)
{
    FSDP_TRY(fsdp_module_add_child(parent, name, made));
    *slot = made;
    return FSDP_OK;
}
/* Does that where the part is called as the field of `m` that gets it; a failure ends the function. */
#define FSDP__ADD_PART(m, field, made) FSDP_TRY(fsdp__add_part(&(m)->base, #field, (made), &(m)->field))

/* Returns the struct behind a Linear, Embedding or norm. */
static inline const fsdp_layer *fsdp__layer(const fsdp_module *module)
{
    return (const fsdp_layer *)module;
}

/* Returns whether somebody acts around the module's calls (to shard it by itself, say). Then its parent calls it, where
 * it would otherwise compute with the module's parameters itself. */
static inline bool fsdp__has_hooks(const fsdp_module *module)
{
    return module->parts->hook_count > 0;
}

/* Says that a sequence is longer than GPT-2's table of positions. */
fsdp_status fsdp__fail_long_sequence(int64_t tokens, int64_t positions);
/* Returns 0 if a call whose last token is number `length` has the frequencies of all short ones, or else a length that
 * has the same: for long calls of the types dynamic and longrope. */
int64_t fsdp__rope_length(const fsdp_model_config *config, int64_t length);
/* Computes rotary frequencies as transformers does: fsdp__rotary_dim / 2 of them. `length` is the number of tokens up
 * to the last one; `local`: for local layers. */
void fsdp__rope_frequencies(const fsdp_model_config *config, int64_t length, bool local, float *out);
/* Returns what yarn and longrope multiply rotated queries and keys by; 1 for others. */
double fsdp__rope_attention_factor(const fsdp_model_config *config);

/* Returns how many parameters MFU counts: without tables that are only looked up. */
int64_t fsdp__mfu_parameters(const fsdp_model_config *config);
/* Returns whether this parameter is such a table. */
bool fsdp__is_looked_up(const fsdp_model_config *config, const char *name);
