/* config_read.c - config.json of GPT-2 and Llama folders, in the older and the newer style. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/json.h"
#include "hub/hub.h"

#define CONFIG_LIMIT_BYTES ((size_t)16 << 20)

/* ---- values only some of which are supported ---- */

static fsdp_status unsupported(const fsdp__json_object *from, const char *key, const char *value, const char *known)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': %s '%s' is not supported: %s", from->path, key, value, known);
}

static fsdp_status need_bool(const fsdp__json_object *from, const char *key, bool needed)
{
    bool value = needed;

    FSDP_TRY(fsdp__json_bool(from, key, &value));
    if (value != needed)
        return unsupported(from, key, value ? "true" : "false", needed ? "only true is" : "only false is");
    return FSDP_OK;
}

/* A token id, a list of them (the first counts), or null. */
static fsdp_status read_token(const fsdp__json_object *from, const char *key, bool *out_has, int64_t *out)
{
    json_t *value = json_object_get(from->object, key);

    if (json_is_array(value))
        value = json_array_get(value, 0);
    *out_has = value && !json_is_null(value);
    if (!*out_has)
        return FSDP_OK;
    if (!json_is_integer(value))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is neither a token id nor a list of them", from->path,
                         key);
    *out = json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status read_common(const fsdp__json_object *from, fsdp_model_config *out)
{
    FSDP_TRY(fsdp__json_integer(from, "vocab_size", true, &out->vocab_size));
    FSDP_TRY(fsdp__json_float(from, "initializer_range", false, &out->init_std));
    FSDP_TRY(fsdp__json_bool(from, "tie_word_embeddings", &out->tie_word_embeddings));
    FSDP_TRY(read_token(from, "bos_token_id", &out->has_bos_token, &out->bos_token));
    FSDP_TRY(read_token(from, "eos_token_id", &out->has_eos_token, &out->eos_token));
    if (json_is_object(json_object_get(from->object, "quantization_config")))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': quantized weights (quantization_config) are not supported",
                         from->path);
    return FSDP_OK;
}

/* ---- GPT-2 ---- */

static fsdp_status read_gpt2_activation(const fsdp__json_object *from, fsdp_model_config *out)
{
    const char *name = "gelu_new";

    FSDP_TRY(fsdp__json_string(from, "activation_function", false, &name));
    out->gelu_erf = strcmp(name, "gelu") == 0;
    if (!out->gelu_erf && strcmp(name, "gelu_new") != 0 && strcmp(name, "gelu_pytorch_tanh") != 0)
        return unsupported(from, "activation_function", name, "gelu_new, gelu_pytorch_tanh and gelu are");
    return FSDP_OK;
}

static fsdp_status read_gpt2(const fsdp__json_object *from, fsdp_model_config *out)
{
    *out = (fsdp_model_config){.architecture = FSDP_GPT2,
                               .max_seq_len = 1024,
                               .norm_eps = 1e-5f,
                               .init_std = 0.02f,
                               .tie_word_embeddings = true,
                               .embd_dropout = 0.1f,
                               .dropout = 0.1f,
                               .attention_dropout = 0.1f};
    FSDP_TRY(read_common(from, out));
    FSDP_TRY(fsdp__json_integer(from, "n_layer", true, &out->n_layers));
    FSDP_TRY(fsdp__json_integer(from, "n_embd", true, &out->dim));
    FSDP_TRY(fsdp__json_integer(from, "n_head", true, &out->n_heads));
    FSDP_TRY(fsdp__json_integer(from, "n_positions", false, &out->max_seq_len));
    out->n_kv_heads = out->n_heads;
    out->head_dim = out->n_heads > 0 ? out->dim / out->n_heads : 0;
    out->ffn_dim = out->dim > 0 && out->dim < INT32_MAX ? 4 * out->dim : 0;
    FSDP_TRY(fsdp__json_integer(from, "n_inner", false, &out->ffn_dim));
    FSDP_TRY(fsdp__json_float(from, "layer_norm_epsilon", false, &out->norm_eps));
    FSDP_TRY(fsdp__json_float(from, "embd_pdrop", false, &out->embd_dropout));
    FSDP_TRY(fsdp__json_float(from, "resid_pdrop", false, &out->dropout));
    FSDP_TRY(fsdp__json_float(from, "attn_pdrop", false, &out->attention_dropout));
    FSDP_TRY(read_gpt2_activation(from, out));
    FSDP_TRY(need_bool(from, "scale_attn_weights", true));
    FSDP_TRY(need_bool(from, "scale_attn_by_inverse_layer_idx", false));
    return need_bool(from, "add_cross_attention", false);
}

/* ---- Llama ---- */

static fsdp_status read_llama3_scaling(const fsdp__json_object *rope, fsdp_model_config *out)
{
    out->rope_llama3 = true;
    FSDP_TRY(fsdp__json_float(rope, "factor", true, &out->rope_factor));
    FSDP_TRY(fsdp__json_float(rope, "low_freq_factor", true, &out->rope_low_freq_factor));
    FSDP_TRY(fsdp__json_float(rope, "high_freq_factor", true, &out->rope_high_freq_factor));
    return fsdp__json_integer(rope, "original_max_position_embeddings", true, &out->rope_original_max_seq_len);
}

