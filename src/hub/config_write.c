/* config_write.c - writes config.json and generation_config.json so that old and new versions of transformers read
 * them. */
#include <math.h>

#include "format/json.h"
#include "hub/config_keep.h"
#include "hub/config_parts.h"
#include "hub/hub.h"
#include "models/models.h"

static void put_token(fsdp__config_writer *w, const char *key, bool has, int64_t token)
{
    fsdp__config_put(w, key, has ? json_integer(token) : json_null());
}

static void put_eos_tokens(fsdp__config_writer *w, const fsdp_model_config *config)
{
    json_t *list;

    if (config->eos_token_count <= 1) {
        put_token(w, "eos_token_id", config->eos_token_count == 1, config->eos_tokens[0]);
        return;
    }
    list = json_array();
    for (int i = 0; i < config->eos_token_count; i++)
        w->failed |= json_array_append_new(list, json_integer(config->eos_tokens[i])) != 0;
    fsdp__config_put(w, "eos_token_id", list);
}

static void put_tokens(fsdp__config_writer *w, const fsdp_model_config *config)
{
    put_token(w, "bos_token_id", config->has_bos_token, config->bos_token);
    put_eos_tokens(w, config);
    if (config->has_pad_token)
        fsdp__config_put_integer(w, "pad_token_id", config->pad_token);
}

static void put_gpt2(fsdp__config_writer *w, const fsdp_model_config *config)
{
    fsdp__config_put(w, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    fsdp__config_put(w, "model_type", json_string("gpt2"));
    fsdp__config_put_integer(w, "n_layer", config->n_layers);
    fsdp__config_put_integer(w, "n_embd", config->dim);
    fsdp__config_put_integer(w, "n_head", config->n_heads);
    fsdp__config_put_integer(w, "n_inner", config->ffn_dim);
    fsdp__config_put_integer(w, "n_positions", config->max_seq_len);
    fsdp__config_put(w, "activation_function", json_string(config->gelu_erf ? "gelu" : "gelu_new"));
    fsdp__config_put_float(w, "layer_norm_epsilon", config->norm_eps);
    fsdp__config_put_float(w, "embd_pdrop", config->embd_dropout);
    fsdp__config_put_float(w, "resid_pdrop", config->dropout);
    fsdp__config_put_float(w, "attn_pdrop", config->attention_dropout);
}

/* Writes how far local layers see, and which they are. Where all are, there is no list of them. */
static void put_windows(fsdp__config_writer *w, const fsdp_model_config *config)
{
    bool all = config->architecture == FSDP_MISTRAL || config->architecture == FSDP_PHI3, any = false;
    bool gemma = fsdp__family_of(config->architecture)->gemma;
    json_t *types = json_array();

    for (int64_t i = 0; i < config->n_layers; i++) {
        bool local = fsdp_model_layer_is_local(config, i);

        any |= local;
        w->failed |= json_array_append_new(types, json_string(local ? "sliding_attention" : "full_attention")) != 0;
    }
    if (!all && !gemma)
        fsdp__config_put_bool(w, "use_sliding_window", any);
    if (any || all || gemma)
        fsdp__config_put(w, "sliding_window", config->window > 0 ? json_integer(config->window) : json_null());
    if (!all && (any || gemma))
        fsdp__config_put(w, "layer_types", json_incref(types));
    json_decref(types);
}

static void put_no_rope(fsdp__config_writer *w, const fsdp_model_config *config)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < config->n_layers; i++)
        w->failed |= json_array_append_new(list, json_integer(fsdp_model_layer_has_rope(config, i))) != 0;
    fsdp__config_put(w, "no_rope_layers", list);
}

static void put_softcap(fsdp__config_writer *w, const char *key, float cap)
{
    fsdp__config_put(w, key, cap > 0 ? json_real(fsdp__json_shortest(cap)) : json_null());
}

static void put_gemma(fsdp__config_writer *w, const fsdp_model_config *config)
{
    double scalar = fsdp__json_shortest(config->query_scalar > 0 ? config->query_scalar : (float)config->head_dim);

    /* transformers wants an integer where it is one. */
    fsdp__config_put(w, "query_pre_attn_scalar",
                     scalar == floor(scalar) ? json_integer((json_int_t)scalar) : json_real(scalar));
    put_softcap(w, "attn_logit_softcapping", config->attention_softcap);
    put_softcap(w, "final_logit_softcapping", config->logits_softcap);
    fsdp__config_put(w, "hidden_activation", json_string("gelu_pytorch_tanh"));
}

