/* config_read.c - reads the config.json of GPT-2 folders, and of Llama and similar models in the older and the newer
 * style. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "format/journal.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "hub/config_parts.h"
#include "hub/hub.h"
#include "models/models.h"

/* ---- values of which only some are supported ---- */

static fsdp_status need_bool(const fsdp__json_object *from, const char *key, bool needed)
{
    bool value = needed;

    FSDP_TRY(fsdp__json_bool(from, key, &value));
    if (value != needed)
        return fsdp__config_unsupported(from, key, value ? "true" : "false", needed ? "only true is" : "only false is");
    return FSDP_OK;
}

static fsdp_status bad_token(const fsdp__json_object *from, const char *key)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' is neither a token id nor a list of them", from->path,
                     key);
}

/* Reads a token id, a list of ids (the first one counts), or null. */
static fsdp_status read_token(const fsdp__json_object *from, const char *key, bool *out_has, int64_t *out)
{
    json_t *value = json_object_get(from->object, key);

    if (json_is_array(value))
        value = json_array_get(value, 0);
    *out_has = value && !json_is_null(value);
    if (!*out_has)
        return FSDP_OK;
    if (!json_is_integer(value))
        return bad_token(from, key);
    *out = json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status add_eos_token(const fsdp__json_object *from, const json_t *value, fsdp_model_config *out)
{
    if (!json_is_integer(value))
        return bad_token(from, "eos_token_id");
    if (out->eos_token_count == FSDP_MODEL_MAX_EOS_TOKENS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': key 'eos_token_id' has more than %d token ids", from->path,
                         FSDP_MODEL_MAX_EOS_TOKENS);
    out->eos_tokens[out->eos_token_count++] = json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status read_eos_tokens(const fsdp__json_object *from, fsdp_model_config *out)
{
    json_t *value = json_object_get(from->object, "eos_token_id"), *item;
    size_t i;

    if (!value || json_is_null(value))
        return FSDP_OK;
    if (!json_is_array(value))
        return add_eos_token(from, value, out);
    json_array_foreach(value, i, item) FSDP_TRY(add_eos_token(from, item, out));
    return FSDP_OK;
}

static fsdp_status read_tokens(const fsdp__json_object *from, fsdp_model_config *out)
{
    FSDP_TRY(read_token(from, "bos_token_id", &out->has_bos_token, &out->bos_token));
    FSDP_TRY(read_token(from, "pad_token_id", &out->has_pad_token, &out->pad_token));
    FSDP_TRY(read_token(from, "unk_token_id", &out->has_unk_token, &out->unk_token));
    return read_eos_tokens(from, out);
}

/* Refuses quantized weights, and names the method with which they were written. */
static fsdp_status need_no_quantization(const fsdp__json_object *from)
{
    static const char *const keys[] = {"quantization_config", "compression_config", "quantization"};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        json_t *way = json_object_get(from->object, keys[i]);
        const char *name = json_string_value(json_object_get(way, "quant_method"));

        if (json_is_object(way))
            return fsdp__config_unsupported(from, keys[i], name ? name : "(no quant_method)",
                                            "weights must be float32, bfloat16 or float16, as they were before");
    }
    return FSDP_OK;
}

/* Refuses mixtures of experts, some of which have the model_type of another model. */
static fsdp_status need_no_experts(const fsdp__json_object *from)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        int64_t count = 0;

        FSDP_TRY(fsdp__config_integer(from, keys[i], false, &count));
        if (count > 0)
            return fsdp__config_unsupported_number(from, keys[i], (double)count, "of a mixture of experts none is");
    }
    return FSDP_OK;
}

