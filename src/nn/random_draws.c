/* random_draws.c - counts how often the modules of a tree have drawn random numbers. */
#include "nn/module.h"

static fsdp_status look(void *arg, fsdp_module *module, const char *name)
{
    uint64_t *most = arg;

    (void)name;
    if (module->type->draws && *module->type->draws(module) > *most)
        *most = *module->type->draws(module);
    return FSDP_OK;
}

static fsdp_status set(void *arg, fsdp_module *module, const char *name)
{
    (void)name;
    if (module->type->draws)
        *module->type->draws(module) = *(const uint64_t *)arg;
    return FSDP_OK;
}

fsdp_status fsdp_module_draws(fsdp_module *module, uint64_t *out)
{
    if (!module || !out)
        return FSDP_FAIL(FSDP_INVALID, "a module's draws: module and out are required");
    *out = 0;
    return fsdp__module_walk(module, look, out);
}

fsdp_status fsdp_module_set_draws(fsdp_module *module, uint64_t draws)
{
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "a module's draws: a module is required");
    return fsdp__module_walk(module, set, &draws);
}
