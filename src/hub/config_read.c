/* config_read.c - reads the config.json of GPT-2 folders, and of Llama and similar models in the older and the newer
 * style. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "format/journal.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "hub/hub.h"

/* ---- values of which only some are supported ---- */

static fsdp_status unsupported(const fsdp__json_object *from, const char *key, const char *value, const char *known)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': %s '%s' is not supported: %s", from->path, key,
                     FSDP__SHOWN_NAME(value), known);
}

/* Reads an integer. Python writes 4096.0 if a size was computed as a fraction. */
static fsdp_status read_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out)
{
    const json_t *value = json_object_get(from->object, key);
    double number = json_is_real(value) ? json_real_value(value) : NAN;

    if (!(fabs(number) <= 9007199254740992.0) || number != floor(number))
        return fsdp__json_integer(from, key, required, out);
    *out = (int64_t)number;
    return FSDP_OK;
}

static fsdp_status need_bool(const fsdp__json_object *from, const char *key, bool needed)
{
    bool value = needed;

    FSDP_TRY(fsdp__json_bool(from, key, &value));
    if (value != needed)
        return unsupported(from, key, value ? "true" : "false", needed ? "only true is" : "only false is");
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

static fsdp_status read_common(const fsdp__json_object *from, fsdp_model_config *out)
{
    FSDP_TRY(read_integer(from, "vocab_size", true, &out->vocab_size));
    FSDP_TRY(fsdp__json_float(from, "initializer_range", false, &out->init_std));
    FSDP_TRY(fsdp__json_bool(from, "tie_word_embeddings", &out->tie_word_embeddings));
    FSDP_TRY(read_tokens(from, out));
    if (json_is_object(json_object_get(from->object, "quantization_config")))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': quantized weights (quantization_config) are not supported",
                         from->path);
    return FSDP_OK;
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
        return unsupported(from, "activation_function", name, "gelu, gelu_new and other names of the two are");
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
    FSDP_TRY(read_integer(from, "n_layer", true, &out->n_layers));
    FSDP_TRY(read_integer(from, "n_embd", true, &out->dim));
    FSDP_TRY(read_integer(from, "n_head", true, &out->n_heads));
    FSDP_TRY(read_integer(from, "n_positions", false, &out->max_seq_len));
    out->n_kv_heads = out->n_heads;
    out->head_dim = out->n_heads > 0 ? out->dim / out->n_heads : 0;
    out->ffn_dim = out->dim > 0 && out->dim < INT32_MAX ? 4 * out->dim : 0;
    FSDP_TRY(read_integer(from, "n_inner", false, &out->ffn_dim));
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

/* The two keys under which versions of transformers look for the kind of rotary positions. */
#define NEWER "rope_parameters"
#define OLDER "rope_scaling"
#define ORIGINAL "original_max_position_embeddings"

static fsdp_status bad_rope(const fsdp__json_object *from, const char *what)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot use '%s': %s: one kind is supported, default, linear or llama3, in " NEWER " or " OLDER,
                     from->path, what);
}

/* Refuses keys that this kind does not have. They would change the frequencies elsewhere, and would be ignored here. */
static fsdp_status check_rope_keys(const fsdp__json_object *rope, fsdp_rope_type type)
{
    static const struct {
        const char *name;
        fsdp_rope_type least;
    } keys[] = {
        {"rope_theta", FSDP_ROPE_DEFAULT},     {"rope_type", FSDP_ROPE_DEFAULT},
        {"type", FSDP_ROPE_DEFAULT},           {"partial_rotary_factor", FSDP_ROPE_DEFAULT},
        {ORIGINAL, FSDP_ROPE_DEFAULT},         {"factor", FSDP_ROPE_LINEAR},
        {"low_freq_factor", FSDP_ROPE_LLAMA3}, {"high_freq_factor", FSDP_ROPE_LLAMA3},
    };
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)rope->object, key, value)
    {
        bool known = json_is_null(value);

        for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
            known = known || (type >= keys[i].least && strcmp(key, keys[i].name) == 0);
        if (!known)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot use '%s': '%s' does not belong to rope type %s: default, linear and llama3 are "
                             "supported",
                             rope->path, FSDP__SHOWN_NAME(key), fsdp_rope_type_name(type));
    }
    return FSDP_OK;
}

/* What one of these places says about the rotary positions. */
typedef struct rope {
    fsdp_rope_type type;
    float theta; /* NAN: not given */
    float factor, low_freq_factor, high_freq_factor;
    int64_t original;
} rope;

/* Reads the kind; NULL leaves the default. Two spellings of the key contradict each other unless their values are the
 * same. */