static fsdp_status read_common(const fsdp__json_object *from, fsdp_model_config *out)
{
    FSDP_TRY(fsdp__config_integer(from, "vocab_size", true, &out->vocab_size));
    FSDP_TRY(fsdp__json_float(from, "initializer_range", false, &out->init_std));
    FSDP_TRY(fsdp__json_bool(from, "tie_word_embeddings", &out->tie_word_embeddings));
    FSDP_TRY(read_tokens(from, out));
    FSDP_TRY(need_no_quantization(from));
    FSDP_TRY(need_no_experts(from));
    FSDP_TRY(need_bool(from, "lm_head_bias", false));
    return need_bool(from, "is_causal", true);
}

/* ---- GPT-2 ---- */

/* Reads the activation. transformers has these names for its two forms. */
static fsdp_status read_gpt2_activation(const fsdp__json_object *from, fsdp_model_config *out)
{
    static const char *const erf[] = {"gelu", "gelu_python", NULL};
    static const char *const tanh[] = {"gelu_new",  "gelu_pytorch_tanh", "gelu_python_tanh",
                                       "gelu_fast", "gelu_accurate",     NULL};
    const char *name = tanh[0];

    FSDP_TRY(fsdp__json_string(from, "activation_function", false, &name));
    out->gelu_erf = fsdp__is_one_of(name, erf);
    if (!out->gelu_erf && !fsdp__is_one_of(name, tanh))
        return fsdp__config_unsupported(from, "activation_function", name,
                                        "gelu, gelu_new and other names of the two are");
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
    FSDP_TRY(fsdp__config_integer(from, "n_layer", true, &out->n_layers));
    FSDP_TRY(fsdp__config_integer(from, "n_embd", true, &out->dim));
    FSDP_TRY(fsdp__config_integer(from, "n_head", true, &out->n_heads));
    FSDP_TRY(fsdp__config_integer(from, "n_positions", false, &out->max_seq_len));
    out->n_kv_heads = out->n_heads;
    out->head_dim = out->n_heads > 0 ? out->dim / out->n_heads : 0;
    out->ffn_dim = out->dim > 0 && out->dim < INT32_MAX ? 4 * out->dim : 0;
    FSDP_TRY(fsdp__config_integer(from, "n_inner", false, &out->ffn_dim));
    FSDP_TRY(fsdp__json_float(from, "layer_norm_epsilon", false, &out->norm_eps));
    FSDP_TRY(fsdp__json_float(from, "embd_pdrop", false, &out->embd_dropout));
    FSDP_TRY(fsdp__json_float(from, "resid_pdrop", false, &out->dropout));
    FSDP_TRY(fsdp__json_float(from, "attn_pdrop", false, &out->attention_dropout));
    FSDP_TRY(read_gpt2_activation(from, out));
    FSDP_TRY(need_bool(from, "scale_attn_weights", true));
    FSDP_TRY(need_bool(from, "scale_attn_by_inverse_layer_idx", false));
    return need_bool(from, "add_cross_attention", false);
}

/* Says which layers are local if the file does not list them in layer_types. */
typedef enum locals {
    NONE_LOCAL,
    ALL_LOCAL,
    LAST_LOCAL,         /* from max_window_layers on */
    WITHOUT_ROPE_LOCAL, /* those that have no rotary positions */
    MOST_LOCAL,         /* all but every n-th, where n is sliding_window_pattern */
} locals;

/* The values that transformers uses if config.json does not have the key. */
typedef struct llama_kind {
    const char *model_type;
    fsdp_architecture architecture;
    int64_t max_seq_len, n_kv_heads, head_dim; /* 0: as many as heads; dim / n_heads */
    float norm_eps, theta, local_theta;        /* local_theta 0: local layers have no theta of their own */
    bool tied;
    int64_t window, pattern; /* window 0: none */
    locals locals;
    bool has_switch;                                       /* use_sliding_window has to be true */
    float query_scalar, attention_softcap, logits_softcap; /* query_scalar 0: it has none of these keys */
} llama_kind;

