/* gguf_names.c - names and orders of tensors in files of llama.cpp. */
#include "hub/gguf_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "models/models.h"

typedef enum order {
    SAME,
    TRANSPOSED,
    QUERY, /* heads of Llama are ordered anew; vectors as well */
    KEY
} order;

typedef struct name {
    const char *own, *file;
    order order;
} name;

static const name gpt2_blocks[] = {
    {"ln_1", "attn_norm", SAME}, {"attn.c_attn", "attn_qkv", TRANSPOSED}, {"attn.c_proj", "attn_output", TRANSPOSED},
    {"ln_2", "ffn_norm", SAME},  {"mlp.c_fc", "ffn_up", TRANSPOSED},      {"mlp.c_proj", "ffn_down", TRANSPOSED},
    {NULL, NULL, SAME},
};
static const name gpt2_others[] = {{"transformer.wte", "token_embd", SAME},
                                   {"transformer.wpe", "position_embd", SAME},
                                   {"transformer.ln_f", "output_norm", SAME},
                                   {"lm_head", "output", SAME},
                                   {NULL, NULL, SAME}};

static const name llama_blocks[] = {
    {"input_layernorm", "attn_norm", SAME},    {"self_attn.q_proj", "attn_q", QUERY},
    {"self_attn.k_proj", "attn_k", KEY},       {"self_attn.v_proj", "attn_v", SAME},
    {"self_attn.o_proj", "attn_output", SAME}, {"post_attention_layernorm", "ffn_norm", SAME},
    {"mlp.gate_proj", "ffn_gate", SAME},       {"mlp.up_proj", "ffn_up", SAME},
    {"mlp.down_proj", "ffn_down", SAME},       {"self_attn.q_norm", "attn_q_norm", SAME},
    {"self_attn.k_norm", "attn_k_norm", SAME}, {"self_attn.qkv_proj", "attn_qkv", SAME}, /* of Phi-3, as the next */
    {"mlp.gate_up_proj", "ffn_up", SAME},      {NULL, NULL, SAME},
};
/* OLMo 2 and Gemma have norms after attention and MLP. */
static const name after_blocks[] = {{"post_attention_layernorm", "post_attention_norm", SAME},
                                    {"pre_feedforward_layernorm", "ffn_norm", SAME},
                                    {"post_feedforward_layernorm", "post_ffw_norm", SAME},
                                    {NULL, NULL, SAME}};
static const name llama_others[] = {{"model.embed_tokens", "token_embd", SAME},
                                    {"model.norm", "output_norm", SAME},
                                    {"lm_head", "output", SAME},
                                    {NULL, NULL, SAME}};

static const fsdp__gguf_family families[] = {
    {.architecture = FSDP_GPT2, .name = "gpt2"},
    {.architecture = FSDP_LLAMA, .name = "llama", .paired = true}, /* before Mistral: a file is read as this */
    {.architecture = FSDP_MISTRAL, .name = "llama", .paired = true},
    {.architecture = FSDP_QWEN2, .name = "qwen2"},
    {.architecture = FSDP_QWEN3, .name = "qwen3"},
    {.architecture = FSDP_OLMO2, .name = "olmo2"},
    {.architecture = FSDP_SMOLLM3, .name = "smollm3", .paired = true, .no_rope = 4},
    {.architecture = FSDP_PHI3, .name = "phi3"},
    {.architecture = FSDP_GEMMA2,
     .name = "gemma2",
     .period = 2,
     .soft_caps = true,
     .must_tie = true,
     .large_layers = 46},
    {.architecture = FSDP_GEMMA3, .name = "gemma3", .period = 6, .local_theta = 10000, .large_layers = 62},
};

const fsdp__gguf_family *fsdp__gguf_family_of(fsdp_architecture architecture)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(families); i++)
        if (families[i].architecture == architecture)
            return &families[i];
    return NULL;
}

const fsdp__gguf_family *fsdp__gguf_family_named(const char *wanted)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(families); i++)
        if (strcmp(families[i].name, wanted) == 0)
            return &families[i];
    return NULL;
}

