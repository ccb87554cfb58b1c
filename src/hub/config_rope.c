/* config_rope.c - the rotary positions of a config.json, in the older and the newer style. */
#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "hub/config_parts.h"
#include "models/models.h"

/* Names the two keys under which versions of transformers look for the kind of rotary positions. */
#define NEWER "rope_parameters"
#define OLDER "rope_scaling"
#define ORIGINAL "original_max_position_embeddings"
#define PARTIAL "partial_rotary_factor"
#define SHORT "short_factor"
#define LONG "long_factor"
/* The objects in the newer one, where local layers have rotary positions of their own, and the older key of their
 * theta. */
#define FULL "full_attention"
#define LOCAL "sliding_attention"
#define LOCAL_THETA "rope_local_base_freq"

#define KNOWN "default, linear, llama3, dynamic, yarn and longrope"

static fsdp_status bad_rope(const fsdp__json_object *from, const char *what)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': %s: one kind is supported, " KNOWN ", in " NEWER " or " OLDER,
                     from->path, what);
}

/* ---- reading: one object ---- */

/* Says which types of rope have a key. With another type the key is refused: other programs would use it, and this one
 * would ignore it. */
enum {
    OF_LINEAR = 1 << FSDP_ROPE_LINEAR,
    OF_LLAMA3 = 1 << FSDP_ROPE_LLAMA3,
    OF_DYNAMIC = 1 << FSDP_ROPE_DYNAMIC,
    OF_YARN = 1 << FSDP_ROPE_YARN,
    OF_LONGROPE = 1 << FSDP_ROPE_LONGROPE,
    OF_ALL = OF_LINEAR | OF_LLAMA3 | OF_DYNAMIC | OF_YARN | OF_LONGROPE | 1 << FSDP_ROPE_DEFAULT
};

static const struct {
    const char *name;
    int types;
} keys[] = {
    {"rope_theta", OF_ALL},
    {"rope_type", OF_ALL},
    {"type", OF_ALL},
    {PARTIAL, OF_ALL},
    {ORIGINAL, OF_ALL},
    {"factor", OF_ALL & ~(1 << FSDP_ROPE_DEFAULT)},
    {SHORT, OF_LONGROPE},
    {LONG, OF_LONGROPE},
    {"low_freq_factor", OF_LLAMA3},
    {"high_freq_factor", OF_LLAMA3},
    {"attention_factor", OF_YARN | OF_LONGROPE},
    {"mscale", OF_YARN},
    {"mscale_all_dim", OF_YARN},
    {"beta_fast", OF_YARN},
    {"beta_slow", OF_YARN},
    {"truncate", OF_YARN},
    {"finetuned", OF_YARN}, /* says nothing of the frequencies */
};

static fsdp_status check_keys(const fsdp__json_object *rope, fsdp_rope_type type)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)rope->object, key, value)
    {
        bool known = json_is_null(value);

        for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
            known = known || ((keys[i].types >> type & 1) && strcmp(key, keys[i].name) == 0);
        if (!known)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot use '%s': '%s' does not belong to rope type %s: " KNOWN " are supported",
                             rope->path, FSDP__SHOWN_NAME(key), fsdp_rope_type_name(type));
    }
    return FSDP_OK;
}

/* Holds what one place says about the rotary positions; NAN and 0: nothing. */
typedef struct rope {
    fsdp_rope_type type;
    float theta, partial;
    float factor, low_freq_factor, high_freq_factor;
    float attention_factor, mscale, mscale_all_dim, beta_fast, beta_slow;
    bool truncate;
    int64_t original, short_count, long_count;
    float short_factors[FSDP_MODEL_MAX_ROPE_FACTORS], long_factors[FSDP_MODEL_MAX_ROPE_FACTORS];
} rope;

static const rope nothing = {.theta = NAN, .partial = NAN, .truncate = true};

/* Reads the kind; nothing leaves the default. Two spellings of the key contradict each other unless their values are
 * the same. */