static const llama_kind llama_kinds[] = {
    {"llama", FSDP_LLAMA, 2048, 0, 0, 1e-6f, .theta = 1e4f},
    {"mistral", FSDP_MISTRAL, 131072, 8, 0, 1e-6f, 1e4f, .window = 4096, .locals = ALL_LOCAL},
    {"qwen2", FSDP_QWEN2, 32768, 32, 0, 1e-6f, 1e4f, .window = 4096, .locals = LAST_LOCAL, .has_switch = true},
    {"qwen3", FSDP_QWEN3, 32768, 32, 128, 1e-6f, 1e4f, .window = 4096, .locals = LAST_LOCAL, .has_switch = true},
    {"olmo2", FSDP_OLMO2, 2048, 0, 0, 1e-5f, .theta = 1e4f},
    {"smollm3", FSDP_SMOLLM3, 32768, 4, 0, 1e-6f, 2e6f, .tied = true, .locals = WITHOUT_ROPE_LOCAL, .has_switch = true},
    {"phi3", FSDP_PHI3, 4096, 0, 0, 1e-5f, 1e4f, .locals = ALL_LOCAL},
    {"gemma2", FSDP_GEMMA2, 8192, 4, 256, 1e-6f, 1e4f, .tied = true, .window = 4096, .pattern = 2, .locals = MOST_LOCAL,
     .query_scalar = 256, .attention_softcap = 50, .logits_softcap = 30},
    {"gemma3_text", FSDP_GEMMA3, 131072, 4, 256, 1e-6f, 1e6f, 1e4f, .tied = true, .window = 4096, .pattern = 6,
     .locals = MOST_LOCAL, .query_scalar = 256},
};

/* ---- layers that differ ---- */

static void mark(uint64_t *layers, int64_t layer)
{
    layers[layer / 64] |= (uint64_t)1 << layer % 64;
}

/* Reads the list of layer types, if there is one, and whether it has local layers. */
static fsdp_status read_layer_types(const fsdp__json_object *from, fsdp_model_config *out, bool *listed)
{
    json_t *types = json_object_get(from->object, "layer_types"), *type;
    size_t i;

    *listed = json_is_array(types);
    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type);

        if (!name || (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0))
            return fsdp__config_unsupported(from, "layer type", name ? name : "(no string)",
                                            "full_attention and sliding_attention are");
        if (strcmp(name, "sliding_attention") == 0 && i < FSDP_MODEL_MAX_MARKED_LAYERS)
            mark(out->local_layers, (int64_t)i);
    }
    return FSDP_OK;
}

/* Marks local layers by a rule. */
static fsdp_status mark_local(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    int64_t first = 28, pattern = kind->pattern;

    FSDP_TRY(fsdp__config_integer(from, "max_window_layers", false, &first));
    if (kind->architecture == FSDP_GEMMA3)
        FSDP_TRY(fsdp__config_integer(from, "sliding_window_pattern", false, &pattern));
    if (kind->locals == MOST_LOCAL && pattern < 1)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key 'sliding_window_pattern' must be at least 1", from->path);
    for (int64_t i = 0; i < FSDP_MODEL_MAX_MARKED_LAYERS; i++)
        if (kind->locals == ALL_LOCAL || (kind->locals == LAST_LOCAL && i >= first) ||
            (kind->locals == WITHOUT_ROPE_LOCAL && !fsdp_model_layer_has_rope(out, i)) ||
            (kind->locals == MOST_LOCAL && (i + 1) % pattern != 0))
            mark(out->local_layers, i);
    return FSDP_OK;
}

static bool any_local(const fsdp_model_config *config)
{
    for (int64_t i = 0; i < config->n_layers && i < FSDP_MODEL_MAX_MARKED_LAYERS; i++)
        if (fsdp_model_layer_is_local(config, i))
            return true;
    return false;
}

