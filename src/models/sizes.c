/* sizes.c - sizes of models: presets, checks, counts. */
#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "models/models.h"

enum {
    MAX_LAYERS = 1 << 14, /* the limits keep every product of sizes below 2^63 */
    MAX_DIM = 1 << 20,
    MAX_FFN_DIM = 1 << 22,
};

typedef struct preset {
    const char *name;
    fsdp_architecture architecture;
    int64_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, vocab_size, max_seq_len;
    bool tied;
} preset;

/* name, architecture, layers, dim, heads, key/value heads, ffn_dim, vocab_size, max_seq_len, tied */
#define PRESETS(X)                                                        \
    X("gpt-10m", FSDP_GPT2, 6, 384, 6, 6, 1536, 256, 256, false)          \
    X("gpt2-124m", FSDP_GPT2, 12, 768, 12, 12, 3072, 50304, 1024, true)   \
    X("llama-1m", FSDP_LLAMA, 4, 128, 4, 2, 480, 256, 256, false)         \
    X("llama-100m", FSDP_LLAMA, 12, 768, 12, 4, 2048, 32000, 2048, false) \
    X("llama-1b", FSDP_LLAMA, 16, 2048, 32, 8, 8192, 128256, 8192, false) \
    X("llama-8b", FSDP_LLAMA, 32, 4096, 32, 8, 14336, 128256, 8192, false)

static const preset presets[] = {
#define PRESET(...) {__VA_ARGS__},
    PRESETS(PRESET)
#undef PRESET
};

static const char *const rope_type_names[] = {
    [FSDP_ROPE_DEFAULT] = "default", [FSDP_ROPE_LINEAR] = "linear", [FSDP_ROPE_LLAMA3] = "llama3",
    [FSDP_ROPE_DYNAMIC] = "dynamic", [FSDP_ROPE_YARN] = "yarn",     [FSDP_ROPE_LONGROPE] = "longrope"};

const char *fsdp_rope_type_name(fsdp_rope_type type)
{
    return (size_t)type < FSDP__COUNT_OF(rope_type_names) ? rope_type_names[type] : "unknown";
}

static const char *const preset_names[] = {
#define PRESET_NAME(name, ...) name,
    PRESETS(PRESET_NAME)
#undef PRESET_NAME
        NULL,
};

const char *const *fsdp_model_preset_names(void)
{
    return preset_names;
}

static void fill_preset(const preset *from, fsdp_model_config *out)
{
    *out = (fsdp_model_config){
        .architecture = from->architecture,
        .n_layers = from->n_layers,
        .dim = from->dim,
        .n_heads = from->n_heads,
        .n_kv_heads = from->n_kv_heads,
        .head_dim = from->dim / from->n_heads,
        .ffn_dim = from->ffn_dim,
        .vocab_size = from->vocab_size,
        .max_seq_len = from->max_seq_len,
        .tie_word_embeddings = from->tied,
        .norm_eps = 1e-5f,
        .rope_theta = from->architecture == FSDP_LLAMA ? 500000.0f : 0,
        .init_std = 0.02f,
    };
}

fsdp_status fsdp_model_preset(const char *name, fsdp_model_config *out)
{
    char known[256] = "";

    for (size_t i = 0; i < FSDP__COUNT_OF(presets); i++) {
        if (name && strcmp(name, presets[i].name) == 0) {
            fill_preset(&presets[i], out);
            return FSDP_OK;
        }
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, presets[i].name, sizeof known - strlen(known) - 1);
    }
    return FSDP_FAIL(FSDP_NOT_FOUND, "there is no model preset '%s', only %s", name ? name : "", known);
}

/* ---- checks ---- */

static fsdp_status check_range(const char *field, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s is %lld: it must be between %lld and %lld", field,
                         (long long)value, (long long)least, (long long)most);
    return FSDP_OK;
}

static fsdp_status check_fraction(const char *field, float value)
{
    if (!(value >= 0 && value < 1))
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s is %g: it must be at least 0 and below 1", field,
                         (double)value);
    return FSDP_OK;
}

static fsdp_status check_positive(const char *field, float value)
{
    if (!(value > 0 && isfinite(value)))
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s is %g: it must be above 0", field, (double)value);
    return FSDP_OK;
}