/* Newer: rope_parameters with everything. Older: rope_theta at the top and rope_scaling with the rest, or null. */
static fsdp_status read_rope(const fsdp__json_object *from, fsdp_model_config *out)
{
    fsdp__json_object rope;
    const char *type = "default";
    float partial = 1;

    FSDP_TRY(fsdp__json_float(from, "rope_theta", false, &out->rope_theta));
    FSDP_TRY(fsdp__json_child(from, "rope_parameters", &rope));
    if (!rope.object)
        FSDP_TRY(fsdp__json_child(from, "rope_scaling", &rope));
    if (!rope.object)
        return FSDP_OK;
    FSDP_TRY(fsdp__json_float(&rope, "rope_theta", false, &out->rope_theta));
    FSDP_TRY(fsdp__json_string(&rope, "type", false, &type));
    FSDP_TRY(fsdp__json_string(&rope, "rope_type", false, &type));
    FSDP_TRY(fsdp__json_float(&rope, "partial_rotary_factor", false, &partial));
    if (partial != 1)
        return unsupported(from, "partial_rotary_factor", "below 1", "only 1 is");
    if (strcmp(type, "llama3") == 0)
        return read_llama3_scaling(&rope, out);
    if (strcmp(type, "default") != 0)
        return unsupported(from, "rope type", type, "default and llama3 are");
    return FSDP_OK;
}

static fsdp_status read_llama(const fsdp__json_object *from, fsdp_model_config *out)
{
    const char *activation = "silu";

    *out = (fsdp_model_config){
        .architecture = FSDP_LLAMA, .max_seq_len = 2048, .norm_eps = 1e-6f, .rope_theta = 10000.0f, .init_std = 0.02f};
    FSDP_TRY(read_common(from, out));
    FSDP_TRY(fsdp__json_integer(from, "num_hidden_layers", true, &out->n_layers));
    FSDP_TRY(fsdp__json_integer(from, "hidden_size", true, &out->dim));
    FSDP_TRY(fsdp__json_integer(from, "num_attention_heads", true, &out->n_heads));
    FSDP_TRY(fsdp__json_integer(from, "intermediate_size", true, &out->ffn_dim));
    FSDP_TRY(fsdp__json_integer(from, "max_position_embeddings", false, &out->max_seq_len));
    out->n_kv_heads = out->n_heads;
    out->head_dim = out->n_heads > 0 ? out->dim / out->n_heads : 0;
    FSDP_TRY(fsdp__json_integer(from, "num_key_value_heads", false, &out->n_kv_heads));
    FSDP_TRY(fsdp__json_integer(from, "head_dim", false, &out->head_dim));
    FSDP_TRY(fsdp__json_float(from, "rms_norm_eps", false, &out->norm_eps));
    FSDP_TRY(fsdp__json_float(from, "attention_dropout", false, &out->attention_dropout));
    FSDP_TRY(fsdp__json_bool(from, "attention_bias", &out->attention_bias));
    FSDP_TRY(fsdp__json_bool(from, "mlp_bias", &out->mlp_bias));
    FSDP_TRY(fsdp__json_string(from, "hidden_act", false, &activation));
    if (strcmp(activation, "silu") != 0)
        return unsupported(from, "hidden_act", activation, "only silu is");
    return read_rope(from, out);
}

/* ---- both ---- */

static fsdp_status read_config(const fsdp__json_object *from, fsdp_model_config *out)
{
    const char *type = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__json_string(from, "model_type", true, &type));
    if (strcmp(type, "gpt2") == 0)
        FSDP_TRY(read_gpt2(from, out));
    else if (strcmp(type, "llama") == 0)
        FSDP_TRY(read_llama(from, out));
    else
        return unsupported(from, "model_type", type, "gpt2 and llama are");
    status = fsdp_model_config_check(out);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_prefix(status, "cannot use '%s'", from->path);
}

fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out)
{
    fsdp__json_object from = {.path = path};
    fsdp_model_config config;
    fsdp_status status;
    json_t *object = NULL;

    FSDP_TRY(fsdp__json_parse(path, text, bytes, &object));
    from.object = object;
    status = read_config(&from, &config);
    json_decref(object);
    if (status == FSDP_OK)
        *out = config;
    return status;
}

fsdp_status fsdp_hub_read_config(const char *folder, fsdp_model_config *out)
{
    fsdp_status status = FSDP_OK;
    char *path, *text = NULL;
    size_t bytes = 0;

    if (!folder || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot read a model config: folder and out are required");
    path = fsdp__path_join(folder, "config.json");
    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read the config of '%s'", folder);
    FSDP_TRY_GOTO(status, fsdp__file_read(path, CONFIG_LIMIT_BYTES, &text, &bytes), out);
    FSDP_TRY_GOTO(status, fsdp__config_parse(path, text, bytes, out), out);
out:
    fsdp__free(text);
    fsdp__free(path);
    return status;
}
