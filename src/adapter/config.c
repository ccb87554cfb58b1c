/* config.c - adapter_config.json. Every key is one that is read, one that changes no numbers, or must be unset. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapter/adapter.h"
#include "adapter/options.h"
#include "base/alloc.h"
#include "base/text.h"
#include "format/json.h"

#define ALL_LINEAR "all-linear"

/* ---- reading ---- */

static const char *const read_keys[] = {"peft_type",
                                        "r",
                                        "lora_alpha",
                                        "lora_dropout",
                                        "use_rslora",
                                        "use_dora",
                                        "target_modules",
                                        "exclude_modules",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "init_lora_weights",
                                        "bias",
                                        NULL};
/* These keys change no numbers: they say where and how something runs, names, and what only a key that must be unset
 * would use. */
static const char *const harmless_keys[] = {
    "auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "layers_pattern", "megatron_core",
    "peft_version", "qalora_group_size",       "revision",       "runtime_config", "task_type",      NULL};

static bool is_set(const json_t *value)
{
    return !(json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
             (json_is_object(value) && json_object_size(value) == 0));
}

static fsdp_status refuse(const fsdp__json_object *from, const char *key, const json_t *value, const char *instead)
{
    FSDP__FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s': %s is %s, which is not supported%s%s", from->path, FSDP__SHOWN_NAME(key),
                     text ? FSDP__SHOWN_NAME(text) : "set", instead ? ": " : "", instead ? instead : "");
}

static fsdp_status check_others(const fsdp__json_object *from)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)from->object, key, value)
    {
        if (!fsdp__is_one_of(key, read_keys) && !fsdp__is_one_of(key, harmless_keys) && is_set(value))
            return refuse(from, key, value, NULL);
    }
    return FSDP_OK;
}

/* These begin with another base than the model's folder has. */
static fsdp_status check_init(const fsdp__json_object *from)
{
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva", NULL};
    const json_t *value = json_object_get(from->object, "init_lora_weights");

    if (!value || json_is_null(value) || json_is_boolean(value) ||
        (json_is_string(value) && fsdp__is_one_of(json_string_value(value), harmless)))
        return FSDP_OK;
    return refuse(from, "init_lora_weights", value,
                  "it changes the base; save the adapter with path_initial_model_for_weight_conversion");
}

static fsdp_status check_words(const fsdp__json_object *from)
{
    const char *type = NULL, *bias = "none";

    FSDP_TRY(fsdp__json_string(from, "peft_type", true, &type));
    FSDP_TRY(fsdp__json_string(from, "bias", false, &bias));
    if (strcmp(type, "LORA") != 0)
        return refuse(from, "peft_type", json_object_get(from->object, "peft_type"), "LORA is");
    if (strcmp(bias, "none") != 0)
        return refuse(from, "bias", json_object_get(from->object, "bias"), "none is");
    FSDP_TRY(check_init(from));
    return check_others(from);
}

static fsdp_status wrong(const fsdp__json_object *from, const char *key, const char *expected)
{
    return FSDP_FAIL(FSDP_FORMAT, "'%s': %s is not %s", from->path, key, expected);
}

/* Reads a list of strings. */
static fsdp_status read_list(const fsdp__json_object *from, const char *key, fsdp_lora_options *o,
                             const char *const **out, int64_t *out_count)
{
    const json_t *value = json_object_get(from->object, key);
    size_t count = json_array_size(value);
    FSDP__FREED const char **texts = fsdp__calloc(count + 1, sizeof *texts);

    FSDP__TRY_NEW(texts);
    for (size_t i = 0; i < count; i++) {
        texts[i] = json_string_value(json_array_get(value, i));
        if (!texts[i])
            return wrong(from, key, "a list of strings");
    }
    return fsdp__lora_options_texts(o, texts, (int64_t)count, out, out_count);
}

/* Reads a list of names, or a regular expression. */
static fsdp_status read_names(const fsdp__json_object *from, const char *key, fsdp_lora_options *o,
                              const char *const **names, int64_t *count, const char **regex)
{
    const json_t *value = json_object_get(from->object, key);
    static const char *const all[] = {ALL_LINEAR};

    if (!value || json_is_null(value))
        return FSDP_OK;
    if (json_is_array(value))
        return read_list(from, key, o, names, count);
    if (!json_is_string(value))
        return wrong(from, key, "a list of strings, or a string");
    if (strcmp(json_string_value(value), ALL_LINEAR) == 0)
        return fsdp__lora_options_texts(o, all, 1, names, count);
    return fsdp__lora_options_text(o, json_string_value(value), regex);
}

static fsdp_status read_patterns(const fsdp__json_object *from, const char *key, fsdp_lora_options *o,
                                 const fsdp_lora_pattern **out, int64_t *out_count)
{
    json_t *object = json_object_get(from->object, key), *value;
    FSDP__FREED fsdp_lora_pattern *patterns = fsdp__calloc(json_object_size(object) + 1, sizeof *patterns);
    const char *name;
    int64_t count = 0;

    FSDP__TRY_NEW(patterns);
    if (object && !json_is_null(object) && !json_is_object(object))
        return wrong(from, key, "an object of numbers");
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value))
            return wrong(from, key, "an object of numbers");
        patterns[count++] = (fsdp_lora_pattern){name, json_number_value(value)};
    }
    return fsdp__lora_options_patterns(o, patterns, count, out, out_count);
}

static fsdp_status read_number(const fsdp__json_object *from, const char *key, double *out)
{
    const json_t *value = json_object_get(from->object, key);

    if (!value || json_is_null(value))
        return FSDP_OK;
    if (!json_is_number(value))
        return wrong(from, key, "a number");
    *out = json_number_value(value);
    return FSDP_OK;
}