/* Returns the name of a family in model_type. */
static const char *type_of(fsdp_architecture architecture)
{
    static const char *const types[] = {
        [FSDP_LLAMA] = "llama", [FSDP_MISTRAL] = "mistral", [FSDP_QWEN2] = "qwen2",
        [FSDP_QWEN3] = "qwen3", [FSDP_OLMO2] = "olmo2",     [FSDP_SMOLLM3] = "smollm3",
        [FSDP_PHI3] = "phi3",   [FSDP_GEMMA2] = "gemma2",   [FSDP_GEMMA3] = "gemma3_text",
    };

    return types[architecture];
}

/* Writes the names of the family, and the keys that not all families have. */
static void put_kind(fsdp__config_writer *w, const fsdp_model_config *config)
{
    const fsdp__family *family = fsdp__family_of(config->architecture);
    char name[64];

    snprintf(name, sizeof name, "%sForCausalLM", family->name);
    fsdp__config_put(w, "architectures", json_pack("[s]", name));
    fsdp__config_put(w, "model_type", json_string(type_of(config->architecture)));
    if (family->may_bias)
        fsdp__config_put_bool(w, "attention_bias", config->attention_bias);
    if (family->may_mlp_bias)
        fsdp__config_put_bool(w, "mlp_bias", config->mlp_bias);
    if (config->architecture != FSDP_LLAMA && config->architecture != FSDP_OLMO2)
        put_windows(w, config);
    if (config->architecture == FSDP_SMOLLM3)
        put_no_rope(w, config);
    if (family->gemma)
        put_gemma(w, config);
    else
        fsdp__config_put(w, "hidden_act", json_string("silu"));
    if (config->architecture > FSDP_QWEN2 && !config->has_pad_token) /* the default may be beyond the vocabulary */
        fsdp__config_put(w, "pad_token_id", json_null());
}

static void put_llama(fsdp__config_writer *w, const fsdp_model_config *config)
{
    put_kind(w, config);
    fsdp__config_put_integer(w, "num_hidden_layers", config->n_layers);
    fsdp__config_put_integer(w, "hidden_size", config->dim);
    fsdp__config_put_integer(w, "num_attention_heads", config->n_heads);
    fsdp__config_put_integer(w, "num_key_value_heads", config->n_kv_heads);
    fsdp__config_put_integer(w, "head_dim", config->head_dim);
    fsdp__config_put_integer(w, "intermediate_size", config->ffn_dim);
    fsdp__config_put_integer(w, "max_position_embeddings", config->max_seq_len);
    fsdp__config_put_float(w, "rms_norm_eps", config->norm_eps);
    fsdp__config_put_float(w, "attention_dropout", config->attention_dropout);
    fsdp__config_put_rope(w, config);
}

/* Gives the text of an object and takes the object over; NULL: out of memory. */
static fsdp_status print(json_t *object, const char *what, char **out)
{
    *out = object ? json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    return *out ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for %s", what);
}

/* Returns the object, unless an insertion failed. */
static json_t *finish(fsdp__config_writer *w)
{
    if (!w->failed)
        return w->object;
    json_decref(w->object);
    return NULL;
}

json_t *fsdp__config_object(const fsdp_model_config *config, fsdp_dtype dtype)
{
    fsdp__config_writer w = {.object = json_object()};

    if (config->architecture == FSDP_GPT2)
        put_gpt2(&w, config);
    else
        put_llama(&w, config);
    fsdp__config_put_integer(&w, "vocab_size", config->vocab_size);
    fsdp__config_put_bool(&w, "tie_word_embeddings", config->tie_word_embeddings);
    fsdp__config_put_float(&w, "initializer_range", config->init_std);
    fsdp__config_put(&w, "torch_dtype", json_string(fsdp_dtype_name(dtype)));
    fsdp__config_put(&w, "dtype", json_string(fsdp_dtype_name(dtype)));
    put_tokens(&w, config);
    if (config->has_unk_token)
        fsdp__config_put_integer(&w, "unk_token_id", config->unk_token);
    return finish(&w);
}

fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out)
{
    return print(fsdp__config_object(config, dtype), "config.json", out);
}

fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out)
{
    fsdp__config_writer w = {.object = json_object()};

    fsdp__config_put_bool(&w, "_from_model_config", true);
    put_tokens(&w, config);
    return print(finish(&w), "generation_config.json", out);
}