bool fsdp__gguf_is_gemma(fsdp_architecture architecture)
{
    return architecture == FSDP_GEMMA2 || architecture == FSDP_GEMMA3;
}

int64_t fsdp__gguf_query_scalar(const fsdp__gguf_family *family, const fsdp_model_config *config)
{
    bool large = family->large_layers > 0 && config->n_layers == family->large_layers;

    return large ? config->dim / config->n_heads : config->head_dim;
}

/* Finds the module of a parameter; what follows its name is `*rest`: ".weight". */
static const name *find(const name *list, const char *parameter, const char **rest)
{
    for (; list->own; list++) {
        size_t length = strlen(list->own);

        *rest = parameter + length;
        if (strncmp(parameter, list->own, length) == 0 &&
            (strcmp(*rest, ".weight") == 0 || strcmp(*rest, ".bias") == 0))
            return list;
    }
    return NULL;
}

bool fsdp__gguf_place_of(const fsdp_model_config *config, const char *parameter, fsdp__gguf_place *out)
{
    bool gpt2 = config->architecture == FSDP_GPT2, gemma = fsdp__gguf_is_gemma(config->architecture);
    const char *number = fsdp__behind(parameter, gpt2 ? "transformer.h." : "model.layers."), *rest;
    const name *n;
    long layer;
    char *end;

    *out = (fsdp__gguf_place){.plus_one = gemma && fsdp__ends_with(parameter, "norm.weight")};
    if (!number) {
        n = find(gpt2 ? gpt2_others : llama_others, parameter, &rest);
        return n && snprintf(out->name, sizeof out->name, "%s%s", n->file, rest) < (int)sizeof out->name;
    }
    layer = strtol(number, &end, 10);
    n = NULL;
    if (*end == '.' && (gemma || config->architecture == FSDP_OLMO2))
        n = find(after_blocks, end + 1, &rest);
    if (*end == '.' && !n)
        n = find(gpt2 ? gpt2_blocks : llama_blocks, end + 1, &rest);
    if (!n)
        return false;
    out->transposed = n->order == TRANSPOSED && strcmp(rest, ".weight") == 0;
    if (fsdp__gguf_family_of(config->architecture)->paired && (n->order == QUERY || n->order == KEY))
        out->heads = n->order == QUERY ? config->n_heads : config->n_kv_heads;
    return snprintf(out->name, sizeof out->name, "blk.%ld.%s%s", layer, n->file, rest) < (int)sizeof out->name;
}

void fsdp__gguf_shift(const fsdp__gguf_place *place, bool to_file, int64_t numel, float *values)
{
    for (int64_t i = 0; i < numel && place->plus_one; i++)
        values[i] += to_file ? 1.0f : -1.0f;
}

static void transpose(const int64_t *shape, bool to_file, const float *from, float *to)
{
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++)
            if (to_file)
                to[i * shape[1] + j] = from[j * shape[0] + i];
            else
                to[j * shape[0] + i] = from[i * shape[1] + j];
}

void fsdp__gguf_reorder(const fsdp__gguf_place *place, const int64_t *shape, int ndim, bool to_file, const float *from,
                        float *to)
{
    int64_t columns = ndim > 1 ? shape[1] : 1, dim = place->heads > 0 ? shape[0] / place->heads : 0;

    if (place->transposed) {
        transpose(shape, to_file, from, to);
        return;
    }
    for (int64_t row = 0; row < shape[0]; row++) { /* of the file */
        int64_t in_head = row % dim, own = row - in_head + in_head % 2 * (dim / 2) + in_head / 2;

        memcpy(to + (to_file ? row : own) * columns, from + (to_file ? own : row) * columns,
               (size_t)columns * sizeof(float));
    }
}

void fsdp__gguf_rope_factors(const fsdp_model_config *config, float *out)
{
    fsdp__rope_frequencies(config, config->max_seq_len, false, out);
    for (int64_t i = 0; i < config->head_dim / 2; i++)
        out[i] =
            (float)(1 / pow((double)config->rope_theta, (double)(2 * i) / (double)config->head_dim) / (double)out[i]);
}