/* Refuses zeros, which the file means, and options take for what is not set. */
static fsdp_status check_zeros(const fsdp__json_object *from, const fsdp_lora_options *o)
{
    if (o->rank == 0 && json_is_integer(json_object_get(from->object, "r")))
        return wrong(from, "r", "a rank: it is 0, and must be 1 or more");
    if (o->alpha == 0 && json_is_number(json_object_get(from->object, "lora_alpha")))
        return wrong(from, "lora_alpha", "above 0: with 0 the adapter would do nothing, and never learn");
    return FSDP_OK;
}

static fsdp_status read_options(const fsdp__json_object *from, fsdp_lora_options *o)
{
    o->some_targets = true;
    FSDP_TRY(fsdp__json_integer(from, "r", false, &o->rank));
    FSDP_TRY(read_number(from, "lora_alpha", &o->alpha));
    FSDP_TRY(check_zeros(from, o));
    FSDP_TRY(read_number(from, "lora_dropout", &o->dropout));
    FSDP_TRY(fsdp__json_bool(from, "use_rslora", &o->rslora));
    FSDP_TRY(fsdp__json_bool(from, "use_dora", &o->dora));
    FSDP_TRY(read_names(from, "target_modules", o, &o->targets, &o->target_count, &o->target_regex));
    FSDP_TRY(read_names(from, "exclude_modules", o, &o->exclude, &o->exclude_count, &o->exclude_regex));
    FSDP_TRY(read_patterns(from, "rank_pattern", o, &o->rank_patterns, &o->rank_pattern_count));
    FSDP_TRY(read_patterns(from, "alpha_pattern", o, &o->alpha_patterns, &o->alpha_pattern_count));
    return read_list(from, "modules_to_save", o, &o->saved, &o->saved_count);
}

fsdp_status fsdp__adapter_config_parse(const char *path, const void *text, size_t bytes, fsdp_lora_options **out)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;
    json_auto_t *object = NULL;
    fsdp__json_object from = {.path = path};

    *out = NULL;
    FSDP_TRY(fsdp__json_parse_foreign(path, text, bytes, &object));
    from.object = object;
    FSDP__TRY_NEW(options = fsdp__lora_options_create());
    FSDP_TRY(check_words(&from));
    FSDP_TRY(read_options(&from, options));
    if (options->target_count == 0 && !options->target_regex)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' has no target_modules", path);
    *out = fsdp__take(&options);
    return FSDP_OK;
}

/* ---- writing ---- */

static json_t *list_of(const char *const *texts, int64_t count)
{
    json_t *list = count > 0 ? json_array() : json_null();

    for (int64_t i = 0; i < count; i++)
        (void)json_array_append_new(list, json_string(texts[i]));
    return list;
}

static json_t *number_of(double value)
{
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *patterns_of(const fsdp_lora_pattern *patterns, int64_t count)
{
    json_t *object = json_object();

    for (int64_t i = 0; i < count; i++)
        (void)json_object_set_new(object, patterns[i].key, number_of(patterns[i].value));
    return object;
}

/* Returns the last parts of the layers' names, each once: what all-linear stands for in this model. */
static json_t *layer_ends(const fsdp_adapter *adapter)
{
    json_auto_t *seen = json_object();
    json_t *list = json_array();

    for (int64_t i = 0; i < adapter->count; i++) {
        const char *dot = strrchr(adapter->items[i].name, '.'), *end = dot ? dot + 1 : adapter->items[i].name;

        if (json_object_get(seen, end))
            continue;
        (void)json_object_set_new(seen, end, json_true());
        (void)json_array_append_new(list, json_string(end));
    }
    return list;
}

static json_t *targets_of(const fsdp_adapter *adapter)
{
    const fsdp_lora_options *o = adapter->options;

    if (o->target_regex)
        return json_string(o->target_regex);
    return strcmp(o->targets[0], ALL_LINEAR) == 0 ? layer_ends(adapter) : list_of(o->targets, o->target_count);
}

static bool all_transposed(const fsdp_adapter *adapter)
{
    for (int64_t i = 0; i < adapter->count; i++)
        if (!adapter->items[i].lora->transposed)
            return false;
    return adapter->count > 0;
}

static void put(json_t *object, const char *key, json_t *value)
{
    (void)json_object_set_new(object, key, value);
}

fsdp_status fsdp__adapter_config_text(const fsdp_adapter *adapter, const char *base, char **out)
{
    const fsdp_lora_options *o = adapter->options;
    json_auto_t *object = json_object();

    put(object, "alpha_pattern", patterns_of(o->alpha_patterns, o->alpha_pattern_count));
    put(object, "base_model_name_or_path", base ? json_string(base) : json_null());
    put(object, "bias", json_string("none"));
    put(object, "exclude_modules",
        o->exclude_regex ? json_string(o->exclude_regex) : list_of(o->exclude, o->exclude_count));
    put(object, "fan_in_fan_out", json_boolean(all_transposed(adapter)));
    put(object, "inference_mode", json_true());
    put(object, "init_lora_weights", json_true());
    put(object, "lora_alpha", number_of(o->alpha));
    put(object, "lora_bias", json_false());
    put(object, "lora_dropout", json_real(o->dropout));
    put(object, "modules_to_save", list_of(o->saved, o->saved_count));
    put(object, "peft_type", json_string("LORA"));
    put(object, "r", json_integer(o->rank));
    put(object, "rank_pattern", patterns_of(o->rank_patterns, o->rank_pattern_count));
    put(object, "target_modules", targets_of(adapter));
    put(object, "task_type", json_string("CAUSAL_LM"));
    put(object, "use_dora", json_boolean(o->dora));
    put(object, "use_rslora", json_boolean(o->rslora));
    *out = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    return *out ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for an adapter's config");
}
