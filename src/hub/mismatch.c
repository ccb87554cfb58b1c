/* mismatch.c - makes one message of everything that does not fit, with the usual cause at the end. */
#include "hub/mismatch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "hub/hub.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* ---- what names are signs of ---- */

const char *fsdp__embedding_name(fsdp_architecture architecture)
{
    return architecture == FSDP_GPT2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

#define QUANTIZED "these weights are quantized, which is not supported: get the model in bfloat16 or float16"
#define ADAPTER                                                                                                     \
    "these are weights of an adapter (LoRA): name its model, and its folder with --adapter; weights that peft has " \
    "wrapped are saved after merge_and_unload"
#define OF_ANOTHER "these are weights of another architecture: "

/* Names that no supported model has. The first line that fits counts. */
static const struct {
    const char *part, *kind;
} signs[] = {
    {"lora_", ADAPTER},
    {".base_layer.", ADAPTER},
    {".qweight", QUANTIZED},
    {".qzeros", QUANTIZED},
    {".g_idx", QUANTIZED},
    {".weight_scale", QUANTIZED},
    {".weight_packed", QUANTIZED},
    {".absmax", QUANTIZED},
    {".quant_map", QUANTIZED},
    {".SCB", QUANTIZED},
    {"module.", "their names begin with what a wrapper puts before them: save the state dict of the module that was "
                "wrapped"},
    {"_orig_mod.", "their names begin with what torch.compile puts before them: save the state dict of the module that "
                   "was compiled"},
    {"language_model.", OF_ANOTHER "a model that also sees images keeps its language model under 'language_model.'"},
    {".experts.", OF_ANOTHER "a mixture of experts, as Mixtral"},
    {"block_sparse_moe.", OF_ANOTHER "a mixture of experts, as Mixtral"},
    {".q_norm.", OF_ANOTHER "one that normalizes queries and keys (model_type qwen3, olmo2 or gemma3_text)"},
    {".qkv_proj.", OF_ANOTHER "one with fused projections (model_type phi3)"},
    {"_feedforward_layernorm.", OF_ANOTHER "one with more norms in a layer (model_type gemma2 or gemma3_text)"},
    {"gpt_neox.", OF_ANOTHER "GPT-NeoX"},
    {"query_key_value.", OF_ANOTHER "one with fused projections, as Falcon and BLOOM"},
    {"model.decoder.", OF_ANOTHER "OPT"},
};

static const char *kind_of(const fsdp__mismatch *m, const char *name)
{
    bool gpt2 = m->config && m->config->architecture == FSDP_GPT2;

    for (size_t i = 0; i < FSDP__COUNT_OF(signs); i++)
        if (strstr(name, signs[i].part))
            return signs[i].kind;
    if (!m->config)
        return NULL;
    if (!gpt2 && (strncmp(name, "transformer.h.", 14) == 0 || strncmp(name, "h.", 2) == 0))
        return OF_ANOTHER "GPT-2 (model_type gpt2)";
    if (gpt2 && (strncmp(name, "model.layers.", 13) == 0 || strncmp(name, "layers.", 7) == 0))
        return OF_ANOTHER "Llama or its like (model_type llama, mistral or qwen2)";
    if (!gpt2 && m->config->architecture != FSDP_QWEN2 && fsdp__ends_with(name, "_proj.bias"))
        return "they have biases: those of a Qwen2 (model_type qwen2), or of a Llama whose config.json has "
               "attention_bias or mlp_bias true";
    return NULL;
}

/* ---- what there is ---- */

/* Returns the number of the layer that a name belongs to; -1: to none. */
static int64_t layer_of(const fsdp__mismatch *m, const char *name)
{
    const char *blocks = m->config && m->config->architecture == FSDP_GPT2 ? "h." : "layers.";
    const char *at = strstr(name, blocks);

    if (!at || (at > name && at[-1] != '.') || at[strlen(blocks)] < '0' || at[strlen(blocks)] > '9')
        return -1;
    return strtoll(at + strlen(blocks), NULL, 10);
}

void fsdp__mismatch_see(fsdp__mismatch *m, const char *name)
{
    int64_t layer = layer_of(m, name);

    m->seen++;
    if (layer >= m->layers && layer < INT64_MAX)
        m->layers = layer + 1;
}

fsdp_status fsdp__mismatch_outline(const fsdp__mismatch *m, fsdp_context *context, fsdp_state_dict **out)
{
    /* A single name may have any layer number. */
    int64_t most = FSDP__MIN(m->layers, m->seen) + 1;
    fsdp_model_config config = *m->config;
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;

    *out = NULL;
    FSDP_TRY(fsdp_model_config_check(&config));
    config.n_layers = FSDP__MIN(config.n_layers, most);
    FSDP__TRY_MADE(model = fsdp_model_create(context, fsdp_meta(context), &config));
    return fsdp_state_dict_from_module(model, out); /* it keeps references to the tensors */
}

/* ---- what differs ---- */

void fsdp__mismatch_missing(fsdp__mismatch *m, const char *name)
{
    fsdp__names_add(&m->missing, FSDP__SHOWN_NAME(name));
    m->head = strcmp(name, FSDP__HEAD_NAME) == 0;
    m->bias = fsdp__ends_with(name, "_proj.bias");
}

void fsdp__mismatch_unexpected(fsdp__mismatch *m, const char *name, const char *file)
{
    if (m->unexpected.count == 0)
        m->file = file;
    fsdp__names_add(&m->unexpected, FSDP__SHOWN_NAME(name));
    if (!m->kind)
        m->kind = kind_of(m, name);
}

/* Returns whether only the number of tokens in the vocabulary differs. */
static bool is_of_vocabulary(const fsdp__mismatch *m, const fsdp_state_dict_entry *entry, int ndim,
                             const int64_t *shape)
{
    return m->config && ndim == 2 && entry->ndim == 2 && shape[1] == entry->global_shape[1] &&
           (strcmp(entry->name, FSDP__HEAD_NAME) == 0 ||
            strcmp(entry->name, fsdp__embedding_name(m->config->architecture)) == 0);
}

bool fsdp__mismatch_fits(fsdp__mismatch *m, const fsdp_state_dict_entry *entry, const char *name, int ndim,
                         const int64_t *shape)
{
    m->found++;
    if (ndim == entry->ndim && memcmp(shape, entry->global_shape, (size_t)ndim * sizeof *shape) == 0)
        return true;
    if (m->misshapen++ == 0)
        snprintf(m->shapes, sizeof m->shapes, "tensor '%s' has shape %s, but the model's has %s",
                 FSDP__SHOWN_NAME(name), FSDP__SHOWN_SHAPE(ndim, shape),
                 FSDP__SHOWN_SHAPE(entry->ndim, entry->global_shape));
    if (is_of_vocabulary(m, entry, ndim, shape))
        m->rows = shape[0];
    else
        m->other_size = true;
    return false;
}

/* ---- the message ---- */

/* Writes the numbers of layers or tokens, and which key of the model sets them. */
static void size_cause(const fsdp__mismatch *m, char *text, size_t bytes)
{
    long long layers = m->config->n_layers, vocab_size = m->config->vocab_size;

    if (m->layers != layers && m->by_keys)
        snprintf(text, bytes, ": the model has %lld layer%s (model.n_layers), but there %s %lld", layers,
                 fsdp__plural(layers), m->layers == 1 ? "is" : "are", (long long)m->layers);
    else if (m->layers != layers)
        snprintf(text, bytes, ": config.json says %s %lld, but there are %lld layer%s",
                 m->config->architecture == FSDP_GPT2 ? "n_layer" : "num_hidden_layers", layers, (long long)m->layers,
                 fsdp__plural(m->layers));
    else if (m->other_size)
        snprintf(text, bytes, ": %s of a model with other sizes", m->by_keys ? "these are" : "config.json is that");
    else if (m->by_keys)
        snprintf(text, bytes, ": the model has a vocabulary of %lld (model.vocab_size), but there are %lld", vocab_size,
                 (long long)m->rows);
    else
        snprintf(text, bytes,
                 ": config.json says vocab_size %lld: if the vocabulary was resized to %lld, it has to say so",
                 vocab_size, (long long)m->rows);
}

/* Writes the usual cause, beginning with ": ", or "" if none is known. */
static const char *cause_of(const fsdp__mismatch *m, char *text, size_t bytes)
{
    const fsdp_model_config *c = m->config;

    text[0] = '\0';
    if (m->kind)
        snprintf(text, bytes, ": %s", m->kind);
    else if (!c)
        return text;
    else if (m->found == 0)
        snprintf(text, bytes, ": these are not the weights of a %s, or they have other names",
                 fsdp_architecture_name(c->architecture));
    else if (m->layers != c->n_layers || m->misshapen > 0)
        size_cause(m, text, bytes);
    else if (m->head && m->missing.count == 1)
        snprintf(text, bytes, ": if the embedding is also the head, %s",
                 m->by_keys ? "set model.tie_word_embeddings=true" : "config.json has to say tie_word_embeddings true");
    else if (m->bias && c->architecture == FSDP_QWEN2)
        snprintf(text, bytes, ": a Qwen2 has these biases; without them it may be a llama or mistral (model_type)");
    return text;
}

static void append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t bytes, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + length, bytes - length, format, arguments);
    va_end(arguments);
}

