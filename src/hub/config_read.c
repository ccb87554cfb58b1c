/* config_read.c - config.json of GPT-2 and Llama folders, in the older and the newer style. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "format/journal.h"
#include "format/json.h"
#include "hub/hub.h"

#define CONFIG_LIMIT_BYTES ((size_t)4 << 20)

/* ---- values only some of which are supported ---- */

static fsdp_status unsupported(const fsdp__json_object *from, const char *key, const char *value, const char *known)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': %s '%s' is not supported: %s", from->path, key,
                     FSDP__SHOWN_NAME(value), known);
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

/* The two places in which versions of transformers look for the kind of rotary positions. */
#define NEWER "rope_parameters"
#define OLDER "rope_scaling"

static fsdp_status bad_rope(const fsdp__json_object *from, const char *what)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot use '%s': %s: supported is one kind, default or llama3, in " NEWER " or " OLDER,
                     from->path, what);
}

/* Keys that this kind does not have would change the frequencies somewhere else, and here would be passed over. */
static fsdp_status check_rope_keys(const fsdp__json_object *rope, bool llama3)
{
    static const char *const all[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor",
                                      "original_max_position_embeddings"};
    static const char *const scaled[] = {"factor", "low_freq_factor", "high_freq_factor"};
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)rope->object, key, value)
    {
        bool known = json_is_null(value);

        for (size_t i = 0; i < FSDP__COUNT_OF(all); i++)
            known = known || strcmp(key, all[i]) == 0;
        for (size_t i = 0; llama3 && i < FSDP__COUNT_OF(scaled); i++)
            known = known || strcmp(key, scaled[i]) == 0;
        if (!known)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot use '%s': '%s' does not belong to rope type %s: default and llama3 are supported",
                             rope->path, FSDP__SHOWN_NAME(key), llama3 ? "llama3" : "default");
    }
    return FSDP_OK;
}

/* What one place says of the rotary positions. */
typedef struct rope {
    bool llama3;
    float theta; /* NAN: nothing */
    float factor, low_freq_factor, high_freq_factor;
    int64_t original;
} rope;

/* NULL leaves the default. Two spellings of the key are two answers unless they are the same. */
static fsdp_status read_rope_type(const fsdp__json_object *from, bool *out_llama3)
{
    const char *older = NULL, *newer = NULL, *type;

    FSDP_TRY(fsdp__json_string(from, "type", false, &older));
    FSDP_TRY(fsdp__json_string(from, "rope_type", false, &newer));
    if (older && newer && strcmp(older, newer) != 0)
        return bad_rope(from, "its rope has a 'type' and another 'rope_type'");
    type = newer ? newer : older ? older : "default";
    *out_llama3 = strcmp(type, "llama3") == 0;
    if (!*out_llama3 && strcmp(type, "default") != 0)
        return unsupported(from, "rope type", type, "default and llama3 are");
    return FSDP_OK;
}

static fsdp_status need_whole(const fsdp__json_object *from)
{
    float partial = 1;

    FSDP_TRY(fsdp__json_float(from, "partial_rotary_factor", false, &partial));
    return partial == 1 ? FSDP_OK : unsupported(from, "partial_rotary_factor", "other than 1", "only 1 is");
}

static fsdp_status read_one_rope(const fsdp__json_object *from, rope *out)
{
    FSDP_TRY(fsdp__json_float(from, "rope_theta", false, &out->theta));
    FSDP_TRY(need_whole(from));
    FSDP_TRY(read_rope_type(from, &out->llama3));
    FSDP_TRY(check_rope_keys(from, out->llama3));
    if (!out->llama3)
        return FSDP_OK;
    FSDP_TRY(fsdp__json_float(from, "factor", true, &out->factor));
    FSDP_TRY(fsdp__json_float(from, "low_freq_factor", true, &out->low_freq_factor));
    FSDP_TRY(fsdp__json_float(from, "high_freq_factor", true, &out->high_freq_factor));
    return fsdp__json_integer(from, "original_max_position_embeddings", true, &out->original);
}

static bool same_rope(const rope *a, const rope *b)
{
    return a->llama3 == b->llama3 && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original == b->original;
}

/* Newer: rope_parameters with everything. Older: rope_theta at the top and rope_scaling with the rest, or null. What
 * is said twice must be the same: which of the two wins has changed between versions of transformers. */
static fsdp_status read_rope(const fsdp__json_object *from, fsdp_model_config *out)
{
    static const char *const places[] = {NEWER, OLDER};
    rope found = {.theta = NAN}, one;
    int count = 0;

    FSDP_TRY(fsdp__json_float(from, "rope_theta", false, &found.theta));
    FSDP_TRY(need_whole(from));
    for (int i = 0; i < 2; i++) {
        fsdp__json_object place;

        FSDP_TRY(fsdp__json_child(from, places[i], &place));
        if (!place.object)
            continue;
        one = (rope){.theta = NAN};
        FSDP_TRY(read_one_rope(&place, &one));
        if (count++ && !same_rope(&found, &one))
            return bad_rope(from, "its " NEWER " and " OLDER " differ");
        if (!isnan(found.theta) && !isnan(one.theta) && found.theta != one.theta)
            return bad_rope(from, "it has two values of rope_theta");
        one.theta = isnan(one.theta) ? found.theta : one.theta;
        found = one;
    }
    out->rope_theta = isnan(found.theta) ? out->rope_theta : found.theta;
    out->rope_llama3 = found.llama3;
    out->rope_factor = found.factor;
    out->rope_low_freq_factor = found.low_freq_factor;
    out->rope_high_freq_factor = found.high_freq_factor;
    out->rope_original_max_seq_len = found.original;
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
    FSDP_TRY(fsdp__journal_check(folder));
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
