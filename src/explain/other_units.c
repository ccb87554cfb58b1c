/* other_units.c - explains the same model in coarser and finer units: what each costs. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "explain/explain.h"
#include "nn/module.h"
#include "shard/doors/wrap_policy.h"
#include "train/strategy_word.h"

typedef struct variants {
    fsdp_explanation *e;
    const fsdp__explain_source *source;
    fsdp_module *plain; /* not sharded */
    fsdp_explained_variant *items;
    int64_t capacity;
} variants;

/* ---- which units there would be ---- */

/* Counts the units by a threshold; 0: none but the root, or units that no front door accepts. */
static fsdp_status units_of_size(const variants *s, int64_t threshold, int64_t *count)
{
    const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .min_num_params = threshold};
    FSDP__SCOPED(fsdp_wrap_units_release) fsdp_wrap_units units = {0};
    fsdp_status status;

    FSDP_TRY(fsdp_module_wrap_units(s->plain, &policy, NULL, 0, &units));
    status = fsdp__wrap_units_check(&units, &policy);
    *count = status == FSDP_OK ? units.count : 0;
    return status == FSDP_INVALID ? FSDP_OK : status;
}

/* Lists sizes: halves of the model, the coarsest first, each one that gives other units than the one before. */
static fsdp_status list_sizes(const variants *s, int64_t out[FSDP__UNIT_SIZES], int *count)
{
    int64_t before = 0, units = 0;

    *count = 0;
    for (int64_t size = s->e->numel / 2; size > 0 && *count < FSDP__UNIT_SIZES; size /= 2) {
        FSDP_TRY(units_of_size(s, size, &units));
        if (units > 1 && units != before)
            out[(*count)++] = size;
        before = units;
    }
    return FSDP_OK;
}

/* ---- what they cost ---- */

static int64_t largest_of(const fsdp_explanation *e)
{
    int64_t largest = 0;

    for (int64_t i = 0; i < e->unit_count; i++)
        largest = FSDP__MAX(largest, e->units[i].numel);
    return largest;
}

static fsdp_status measure(const variants *s, const fsdp__explain_source *source, fsdp_explained_variant *v)
{
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *units = fsdp__calloc(1, sizeof *units);
    FSDP__SCOPED(fsdp__explain_close) fsdp__explain_run run = {0};

    FSDP__TRY_NEW(units);
    FSDP_TRY(fsdp__explain_open(source, s->e->rank, &run));
    FSDP_TRY(fsdp__explain_units(units, run.run->model));
    v->units = units->unit_count;
    v->largest = largest_of(units);
    return fsdp__measure_step(run.run, &v->step);
}

static fsdp_status append(variants *s, char *policy, fsdp_explained_variant *v)
{
    v->policy = policy;
    FSDP__TRY_NEW(policy);
    if (fsdp__grow(&s->items, s->e->variant_count, &s->capacity, sizeof *s->items)) {
        fsdp__free(policy);
        return FSDP_NO_MEMORY;
    }
    s->items[s->e->variant_count++] = *v;
    s->e->variants = s->items;
    fsdp__explain_tell(s->source, s->source->built + s->e->variant_count);
    return FSDP_OK;
}

static fsdp_status add_asked(variants *s)
{
    fsdp_explained_variant v = {
        .asked = true, .units = s->e->unit_count, .largest = largest_of(s->e), .step = s->e->step};

    return append(s, fsdp__strdup(s->e->policy), &v);
}

/* Adds a variant, and takes over `policy`, its name. A model that cannot be sharded this way (frozen parameters beside
 * others, under FSDP1) is left out. */
static fsdp_status add_measured(variants *s, const fsdp__explain_source *source, char *policy)
{
    fsdp_explained_variant v = {.asked = false};
    fsdp_status status = policy ? measure(s, source, &v) : FSDP_NO_MEMORY;

    if (status == FSDP_OK)
        return append(s, policy, &v);
    fsdp__free(policy);
    return status == FSDP_INVALID || status == FSDP_UNSUPPORTED ? FSDP_OK : status;
}

static fsdp__explain_source in_units(const variants *s, fsdp_train_wrap wrap, int64_t size)
{
    fsdp__explain_source source = *s->source;

    source.policy = NULL;
    source.schedule = NULL;
    source.config.parallelism.schedule = NULL;
    source.config.parallelism.wrap_policy = (int)wrap;
    source.config.parallelism.wrap_min_num_params = size;
    source.config.parallelism.wrap_class_count = 0;
    return source;
}

/* Adds a variant. The one that the config asks for has been measured already. */
static fsdp_status add(variants *s, fsdp_train_wrap wrap, int64_t size)
{
    fsdp__explain_source source = in_units(s, wrap, size);
    char *name = fsdp__explain_policy(&source);

    if (name && strcmp(name, s->e->policy) == 0) {
        fsdp__free(name);
        return add_asked(s);
    }
    if (wrap == FSDP_TRAIN_WRAP_ROOT)
        source.config.parallelism.prefetch = 0;
    return add_measured(s, &source, name);
}

/* Adds DDP, which has no units, if it supports what the config asks for. */
static fsdp_status add_ddp(variants *s)
{
    fsdp__explain_source source = in_units(s, FSDP_TRAIN_WRAP_BLOCKS, 0);

    source.config.parallelism.strategy = FSDP_TRAIN_DDP;
    source.config.parallelism.prefetch = 0;
    source.config.parallelism.reshard_after_forward = -FSDP_RESHARD_AUTO;
    fsdp__train_drop_other_keys(&source.config, s->source->config.parallelism.strategy);
    return add_measured(s, &source, fsdp__strdup("ddp"));
}

static bool has_asked(const fsdp_explanation *e)
{
    for (int64_t i = 0; i < e->variant_count; i++)
        if (e->variants[i].asked)
            return true;
    return false;
}

static fsdp_status add_all(variants *s)
{
    int64_t sizes[FSDP__UNIT_SIZES];
    int count;

    FSDP_TRY(list_sizes(s, sizes, &count));
    FSDP_TRY(add_ddp(s));
    FSDP_TRY(add(s, FSDP_TRAIN_WRAP_ROOT, 0));
    if (!s->source->model)
        FSDP_TRY(add(s, FSDP_TRAIN_WRAP_BLOCKS, 0));
    for (int i = 0; i < count; i++)
        FSDP_TRY(add(s, FSDP_TRAIN_WRAP_SIZE, sizes[i]));
    FSDP_TRY(add(s, FSDP_TRAIN_WRAP_ALWAYS, 0));
    return has_asked(s->e) ? FSDP_OK : add_asked(s);
}

fsdp_status fsdp__explain_other_units(fsdp_explanation *e, const fsdp__explain_source *source)
{
    variants s = {.e = e, .source = source};
    FSDP__SCOPED(fsdp_context_free_at) fsdp_context *context = NULL;
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *plain = NULL;

    if (source->config.parallelism.strategy == FSDP_TRAIN_DDP)
        return FSDP_OK; /* it has buckets */
    FSDP_TRY(fsdp_context_create(NULL, &context));
    s.plain = plain = fsdp__explain_build(source, context);
    return plain ? add_all(&s) : fsdp_last_status();
}