static fsdp_status read_type(const fsdp__json_object *from, fsdp_rope_type *out)
{
    const char *older = NULL, *newer = NULL, *type;

    FSDP_TRY(fsdp__json_string(from, "type", false, &older));
    FSDP_TRY(fsdp__json_string(from, "rope_type", false, &newer));
    if (older && newer && strcmp(older, newer) != 0)
        return bad_rope(from, "its rope has a 'type' and another 'rope_type'");
    type = newer ? newer : older ? older : "default";
    type = strcmp(type, "su") == 0 ? "longrope" : type; /* the first Phi-3 have that name */
    for (*out = FSDP_ROPE_DEFAULT; *out <= FSDP_ROPE_LONGROPE; ++*out)
        if (strcmp(type, fsdp_rope_type_name(*out)) == 0)
            return FSDP_OK;
    return fsdp__config_unsupported(from, "rope type", type, KNOWN " are");
}

/* Reads what yarn has beyond a factor, which may be left out there. */
static fsdp_status read_yarn(const fsdp__json_object *from, rope *out)
{
    FSDP_TRY(fsdp__json_float(from, "factor", false, &out->factor));
    FSDP_TRY(fsdp__json_float(from, "attention_factor", false, &out->attention_factor));
    FSDP_TRY(fsdp__json_float(from, "mscale", false, &out->mscale));
    FSDP_TRY(fsdp__json_float(from, "mscale_all_dim", false, &out->mscale_all_dim));
    FSDP_TRY(fsdp__json_float(from, "beta_fast", false, &out->beta_fast));
    FSDP_TRY(fsdp__json_float(from, "beta_slow", false, &out->beta_slow));
    FSDP_TRY(fsdp__json_bool(from, "truncate", &out->truncate));
    out->beta_fast = out->beta_fast != 0 ? out->beta_fast : 32;
    out->beta_slow = out->beta_slow != 0 ? out->beta_slow : 1;
    return fsdp__config_integer(from, ORIGINAL, false, &out->original);
}

/* Reads a list of factors. */
static fsdp_status read_factors(const fsdp__json_object *from, const char *key, int64_t *count, float *out)
{
    json_t *list = json_object_get(from->object, key), *item;
    size_t i;

    if (!json_is_array(list))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' of rope type longrope must be a list of numbers",
                         from->path, key);
    if (json_array_size(list) > FSDP_MODEL_MAX_ROPE_FACTORS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': key '%s' has %zu numbers: %d are the most", from->path,
                         key, json_array_size(list), FSDP_MODEL_MAX_ROPE_FACTORS);
    json_array_foreach(list, i, item)
    {
        if (!json_is_number(item) || !(json_number_value(item) > 0 && json_number_value(item) < 1e30))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': number %zu of key '%s' must be above 0", from->path, i + 1,
                             key);
        out[i] = (float)json_number_value(item);
    }
    *count = (int64_t)json_array_size(list);
    return FSDP_OK;
}

static fsdp_status read_longrope(const fsdp__json_object *from, rope *out)
{
    FSDP_TRY(fsdp__json_float(from, "factor", false, &out->factor));
    FSDP_TRY(fsdp__json_float(from, "attention_factor", false, &out->attention_factor));
    FSDP_TRY(read_factors(from, SHORT, &out->short_count, out->short_factors));
    FSDP_TRY(read_factors(from, LONG, &out->long_count, out->long_factors));
    return fsdp__config_integer(from, ORIGINAL, false, &out->original);
}

static fsdp_status read_one(const fsdp__json_object *from, rope *out)
{
    *out = nothing;
    FSDP_TRY(fsdp__json_float(from, "rope_theta", false, &out->theta));
    FSDP_TRY(fsdp__json_float(from, PARTIAL, false, &out->partial));
    FSDP_TRY(read_type(from, &out->type));
    FSDP_TRY(check_keys(from, out->type));
    if (out->type == FSDP_ROPE_YARN)
        return read_yarn(from, out);
    if (out->type == FSDP_ROPE_LONGROPE)
        return read_longrope(from, out);
    if (out->type != FSDP_ROPE_DEFAULT)
        FSDP_TRY(fsdp__json_float(from, "factor", true, &out->factor));
    if (out->type != FSDP_ROPE_LLAMA3)
        return FSDP_OK;
    FSDP_TRY(fsdp__json_float(from, "low_freq_factor", true, &out->low_freq_factor));
    FSDP_TRY(fsdp__json_float(from, "high_freq_factor", true, &out->high_freq_factor));
    return fsdp__config_integer(from, ORIGINAL, false, &out->original);
}