/* Reads which layers are local, and how far those see. A model without such layers may list all as full. */
static fsdp_status read_windows(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    bool used = !kind->has_switch, listed;
    const json_t *window = json_object_get(from->object, "sliding_window");

    out->window = json_is_null(window) ? 0 : kind->window;
    FSDP_TRY(fsdp__config_integer(from, "sliding_window", false, &out->window));
    FSDP_TRY(fsdp__json_bool(from, "use_sliding_window", kind->has_switch ? &used : &(bool){false}));
    FSDP_TRY(read_layer_types(from, out, &listed));
    if (listed && any_local(out) && (kind->locals == NONE_LOCAL || !used))
        return fsdp__config_unsupported(from, "layer_types", "sliding_attention",
                                        used ? "this model_type has no such layers" : "use_sliding_window is not true");
    if (!listed || kind->locals == ALL_LOCAL)
        FSDP_TRY(mark_local(from, kind, out));
    if (!used || kind->locals == NONE_LOCAL || !any_local(out)) {
        out->window = 0;
        memset(out->local_layers, 0, sizeof out->local_layers);
    }
    return FSDP_OK;
}

/* Reads which layers have no rotary positions: those with a 0 in a list, or every n-th. */
static fsdp_status read_no_rope(const fsdp__json_object *from, fsdp_model_config *out)
{
    json_t *list = json_object_get(from->object, "no_rope_layers"), *item;
    int64_t interval = 4;
    size_t i;

    FSDP_TRY(fsdp__config_integer(from, "no_rope_layer_interval", false, &interval));
    if (list && !json_is_null(list) && (!json_is_array(list) || json_array_size(list) < (size_t)out->n_layers))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': key 'no_rope_layers' must be a list with 0 or 1 for each layer",
                         from->path);
    json_array_foreach(list, i, item) if (json_integer_value(item) == 0 && i < FSDP_MODEL_MAX_MARKED_LAYERS)
        mark(out->no_rope_layers, (int64_t)i);
    for (int64_t n = 0; !json_is_array(list) && interval > 0 && n < FSDP_MODEL_MAX_MARKED_LAYERS; n++)
        if ((n + 1) % interval == 0)
            mark(out->no_rope_layers, n);
    return FSDP_OK;
}

/* ---- Llama's like ---- */

/* Reads a cap; null is none. */
static fsdp_status read_softcap(const fsdp__json_object *from, const char *key, float otherwise, float *out)
{
    *out = json_is_null(json_object_get(from->object, key)) ? 0 : otherwise;
    return fsdp__json_float(from, key, false, out);
}

static fsdp_status read_gemma(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    out->query_scalar = kind->query_scalar;
    FSDP_TRY(fsdp__json_float(from, "query_pre_attn_scalar", false, &out->query_scalar));
    FSDP_TRY(read_softcap(from, "attn_logit_softcapping", kind->attention_softcap, &out->attention_softcap));
    FSDP_TRY(read_softcap(from, "final_logit_softcapping", kind->logits_softcap, &out->logits_softcap));
    return need_bool(from, "use_bidirectional_attention", false);
}

static fsdp_status read_activation(const fsdp__json_object *from, const llama_kind *kind)
{
    static const char *const silu[] = {"silu", "swish", NULL}; /* swish is its other name */
    static const char *const tanh[] = {"gelu_pytorch_tanh", "gelu_new", NULL};
    bool gemma = kind->query_scalar > 0;
    const char *key = gemma ? "hidden_activation" : "hidden_act", *name = gemma ? tanh[0] : silu[0];

    FSDP_TRY(fsdp__json_string(from, key, false, &name));
    if (!fsdp__is_one_of(name, gemma ? tanh : silu))
        return fsdp__config_unsupported(from, key, name, gemma ? "only gelu_pytorch_tanh is" : "only silu is");
    return FSDP_OK;
}

/* Reads a bias that one may choose. transformers ignores the key in other families. */
static fsdp_status read_bias(const fsdp__json_object *from, const char *key, bool may, const char *family, bool *out)
{
    bool asked = false;
    char why[80];

    FSDP_TRY(fsdp__json_bool(from, key, &asked));
    snprintf(why, sizeof why, "a %s has no such biases", family);
    if (asked && !may)
        return fsdp__config_unsupported(from, key, "true", why);
    *out = asked;
    return FSDP_OK;
}

