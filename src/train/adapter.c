/* adapter.c - a run that trains an adapter (section adapter): what is asked for, where the model's and the adapter's
 * values come from, what a checkpoint keeps, and what is exported. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "hub/hub.h"
#include "state/entry.h"
#include "train/adapter_on_disk.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/same_facts.h"

bool fsdp__train_adapts(const fsdp_train_config *config)
{
    return config->adapter.path || config->adapter.rank > 0;
}

/* ---- keys ---- */

/* Returns the first key that describes an adapter and is set; NULL: none is. */
static const char *described(const fsdp_train_config *c)
{
    return c->adapter.rank > 0                    ? "rank"
           : !isnan(c->adapter.alpha)             ? "alpha"
           : !isnan(c->adapter.dropout)           ? "dropout"
           : c->adapter.target_count > 0          ? "targets"
           : c->adapter.target_pattern            ? "target_pattern"
           : c->adapter.exclude_count > 0         ? "exclude"
           : c->adapter.rank_pattern_count > 0    ? "rank_pattern"
           : c->adapter.alpha_pattern_count > 0   ? "alpha_pattern"
           : c->adapter.modules_to_save_count > 0 ? "modules_to_save"
           : c->adapter.rslora >= 0               ? "rslora"
           : c->adapter.dora >= 0                 ? "dora"
                                                  : NULL;
}

static fsdp_status check_strategy(const fsdp_train_config *c)
{
    if (c->parallelism.strategy != FSDP_TRAIN_FSDP1)
        return FSDP_OK;
    if (c->parallelism.fsdp1_use_orig_params != 1)
        return FSDP_FAIL(FSDP_INVALID, "adapter: with parallelism.strategy fsdp1, whose units have frozen parameters "
                                       "beside the adapter's, set parallelism.fsdp1_use_orig_params: true");
    if (c->adapter.quantize != FSDP_QUANTIZE_NONE)
        return FSDP_FAIL(FSDP_INVALID, "adapter.quantize is set, but with parallelism.strategy fsdp1 all parameters of "
                                       "a unit have one dtype, and codes are bytes: choose another strategy, for "
                                       "example fsdp2");
    if (c->adapter.base_dtype != FSDP_F32)
        return FSDP_FAIL(FSDP_INVALID,
                         "adapter.base_dtype is %s, but with parallelism.strategy fsdp1 all parameters of a unit have "
                         "one dtype: leave one of them out",
                         fsdp_dtype_name((fsdp_dtype)c->adapter.base_dtype));
    return FSDP_OK;
}

static fsdp_status check_base(const fsdp_train_config *c)
{
    if (c->model.frozen_count > 0)
        return FSDP_FAIL(FSDP_INVALID, "model.frozen is set, but an adapter freezes the whole model: leave it out");
    if (c->checkpoint.initial_load_path)
        return FSDP_FAIL(FSDP_INVALID, "checkpoint.initial_load_path has weights of a whole model, but the run trains "
                                       "an adapter: name its base as model.path, and an adapter as adapter.path");
    return FSDP_OK;
}

fsdp_status fsdp__train_check_adapter(const fsdp_train_config *c)
{
    const char *key = described(c);

    if (!fsdp__train_adapts(c))
        return FSDP_OK;
    if (c->adapter.path && key)
        return FSDP_FAIL(FSDP_INVALID, "adapter.%s is set, but adapter.path has it, in '%s': leave one of them out",
                         key, c->adapter.path);
    if (c->adapter.target_count > 0 && c->adapter.target_pattern)
        return FSDP_FAIL(FSDP_INVALID, "adapter.targets and adapter.target_pattern exclude each other");
    FSDP_TRY(check_base(c));
    return check_strategy(c);
}

/* Reads "down_proj=6". The key is cut off in place. */
static fsdp_status read_pattern(char *text, const char *key, fsdp_lora_pattern *out)
{
    char *equals = strrchr(text, '='), *end = NULL;
    double value = equals ? strtod(equals + 1, &end) : 0;

    if (!equals || equals == text || end == equals + 1 || *end || !(value > 0))
        return FSDP_FAIL(FSDP_INVALID,
                         "adapter.%s has '%s': expected the end of a layer's name, '=' and a number "
                         "(down_proj=6)",
                         key, text);
    *equals = '\0';
    *out = (fsdp_lora_pattern){text, value};
    return FSDP_OK;
}

/* Holds the patterns of one key, and their strings. */
typedef struct pattern_list {
    fsdp_lora_pattern *items;
    char **texts;
    int64_t count;
} pattern_list;

static void pattern_list_release(pattern_list *list)
{
    for (int64_t i = 0; list->texts && i < list->count; i++)
        fsdp__free(list->texts[i]);
    FSDP__FREE_ALL(list->texts, list->items);
}

static fsdp_status read_patterns(char *const *texts, int64_t count, const char *key, pattern_list *out)
{
    out->count = count;
    FSDP__TRY_NEW(out->items = fsdp__calloc((size_t)count + 1, sizeof *out->items));
    FSDP__TRY_NEW(out->texts = fsdp__calloc((size_t)count + 1, sizeof *out->texts));
    for (int64_t i = 0; i < count; i++) {
        FSDP__TRY_NEW(out->texts[i] = fsdp__strdup(texts[i]));
        FSDP_TRY(read_pattern(out->texts[i], key, &out->items[i]));
    }
    return FSDP_OK;
}