static fsdp_status check_not_negative(const char *field, float value)
{
    if (!(value >= 0 && isfinite(value)))
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s is %g: it must not be negative", field, (double)value);
    return FSDP_OK;
}

static fsdp_status check_sizes(const fsdp_model_config *c)
{
    FSDP_TRY(check_range("n_layers", c->n_layers, 1, MAX_LAYERS));
    FSDP_TRY(check_range("dim", c->dim, 1, MAX_DIM));
    FSDP_TRY(check_range("n_heads", c->n_heads, 1, MAX_DIM));
    FSDP_TRY(check_range("n_kv_heads", c->n_kv_heads, 1, c->n_heads));
    FSDP_TRY(check_range("head_dim", c->head_dim, 1, MAX_DIM));
    FSDP_TRY(check_range("n_heads * head_dim", c->n_heads * c->head_dim, 1, MAX_FFN_DIM));
    FSDP_TRY(check_range("ffn_dim", c->ffn_dim, 1, MAX_FFN_DIM));
    FSDP_TRY(check_range("vocab_size", c->vocab_size, 1, INT32_MAX));
    return check_range("max_seq_len", c->max_seq_len, 1, INT32_MAX);
}

static fsdp_status check_gpt2(const fsdp_model_config *c)
{
    if (c->logits_softcap > 0)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: logits_softcap is %g: GPT-2 has none",
                         (double)c->logits_softcap);
    if (c->dim % c->n_heads != 0)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: dim %lld is not a multiple of n_heads %lld",
                         (long long)c->dim, (long long)c->n_heads);
    if (c->head_dim != c->dim / c->n_heads)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: head_dim is %lld: in GPT-2 it is dim / n_heads = %lld",
                         (long long)c->head_dim, (long long)(c->dim / c->n_heads));
    if (c->n_kv_heads != c->n_heads)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: n_kv_heads is %lld: in GPT-2 it is n_heads, %lld",
                         (long long)c->n_kv_heads, (long long)c->n_heads);
    return FSDP_OK;
}

static fsdp_status check_above(const char *high_field, float high, const char *low_field, float low)
{
    if (!(high > low))
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s %g must be above %s %g", high_field, (double)high,
                         low_field, (double)low);
    return FSDP_OK;
}

static fsdp_status check_yarn(const fsdp_model_config *c)
{
    FSDP_TRY(check_above("rope_theta", c->rope_theta, "the least for yarn,", 1));
    FSDP_TRY(check_positive("rope_beta_fast", c->rope_beta_fast));
    FSDP_TRY(check_positive("rope_beta_slow", c->rope_beta_slow));
    FSDP_TRY(check_above("rope_beta_fast", c->rope_beta_fast, "rope_beta_slow", c->rope_beta_slow));
    FSDP_TRY(check_not_negative("rope_attention_factor", c->rope_attention_factor));
    FSDP_TRY(check_not_negative("rope_mscale", c->rope_mscale));
    return check_not_negative("rope_mscale_all_dim", c->rope_mscale_all_dim);
}

static fsdp_status check_longrope(const fsdp_model_config *c)
{
    int64_t pairs = fsdp__rotary_dim(c) / 2;

    FSDP_TRY(check_range("the part of head_dim that rotates", 2 * pairs, 2, 2 * FSDP_MODEL_MAX_ROPE_FACTORS));
    FSDP_TRY(
        check_range("rope_original_max_seq_len", c->rope_original_max_seq_len, 2, INT32_MAX)); /* its log divides */
    FSDP_TRY(check_not_negative("rope_attention_factor", c->rope_attention_factor));
    for (int64_t i = 0; i < pairs; i++) {
        FSDP_TRY(check_positive("a factor of rope_short_factors", c->rope_short_factors[i]));
        FSDP_TRY(check_positive("a factor of rope_long_factors", c->rope_long_factors[i]));
    }
    return FSDP_OK;
}