static fsdp_status read_rope_type(const fsdp__json_object *from, fsdp_rope_type *out)
{
    const char *older = NULL, *newer = NULL, *type;

    FSDP_TRY(fsdp__json_string(from, "type", false, &older));
    FSDP_TRY(fsdp__json_string(from, "rope_type", false, &newer));
    if (older && newer && strcmp(older, newer) != 0)
        return bad_rope(from, "its rope has a 'type' and another 'rope_type'");
    type = newer ? newer : older ? older : "default";
    for (*out = FSDP_ROPE_DEFAULT; *out <= FSDP_ROPE_LLAMA3; ++*out)
        if (strcmp(type, fsdp_rope_type_name(*out)) == 0)
            return FSDP_OK;
    return unsupported(from, "rope type", type, "default, linear and llama3 are");
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
    FSDP_TRY(read_rope_type(from, &out->type));
    FSDP_TRY(check_rope_keys(from, out->type));
    if (out->type != FSDP_ROPE_DEFAULT)
        FSDP_TRY(fsdp__json_float(from, "factor", true, &out->factor));
    if (out->type != FSDP_ROPE_LLAMA3)
        return FSDP_OK;
    FSDP_TRY(fsdp__json_float(from, "low_freq_factor", true, &out->low_freq_factor));
    FSDP_TRY(fsdp__json_float(from, "high_freq_factor", true, &out->high_freq_factor));
    return read_integer(from, ORIGINAL, false, &out->original);
}

/* Reads the original length. Some files have it outside the other keys of rope, where newer versions of transformers
 * look first; if it is missing, they take all positions. */
static fsdp_status read_original(const fsdp__json_object *from, int64_t max_seq_len, rope *found)
{
    int64_t at_top = 0;

    FSDP_TRY(read_integer(from, ORIGINAL, false, &at_top));
    if (found->type != FSDP_ROPE_LLAMA3)
        return FSDP_OK;
    if (at_top && found->original && at_top != found->original)
        return bad_rope(from, "it has two values of " ORIGINAL);
    found->original = found->original ? found->original : at_top ? at_top : max_seq_len;
    return FSDP_OK;
}

static bool same_rope(const rope *a, const rope *b)
{
    return a->type == b->type && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original == b->original;
}

/* Reads the rotary positions. Newer files have everything in rope_parameters. Older ones have rope_theta at the top and
 * the rest, or null, in rope_scaling. What is given twice must be the same, because which of the two wins has changed
 * between versions of transformers. */
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
    FSDP_TRY(read_original(from, out->max_seq_len, &found));
    out->rope_theta = isnan(found.theta) ? out->rope_theta : found.theta;
    out->rope_type = found.type;
    out->rope_factor = found.factor;
    out->rope_low_freq_factor = found.low_freq_factor;
    out->rope_high_freq_factor = found.high_freq_factor;
    out->rope_original_max_seq_len = found.original;
    return FSDP_OK;
}

/* The values that transformers uses if config.json does not have the key. */
typedef struct llama_kind {
    const char *model_type;
    fsdp_architecture architecture;
    int64_t max_seq_len, n_kv_heads; /* n_kv_heads 0: as many as heads */
} llama_kind;

static const llama_kind llama_kinds[] = {
    {"llama", FSDP_LLAMA, 2048, 0},
    {"mistral", FSDP_MISTRAL, 131072, 8},
    {"qwen2", FSDP_QWEN2, 32768, 32},
};

/* Refuses a window, unless it holds every position. */
static fsdp_status check_window(const fsdp__json_object *from, int64_t max_seq_len)
{
    int64_t window = json_object_get(from->object, "sliding_window") ? INT64_MAX : 4096;

    FSDP_TRY(read_integer(from, "sliding_window", false, &window));
    if (window < max_seq_len)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot use '%s': a sliding_window of %lld in %lld positions is not supported: it must be "
                         "null, or hold all positions",
                         from->path, (long long)window, (long long)max_seq_len);
    return FSDP_OK;
}

/* Checks the types of the layers, if some layers look back less far than others. */
static fsdp_status check_layer_types(const fsdp__json_object *from, int64_t max_seq_len)
{
    json_t *types = json_object_get(from->object, "layer_types"), *type;
    bool windows = false;
    size_t i;

    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type);

        if (!name || (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0))
            return unsupported(from, "layer type", name ? name : "(no string)",
                               "full_attention and sliding_attention are");
        windows |= strcmp(name, "sliding_attention") == 0;
    }
    return windows ? check_window(from, max_seq_len) : FSDP_OK;
}

