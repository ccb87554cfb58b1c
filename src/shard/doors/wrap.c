/* wrap.c - calls fully_shard for the units of a policy, and for modules while they are built. */
#include "fsdp/wrap.h"

#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/status.h"
#include "shard/doors/wrap_policy.h"

/* ---- by a policy ---- */

/* Shards the units from the bottom up. A unit cannot change which parameters are left out: that was chosen for all
 * units. */
static fsdp_status shard_units(const fsdp_wrap_units *units)
{
    for (int64_t i = 0; i < units->count; i++) {
        const fsdp_wrap_unit *unit = &units->items[units->bottom_up[i]];
        fsdp_shard_options *options = unit->options;

        options->ignored_params = units->ignored;
        options->ignored_param_count = units->ignored_count;
        if (unit->full_precision)
            options->mp_policy = (fsdp_mp_policy){0};
        FSDP_TRY(fsdp_fully_shard(unit->module, options));
    }
    return FSDP_OK;
}

fsdp_status fsdp_fully_shard_by_policy(fsdp_module *module, const fsdp_wrap_policy *policy,
                                       const fsdp_shard_options *options)
{
    static const fsdp_shard_options defaults;
    FSDP__SCOPED(fsdp_wrap_units_release) fsdp_wrap_units units = {0};
    fsdp_wrap_policy whole;
    FSDP__FREED void *ignored = NULL;

    options = options ? options : &defaults;
    FSDP_TRY(fsdp__wrap_policy_check(policy));
    whole = *policy;
    FSDP_TRY(fsdp__wrap_join("ignored_params", options->ignored_params, options->ignored_param_count,
                             policy->ignored_params, policy->ignored_param_count, &ignored));
    whole.ignored_params = ignored;
    whole.ignored_param_count += options->ignored_param_count;
    FSDP_TRY(fsdp_module_wrap_units(module, &whole, options, sizeof *options, &units));
    FSDP_TRY(fsdp__wrap_units_check(&units, policy));
    return shard_units(&units);
}

/* ---- while a tree is built ---- */

typedef struct scope {
    bool open;
    fsdp_wrapper wrapper;
    void *options;
} scope;

static void scope_free(void *state)
{
    scope *s = state;

    FSDP__FREE_ALL(s->options, s);
}

static fsdp_status fully_shard(fsdp_module *module, const void *options)
{
    return fsdp_fully_shard(module, options);
}

fsdp_status fsdp_wrap_scope_begin(fsdp_context *context, fsdp_wrapper wrapper, const void *options, size_t option_bytes)
{
    scope *s = fsdp__context_get_or_make(context, FSDP__SLOT_WRAP, sizeof(scope), scope_free);

    if (!context)
        return FSDP__FAIL_NULL("a wrap scope needs a context");
    FSDP__TRY_NEW(s);
    if (s->open)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a wrap scope cannot begin inside another: end that first");
    if (options) {
        FSDP__TRY_NEW(s->options = fsdp__malloc(option_bytes));
        memcpy(s->options, options, option_bytes);
    }
    s->wrapper = wrapper ? wrapper : fully_shard;
    s->open = true;
    return FSDP_OK;
}

void fsdp_wrap_scope_end(fsdp_context *context)
{
    scope *s = fsdp__context_get(context, FSDP__SLOT_WRAP);

    if (!s)
        return;
    fsdp__free(s->options);
    *s = (scope){0};
}

fsdp_module *fsdp_wrap(fsdp_module *module, const void *options)
{
    const scope *s = module ? fsdp__context_get(module->context, FSDP__SLOT_WRAP) : NULL;

    if (!s || !s->open || s->wrapper(module, options ? options : s->options) == FSDP_OK)
        return module;
    fsdp_module_unref(module);
    return NULL;
}