static fsdp_status check_rope(const fsdp_model_config *c)
{
    FSDP_TRY(check_positive("rope_theta", c->rope_theta));
    FSDP_TRY(check_range("rope_type", c->rope_type, FSDP_ROPE_DEFAULT, FSDP_ROPE_LONGROPE));
    if (c->rope_type == FSDP_ROPE_DEFAULT)
        return FSDP_OK;
    FSDP_TRY(check_positive("rope_factor", c->rope_factor));
    if (c->rope_type == FSDP_ROPE_DYNAMIC)
        return check_range("the part of head_dim that rotates", fsdp__rotary_dim(c), 4, MAX_DIM);
    if (c->rope_type == FSDP_ROPE_LINEAR)
        return FSDP_OK;
    FSDP_TRY(check_range("rope_original_max_seq_len", c->rope_original_max_seq_len, 1, INT32_MAX));
    if (c->rope_type == FSDP_ROPE_YARN)
        return check_yarn(c);
    if (c->rope_type == FSDP_ROPE_LONGROPE)
        return check_longrope(c);
    FSDP_TRY(check_positive("rope_low_freq_factor", c->rope_low_freq_factor));
    FSDP_TRY(check_positive("rope_high_freq_factor", c->rope_high_freq_factor));
    return check_above("rope_high_freq_factor", c->rope_high_freq_factor, "rope_low_freq_factor",
                       c->rope_low_freq_factor);
}

static bool any_marked(const uint64_t *layers)
{
    uint64_t any = 0;

    for (int i = 0; i < FSDP_MODEL_MAX_MARKED_LAYERS / 64; i++)
        any |= layers[i];
    return any != 0;
}

static fsdp_status check_layers(const fsdp_model_config *c)
{
    FSDP_TRY(check_range("window", c->window, 0, INT32_MAX));
    if ((any_marked(c->local_layers) || any_marked(c->no_rope_layers)) && c->n_layers > FSDP_MODEL_MAX_MARKED_LAYERS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "bad model config: n_layers is %lld: layers can differ in up to %d layers",
                         (long long)c->n_layers, FSDP_MODEL_MAX_MARKED_LAYERS);
    FSDP_TRY(check_not_negative("query_scalar", c->query_scalar));
    FSDP_TRY(check_not_negative("attention_softcap", c->attention_softcap));
    FSDP_TRY(check_not_negative("local_rope_theta", c->local_rope_theta));
    if (!(c->rotary_fraction >= 0 && c->rotary_fraction <= 1) || fsdp__rotary_dim(c) < 2 || fsdp__rotary_dim(c) % 2)
        return FSDP_FAIL(FSDP_INVALID,
                         "bad model config: rotary_fraction is %g of a head_dim of %lld: rotary positions need an even "
                         "number, at least 2",
                         (double)c->rotary_fraction, (long long)c->head_dim);
    return FSDP_OK;
}

static fsdp_status check_llama(const fsdp_model_config *c)
{
    const fsdp__family *family = fsdp__family_of(c->architecture);

    if (c->n_heads % c->n_kv_heads != 0)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: n_heads %lld is not a multiple of n_kv_heads %lld",
                         (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->head_dim % 2 != 0)
        return FSDP_FAIL(FSDP_INVALID, "bad model config: head_dim is %lld: rotary positions need an even number",
                         (long long)c->head_dim);
    if ((c->attention_bias && !family->may_bias) || (c->mlp_bias && !family->may_mlp_bias))
        return FSDP_FAIL(FSDP_INVALID, "bad model config: %s is true: %s has no such biases",
                         c->attention_bias && !family->may_bias ? "attention_bias" : "mlp_bias", family->name);
    FSDP_TRY(check_layers(c));
    return check_rope(c);
}

fsdp_status fsdp_model_config_check(const fsdp_model_config *config)
{
    if (!config)
        return FSDP_FAIL(FSDP_INVALID, "no model config given");
    FSDP_TRY(check_sizes(config));
    FSDP_TRY(check_positive("norm_eps", config->norm_eps));
    FSDP_TRY(check_fraction("embd_dropout", config->embd_dropout));
    FSDP_TRY(check_fraction("dropout", config->dropout));
    FSDP_TRY(check_fraction("attention_dropout", config->attention_dropout));
    FSDP_TRY(check_not_negative("init_std", config->init_std));
    FSDP_TRY(check_not_negative("logits_softcap", config->logits_softcap));
    FSDP_TRY(check_range("eos_token_count", config->eos_token_count, 0, FSDP_MODEL_MAX_EOS_TOKENS));
    if (config->architecture == FSDP_GPT2)
        return check_gpt2(config);
    if (fsdp__family_of(config->architecture))
        return check_llama(config);
    return FSDP_FAIL(FSDP_INVALID, "bad model config: architecture is %d: expected FSDP_GPT2 to FSDP_GEMMA3",
                     (int)config->architecture);
}