static fsdp_status check_windows(const fsdp__json_object *from, const fsdp_model_config *config)
{
    bool used = config->architecture == FSDP_MISTRAL;
    int64_t first = 28; /* first layer with a window, in Qwen2 */

    FSDP_TRY(check_layer_types(from, config->max_seq_len));
    if (config->architecture == FSDP_QWEN2) {
        FSDP_TRY(fsdp__json_bool(from, "use_sliding_window", &used));
        FSDP_TRY(read_integer(from, "max_window_layers", false, &first));
        used = used && first < config->n_layers && !json_is_array(json_object_get(from->object, "layer_types"));
    }
    return used ? check_window(from, config->max_seq_len) : FSDP_OK;
}

static fsdp_status read_biases(const fsdp__json_object *from, fsdp_model_config *out)
{
    if (out->architecture != FSDP_LLAMA) /* transformers ignores it in the others */
        return FSDP_OK;
    FSDP_TRY(fsdp__json_bool(from, "attention_bias", &out->attention_bias));
    return fsdp__json_bool(from, "mlp_bias", &out->mlp_bias);
}

static fsdp_status read_llama(const fsdp__json_object *from, const llama_kind *kind, fsdp_model_config *out)
{
    bool has_kv_heads = json_object_get(from->object, "num_key_value_heads") != NULL;
    const char *activation = "silu";

    *out = (fsdp_model_config){.architecture = kind->architecture,
                               .max_seq_len = kind->max_seq_len,
                               .norm_eps = 1e-6f,
                               .rope_theta = 10000.0f,
                               .init_std = 0.02f};
    FSDP_TRY(read_common(from, out));
    FSDP_TRY(read_integer(from, "num_hidden_layers", true, &out->n_layers));
    FSDP_TRY(read_integer(from, "hidden_size", true, &out->dim));
    FSDP_TRY(read_integer(from, "num_attention_heads", true, &out->n_heads));
    FSDP_TRY(read_integer(from, "intermediate_size", true, &out->ffn_dim));
    FSDP_TRY(read_integer(from, "max_position_embeddings", false, &out->max_seq_len));
    out->n_kv_heads = has_kv_heads || !kind->n_kv_heads ? out->n_heads : kind->n_kv_heads;
    out->head_dim = out->n_heads > 0 ? out->dim / out->n_heads : 0;
    FSDP_TRY(read_integer(from, "num_key_value_heads", false, &out->n_kv_heads));
    FSDP_TRY(read_integer(from, "head_dim", false, &out->head_dim));
    FSDP_TRY(fsdp__json_float(from, "rms_norm_eps", false, &out->norm_eps));
    FSDP_TRY(fsdp__json_float(from, "attention_dropout", false, &out->attention_dropout));
    FSDP_TRY(read_biases(from, out));
    FSDP_TRY(check_windows(from, out));
    FSDP_TRY(fsdp__json_string(from, "hidden_act", false, &activation));
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0) /* swish is its other name */
        return unsupported(from, "hidden_act", activation, "only silu is");
    return read_rope(from, out);
}

/* ---- all ---- */

static fsdp_status read_model(const fsdp__json_object *from, fsdp_model_config *out)
{
    const char *type = NULL;

    FSDP_TRY(fsdp__json_string(from, "model_type", true, &type));
    if (strcmp(type, "gpt2") == 0)
        return read_gpt2(from, out);
    for (size_t i = 0; i < FSDP__COUNT_OF(llama_kinds); i++)
        if (strcmp(type, llama_kinds[i].model_type) == 0)
            return read_llama(from, &llama_kinds[i], out);
    return unsupported(from, "model_type", type, "gpt2, llama, mistral and qwen2 are");
}

static fsdp_status read_config(const fsdp__json_object *from, fsdp_model_config *out)
{
    fsdp_status status;

    FSDP_TRY(read_model(from, out));
    status = fsdp_model_config_check(out);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_prefix(status, "cannot use '%s'", from->path);
}

fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out)
{
    fsdp_model_config config;
    json_auto_t *object = NULL;

    FSDP_TRY(fsdp__json_parse_foreign(path, text, bytes, &object));
    FSDP_TRY(read_config(&(fsdp__json_object){.path = path, .object = object}, &config));
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
                     path, path, slash ? slash + 1 : path);
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
    if (lstat(path, &info) != 0 && errno == ENOENT) /* neither a file nor a dangling link */
        return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no config.json, which says what model it holds%s", folder,
                         fsdp__weights_hint(folder));
    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    return fsdp__config_parse(path, text, bytes, out);
}
