/* choose_layers.c - chooses the layers of a model that get an adapter, and adds it. */
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/status.h"
#include "dist/dist.h"
#include "fsdp/replicate.h"
#include "fsdp/shard.h"
#include "nn/layers.h"
#include "nn/managers.h"

#define ALL_LINEAR "all-linear"

/* ---- which layers ---- */

static bool is_all_linear(const fsdp_lora_options *o)
{
    return o->target_count == 1 && strcmp(o->targets[0], ALL_LINEAR) == 0;
}

static bool is_in(const char *name, const char *const *ends, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (fsdp__adapter_ends(name, ends[i]))
            return true;
    return false;
}

/* A module that is trained whole gets no adapter, as in peft. */
static fsdp_status is_excluded(const fsdp_lora_options *o, const char *name, bool *out)
{
    *out = is_in(name, o->exclude, o->exclude_count) || is_in(name, o->saved, o->saved_count);
    return *out || !o->exclude_regex ? FSDP_OK : fsdp__adapter_regex(o->exclude_regex, name, false, out);
}

static fsdp_status is_target(const fsdp_lora_options *o, const fsdp_named_module *m, bool *out)
{
    bool excluded = false;

    *out = false;
    if (!*m->name)
        return FSDP_OK;
    FSDP_TRY(is_excluded(o, m->name, &excluded));
    if (excluded)
        return FSDP_OK;
    if (o->target_regex)
        return fsdp__adapter_regex(o->target_regex, m->name, false, out);
    *out = is_all_linear(o) ? fsdp__layer_is_product(m->module) && !fsdp__adapter_ends(m->name, FSDP__ADAPTER_HEAD)
                            : is_in(m->name, o->targets, o->target_count);
    return FSDP_OK;
}

const char *fsdp__adapter_shared_with(const fsdp_named_modules *all, const fsdp_module *module)
{
    const fsdp_tensor *weight = *module->parts->parameters[0].slot;

    for (int64_t i = 0; i < all->count; i++)
        for (int64_t p = 0; p < all->items[i].module->parts->parameter_count; p++)
            if (all->items[i].module != module && *all->items[i].module->parts->parameters[p].slot == weight)
                return all->items[i].name;
    return NULL;
}

/* Checks that the layer's weight is whole: the adapter's matrices would have the sizes of a part. */
static fsdp_status check_whole(const fsdp_named_module *m)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(fsdp__layer_weight_field(m->module));

    return d ? FSDP_FAIL(FSDP_STATE, "cannot adapt '%s': it is cut already, as %s over mesh %s: add the adapter before",
                         m->name, FSDP__PLACEMENTS(d->placements, d->placement_count), FSDP__MESH(d->mesh))
             : FSDP_OK;
}

static fsdp_status check_layer(const fsdp_named_modules *all, const fsdp_named_module *m)
{
    const char *shared;

    if (!fsdp__layer_is_product(m->module))
        return FSDP_FAIL(
            FSDP_UNSUPPORTED, "cannot adapt '%s', of type %s%s: adapters go beside layers of type Linear and Conv1D",
            m->name, m->module->type->name,
            fsdp__adapter_ends(m->name, FSDP__ADAPTER_HEAD) ? ", the head, which computes the loss (modules_to_save "
                                                              "trains it whole)"
                                                            : "");
    shared = fsdp__adapter_shared_with(all, m->module);
    if (shared)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot adapt '%s': its weight is that of '%s', too", m->name, shared);
    return check_whole(m);
}

/* ---- adding ---- */

/* Finds the value of the first pattern that matches; `option` is what they were given as. */
static fsdp_status by_pattern(const char *option, const fsdp_lora_pattern *patterns, int64_t count, const char *name,
                              double *value)
{
    bool found = false;

    for (int64_t i = 0; i < count && !found; i++) {
        FSDP_TRY(fsdp_fail_prefix(fsdp__adapter_regex(patterns[i].key, name, true, &found), "%s", option));
        if (found)
            *value = patterns[i].value;
    }
    return FSDP_OK;
}

static fsdp_status choose(fsdp_adapter *adapter, const fsdp_named_module *m)
{
    const fsdp_lora_options *o = adapter->options;
    double rank = (double)o->rank, alpha = o->alpha;
    fsdp__adapted *item;

    FSDP_TRY(by_pattern("rank_pattern", o->rank_patterns, o->rank_pattern_count, m->name, &rank));
    FSDP_TRY(by_pattern("alpha_pattern", o->alpha_patterns, o->alpha_pattern_count, m->name, &alpha));
    FSDP_TRY(fsdp__grow(&adapter->items, adapter->count, &adapter->capacity, sizeof *adapter->items));
    item = &adapter->items[adapter->count];
    *item = (fsdp__adapted){.rank = (int64_t)rank, .alpha = alpha};
    FSDP__TRY_NEW(item->name = fsdp__strdup(m->name));
    item->module = fsdp_module_ref(m->module);
    adapter->count++;
    return FSDP_OK;
}

