/* managers.c - finds out who manages which parameter. */
#include "nn/managers.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "nn/module.h"

fsdp_status fsdp__add_managers(void *arg, fsdp_module *module, const char *name)
{
    fsdp__managers *m = arg;

    (void)name;
    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        if (!module->parts->hooks[i].manages)
            continue;
        FSDP_TRY(fsdp__grow(&m->hooks, m->count, &m->capacity, sizeof *m->hooks));
        m->hooks[m->count++] = module->parts->hooks[i];
    }
    return FSDP_OK;
}

bool fsdp__is_managed(const fsdp__managers *managers, const fsdp_tensor *parameter)
{
    for (int64_t i = 0; i < managers->count; i++)
        if (managers->hooks[i].manages(managers->hooks[i].arg, parameter))
            return true;
    return false;
}

fsdp_status fsdp__check_not_elsewhere(const fsdp_tensor *parameter, const char *what, const char *module,
                                      const char *name)
{
    if (!parameter->distribution.state || !fsdp__leaf_is_owned(parameter)) /* nobody but this tree has it */
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE, "cannot %s '%s%s%s': it is sharded with an outer module; %s that", what, module,
                     *module ? "." : "", name, what);
}

fsdp_status fsdp__check_not_gathered(const fsdp_tensor *parameter, const char *what, const char *module,
                                     const char *name)
{
    if (parameter->storage->kind != FSDP_MEMORY_UNSHARDED_PARAMETER)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE,
                     "cannot %s '%s%s%s': it is gathered now and will be released: reshard its module first, or end "
                     "its summon",
                     what, module, *module ? "." : "", name);
}