fsdp_status fsdp__mismatch_status(fsdp__mismatch *m, bool partial)
{
    bool alone = m->misshapen == 0 && m->missing.count == 0;
    char text[1400] = "", cause[300];

    if (m->misshapen == 0 && (partial || m->missing.count + m->unexpected.count == 0))
        return FSDP_OK;
    if (m->misshapen > 0)
        append(text, sizeof text, "%s", m->shapes);
    if (m->misshapen > 1)
        append(text, sizeof text, ", and %lld more have other shapes", (long long)m->misshapen - 1);
    if (m->missing.count > 0 && !partial)
        append(text, sizeof text, "%s%s tensor%s %s", *text ? "; " : "", m->checkpoint ? "it lacks" : "no file holds",
               m->missing.count > 1 ? "s" : "", fsdp__names_text(&m->missing));
    if (m->unexpected.count > 0 && !partial && !alone)
        append(text, sizeof text, "; and no parameter of the model is %s", fsdp__names_text(&m->unexpected));
    else if (m->unexpected.count > 0 && !partial)
        append(text, sizeof text, "tensor%s %s belong%s to no parameter of the model",
               m->unexpected.count > 1 ? "s" : "", fsdp__names_text(&m->unexpected),
               m->unexpected.count > 1 ? "" : "s");
    return FSDP_FAIL(FSDP_FORMAT, "cannot load '%s': %s%s", alone ? m->file : m->place, text,
                     cause_of(m, cause, sizeof cause));
}