/* ---- counts ---- */

/* Counts the elements of one block's weight matrices. */
static int64_t block_matrices(const fsdp_model_config *c)
{
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int64_t mlp_matrices = c->architecture == FSDP_GPT2 ? 2 : 3;

    return c->dim * (q + 2 * kv) + q * c->dim + mlp_matrices * c->dim * c->ffn_dim;
}

/* Counts the elements of one block's norms and biases. */
static int64_t block_vectors(const fsdp_model_config *c)
{
    int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const fsdp__family *family = fsdp__family_of(c->architecture);
    int64_t norms;

    if (!family)
        return 4 * c->dim + q + 2 * kv + c->dim + c->ffn_dim + c->dim;
    norms = (family->norm_before ? 2 : 0) * c->dim + (family->norm_after ? 2 : 0) * c->dim;
    norms += family->norm_whole ? q + kv : family->norm_heads ? 2 * c->head_dim : 0;
    norms += c->attention_bias || family->qkv_bias ? q + 2 * kv : 0;
    return norms + (c->attention_bias ? c->dim : 0) + (c->mlp_bias ? 2 * c->ffn_dim + c->dim : 0);
}

int64_t fsdp_model_config_parameters(const fsdp_model_config *config)
{
    int64_t table, outside;

    if (!config || check_sizes(config) != FSDP_OK)
        return 0;
    table = config->vocab_size * config->dim;
    outside = table * (config->tie_word_embeddings ? 1 : 2);
    outside += config->architecture == FSDP_GPT2 ? (config->max_seq_len + 2) * config->dim : config->dim;
    return outside + config->n_layers * (block_matrices(config) + block_vectors(config));
}

/* Adds up over all layers how many keys a token sees on average, as if half of all tokens came before it. */
static double keys_per_token(const fsdp_model_config *c, int64_t seq_len)
{
    double full = (double)seq_len / 2, window = (double)FSDP__MIN(c->window, seq_len), sum = 0;
    double local = window - window * window / (2 * (double)FSDP__MAX(seq_len, 1));

    for (int64_t i = 0; i < c->n_layers; i++)
        sum += fsdp_model_layer_is_local(c, i) ? local : full;
    return sum;
}

double fsdp_model_config_flops_per_token(const fsdp_model_config *config, int64_t seq_len)
{
    double matrices, attention;

    if (!config || check_sizes(config) != FSDP_OK)
        return 0;
    matrices = (double)(config->n_layers * block_matrices(config) + config->vocab_size * config->dim);
    attention = (double)(config->n_heads * config->head_dim) * keys_per_token(config, seq_len);
    return 6 * matrices + 12 * attention;
}

int64_t fsdp__mfu_parameters(const fsdp_model_config *config)
{
    int64_t tables = config->tie_word_embeddings ? 0 : config->vocab_size * config->dim;

    if (config->architecture == FSDP_GPT2)
        tables += config->max_seq_len * config->dim;
    return fsdp_model_config_parameters(config) - tables;
}

bool fsdp__is_looked_up(const fsdp_model_config *config, const char *name)
{
    bool embedding = fsdp__ends_with(name, "wte.weight") || fsdp__ends_with(name, "embed_tokens.weight");

    return fsdp__ends_with(name, "wpe.weight") || (embedding && !config->tie_word_embeddings);
}

double fsdp_model_config_mfu_flops_per_token(const fsdp_model_config *config, int64_t seq_len)
{
    double attention;

    if (!config || check_sizes(config) != FSDP_OK)
        return 0;
    attention = (double)(config->n_layers * config->n_heads * config->head_dim) * (double)seq_len;
    return 6 * (double)fsdp__mfu_parameters(config) + 12 * attention;
}
