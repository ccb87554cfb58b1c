/* gguf_load.c - reads a model from a file of llama.cpp. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "hub/gguf_names.h"
#include "models/models.h"
#include "tensor/tensor.h"

/* ---- config ---- */

/* Reads {architecture}.{key}. */
static fsdp_status size_of(const fsdp__gguf *file, const char *architecture, const char *key, bool required,
                           int64_t *out)
{
    char text[128];

    snprintf(text, sizeof text, "%s.%s", architecture, key);
    return fsdp__gguf_integer(file, text, required, out);
}

static fsdp_status real_of(const fsdp__gguf *file, const char *architecture, const char *key, bool required, float *out)
{
    char text[128];
    double value = (double)*out;

    snprintf(text, sizeof text, "%s.%s", architecture, key);
    FSDP_TRY(fsdp__gguf_number(file, text, required, &value));
    *out = (float)value;
    return FSDP_OK;
}

static bool has_tensor(const fsdp__gguf *file, const char *name)
{
    return fsdp__gguf_find_tensor(file, name);
}

/* The factors of llama3's scaling are there, but not what they were made of: they must be those of the usual numbers.
 */
static fsdp_status read_rope_factors(const fsdp__gguf *file, const fsdp__gguf_tensor *t, fsdp_model_config *c)
{
    FSDP__FREED float *expected = NULL;
    float value;

    if (t->type != FSDP__GGUF_F32 || t->numel != c->head_dim / 2)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': rope_freqs.weight is not float32 (%lld,)", file->path,
                         (long long)(c->head_dim / 2));
    c->rope_type = FSDP_ROPE_LLAMA3;
    c->rope_factor = 1;
    for (int64_t i = 0; i < t->numel; i++) {
        memcpy(&value, t->data + 4 * i, sizeof value);
        c->rope_factor = fmaxf(c->rope_factor, value);
    }
    c->rope_low_freq_factor = 1, c->rope_high_freq_factor = 4;
    c->rope_original_max_seq_len = 8192;
    FSDP__TRY_NEW(expected = fsdp__malloc((size_t)t->numel * sizeof *expected + 1));
    fsdp__gguf_rope_factors(c, expected);
    for (int64_t i = 0; i < t->numel; i++) {
        memcpy(&value, t->data + 4 * i, sizeof value);
        if (!(fabsf(value - expected[i]) <= 1e-4f * expected[i]))
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "'%s': rope_freqs.weight is not that of Llama 3 (factors 1 and 4, 8192 positions)",
                             file->path);
    }
    return FSDP_OK;
}

/* Reads one of longrope's lists of factors. */
static fsdp_status read_list(const fsdp__gguf *file, const char *name, const fsdp_model_config *c, float *out)
{
    const fsdp__gguf_tensor *t = fsdp__gguf_find_tensor(file, name);
    int64_t count = fsdp__rotary_dim(c) / 2;

    if (!t || t->type != FSDP__GGUF_F32 || t->numel != count || count > FSDP_MODEL_MAX_ROPE_FACTORS)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': %s is no vector of %lld float32", file->path, name, (long long)count);
    memcpy(out, t->data, t->bytes);
    return FSDP_OK;
}

static fsdp_status read_longrope(const fsdp__gguf *file, const char *architecture, fsdp_model_config *c)
{
    float factor = 1;

    if (c->architecture != FSDP_PHI3)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s': %s in a %s", file->path, FSDP__GGUF_LONG, architecture);
    c->rope_type = FSDP_ROPE_LONGROPE;
    FSDP_TRY(size_of(file, architecture, "rope.scaling.original_context_length", true, &c->rope_original_max_seq_len));
    if (c->rope_original_max_seq_len < 2)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': rope.scaling.original_context_length is %lld: expected at least 2",
                         file->path, (long long)c->rope_original_max_seq_len);
    c->rope_factor = (float)((double)c->max_seq_len / (double)c->rope_original_max_seq_len);
    FSDP_TRY(real_of(file, architecture, "rope.scaling.attn_factor", false, &factor));
    if (factor != (float)fsdp__rope_attention_factor(c))
        c->rope_attention_factor = factor;
    FSDP_TRY(read_list(file, FSDP__GGUF_LONG, c, c->rope_long_factors));
    return read_list(file, FSDP__GGUF_SHORT, c, c->rope_short_factors);
}

