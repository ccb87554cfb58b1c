/* tree_state.c - the parameters and buffers of a module tree as a state. */
#include "base/alloc.h"
#include "fsdp/state.h"
#include "nn/managers.h"
#include "nn/module.h"
#include "state/entry.h"

static bool is_added(const fsdp_state_dict *state, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < state->count; i++)
        if (state->entries[i].tensor == tensor)
            return true;
    return false;
}

static fsdp_status add_named(fsdp_state_dict *state, const char *module, const char *name, fsdp_tensor *tensor)
{
    FSDP__FREED char *full = fsdp__dotted(module, name);

    FSDP__TRY_NEW(full);
    return fsdp_state_dict_add(state, full, tensor);
}

static fsdp_status visit(void *arg, fsdp_module *module, const char *name)
{
    struct fsdp__module_parts *parts = module->parts;
    fsdp_state_dict *state = arg;

    for (int64_t i = 0; i < parts->parameter_count; i++) {
        fsdp_tensor *tensor = *parts->parameters[i].slot;

        if (!tensor || is_added(state, tensor)) /* add tied parameters once */
            continue;
        FSDP_TRY(fsdp__check_not_gathered(tensor, "take the state of", name, parts->parameters[i].name));
        FSDP_TRY(add_named(state, name, parts->parameters[i].name, tensor));
    }
    for (int64_t i = 0; i < parts->buffer_count; i++)
        if (parts->buffers[i].persistent && *parts->buffers[i].slot)
            FSDP_TRY(add_named(state, name, parts->buffers[i].name, *parts->buffers[i].slot));
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_from_module(fsdp_module *module, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot take the state of a module: there is no place for it");
    *out = NULL;
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "cannot take the state of a module: it is NULL");
    FSDP_TRY(fsdp__state_dict_create_in(module->context, &state));
    FSDP_TRY(fsdp__module_walk(module, visit, state));
    *out = fsdp__take(&state);
    return FSDP_OK;
}
