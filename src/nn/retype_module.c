/* retype_module.c - changes the dtype of parameters and buffers. Everything that can fail comes first; then everything
 * changes. */
#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/status.h"
#include "nn/managers.h"
#include "nn/module.h"

typedef struct retyping {
    fsdp_dtype dtype;
    fsdp__managers managers;
    struct retyping_pair {
        fsdp_tensor *tensor, *made; /* references; what the tensor becomes */
    } * pairs;
    int64_t count, capacity;
} retyping;

/* Returns whether the tensor is in the list; tied parameters are converted once. */
static bool is_done(const retyping *r, const fsdp_tensor *tensor)
{
    bool done = false;

    for (int64_t i = 0; i < r->count; i++)
        done = done || r->pairs[i].tensor == tensor;
    return done;
}

static fsdp_status add(retyping *r, fsdp_tensor *tensor)
{
    fsdp_tensor *made;

    if (!tensor || !fsdp_dtype_is_floating(tensor->dtype) || tensor->dtype == r->dtype || is_done(r, tensor))
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&r->pairs, r->count, &r->capacity, sizeof *r->pairs));
    FSDP_TRY(fsdp__tensor_convert(tensor, r->dtype, &made));
    r->pairs[r->count++] = (struct retyping_pair){fsdp_tensor_ref(tensor), made};
    return FSDP_OK;
}

static fsdp_status add_module(void *arg, fsdp_module *module, const char *name)
{
    retyping *r = arg;

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];

        if (!*slot->slot || fsdp__is_managed(&r->managers, *slot->slot))
            continue;
        FSDP_TRY(fsdp__check_not_elsewhere(*slot->slot, "change the dtype of", name, slot->name));
        FSDP_TRY(fsdp__check_not_gathered(*slot->slot, "change the dtype of", name, slot->name));
        FSDP_TRY(add(r, *slot->slot));
        FSDP_TRY(add(r, fsdp_tensor_grad(*slot->slot)));
    }
    /* Tables that a layer computes for its kernels are not numbers of the model. */
    for (int64_t i = 0; i < module->parts->buffer_count; i++)
        if (!module->parts->buffers[i].table)
            FSDP_TRY(add(r, *module->parts->buffers[i].slot));
    return FSDP_OK;
}

static fsdp_status prepare(retyping *r, fsdp_module *module)
{
    FSDP_TRY(fsdp__module_walk(module, fsdp__add_managers, &r->managers));
    if (fsdp__in_backward(module->context))
        return FSDP_FAIL(FSDP_STATE, "cannot change the dtype of a %s: a backward is running", module->type->name);
    return fsdp__module_walk(module, add_module, r);
}

/* Returns the first hooks that change dtypes, at or below `module`. This needs no memory, so all ranks get through. */
static const fsdp__module_hooks *find_hooks(const fsdp_module *module)
{
    const fsdp__module_hooks *found = NULL;

    for (int64_t i = 0; i < module->parts->hook_count && !found; i++)
        if (module->parts->hooks[i].retype)
            found = &module->parts->hooks[i];
    for (int64_t i = 0; i < module->parts->child_count && !found; i++)
        found = find_hooks(module->parts->children[i].module);
    return found;
}

fsdp_status fsdp_module_to(fsdp_module *module, fsdp_dtype dtype)
{
    retyping r = {.dtype = dtype};
    const fsdp__module_hooks *hooks;
    fsdp_status status;

    if (!module)
        return FSDP__FAIL_NULL("a change of dtype needs a module");
    if (!fsdp_dtype_is_floating(dtype))
        return FSDP_FAIL(FSDP_INVALID, "cannot change the dtype of a %s to %s: not a floating dtype",
                         module->type->name, fsdp_dtype_name(dtype));
    hooks = find_hooks(module);
    status = prepare(&r, module);
    if (hooks)
        status = hooks->retype(module, dtype, status);
    for (int64_t i = 0; i < r.count; i++) {
        if (status == FSDP_OK)
            fsdp__tensor_take(r.pairs[i].tensor, r.pairs[i].made);
        fsdp_tensor_unref(r.pairs[i].tensor);
        fsdp_tensor_unref(r.pairs[i].made);
    }
    FSDP__FREE_ALL(r.pairs, r.managers.hooks);
    return status;
}
