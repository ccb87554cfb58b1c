/* materialize.c - gives bytes and first values to what was built on the meta device. */
#include "nn/module.h"

#include "base/alloc.h"
#include "base/context.h"
#include "base/status.h"
#include "device/device.h"
#include "nn/managers.h"
#include "nn/module_path.h"

/* ---- materialize ---- */

typedef struct materialization {
    fsdp_device *device;
    fsdp__managers managers;
} materialization;

/* Gives a tensor bytes. It stays the same object, so that others who hold it (ties, optimizers) see the bytes come. */
static fsdp_status give_bytes(fsdp_tensor *tensor, fsdp_device *device, fsdp_memory_kind kind)
{
    fsdp__storage *storage = NULL;
    size_t bytes = (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(tensor->dtype);

    FSDP_TRY(fsdp__storage_create(device, bytes, kind, true, &storage));
    /* An earlier gradient would be on the meta device. */
    (void)fsdp_tensor_set_grad(tensor, NULL);
    fsdp__storage_unref(tensor->storage);
    tensor->storage = storage;
    tensor->offset = 0;
    fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, tensor->strides);
    return FSDP_OK;
}

static bool on_meta(const fsdp_tensor *tensor)
{
    return fsdp_device_is_meta(tensor->storage->device);
}

static fsdp_status materialize_hooks(void *arg, fsdp_module *module, const char *name)
{
    const materialization *m = arg;

    (void)name;
    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[i];

        if (hooks->materialize)
            FSDP_TRY(hooks->materialize(hooks->arg, module, m->device));
    }
    return FSDP_OK;
}

static fsdp_status materialize_tensors(const materialization *m, fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        fsdp_tensor *parameter = *module->parts->parameters[i].slot;

        if (!on_meta(parameter) || fsdp__is_managed(&m->managers, parameter))
            continue;
        FSDP_TRY(fsdp__check_not_elsewhere(parameter, "materialize", name, module->parts->parameters[i].name));
        FSDP_TRY(give_bytes(parameter, m->device, FSDP_MEMORY_PARAMETER_SHARD));
        parameter->storage->unwritten = true;
    }
    for (int64_t i = 0; i < module->parts->buffer_count; i++) {
        const fsdp__buffer_slot *slot = &module->parts->buffers[i];

        if (!on_meta(*slot->slot))
            continue;
        FSDP_TRY(give_bytes(*slot->slot, m->device, (*slot->slot)->storage->kind));
        FSDP_TRY(slot->fill ? slot->fill(module, *slot->slot) : fsdp_tensor_fill_(*slot->slot, 0.0));
    }
    return FSDP_OK;
}

static fsdp_status materialize_plain(void *arg, fsdp_module *module, const char *name)
{
    fsdp__taker before = fsdp__module_enter(module);
    fsdp_status status = materialize_tensors(arg, module, name);

    fsdp__context_set_taker(module->context, before);
    return status;
}

fsdp_status fsdp_module_materialize(fsdp_module *module, fsdp_device *device)
{
    materialization m = {.device = device};
    fsdp_status status;

    if (!module || !device)
        return FSDP__FAIL_NULL("materialize needs a module and a device");
    if (fsdp_device_is_meta(device))
        return FSDP_FAIL(FSDP_INVALID, "materialize needs a module and a device that has bytes");
    FSDP_TRY_GOTO(status, fsdp__module_walk_up(module, fsdp__add_managers, &m.managers), out);
    FSDP_TRY_GOTO(status, fsdp__module_walk_up(module, materialize_hooks, &m), out);
    FSDP_TRY_GOTO(status, fsdp__module_walk_up(module, materialize_plain, &m), out);
out:
    fsdp__free(m.managers.hooks);
    return status;
}

/* ---- initialize ---- */

typedef struct initialization {
    uint64_t seed;
    fsdp__managers managers;
} initialization;

static fsdp_status initialize_hooks(void *arg, fsdp_module *module, const char *name)
{
    const initialization *init = arg;

    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[i];

        if (hooks->initialize)
            FSDP_TRY(hooks->initialize(hooks->arg, module, init->seed, name));
    }
    return FSDP_OK;
}

static fsdp_status initialize_plain(void *arg, fsdp_module *module, const char *name)
{
    const initialization *init = arg;

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        fsdp_tensor *parameter = *slot->slot;
        fsdp_status status;
        char *full;

        if (slot->tied || fsdp__is_managed(&init->managers, parameter))
            continue;
        FSDP_TRY(fsdp__check_not_elsewhere(parameter, "initialize", name, slot->name));
        FSDP_TRY(fsdp_tensor_begin_write(parameter));
        FSDP__TRY_NEW(full = fsdp__dotted(name, slot->name));
        status = fsdp__init_tensor(parameter, slot->init, init->seed, full);
        fsdp__free(full);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status fsdp__module_initialize_coded(fsdp_module *module, uint64_t seed)
{
    initialization init = {.seed = seed};
    fsdp_status status;

    FSDP_TRY_GOTO(status, fsdp__module_walk(module, fsdp__add_managers, &init.managers), out);
    FSDP_TRY_GOTO(status, fsdp__module_walk(module, initialize_hooks, &init), out);
    FSDP_TRY_GOTO(status, fsdp__module_walk(module, initialize_plain, &init), out);
out:
    fsdp__free(init.managers.hooks);
    return status;
}

/* Refuses bytes that are codes: zeros in their place would be weights that are zero. */
static fsdp_status check_no_codes(void *arg, fsdp_module *module, const char *name)
{
    (void)arg;
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];

        if (slot->coded)
            return FSDP_FAIL(FSDP_STATE,
                             "cannot initialize '%s%s%s': it is held in fewer bits: call fsdp_adapter_initialize_base",
                             name, *name ? "." : "", slot->name);
    }
    return FSDP_OK;
}

fsdp_status fsdp_module_initialize(fsdp_module *module, uint64_t seed)
{
    FSDP_TRY(fsdp__module_walk(module, check_no_codes, NULL));
    return fsdp__module_initialize_coded(module, seed);
}