/* Qwen2 has biases of query, key and value whatever its file says. */
static fsdp_status read_biases(const fsdp__json_object *from, fsdp_model_config *out)
{
    const fsdp__family *family = fsdp__family_of(out->architecture);

    if (!family->qkv_bias)
        FSDP_TRY(read_bias(from, "attention_bias", family->may_bias, family->name, &out->attention_bias));
    return read_bias(from, "mlp_bias", family->may_mlp_bias, family->name, &out->mlp_bias);
}

/* Refuses dropout where this library has none. */
static fsdp_status need_no_dropout(const fsdp__json_object *from, const char *key)
{
    float rate = 0;

    FSDP_TRY(fsdp__json_float(from, key, false, &rate));
    return rate == 0 ? FSDP_OK : fsdp__config_unsupported_number(from, key, (double)rate, "only 0 is");
}

static fsdp_status read_sizes(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    bool has_kv_heads = json_object_get(from->object, "num_key_value_heads") != NULL;

    FSDP_TRY(fsdp__config_integer(from, "num_hidden_layers", true, &out->n_layers));
    FSDP_TRY(fsdp__config_integer(from, "hidden_size", true, &out->dim));
    FSDP_TRY(fsdp__config_integer(from, "num_attention_heads", true, &out->n_heads));
    FSDP_TRY(fsdp__config_integer(from, "intermediate_size", true, &out->ffn_dim));
    FSDP_TRY(fsdp__config_integer(from, "max_position_embeddings", false, &out->max_seq_len));
    out->n_kv_heads = has_kv_heads || !kind->n_kv_heads ? out->n_heads : kind->n_kv_heads;
    out->head_dim = kind->head_dim ? kind->head_dim : out->n_heads > 0 ? out->dim / out->n_heads : 0;
    FSDP_TRY(fsdp__config_integer(from, "num_key_value_heads", false, &out->n_kv_heads));
    return fsdp__config_integer(from, "head_dim", false, &out->head_dim);
}

static fsdp_status read_llama(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    *out = (fsdp_model_config){.architecture = kind->architecture,
                               .max_seq_len = kind->max_seq_len,
                               .norm_eps = kind->norm_eps,
                               .rope_theta = kind->theta,
                               .local_rope_theta = kind->local_theta,
                               .tie_word_embeddings = kind->tied,
                               .init_std = 0.02f};
    FSDP_TRY(read_common(from, out));
    FSDP_TRY(read_sizes(from, kind, out));
    FSDP_TRY(fsdp__json_float(from, "rms_norm_eps", false, &out->norm_eps));
    FSDP_TRY(fsdp__json_float(from, "attention_dropout", false, &out->attention_dropout));
    FSDP_TRY(need_no_dropout(from, "embd_pdrop"));
    FSDP_TRY(need_no_dropout(from, "resid_pdrop"));
    FSDP_TRY(read_biases(from, out));
    if (kind->architecture == FSDP_SMOLLM3)
        FSDP_TRY(read_no_rope(from, out));
    FSDP_TRY(read_windows(from, kind, out));
    if (kind->query_scalar > 0)
        FSDP_TRY(read_gemma(from, kind, out));
    FSDP_TRY(read_activation(from, kind));
    return fsdp__config_read_rope(from, out);
}

/* ---- all ---- */

