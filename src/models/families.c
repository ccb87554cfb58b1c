/* families.c - how the families of Llama's like differ from Llama, and their layers from each other. */
#include <math.h>

#include "base/compiler.h"
#include "models/models.h"

static const fsdp__family families[] = {
    [FSDP_LLAMA] = {"Llama", .norm_before = true, .may_bias = true, .may_mlp_bias = true},
    [FSDP_MISTRAL] = {"Mistral", .norm_before = true},
    [FSDP_QWEN2] = {"Qwen2", .norm_before = true, .qkv_bias = true},
    [FSDP_QWEN3] = {"Qwen3", .norm_before = true, .norm_heads = true, .may_bias = true},
    [FSDP_OLMO2] = {"Olmo2", .norm_after = true, .norm_whole = true, .may_bias = true},
    [FSDP_SMOLLM3] = {"SmolLM3", .norm_before = true, .may_bias = true, .may_mlp_bias = true},
    [FSDP_PHI3] = {"Phi3", .norm_before = true, .fused = true},
    [FSDP_GEMMA2] = {"Gemma2", .norm_before = true, .norm_after = true, .may_bias = true, .gemma = true},
    [FSDP_GEMMA3] = {"Gemma3", .norm_before = true, .norm_after = true, .norm_heads = true, .may_bias = true,
                     .gemma = true},
};

const fsdp__family *fsdp__family_of(fsdp_architecture architecture)
{
    bool known = architecture != FSDP_GPT2 && (size_t)architecture < FSDP__COUNT_OF(families);

    return known ? &families[architecture] : NULL;
}

const char *fsdp_architecture_name(fsdp_architecture architecture)
{
    const fsdp__family *family = fsdp__family_of(architecture);

    return architecture == FSDP_GPT2 ? "GPT-2" : family ? family->name : "unknown";
}

/* ---- layers ---- */

static bool is_marked(const uint64_t *layers, int64_t layer)
{
    return layer >= 0 && layer < FSDP_MODEL_MAX_MARKED_LAYERS && (layers[layer / 64] >> (layer % 64) & 1);
}

bool fsdp_model_layer_is_local(const fsdp_model_config *config, int64_t layer)
{
    return config && config->window > 0 && is_marked(config->local_layers, layer);
}

bool fsdp_model_layer_has_rope(const fsdp_model_config *config, int64_t layer)
{
    return config && !is_marked(config->no_rope_layers, layer);
}

/* ---- attention ---- */

/* Returns what rotated queries and keys of this layer are multiplied by; not all layers rotate, or are scaled. */
static double factor_of(const fsdp_model_config *config, int64_t layer)
{
    bool own = config->local_rope_theta > 0 && fsdp_model_layer_is_local(config, layer);

    return own || !fsdp_model_layer_has_rope(config, layer) ? 1 : fsdp__rope_attention_factor(config);
}

static bool rotates_whole(const fsdp_model_config *config)
{
    return fsdp__rotary_dim(config) == config->head_dim;
}

float fsdp__attention_scale(const fsdp_model_config *config, int64_t layer)
{
    double scalar = config->query_scalar > 0 ? (double)config->query_scalar : (double)config->head_dim;
    double factor = rotates_whole(config) ? factor_of(config, layer) : 1;

    return factor == 1 && !(config->query_scalar > 0) ? 0 : (float)(factor * factor / sqrt(scalar));
}

float fsdp__rope_scale(const fsdp_model_config *config, int64_t layer)
{
    return rotates_whole(config) ? 1 : (float)factor_of(config, layer);
}

const void *fsdp__cut_attention_key(void)
{
    static const char key;

    return &key;
}

fsdp_tensor *fsdp__attend(const fsdp_module *module, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                          const fsdp_attention_options *options)
{
    fsdp__cut_attention *cut = fsdp__cut_attention_of(module);

    return cut ? cut->attend(cut, q, k, v, options) : fsdp_attention(q, k, v, options);
}