/* ---- reading: all of it ---- */

static bool same_rope(const rope *a, const rope *b)
{
    return a->type == b->type && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original == b->original &&
           a->attention_factor == b->attention_factor && a->mscale == b->mscale &&
           a->mscale_all_dim == b->mscale_all_dim && a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->truncate == b->truncate && a->short_count == b->short_count && a->long_count == b->long_count &&
           memcmp(a->short_factors, b->short_factors, sizeof a->short_factors) == 0 &&
           memcmp(a->long_factors, b->long_factors, sizeof a->long_factors) == 0;
}

/* Makes a number that may be given in several places one: all of them must have the same. */
static fsdp_status merge(const fsdp__json_object *from, const char *what, float known, float *one)
{
    if (!isnan(known) && !isnan(*one) && known != *one)
        return bad_rope(from, what);
    *one = isnan(*one) ? known : *one;
    return FSDP_OK;
}

static fsdp_status take(const fsdp__json_object *place, const fsdp__json_object *from, bool first, rope *found)
{
    rope one;

    FSDP_TRY(read_one(place, &one));
    if (!first && !same_rope(found, &one))
        return bad_rope(from, "its " NEWER " and " OLDER " differ");
    FSDP_TRY(merge(from, "it has two values of rope_theta", found->theta, &one.theta));
    FSDP_TRY(merge(from, "it has two values of " PARTIAL, found->partial, &one.partial));
    *found = one;
    return FSDP_OK;
}

/* Reads the original length. Some files have it outside the other keys of rope, where newer versions of transformers
 * look first; if it is missing, they take all positions, and in a Phi-3 4096. */
static fsdp_status read_original(const fsdp__json_object *from, const fsdp_model_config *out, rope *found)
{
    int64_t at_top = out->architecture == FSDP_PHI3 ? 4096 : 0, max_seq_len = out->max_seq_len;

    FSDP_TRY(fsdp__config_integer(from, ORIGINAL, false, &at_top));
    if (found->type != FSDP_ROPE_LLAMA3 && found->type != FSDP_ROPE_YARN && found->type != FSDP_ROPE_LONGROPE)
        return FSDP_OK;
    if (at_top && found->original && at_top != found->original)
        return bad_rope(from, "it has two values of " ORIGINAL);
    found->original = found->original ? found->original : at_top ? at_top : max_seq_len;
    if (found->type != FSDP_ROPE_LLAMA3 && found->factor == 0 && found->original > 0)
        found->factor = (float)max_seq_len / (float)found->original;
    return FSDP_OK;
}

/* Reads the rotary positions of local layers, which are never scaled. */
static fsdp_status read_local(const fsdp__json_object *from, const fsdp__json_object *place, fsdp_model_config *out)
{
    float theta = NAN;
    rope one = nothing;

    FSDP_TRY(fsdp__json_float(from, LOCAL_THETA, false, &theta));
    if (place->object)
        FSDP_TRY(read_one(place, &one));
    if (one.type != FSDP_ROPE_DEFAULT)
        return fsdp__config_unsupported(from, LOCAL "'s rope type", fsdp_rope_type_name(one.type), "only default is");
    FSDP_TRY(merge(from, "it has two values of " LOCAL_THETA, theta, &one.theta));
    out->local_rope_theta = isnan(one.theta) ? out->local_rope_theta : one.theta;
    return FSDP_OK;
}