/* Refuses a model type; of types that people often have it says what they are. */
static fsdp_status unknown_type(const fsdp__json_object *from, const char *type)
{
    static const char *const others[][2] = {
        {"mixtral", ", and of a mixture of experts none"},
        {"qwen3_moe", ", and of a mixture of experts none"},
        {"gemma3", ", and of a gemma3, which also sees images, its text_config alone, as a gemma3_text"},
        {"gemma", ", but not the first Gemma"},
        {"phi", ", but not Phi before 3"},
        {"olmo", ", but not OLMo before 2"},
    };
    const char *more = "";
    char known[256] = "gpt2";
    size_t length = strlen(known);

    for (size_t i = 0; i < FSDP__COUNT_OF(llama_kinds); i++)
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s",
                                   i + 1 < FSDP__COUNT_OF(llama_kinds) ? ", " : " and ", llama_kinds[i].model_type);
    for (size_t i = 0; i < FSDP__COUNT_OF(others); i++)
        more = strcmp(type, others[i][0]) == 0 ? others[i][1] : more;
    snprintf(known + length, sizeof known - length, " are%s", more);
    return fsdp__config_unsupported(from, "model_type", type, known);
}

static fsdp_status read_model(const fsdp__json_object *from, fsdp_model_config *out)
{
    const char *type = NULL;

    FSDP_TRY(fsdp__json_string(from, "model_type", true, &type));
    if (strcmp(type, "gpt2") == 0)
        return read_gpt2(from, out);
    for (size_t i = 0; i < FSDP__COUNT_OF(llama_kinds); i++)
        if (strcmp(type, llama_kinds[i].model_type) == 0)
            return read_llama(from, &llama_kinds[i], out);
    return unknown_type(from, type);
}

const char *fsdp__hub_heads_key(fsdp_architecture architecture, bool kv)
{
    return architecture == FSDP_GPT2 ? "n_head" : kv ? "num_key_value_heads" : "num_attention_heads";
}

fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out)
{
    fsdp_model_config config;
    json_auto_t *object = NULL;

    FSDP_TRY(fsdp__json_parse_foreign(path, text, bytes, &object));
    FSDP_TRY(read_model(&(fsdp__json_object){.path = path, .object = object}, &config));
    FSDP_TRY(fsdp_fail_prefix(fsdp_model_config_check(&config), "cannot use '%s'", path));
    *out = config;
    return FSDP_OK;
}

/* Returns whether the path could be a name on the hub: "gpt2", "HuggingFaceTB/SmolLM2-135M". */
static bool may_be_on_the_hub(const char *path)
{
    const char *slash = strchr(path, '/');

    return path[0] && path[0] != '.' && path[0] != '/' && (!slash || (slash[1] && !strchr(slash + 1, '/')));
}

fsdp_status fsdp__hub_fail_missing(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!may_be_on_the_hub(path))
        return FSDP_FAIL(FSDP_NOT_FOUND, "there is no '%s'", path);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "there is no '%s'; if it is a model of the Hugging Face hub, download it first (hf download %s "
                     "--local-dir %s) and give that folder",
                     path, FSDP__SHELL_WORD(path), FSDP__SHELL_WORD(slash ? slash + 1 : path));
}

fsdp_status fsdp_hub_read_config(const char *folder, fsdp_model_config *out)
{
    FSDP__FREED char *path = NULL, *text = NULL;
    struct stat info;
    size_t bytes = 0;

    if (!folder || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot read a model config: folder and out are required");
    FSDP_TRY(fsdp__journal_check(folder));
    if (!fsdp__path_exists(folder))
        return fsdp__hub_fail_missing(folder);
    path = fsdp__path_join(folder, "config.json");
    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read the config of '%s'", folder);
    if (stat(folder, &info) == 0 && S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a file: a model folder is expected%s", folder,
                         fsdp__weights_hint(folder, FSDP__ROOM(FSDP__HINT_TEXT)));
    if (lstat(path, &info) != 0 && errno == ENOENT) /* neither a file nor a dangling link */
        return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no config.json, which says what model it holds%s", folder,
                         fsdp__weights_hint(folder, FSDP__ROOM(FSDP__HINT_TEXT)));
    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    return fsdp__config_parse(path, text, bytes, out);
}