static fsdp_status read_rope(const fsdp__gguf *file, const char *architecture, fsdp_model_config *c)
{
    const fsdp__gguf_tensor *factors = fsdp__gguf_find_tensor(file, "rope_freqs.weight");
    FSDP__FREED char *type = NULL;
    int64_t rotated = c->head_dim;
    char text[128];

    c->rope_theta = 10000;
    FSDP_TRY(real_of(file, architecture, "rope.freq_base", false, &c->rope_theta));
    FSDP_TRY(size_of(file, architecture, "rope.dimension_count", false, &rotated));
    if (rotated != c->head_dim)
        c->rotary_fraction = (float)((double)rotated / (double)c->head_dim);
    if (rotated < 1 || fsdp__rotary_dim(c) != rotated || (rotated != c->head_dim && c->architecture != FSDP_PHI3))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s': %lld of %lld dimensions of a head rotate: all must%s", file->path,
                         (long long)rotated, (long long)c->head_dim, c->architecture == FSDP_PHI3 ? " at most" : "");
    if (has_tensor(file, FSDP__GGUF_LONG))
        return read_longrope(file, architecture, c);
    snprintf(text, sizeof text, "%s.rope.scaling.type", architecture);
    FSDP_TRY(fsdp__gguf_string(file, text, false, &type));
    if (type && strcmp(type, "linear") == 0) {
        c->rope_type = FSDP_ROPE_LINEAR;
        return real_of(file, architecture, "rope.scaling.factor", true, &c->rope_factor);
    }
    if (type && strcmp(type, "none") != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s': rope scaling of type '%s' is not supported", file->path, type);
    return factors ? read_rope_factors(file, factors, c) : FSDP_OK;
}

/* Reads which layers are local. */
static fsdp_status read_layers(const fsdp__gguf *file, const fsdp__gguf_family *family, fsdp_model_config *c)
{
    int64_t most = FSDP__MIN(c->n_layers, FSDP_MODEL_MAX_MARKED_LAYERS), period = family->period;
    float theta = family->local_theta;
    bool phi3 = c->architecture == FSDP_PHI3;

    for (int64_t i = 0; i < most; i++)
        c->no_rope_layers[i / 64] |= (uint64_t)!fsdp__gguf_has_rope(family, i) << (i % 64);
    if (!phi3 && period == 0)
        return FSDP_OK;
    FSDP_TRY(size_of(file, family->name, "attention.sliding_window", !phi3, &c->window));
    FSDP_TRY(size_of(file, family->name, "attention.sliding_window_pattern", false, &period));
    FSDP_TRY(real_of(file, family->name, "rope.freq_base_swa", false, &theta));
    if (c->window < (phi3 ? 0 : 1) || period != family->period)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s': local layers with a window of %lld, each %lldth layer full: a %s has "
                         "a window, and each %lldth",
                         file->path, (long long)c->window, (long long)period, family->name, (long long)family->period);
    if (family->local_theta == 0 && theta != 0 && theta != c->rope_theta)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s': a rope.freq_base_swa of %g, beside a freq_base of %g, in a %s",
                         file->path, (double)theta, (double)c->rope_theta, family->name);
    for (int64_t i = 0; i < most && c->window > 0; i++)
        c->local_layers[i / 64] |= (uint64_t)(phi3 || fsdp__gguf_is_local(family, i)) << (i % 64);
    c->local_rope_theta = family->local_theta > 0 ? theta : 0;
    return FSDP_OK;
}

/* Reads what scores are divided by, and soft caps. */
static fsdp_status read_scores(const fsdp__gguf *file, const fsdp__gguf_family *family, fsdp_model_config *c)
{
    if (fsdp__gguf_is_gemma(c->architecture))
        c->query_scalar = (float)fsdp__gguf_query_scalar(family, c);
    if (!family->soft_caps)
        return FSDP_OK;
    c->attention_softcap = 50, c->logits_softcap = 30;
    FSDP_TRY(real_of(file, family->name, "attn_logit_softcapping", false, &c->attention_softcap));
    return real_of(file, family->name, "final_logit_softcapping", false, &c->logits_softcap);
}