/* Finds the object of the newer style: in a model whose local layers have their own, it is one of two in it. */
static fsdp_status find_newer(const fsdp__json_object *from, bool two, fsdp__json_object *out, fsdp__json_object *local)
{
    fsdp__json_object all;

    *local = (fsdp__json_object){.path = from->path};
    FSDP_TRY(fsdp__json_child(from, NEWER, out));
    all = *out;
    if (!two || !out->object || (!json_object_get(all.object, FULL) && !json_object_get(all.object, LOCAL)))
        return FSDP_OK;
    FSDP_TRY(fsdp__json_child(&all, FULL, out));
    return fsdp__json_child(&all, LOCAL, local);
}

/* Checks the lists against the part of a head that rotates. */
static fsdp_status check_factors(const fsdp__json_object *from, const rope *found, const fsdp_model_config *config)
{
    int64_t pairs = fsdp__rotary_dim(config) / 2;
    bool is_short = found->short_count != pairs;

    if (found->type != FSDP_ROPE_LONGROPE || (!is_short && found->long_count == pairs))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key '%s' has %lld numbers: %lld pairs of each head rotate",
                     from->path, is_short ? SHORT : LONG,
                     (long long)(is_short ? found->short_count : found->long_count), (long long)pairs);
}

/* Stores what was found. Only Phi-3 rotates a part of each head, and it scales in no other way than longrope. */
static fsdp_status store(const fsdp__json_object *from, const rope *found, fsdp_model_config *out)
{
    bool phi3 = out->architecture == FSDP_PHI3;

    if (!isnan(found->partial) && found->partial != 1 && !phi3)
        return fsdp__config_unsupported_number(from, PARTIAL, (double)found->partial, "only 1 is");
    if (phi3 && found->type != FSDP_ROPE_DEFAULT && found->type != FSDP_ROPE_LONGROPE)
        return fsdp__config_unsupported(from, "rope type", fsdp_rope_type_name(found->type),
                                        "of a phi3 default and longrope are");
    out->rotary_fraction = isnan(found->partial) || found->partial == 1 ? 0 : found->partial;
    out->rope_theta = isnan(found->theta) ? out->rope_theta : found->theta;
    out->rope_type = found->type;
    out->rope_factor = found->factor;
    out->rope_low_freq_factor = found->low_freq_factor;
    out->rope_high_freq_factor = found->high_freq_factor;
    out->rope_original_max_seq_len = found->original;
    out->rope_attention_factor = found->attention_factor;
    out->rope_mscale = found->mscale;
    out->rope_mscale_all_dim = found->mscale_all_dim;
    out->rope_beta_fast = found->beta_fast;
    out->rope_beta_slow = found->beta_slow;
    out->rope_keep_ramp = !found->truncate;
    memcpy(out->rope_short_factors, found->short_factors, sizeof out->rope_short_factors);
    memcpy(out->rope_long_factors, found->long_factors, sizeof out->rope_long_factors);
    return check_factors(from, found, out);
}

/* Newer files have everything in rope_parameters. Older ones have rope_theta at the top and the rest, or null, in
 * rope_scaling. What is given twice must be the same, because which of the two wins has changed between versions of
 * transformers. */
fsdp_status fsdp__config_read_rope(const fsdp__json_object *from, fsdp_model_config *out)
{
    bool two = out->local_rope_theta > 0;
    fsdp__json_object newer, older, local;
    rope found = nothing;

    FSDP_TRY(fsdp__json_float(from, "rope_theta", false, &found.theta));
    FSDP_TRY(fsdp__json_float(from, PARTIAL, false, &found.partial));
    FSDP_TRY(find_newer(from, two, &newer, &local));
    FSDP_TRY(fsdp__json_child(from, OLDER, &older));
    if (newer.object)
        FSDP_TRY(take(&newer, from, true, &found));
    if (older.object)
        FSDP_TRY(take(&older, from, !newer.object, &found));
    FSDP_TRY(read_original(from, out, &found));
    if (two)
        FSDP_TRY(read_local(from, &local, out));
    return store(from, &found, out);
}

/* ---- writing ---- */

/* Writes a number unless it is 0. */
static void put_given(fsdp__config_writer *w, const char *key, float value)
{
    if (value != 0)
        fsdp__config_put_float(w, key, value);
}