static fsdp_status choose_targets(fsdp_adapter *adapter, const fsdp_named_modules *all)
{
    bool target = false;

    for (int64_t i = 0; i < all->count; i++) {
        FSDP_TRY(is_target(adapter->options, &all->items[i], &target));
        if (!target)
            continue;
        FSDP_TRY(check_layer(all, &all->items[i]));
        FSDP_TRY(choose(adapter, &all->items[i]));
    }
    return FSDP_OK;
}

/* ---- modules that are trained whole ---- */

static fsdp_status choose_kept(fsdp_adapter *adapter, const fsdp_named_modules *all, const fsdp_named_module *m)
{
    const char *shared = m->module->parts->parameter_count > 0 ? fsdp__adapter_shared_with(all, m->module) : NULL;

    if (shared)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "modules_to_save: cannot train '%s' by itself: its weight is that of '%s', too (a tied head)",
                         m->name, shared);
    FSDP_TRY(fsdp__grow(&adapter->saved, adapter->saved_count, &adapter->saved_capacity, sizeof *adapter->saved));
    FSDP__TRY_NEW(adapter->saved[adapter->saved_count] = fsdp__strdup(m->name));
    adapter->saved_count++;
    return FSDP_OK;
}

static fsdp_status choose_all_kept(fsdp_adapter *adapter, const fsdp_named_modules *all)
{
    const fsdp_lora_options *o = adapter->options;

    for (int64_t i = 0; i < o->saved_count; i++) {
        bool any = false;

        for (int64_t m = 0; m < all->count; m++) {
            if (!fsdp__adapter_ends(all->items[m].name, o->saved[i]))
                continue;
            FSDP_TRY(choose_kept(adapter, all, &all->items[m]));
            any = true;
        }
        if (!any)
            return FSDP_FAIL(FSDP_NOT_FOUND, "modules_to_save: the model has no module '%s'", o->saved[i]);
    }
    return FSDP_OK;
}

static fsdp_status thaw_kept(const fsdp_adapter *adapter, const fsdp_named_modules *all)
{
    for (int64_t s = 0; s < adapter->saved_count; s++)
        for (int64_t m = 0; m < all->count; m++)
            if (strcmp(all->items[m].name, adapter->saved[s]) == 0)
                FSDP_TRY(fsdp_module_set_requires_grad(all->items[m].module, true));
    return FSDP_OK;
}

/* ---- all of it ---- */

/* Writes the last parts of the names of layers that can have an adapter, each once: "q_proj, k_proj". */
static void list_ends(const fsdp_named_modules *all, char *text, size_t text_bytes)
{
    size_t used = 0;

    *text = '\0';
    for (int64_t i = 0; i < all->count && used < text_bytes; i++) {
        const char *dot = strrchr(all->items[i].name, '.'), *end = dot ? dot + 1 : all->items[i].name;
        bool known = !fsdp__layer_is_product(all->items[i].module);

        for (int64_t k = 0; k < i && !known; k++)
            known = fsdp__layer_is_product(all->items[k].module) && fsdp__adapter_ends(all->items[k].name, end);
        if (!known)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? ", " : "", end);
    }
}

/* Fails with the layers that the model has in place of a target. */
static fsdp_status no_layer(const fsdp_named_modules *all, const char *target)
{
    char ends[300];

    list_ends(all, ends, sizeof ends);
    return FSDP_FAIL(FSDP_NOT_FOUND, "the model has no layer for the adapter's target '%s': it has %s", target,
                     *ends ? ends : "none that can have an adapter");
}

/* Checks that each target has a layer. */
static fsdp_status check_targets(const fsdp_adapter *adapter, const fsdp_named_modules *all)
{
    const fsdp_lora_options *o = adapter->options;
    bool each = !o->some_targets && !o->target_regex && !is_all_linear(o);

    if (adapter->count == 0)
        return no_layer(all, o->target_regex ? o->target_regex : o->targets[0]);
    for (int64_t t = 0; each && t < o->target_count; t++) {
        bool any = false;

        for (int64_t i = 0; i < adapter->count && !any; i++)
            any = fsdp__adapter_ends(adapter->items[i].name, o->targets[t]);
        if (!any)
            return no_layer(all, o->targets[t]);
    }
    return FSDP_OK;
}

static fsdp_status check_fields(const fsdp_named_module *m)
{
    const struct fsdp__module_parts *parts = m->module->parts;

    for (int64_t i = 0; i < parts->parameter_count; i++)
        if (*parts->parameters[i].slot)
            FSDP_TRY(fsdp__check_not_gathered(*parts->parameters[i].slot, "adapt", m->name, parts->parameters[i].name));
    return FSDP_OK;
}

/* Checks that the model can be changed: a second adapter would freeze the first, and what shards or replicates a model
 * does not see parameters that are added later. */