static fsdp_status read_llama(const fsdp__gguf *file, const fsdp__gguf_family *family, fsdp_model_config *c)
{
    const char *architecture = family->name;

    c->n_kv_heads = c->n_heads;
    FSDP_TRY(size_of(file, architecture, "attention.head_count_kv", false, &c->n_kv_heads));
    FSDP_TRY(size_of(file, architecture, "attention.key_length", false, &c->head_dim));
    FSDP_TRY(real_of(file, architecture, "attention.layer_norm_rms_epsilon", true, &c->norm_eps));
    if (c->head_dim < 2 || c->head_dim > 1 << 16)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': heads of %lld dimensions: expected from 2 to 65536", file->path,
                         (long long)c->head_dim);
    c->attention_bias = c->architecture == FSDP_LLAMA && has_tensor(file, "blk.0.attn_q.bias");
    c->mlp_bias = c->architecture == FSDP_LLAMA && has_tensor(file, "blk.0.ffn_up.bias");
    FSDP_TRY(read_rope(file, architecture, c));
    FSDP_TRY(read_layers(file, family, c));
    return read_scores(file, family, c);
}

static fsdp_status read_tokens(const fsdp__gguf *file, fsdp_model_config *c)
{
    int64_t bos = -1, eos = -1, pad = -1;

    FSDP_TRY(fsdp__gguf_integer(file, "tokenizer.ggml.bos_token_id", false, &bos));
    FSDP_TRY(fsdp__gguf_integer(file, "tokenizer.ggml.eos_token_id", false, &eos));
    FSDP_TRY(fsdp__gguf_integer(file, "tokenizer.ggml.padding_token_id", false, &pad));
    c->has_bos_token = bos >= 0 && bos < c->vocab_size, c->bos_token = c->has_bos_token ? bos : 0;
    c->has_pad_token = pad >= 0 && pad < c->vocab_size, c->pad_token = c->has_pad_token ? pad : 0;
    c->eos_token_count = eos >= 0 && eos < c->vocab_size;
    c->eos_tokens[0] = c->eos_token_count ? eos : 0;
    return FSDP_OK;
}

static fsdp_status read_sizes(const fsdp__gguf *file, const char *architecture, fsdp_model_config *c)
{
    const fsdp__gguf_tensor *table = fsdp__gguf_find_tensor(file, "token_embd.weight");

    if (!table || table->ndim != 2)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' has no matrix token_embd.weight", file->path);
    c->vocab_size = table->shape[0];
    FSDP_TRY(size_of(file, architecture, "context_length", true, &c->max_seq_len));
    FSDP_TRY(size_of(file, architecture, "embedding_length", true, &c->dim));
    FSDP_TRY(size_of(file, architecture, "block_count", true, &c->n_layers));
    FSDP_TRY(size_of(file, architecture, "feed_forward_length", true, &c->ffn_dim));
    FSDP_TRY(size_of(file, architecture, "attention.head_count", true, &c->n_heads));
    if (c->n_heads < 1 || c->n_layers < 1 || c->n_layers > file->tensor_count)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': %lld heads, %lld layers and %lld tensors do not fit together", file->path,
                         (long long)c->n_heads, (long long)c->n_layers, (long long)file->tensor_count);
    c->n_kv_heads = c->n_heads;
    c->head_dim = c->dim / c->n_heads;
    return FSDP_OK;
}

fsdp_status fsdp__gguf_config(const fsdp__gguf *file, fsdp_model_config *out)
{
    FSDP__FREED char *architecture = NULL;
    const fsdp__gguf_family *family;

    *out = (fsdp_model_config){.init_std = 0.02f, .norm_eps = 1e-5f};
    FSDP_TRY(fsdp__gguf_string(file, "general.architecture", true, &architecture));
    family = fsdp__gguf_family_named(architecture);
    if (!family)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' has a model of architecture '%s': gpt2, llama, qwen2, qwen3, olmo2, smollm3, phi3, "
                         "gemma2 and gemma3 can be read",
                         file->path, architecture);
    out->architecture = family->architecture;
    FSDP_TRY(read_sizes(file, architecture, out));
    FSDP_TRY(read_tokens(file, out));
    if (out->architecture == FSDP_GPT2)
        FSDP_TRY(real_of(file, architecture, "attention.layer_norm_epsilon", true, &out->norm_eps));
    else
        FSDP_TRY(read_llama(file, family, out));
    out->tie_word_embeddings = !has_tensor(file, "output.weight");
    return fsdp_fail_prefix(fsdp_model_config_check(out), "'%s'", file->path);
}

/* ---- tensors ---- */