static fsdp_status options_of_keys(const fsdp_train_config *c, fsdp_lora_options **out)
{
    static const char *const all[] = {"all-linear"};
    FSDP__SCOPED(pattern_list_release) pattern_list ranks = {0}, alphas = {0};
    fsdp_lora_options o = {.rank = c->adapter.rank,
                           .alpha = isnan(c->adapter.alpha) ? (double)c->adapter.rank : c->adapter.alpha,
                           .dropout = isnan(c->adapter.dropout) ? 0 : c->adapter.dropout,
                           .rslora = c->adapter.rslora == 1,
                           .dora = c->adapter.dora == 1,
                           .targets = (const char *const *)c->adapter.targets,
                           .target_count = c->adapter.target_count,
                           .target_regex = c->adapter.target_pattern,
                           .exclude = (const char *const *)c->adapter.exclude,
                           .exclude_count = c->adapter.exclude_count,
                           .saved = (const char *const *)c->adapter.modules_to_save,
                           .saved_count = c->adapter.modules_to_save_count};

    if (o.target_count == 0 && !o.target_regex) {
        o.targets = all;
        o.target_count = 1;
    }
    FSDP_TRY(read_patterns(c->adapter.rank_pattern, c->adapter.rank_pattern_count, "rank_pattern", &ranks));
    FSDP_TRY(read_patterns(c->adapter.alpha_pattern, c->adapter.alpha_pattern_count, "alpha_pattern", &alphas));
    o.rank_patterns = ranks.items;
    o.rank_pattern_count = ranks.count;
    o.alpha_patterns = alphas.items;
    o.alpha_pattern_count = alphas.count;
    return fsdp__lora_options_copy(&o, out);
}

fsdp_status fsdp__train_read_adapter(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp_status status;

    if (!fsdp__train_adapts(c))
        return FSDP_OK;
    status =
        c->adapter.path ? fsdp__adapter_on_disk_options(c->adapter.path, &run->lora) : options_of_keys(c, &run->lora);
    if (status != FSDP_OK)
        return c->adapter.path ? fsdp_fail_prefix(status, "adapter.path") : status;
    run->lora->seed = (uint64_t)c->training.seed;
    return FSDP_OK;
}

/* ---- facts ---- */

static void write_texts(const char *name, const char *const *texts, int64_t count, FILE *out)
{
    fprintf(out, "%s\t", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(out, "%s%s", i > 0 ? " " : "", texts[i]);
    fputs("\n", out);
}

static void write_patterns(const char *name, const fsdp_lora_pattern *patterns, int64_t count, FILE *out)
{
    fprintf(out, "%s\t", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(out, "%s%s=%.9g", i > 0 ? " " : "", patterns[i].key, patterns[i].value);
    fputs("\n", out);
}

void fsdp__train_facts_of_adapter(const fsdp_train_run *run, FILE *out)
{
    static const char *const quantizations[] = {"none", "nf4", "int8"};
    const fsdp_train_config *c = run->config;
    const fsdp_lora_options *o = run->lora;

    if (!o)
        return;
    fprintf(out, "adapter.rank\t%lld\nadapter.alpha\t%.9g\nadapter.rslora\t%d\nadapter.dora\t%d\n", (long long)o->rank,
            o->alpha, o->rslora, o->dora);
    write_texts("adapter.targets", o->targets, o->target_count, out);
    fprintf(out, "adapter.target_pattern\t%s\n", o->target_regex ? o->target_regex : "");
    write_texts("adapter.exclude", o->exclude, o->exclude_count, out);
    write_texts("adapter.modules_to_save", o->saved, o->saved_count, out);
    write_patterns("adapter.rank_pattern", o->rank_patterns, o->rank_pattern_count, out);
    write_patterns("adapter.alpha_pattern", o->alpha_patterns, o->alpha_pattern_count, out);
    fprintf(out, "adapter.base_dtype\t%s\n", fsdp_dtype_name((fsdp_dtype)c->adapter.base_dtype));
    fprintf(out, "adapter.quantize\t%s\n", quantizations[c->adapter.quantize]);
    if (c->model.path && c->model.pretrained != 0)
        fsdp__facts_of_weights(c->model.path, false, "model.path", out);
    else
        fprintf(out, "the base's training.seed\t%lld\n", (long long)c->training.seed);
}

/* ---- the model ---- */

fsdp_status fsdp__train_add_adapter(fsdp_train_run *run)
{
    fsdp_dtype base = (fsdp_dtype)run->config->adapter.base_dtype;
    fsdp_quantization kind = (fsdp_quantization)run->config->adapter.quantize;

    if (!run->lora)
        return FSDP_OK;
    if (base != FSDP_F32)
        FSDP_TRY(fsdp_module_to(run->model, base));
    if (fsdp_adapter_add(run->model, run->lora, &run->adapter) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), run->config->adapter.path ? "adapter.path" : "adapter");
    return kind == FSDP_QUANTIZE_NONE ? FSDP_OK : fsdp_adapter_quantize(run->adapter, kind);
}

/* ---- what is kept and exported ---- */

fsdp_status fsdp__train_state(const fsdp_train_run *run, fsdp_state_dict **out)
{
    return run->adapter ? fsdp_adapter_state_dict(run->adapter, out) : fsdp_state_dict_from_module(run->model, out);
}

bool fsdp__train_exports_adapter(const fsdp_train_config *config)
{
    return fsdp__train_adapts(config) && config->save.merge != 1;
}

fsdp_status fsdp__train_export_state(const fsdp_train_run *run, const fsdp_state_dict *trained, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *model = NULL, *all = NULL;

    if (fsdp__train_exports_adapter(run->config))
        return fsdp__adapter_peft_state(run->adapter, trained, out);
    FSDP_TRY(fsdp_state_dict_from_module(run->model, &model));
    FSDP_TRY(fsdp__state_dict_with(model, trained, &all));
    return fsdp_adapter_merge(run->adapter, all, out);
}

fsdp_status fsdp__train_adapter_config(const fsdp_train_run *run, char **out)
{
    return fsdp__adapter_config_text(run->adapter, run->config->model.path, out);
}
