/* call.c - runs a module: hooks, forward, hooks, in a scope of its own. */
#include "nn/module_path.h"
#include "nn/module_recompute.h"
#include "nn/user_hooks.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/status.h"
#include "base/text.h"
#include "device/steps.h"

enum {
    LOCAL_INPUTS = 8
};

/* Undoes what hooks began, and puts the module's name in front of the message unless that names one already. */
static void fail(fsdp_module *module, fsdp_status status, int64_t began, int64_t ended)
{
    bool held = fsdp_hold_error(true); /* hooks clean up, and may fail at that: the message is that of the call */

    /* Hooks that began last come first. A hook whose pre_forward failed has not begun, and one whose post_forward has
     * run is done. */
    while (began-- > 0) {
        const fsdp__module_hooks *hooks = fsdp__module_hooks_before(module, began);

        if (hooks->failed && hooks - module->parts->hooks >= ended)
            hooks->failed(hooks->arg, module);
    }
    fsdp_release_error(held);
    if (fsdp__recomputation_done(module->context)) /* this is not an error */
        return;
    fsdp__module_say(module, status);
}

/* ---- before the first call ---- */

/* Returns whether hooks of the module bring ranks together. */
static bool agrees(const fsdp_module *module)
{
    for (int64_t i = 0; i < module->parts->hook_count; i++)
        if (module->parts->hooks[i].agree)
            return true;
    return false;
}

static fsdp_status agree(fsdp_module *module, fsdp_status mine)
{
    for (int64_t i = 0; i < module->parts->hook_count; i++)
        if (module->parts->hooks[i].agree)
            mine = module->parts->hooks[i].agree(module->parts->hooks[i].arg, module, mine);
    return mine;
}

/* Checks that all parameters have values, and names those that have none. With `whole` it checks only those that lie on
 * one rank. */
static fsdp_status check_values(const fsdp_parameters *parameters, bool whole)
{
    fsdp__names meta = {.count = 0}, unwritten = {.count = 0};

    for (int64_t i = 0; i < parameters->count; i++)
        if (!whole || !parameters->items[i].tensor->distribution.state)
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

/* Marks the module and what is below it as ready, except modules that check themselves. */
static void set_ready(fsdp_module *module, bool all)
{
    module->parts->ready = true;
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (all || !agrees(module->parts->children[i].module))
            set_ready(module->parts->children[i].module, all);
}

/* Checks all parameters below the module that is called first: the outermost. */
fsdp_status fsdp__module_need_ready(fsdp_module *module, fsdp_tensor *const *inputs, int count)
{
    bool together = agrees(module);
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};
    fsdp_status status;

    if (module->parts->ready || (count > 0 && fsdp_device_is_meta(inputs[0]->storage->device)))
        return FSDP_OK;
    status = fsdp_module_parameters(module, &parameters);
    if (status == FSDP_OK)
        status = check_values(&parameters, !together);
    FSDP_TRY(agree(module, status));
    set_ready(module, together);
    return FSDP_OK;
}

/* ---- the call ---- */

/* One call, with a copy of its inputs that hooks may replace. */
typedef struct call {
    fsdp_module *module;
    fsdp__forward forward;
    fsdp_tensor **inputs, **outputs;
    int count, output_count;
    int64_t began, ended;                 /* number of hooks, in their order before and after the forward */
    struct fsdp__backward_call *backward; /* a reference; NULL: no hook is to see its gradients */
} call;

static fsdp_status run(call *c)
{
    struct fsdp__module_parts *parts = c->module->parts;

    FSDP_TRY(fsdp__module_need_ready(c->module, c->inputs, c->count));
    for (; c->began < parts->hook_count; c->began++) {
        const fsdp__module_hooks *hooks = fsdp__module_hooks_before(c->module, c->began);

        if (hooks->pre_forward)
            FSDP_TRY(hooks->pre_forward(hooks->arg, c->module, c->inputs, c->count));
    }
    FSDP_TRY(fsdp__backward_hooks_enter(c->module, c->inputs, c->count, c->output_count, &c->backward));
    FSDP_TRY((parts->recompute ? fsdp__module_recomputed : fsdp__forward_run)(&c->forward, c->module, c->inputs,
                                                                              c->count, c->outputs, c->output_count));
    for (; c->ended < parts->hook_count; c->ended++) {
        const fsdp__module_hooks *hooks = &parts->hooks[c->ended];

        if (hooks->post_forward)
            FSDP_TRY(hooks->post_forward(hooks->arg, c->module, c->inputs, c->count, c->outputs, c->output_count));
    }
    return fsdp__backward_hooks_leave(c->backward, c->outputs, c->output_count);
}

static void forget_outputs(fsdp_tensor **outputs, int count)
{
    for (int i = 0; outputs && i < count; i++)
        outputs[i] = NULL;
}

