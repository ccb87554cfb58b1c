/* config_write.c - writes config.json and generation_config.json so that old and new versions of transformers read
 * them. */
#include "format/json.h"
#include "hub/config_keep.h"
#include "hub/hub.h"

/* An object being filled: a failed insertion is remembered and reported once. */
typedef struct writer {
    json_t *object;
    bool failed;
} writer;

static void put(writer *w, const char *key, json_t *value) /* takes `value` over */
{
    w->failed |= json_object_set_new(w->object, key, value) != 0;
}

static void put_integer(writer *w, const char *key, int64_t value)
{
    put(w, key, json_integer(value));
}

static void put_float(writer *w, const char *key, float value)
{
    put(w, key, json_real(fsdp__json_shortest(value)));
}

static void put_bool(writer *w, const char *key, bool value)
{
    put(w, key, json_boolean(value));
}

static void put_token(writer *w, const char *key, bool has, int64_t token)
{
    put(w, key, has ? json_integer(token) : json_null());
}

static void put_eos_tokens(writer *w, const fsdp_model_config *config)
{
    json_t *list;

    if (config->eos_token_count <= 1) {
        put_token(w, "eos_token_id", config->eos_token_count == 1, config->eos_tokens[0]);
        return;
    }
    list = json_array();
    for (int i = 0; i < config->eos_token_count; i++)
        w->failed |= json_array_append_new(list, json_integer(config->eos_tokens[i])) != 0;
    put(w, "eos_token_id", list);
}

static void put_tokens(writer *w, const fsdp_model_config *config)
{
    put_token(w, "bos_token_id", config->has_bos_token, config->bos_token);
    put_eos_tokens(w, config);
    if (config->has_pad_token)
        put_integer(w, "pad_token_id", config->pad_token);
}

static void put_gpt2(writer *w, const fsdp_model_config *config)
{
    put(w, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    put(w, "model_type", json_string("gpt2"));
    put_integer(w, "n_layer", config->n_layers);
    put_integer(w, "n_embd", config->dim);
    put_integer(w, "n_head", config->n_heads);
    put_integer(w, "n_inner", config->ffn_dim);
    put_integer(w, "n_positions", config->max_seq_len);
    put(w, "activation_function", json_string(config->gelu_erf ? "gelu" : "gelu_new"));
    put_float(w, "layer_norm_epsilon", config->norm_eps);
    put_float(w, "embd_pdrop", config->embd_dropout);
    put_float(w, "resid_pdrop", config->dropout);
    put_float(w, "attn_pdrop", config->attention_dropout);
}

/* Writes rope_theta and rope_scaling for older versions, and rope_parameters for newer ones. */
static void put_rope(writer *w, const fsdp_model_config *config)
{
    writer scaling = {.object = json_object()}, parameters = {.object = NULL};

    put(&scaling, "rope_type", json_string(fsdp_rope_type_name(config->rope_type)));
    if (config->rope_type != FSDP_ROPE_DEFAULT)
        put_float(&scaling, "factor", config->rope_factor);
    if (config->rope_type == FSDP_ROPE_LLAMA3) {
        put_float(&scaling, "low_freq_factor", config->rope_low_freq_factor);
        put_float(&scaling, "high_freq_factor", config->rope_high_freq_factor);
        put_integer(&scaling, "original_max_position_embeddings", config->rope_original_max_seq_len);
    }
    parameters.object = json_copy(scaling.object);
    put_float(&parameters, "rope_theta", config->rope_theta);
    w->failed |= scaling.failed || parameters.failed;
    put_float(w, "rope_theta", config->rope_theta);
    put(w, "rope_parameters", parameters.object);
    if (config->rope_type != FSDP_ROPE_DEFAULT)
        put(w, "rope_scaling", json_incref(scaling.object));
    json_decref(scaling.object);
}

/* Writes the names of the kind of Llama, and the keys that only this kind has. */
static void put_kind(writer *w, const fsdp_model_config *config)
{
    if (config->architecture == FSDP_LLAMA) {
        put(w, "architectures", json_pack("[s]", "LlamaForCausalLM"));
        put(w, "model_type", json_string("llama"));
        put_bool(w, "attention_bias", config->attention_bias);
        put_bool(w, "mlp_bias", config->mlp_bias);
    } else if (config->architecture == FSDP_MISTRAL) {
        put(w, "architectures", json_pack("[s]", "MistralForCausalLM"));
        put(w, "model_type", json_string("mistral"));
        put(w, "sliding_window", json_null());
    } else {
        put(w, "architectures", json_pack("[s]", "Qwen2ForCausalLM"));
        put(w, "model_type", json_string("qwen2"));
        put_bool(w, "use_sliding_window", false);
    }
}

static void put_llama(writer *w, const fsdp_model_config *config)
{
    put_kind(w, config);
    put_integer(w, "num_hidden_layers", config->n_layers);
    put_integer(w, "hidden_size", config->dim);
    put_integer(w, "num_attention_heads", config->n_heads);
    put_integer(w, "num_key_value_heads", config->n_kv_heads);
    put_integer(w, "head_dim", config->head_dim);
    put_integer(w, "intermediate_size", config->ffn_dim);
    put_integer(w, "max_position_embeddings", config->max_seq_len);
    put(w, "hidden_act", json_string("silu"));
    put_float(w, "rms_norm_eps", config->norm_eps);
    put_float(w, "attention_dropout", config->attention_dropout);
    put_rope(w, config);
}

/* Gives the text of an object and takes the object over; NULL: out of memory. */
static fsdp_status print(json_t *object, const char *what, char **out)
{
    *out = object ? json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return *out ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for %s", what);
}

/* Returns the object, unless an insertion failed. */
static json_t *finish(writer *w)
{
    if (!w->failed)
        return w->object;
    json_decref(w->object);
    return NULL;
}

json_t *fsdp__config_object(const fsdp_model_config *config, fsdp_dtype dtype)
{
    writer w = {.object = json_object()};

    if (config->architecture == FSDP_GPT2)
        put_gpt2(&w, config);
    else
        put_llama(&w, config);
    put_integer(&w, "vocab_size", config->vocab_size);
    put_bool(&w, "tie_word_embeddings", config->tie_word_embeddings);
    put_float(&w, "initializer_range", config->init_std);
    put(&w, "torch_dtype", json_string(fsdp_dtype_name(dtype)));
    put(&w, "dtype", json_string(fsdp_dtype_name(dtype)));
    put_tokens(&w, config);
    if (config->has_unk_token)
        put_integer(&w, "unk_token_id", config->unk_token);
    return finish(&w);
}

fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out)
{
    return print(fsdp__config_object(config, dtype), "config.json", out);
}

fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out)
{
    writer w = {.object = json_object()};

    put_bool(&w, "_from_model_config", true);
    put_tokens(&w, config);
    return print(finish(&w), "generation_config.json", out);
}