static fsdp_status check_shape(const fsdp__gguf *file, const fsdp__gguf_tensor *t, const fsdp__gguf_place *place,
                               const fsdp_state_dict_entry *entry)
{
    int64_t shape[FSDP_MAX_DIMS] = {0};

    for (int d = 0; d < entry->ndim; d++)
        shape[d] = entry->global_shape[place->transposed ? entry->ndim - 1 - d : d];
    if (t->ndim == entry->ndim && memcmp(t->shape, shape, (size_t)t->ndim * sizeof *shape) == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "'%s': tensor '%s' is %s, but the model needs %s", file->path, t->name,
                     FSDP__SHAPE_OF(t), FSDP__SHOWN_SHAPE(entry->ndim, shape));
}

/* Gives the elements as f32. */
static fsdp_status decode(const fsdp__gguf_tensor *t, fsdp_device *device, float *out)
{
    fsdp_dtype dtype = t->type == FSDP__GGUF_F16 ? FSDP_F16 : FSDP_BF16;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    if (t->type == FSDP__GGUF_F32) {
        memcpy(out, t->data, t->bytes);
        return FSDP_OK;
    }
    if (t->type == FSDP__GGUF_Q8_0) {
        fsdp__gguf_from_blocks(t->data, t->numel, out);
        return FSDP_OK;
    }
    FSDP_TRY(fsdp_tensor_create(device, dtype, 1, &t->numel, FSDP_MEMORY_WORKSPACE, &tensor));
    FSDP_TRY(fsdp_tensor_write(tensor, dtype, t->data));
    return fsdp_tensor_read(tensor, FSDP_F32, out);
}

/* Finds the tensor of a parameter. */
static fsdp_status find_tensor(const fsdp__gguf *file, const fsdp_model_config *config,
                               const fsdp_state_dict_entry *entry, fsdp__gguf_place *place,
                               const fsdp__gguf_tensor **out)
{
    if (!fsdp__gguf_place_of(config, entry->name, place))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a GGUF file has no name for parameter '%s'", entry->name);
    *out = fsdp__gguf_find_tensor(file, place->name);
    return *out ? check_shape(file, *out, place, entry)
                : FSDP_FAIL(FSDP_FORMAT, "'%s' has no tensor '%s'", file->path, place->name);
}

/* Returns whether the config was read from this tensor. */
static bool holds_factors(const char *name)
{
    return strcmp(name, "rope_freqs.weight") == 0 || strcmp(name, FSDP__GGUF_LONG) == 0 ||
           strcmp(name, FSDP__GGUF_SHORT) == 0;
}

fsdp_status fsdp__gguf_check(const fsdp__gguf *file, const fsdp_model_config *config, const fsdp_state_dict *state)
{
    FSDP__FREED bool *used = fsdp__calloc((size_t)file->tensor_count + 1, sizeof *used);
    const fsdp__gguf_tensor *t;
    fsdp__gguf_place place;

    FSDP__TRY_NEW(used);
    for (int64_t i = 0; i < state->count; i++) {
        FSDP_TRY(find_tensor(file, config, &state->entries[i], &place, &t));
        used[t - file->tensors] = true;
    }
    for (int64_t i = 0; i < file->tensor_count; i++)
        if (!used[i] && !holds_factors(file->tensors[i].name))
            return FSDP_FAIL(FSDP_FORMAT, "'%s': tensor '%s' is none of the model's", file->path,
                             file->tensors[i].name);
    return FSDP_OK;
}

static fsdp_status load_entry(const fsdp__gguf *file, const fsdp_model_config *config, fsdp_state_dict_entry *entry)
{
    FSDP__FREED float *values = NULL, *ordered = NULL;
    const fsdp__gguf_tensor *t;
    fsdp__gguf_place place;

    FSDP_TRY(find_tensor(file, config, entry, &place, &t));
    FSDP__TRY_NEW(values = fsdp__malloc((size_t)t->numel * sizeof *values));
    FSDP_TRY(decode(t, fsdp_tensor_device(entry->tensor), values));
    fsdp__gguf_shift(&place, false, t->numel, values);
    if (!fsdp__gguf_is_reordered(&place))
        return fsdp_tensor_write(entry->tensor, FSDP_F32, values);
    FSDP__TRY_NEW(ordered = fsdp__malloc((size_t)t->numel * sizeof *ordered));
    fsdp__gguf_reorder(&place, t->shape, t->ndim, false, values, ordered);
    return fsdp_tensor_write(entry->tensor, FSDP_F32, ordered);
}

fsdp_status fsdp__gguf_load(const fsdp__gguf *file, const fsdp_model_config *config, fsdp_state_dict *state)
{
    FSDP_TRY(fsdp__gguf_check(file, config, state));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(load_entry(file, config, &state->entries[i]));
    return FSDP_OK;
}
