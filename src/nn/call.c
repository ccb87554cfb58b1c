/* call.c - running a module: hooks, forward, hooks, in a scope of its own. */
#include "nn/checkpoint.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"

enum {
    LOCAL_INPUTS = 8
};

/* Whether a module below failed and said so in the message; forgets it. */
static bool said_below(fsdp_module *module)
{
    bool said = false;

    for (int64_t i = 0; i < module->parts->child_count; i++) {
        fsdp_module *child = module->parts->children[i].module;

        said = child->parts->failed || said_below(child) || said;
        child->parts->failed = false;
    }
    return said;
}

/* Undoes what hooks began and puts the module's type in front of the message, unless a module below did. */
static void fail(fsdp_module *module, int64_t began)
{
    /* The last that began first; a hook whose pre_forward failed has not begun. */
    while (began-- > 0) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[began];

        if (hooks->failed)
            hooks->failed(hooks->arg, module);
    }
    if (fsdp__recomputation_done(module->context)) /* as it should */
        return;
    if (fsdp_last_status() == FSDP_OK)
        FSDP_FAIL(FSDP_STATE, "the forward gave no output and no reason");
    if (!said_below(module))
        fsdp_fail_prefix(fsdp_last_status(), "%s", module->type->name);
    module->parts->failed = true;
}

/* ---- before the first call ---- */

/* All of them have values; those that have none are named. */
static fsdp_status check_values(const fsdp_parameters *parameters)
{
    fsdp__names meta = {.count = 0}, unwritten = {.count = 0};

    for (int64_t i = 0; i < parameters->count; i++)
        fsdp__name_without_values(parameters->items[i].tensor, parameters->items[i].name, &meta, &unwritten);
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "still on the meta device: %s: before the first forward call fsdp_module_materialize, then "
                         "fsdp_module_initialize or fsdp_hub_load",
                         fsdp__names_text(&meta));
    if (unwritten.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "has memory but no values: %s: before the first forward call fsdp_module_initialize, or load "
                         "or write it",
                         fsdp__names_text(&unwritten));
    return FSDP_OK;
}

static fsdp_status set_ready(void *arg, fsdp_module *module, const char *name)
{
    (void)arg, (void)name;
    module->parts->ready = true;
    return FSDP_OK;
}

/* Looks at all parameters below the module that is called first: the outermost. A call with a tensor without bytes asks
 * for shapes alone. */
static fsdp_status need_ready(fsdp_module *module, fsdp_tensor *const *inputs, int count)
{
    fsdp_parameters parameters;
    fsdp_status status;

    if (module->parts->ready || (count > 0 && fsdp_device_is_meta(inputs[0]->storage->device)))
        return FSDP_OK;
    FSDP_TRY(fsdp_module_parameters(module, &parameters));
    status = check_values(&parameters);
    fsdp_parameters_release(&parameters);
    FSDP_TRY(status);
    return fsdp__module_walk(module, set_ready, NULL);
}

/* ---- the call ---- */

static fsdp_status run(fsdp_module *module, fsdp_module_function function, fsdp_tensor **inputs, int count,
                       int64_t *began, fsdp_tensor **out)
{
    struct fsdp__module_parts *parts = module->parts;
    fsdp_tensor *output;

    FSDP_TRY(need_ready(module, inputs, count));
    for (; *began < parts->hook_count; ++*began) {
        const fsdp__module_hooks *hooks = &parts->hooks[*began];

        if (hooks->pre_forward)
            FSDP_TRY(hooks->pre_forward(hooks->arg, module, inputs, count));
    }
    output = parts->checkpoint ? fsdp__module_checkpointed(module, function, inputs, count)
                               : function(module, inputs, count);
    if (!output)
        return fsdp_last_status() != FSDP_OK ? fsdp_last_status() : FSDP_STATE;
    for (int64_t i = 0; i < parts->hook_count; i++) {
        const fsdp__module_hooks *hooks = &parts->hooks[i];

        if (hooks->post_forward)
            FSDP_TRY(hooks->post_forward(hooks->arg, module, &output));
    }
    *out = output;
    return FSDP_OK;
}

/* Hooks may replace inputs: they get a copy of the array. */
static fsdp_tensor **copy_inputs(fsdp_tensor *const *inputs, int count, fsdp_tensor **local)
{
    fsdp_tensor **copy = count <= LOCAL_INPUTS ? local : fsdp__malloc((size_t)count * sizeof *copy);

    if (copy && count > 0)
        memcpy(copy, inputs, (size_t)count * sizeof *copy);
    return copy;
}

static fsdp_tensor *call(fsdp_module *module, fsdp_module_function function, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *local[LOCAL_INPUTS], **copy, *output = NULL;
    fsdp_status status;
    int64_t began = 0;

    module->parts->failed = false;
    for (int i = 0; i < count; i++)
        if (!inputs[i]) /* what should have made it failed and said why */
            return NULL;
    if (fsdp_scope_begin(module->context) != FSDP_OK)
        return NULL;
    copy = copy_inputs(inputs, count, local);
    status = copy ? run(module, function, copy, count, &began, &output) : FSDP_NO_MEMORY;
    if (status != FSDP_OK)
        fail(module, began);
    if (copy != local)
        fsdp__free(copy);
    fsdp_scope_end(module->context, output);
    return output;
}

fsdp_tensor *fsdp_module_call(fsdp_module *module, fsdp_tensor *const *inputs, int count)
{
    if (!module) {
        FSDP_FAIL(FSDP_INVALID, "cannot call no module");
        return NULL;
    }
    if (!module->type->forward || (count < 1 && !module->type->without_inputs)) {
        FSDP_FAIL(FSDP_UNSUPPORTED, "%s cannot be called%s", module->type->name,
                  module->type->forward ? " without an input" : ": it only holds modules");
        return NULL;
    }
    return call(module, module->type->forward, inputs, count);
}

fsdp_tensor *fsdp_module_call_method(fsdp_module *module, fsdp_module_function method, fsdp_tensor *const *inputs,
                                     int count)
{
    if (!module || !method) {
        FSDP_FAIL(FSDP_INVALID, "cannot call %s", module ? "no method of a module" : "a method of no module");
        return NULL;
    }
    return call(module, method, inputs, count);
}