static fsdp_status check_model(const fsdp_named_modules *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        const fsdp_named_module *m = &all->items[i];
        bool replicated = fsdp_module_is_replicated(m->module);

        if (fsdp__lora_is_on(m->module))
            return FSDP_FAIL(FSDP_STATE, "'%s' has an adapter already: a model has one", m->name);
        if (fsdp_module_is_sharded(m->module) || replicated)
            return FSDP_FAIL(FSDP_STATE, "cannot add an adapter: %s%s%s is %s already; add the adapter before",
                             *m->name ? "'" : "the model", m->name, *m->name ? "'" : "",
                             replicated ? "replicated" : "sharded");
        FSDP_TRY(check_fields(m));
    }
    return FSDP_OK;
}

static fsdp_status add(fsdp_adapter *adapter)
{
    FSDP__SCOPED(fsdp_named_modules_release) fsdp_named_modules all = {0};

    FSDP_TRY(fsdp_module_modules(adapter->model, NULL, &all));
    FSDP_TRY(check_model(&all));
    FSDP_TRY(choose_targets(adapter, &all));
    FSDP_TRY(check_targets(adapter, &all));
    FSDP_TRY(choose_all_kept(adapter, &all));
    /* Nothing has been changed so far, and only memory can be lacking from here on. */
    FSDP_TRY(fsdp_module_set_requires_grad(adapter->model, false));
    for (int64_t i = 0; i < adapter->count; i++)
        FSDP_TRY(fsdp__lora_attach(adapter->items[i].module, adapter->options, &adapter->items[i]));
    return thaw_kept(adapter, &all);
}

fsdp_status fsdp_adapter_add(fsdp_module *model, const fsdp_lora_options *options, fsdp_adapter **out)
{
    FSDP__SCOPED(fsdp_adapter_free_at) fsdp_adapter *adapter = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "an adapter needs a place for the result");
    *out = NULL;
    if (!model)
        return FSDP_FAIL(FSDP_INVALID, "an adapter needs a model");
    FSDP__TRY_NEW(adapter = fsdp__calloc(1, sizeof *adapter));
    FSDP_TRY(fsdp__lora_options_copy(options, &adapter->options));
    adapter->model = fsdp_module_ref(model);
    FSDP_TRY(add(adapter));
    *out = fsdp__take(&adapter);
    return FSDP_OK;
}

void fsdp_adapter_free(fsdp_adapter *adapter)
{
    if (!adapter)
        return;
    for (int64_t i = 0; i < adapter->count; i++) {
        fsdp__free(adapter->items[i].name);
        fsdp_module_unref(adapter->items[i].module);
    }
    for (int64_t i = 0; i < adapter->saved_count; i++)
        fsdp__free(adapter->saved[i]);
    for (int64_t i = 0; i < adapter->coded_count; i++) {
        fsdp__free(adapter->coded[i].name);
        fsdp_module_unref(adapter->coded[i].module);
    }
    FSDP__FREE_ALL(adapter->coded, adapter->items, adapter->saved);
    fsdp_lora_options_free(adapter->options);
    fsdp_module_unref(adapter->model);
    fsdp__free(adapter);
}

fsdp_status fsdp__adapter_check(const fsdp_adapter *adapter, const char *what)
{
    return adapter ? FSDP_OK : FSDP__FAIL_NULL("cannot %s: the adapter is NULL", what);
}

void fsdp__adapter_switch(fsdp_adapter *adapter, bool on)
{
    for (int64_t i = 0; i < adapter->count; i++)
        adapter->items[i].lora->beside.off = !on;
}

fsdp_status fsdp_adapter_set_enabled(fsdp_adapter *adapter, bool enabled)
{
    FSDP_TRY(fsdp__adapter_check(adapter, enabled ? "turn the adapter on" : "turn the adapter off"));
    if (!enabled && adapter->saved_count > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot turn the adapter off: '%s' is trained whole (modules_to_save), and its first values "
                         "are gone",
                         adapter->saved[0]);
    fsdp__adapter_switch(adapter, enabled);
    return FSDP_OK;
}

int64_t fsdp_adapter_count(const fsdp_adapter *adapter)
{
    return adapter ? adapter->count : 0;
}

fsdp_adapter_layer fsdp_adapter_layer_at(const fsdp_adapter *adapter, int64_t index)
{
    const fsdp__adapted *item;

    if (index < 0 || index >= fsdp_adapter_count(adapter)) {
        FSDP_FAIL(FSDP_INVALID, "there is no adapted layer %lld: the adapter has %lld", (long long)index,
                  (long long)fsdp_adapter_count(adapter));
        return (fsdp_adapter_layer){.name = NULL};
    }
    item = &adapter->items[index];
    return (fsdp_adapter_layer){
        .name = item->name, .rank = item->rank, .in = item->in, .out = item->out, .alpha = item->alpha};
}
