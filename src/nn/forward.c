/* forward.c - runs a module's function: with one output, or with several and an argument. */
#include "base/status.h"
#include "nn/module.h"

bool fsdp__module_has_forward(const fsdp_module *module)
{
    return module->type->forward || module->type->forward_many;
}

static fsdp_status fail_without_output(void)
{
    return fsdp_last_status() != FSDP_OK ? fsdp_last_status()
                                         : FSDP_FAIL(FSDP_STATE, "the forward gave no output and no reason");
}

/* Checks for outputs that are NULL because of a failure that the forward has not noticed; that is not an output left
 * out. */
static fsdp_status check_outputs(uint64_t errors, fsdp_tensor *const *outputs, int count)
{
    bool missing = false;

    for (int i = 0; i < count; i++)
        missing = missing || !outputs[i];
    return missing && fsdp__errors() != errors ? fsdp_last_status() : FSDP_OK; /* OK if the error was cleared */
}

/* Returns the hooks that run in place of the module's forward; NULL: none. */
static const fsdp__module_hooks *replacing(const fsdp_module *module)
{
    for (int64_t i = module->parts->hook_count - 1; i >= 0; i--)
        if (module->parts->hooks[i].forward)
            return &module->parts->hooks[i];
    return NULL;
}

static fsdp_status run(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                       fsdp_tensor **outputs, int output_count)
{
    const fsdp__module_hooks *hooks = forward->own ? replacing(module) : NULL;

    return hooks ? hooks->forward(hooks->arg, module, forward->arg, inputs, count, outputs, output_count)
                 : forward->many(module, forward->arg, inputs, count, outputs, output_count);
}

fsdp_status fsdp__forward_run(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count)
{
    uint64_t errors = fsdp__errors();

    if (forward->one && !(forward->own && replacing(module))) {
        outputs[0] = forward->one(module, inputs, count);
        return outputs[0] ? FSDP_OK : fail_without_output();
    }
    FSDP_TRY(run(forward, module, inputs, count, outputs, output_count));
    FSDP_TRY(check_outputs(errors, outputs, output_count));
    return (forward->needs_first || forward->one) && !outputs[0] ? fail_without_output() : FSDP_OK;
}