static fsdp_status call_in_scope(call *c, fsdp_tensor *const *inputs)
{
    fsdp_tensor *local[LOCAL_INPUTS];
    fsdp_status status = FSDP_NO_MEMORY;

    c->inputs = c->count <= LOCAL_INPUTS ? local : fsdp__malloc((size_t)c->count * sizeof *c->inputs);
    if (c->inputs && c->count > 0)
        memcpy(c->inputs, inputs, (size_t)c->count * sizeof *c->inputs);
    if (c->inputs)
        status = run(c);
    if (status != FSDP_OK) {
        fail(c->module, status, c->began, c->ended);
        forget_outputs(c->outputs, c->output_count);
    }
    if (c->inputs != local)
        fsdp__free(c->inputs);
    return status;
}

static fsdp_status fail_missing(const fsdp_module *module, int input)
{
    FSDP_FAIL(FSDP_INVALID, "input %d is missing", input);
    fsdp__module_say(module, FSDP_INVALID);
    return FSDP_INVALID;
}

/* Calls the module. `outputs` holds NULLs. */
static fsdp_status invoke(fsdp_module *module, fsdp__forward forward, fsdp_tensor *const *inputs, int count,
                          fsdp_tensor **outputs, int output_count)
{
    call c = {module, forward, NULL, outputs, count, output_count, 0, 0, NULL};
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *held = NULL; /* a hook may drop the caller's reference */
    fsdp__viewpoint outer;
    fsdp__taker before;
    fsdp_status status;

    for (int i = 0; i < count; i++)
        if (!inputs || !inputs[i]) /* what should have made it has failed and said why */
            return fsdp_last_status() != FSDP_OK ? fsdp_last_status() : fail_missing(module, i);
    FSDP_TRY(fsdp__viewpoint_begin(module, NULL, &outer));
    held = fsdp_module_ref(module);
    if (!outer.module && fsdp_grad_enabled(module->context))
        FSDP_TRY_GOTO(status, fsdp__note_forward(module->context), out);
    FSDP_TRY_GOTO(status, fsdp_scope_begin(module->context), out);
    module->parts->calls++;
    before = fsdp__module_enter(module);
    status = call_in_scope(&c, inputs);
    fsdp__context_set_taker(module->context, before);
    module->parts->calls--;
    fsdp__backward_call_unref(c.backward);
    fsdp__module_forget_removed_hooks(module);
    fsdp_scope_end_many(module->context, outputs, output_count);
out:
    fsdp__viewpoint_end(module->context, outer);
    return status;
}

/* ---- the forward, or a method ---- */

static fsdp_status check_callable(const fsdp_module *module, int count)
{
    const fsdp_module_type *type = module ? module->type : NULL;

    if (!type)
        return FSDP__FAIL_NULL("cannot call a module: it is NULL");
    if (!fsdp__module_has_forward(module))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s cannot be called: it only holds modules", type->name);
    if (count < 1 && !type->without_inputs)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s cannot be called without an input", type->name);
    return FSDP_OK;
}

fsdp_tensor *fsdp_module_call(fsdp_module *module, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *output = NULL;

    if (check_callable(module, count) != FSDP_OK)
        return NULL;
    (void)invoke(module, (fsdp__forward){module->type->forward, module->type->forward_many, NULL, true, true}, inputs,
                 count, &output, 1);
    return output;
}

fsdp_status fsdp_module_call_many(fsdp_module *module, void *arg, fsdp_tensor *const *inputs, int count,
                                  fsdp_tensor **outputs, int output_count)
{
    forget_outputs(outputs, output_count);
    FSDP_TRY(check_callable(module, count));
    if (!outputs || output_count < 1)
        return FSDP_FAIL(FSDP_INVALID, "%s: a call needs room for at least one output", module->type->name);
    if (!module->type->forward_many && (arg || output_count != 1))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s only has a forward with tensors and one output, and no forward_many",
                         module->type->name);
    return invoke(module,
                  (fsdp__forward){module->type->forward_many ? NULL : module->type->forward, module->type->forward_many,
                                  arg, false, true},
                  inputs, count, outputs, output_count);
}

static fsdp_status check_method(const fsdp_module *module, bool method)
{
    return module && method ? FSDP_OK
                            : FSDP_FAIL(FSDP_INVALID, "cannot call %s",
                                        module ? "a method of a module: the method is NULL"
                                               : "a method of a module: the module is NULL");
}

fsdp_tensor *fsdp_module_call_method(fsdp_module *module, fsdp_module_function method, fsdp_tensor *const *inputs,
                                     int count)
{
    fsdp_tensor *output = NULL;

    if (check_method(module, method != NULL) != FSDP_OK)
        return NULL;
    (void)invoke(module, (fsdp__forward){.one = method}, inputs, count, &output, 1);
    return output;
}

fsdp_status fsdp_module_call_method_many(fsdp_module *module, fsdp_module_function_many method, void *arg,
                                         fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs, int output_count)
{
    forget_outputs(outputs, output_count);
    FSDP_TRY(check_method(module, method != NULL));
    if (!outputs || output_count < 1)
        return FSDP_FAIL(FSDP_INVALID, "%s: a call needs room for at least one output", module->type->name);
    return invoke(module, (fsdp__forward){.many = method, .arg = arg}, inputs, count, outputs, output_count);
}