static void put_factors(fsdp__config_writer *w, const char *key, const float *factors, int64_t count)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < count; i++)
        w->failed |= json_array_append_new(list, json_real(fsdp__json_shortest(factors[i]))) != 0;
    fsdp__config_put(w, key, list);
}

/* Makes the object of the older style. */
static fsdp__config_writer scaling_of(const fsdp_model_config *config)
{
    fsdp__config_writer w = {.object = json_object()};

    fsdp__config_put(&w, "rope_type", json_string(fsdp_rope_type_name(config->rope_type)));
    if (config->rope_type != FSDP_ROPE_DEFAULT)
        fsdp__config_put_float(&w, "factor", config->rope_factor);
    if (config->rope_type == FSDP_ROPE_LLAMA3) {
        fsdp__config_put_float(&w, "low_freq_factor", config->rope_low_freq_factor);
        fsdp__config_put_float(&w, "high_freq_factor", config->rope_high_freq_factor);
    }
    if (config->rope_type == FSDP_ROPE_YARN) {
        put_given(&w, "attention_factor", config->rope_attention_factor);
        put_given(&w, "mscale", config->rope_mscale);
        put_given(&w, "mscale_all_dim", config->rope_mscale_all_dim);
        fsdp__config_put_float(&w, "beta_fast", config->rope_beta_fast);
        fsdp__config_put_float(&w, "beta_slow", config->rope_beta_slow);
        if (config->rope_keep_ramp)
            fsdp__config_put_bool(&w, "truncate", false);
    }
    if (config->rope_type == FSDP_ROPE_LONGROPE) {
        put_given(&w, "attention_factor", config->rope_attention_factor);
        put_factors(&w, SHORT, config->rope_short_factors, fsdp__rotary_dim(config) / 2);
        put_factors(&w, LONG, config->rope_long_factors, fsdp__rotary_dim(config) / 2);
    }
    if (config->rope_type == FSDP_ROPE_LLAMA3 || config->rope_type == FSDP_ROPE_YARN ||
        config->rope_type == FSDP_ROPE_LONGROPE)
        fsdp__config_put_integer(&w, ORIGINAL, config->rope_original_max_seq_len);
    return w;
}

/* Makes the object of the newer style from that of the older. */
static fsdp__config_writer parameters_of(const fsdp_model_config *config, json_t *scaling)
{
    fsdp__config_writer w = {.object = json_copy(scaling)}, both = {.object = NULL};

    fsdp__config_put_float(&w, "rope_theta", config->rope_theta);
    if (config->architecture == FSDP_PHI3)
        fsdp__config_put_float(&w, PARTIAL, config->rotary_fraction > 0 ? config->rotary_fraction : 1);
    if (!(config->local_rope_theta > 0))
        return w;
    both.object = json_object();
    both.failed = w.failed;
    fsdp__config_put(&both, FULL, w.object);
    fsdp__config_put(
        &both, LOCAL,
        json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", fsdp__json_shortest(config->local_rope_theta)));
    return both;
}

/* Older versions read rope_theta and rope_scaling, newer ones rope_parameters. */
void fsdp__config_put_rope(fsdp__config_writer *w, const fsdp_model_config *config)
{
    fsdp__config_writer scaling = scaling_of(config), parameters = parameters_of(config, scaling.object);

    w->failed |= scaling.failed || parameters.failed;
    fsdp__config_put_float(w, "rope_theta", config->rope_theta);
    fsdp__config_put(w, NEWER, parameters.object);
    if (config->rotary_fraction > 0)
        fsdp__config_put_float(w, PARTIAL, config->rotary_fraction);
    if (config->local_rope_theta > 0)
        fsdp__config_put_float(w, LOCAL_THETA, config->local_rope_theta);
    if (config->rope_type != FSDP_ROPE_DEFAULT)
        fsdp__config_put(w, OLDER, json_incref(scaling.object));
    if (config->rope_type == FSDP_ROPE_LONGROPE) /* where a Phi-3 has it */
        fsdp__config_put_integer(w, ORIGINAL, config->rope_original_max_seq_len);
    json_decref(scaling.object);
}
