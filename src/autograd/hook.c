/* hook.c - lists of functions that are called when a gradient is there. */
#include "autograd/node.h"
#include "base/alloc.h"

fsdp_status fsdp__hooks_append(fsdp__hook **hooks, const fsdp__hook *hook)
{
    fsdp__hook *copy = fsdp__malloc(sizeof *copy);

    FSDP__TRY_NEW(copy);
    *copy = *hook;
    while (*hooks)
        hooks = &(*hooks)->next;
    *hooks = copy;
    return FSDP_OK;
}

void fsdp__hooks_free(fsdp__hook *hooks)
{
    while (hooks) {
        fsdp__hook *next = hooks->next;

        if (hooks->free_arg)
            hooks->free_arg(hooks->arg);
        fsdp__free(hooks);
        hooks = next;
    }
}

fsdp_status fsdp__hooks_run(const fsdp__hook *hooks, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    for (; hooks; hooks = hooks->next) {
        fsdp_tensor *before = *grad;

        FSDP_TRY(hooks->call(hooks->arg, tensor, grad));
        if (*grad == before)
            continue;
        if (!*grad)
            return FSDP_FAIL(FSDP_INVALID, "a gradient hook replaced the gradient with nothing");
        if ((*grad)->storage->device != before->storage->device)
            return FSDP_FAIL(FSDP_INVALID, "a gradient hook replaced a gradient on %s with one on %s%s",
                             fsdp_device_name(before->storage->device), fsdp_device_name((*grad)->storage->device),
                             fsdp__device_elsewhere((*grad)->storage->device, before->storage->device));
        if (!fsdp__shape_equal(*grad, before) || (*grad)->dtype != before->dtype)
            return FSDP_FAIL(FSDP_INVALID, "a gradient hook replaced a %s gradient %s with a %s one %s",
                             fsdp_dtype_name(before->dtype), FSDP__SHAPE_OF(before), fsdp_dtype_name((*grad)->dtype),
                             FSDP__SHAPE_OF(*grad));
    }
    return FSDP_OK;
}

fsdp_status fsdp__hooks_pass(const fsdp__hook *hooks, fsdp_tensor *tensor)
{
    fsdp_tensor *none = NULL;

    for (; hooks; hooks = hooks->next)
        if (hooks->always)
            FSDP_TRY(hooks->call(hooks->arg, tensor, &none));
    return FSDP_OK;
}
