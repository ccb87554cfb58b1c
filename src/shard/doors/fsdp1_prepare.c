/* fsdp1_prepare.c - checks a unit, and gives it its first values. */
#include "shard/doors/fsdp1_prepare.h"

#include "shard/state/module_state.h"

/* ---- the unit's modules ---- */

typedef struct walk {
    const fsdp_wrap_units *units;
    const fsdp_wrap_unit *unit;
    const fsdp_fsdp1_options *options;
    const fsdp__mesh_info *mesh;
} walk;

/* Returns whether the module belongs to another unit, or has been wrapped before. */
static bool is_apart(const walk *w, const fsdp_module *module)
{
    bool apart = fsdp__module_state_of(module) != NULL;

    for (int64_t i = 0; i < w->units->count; i++)
        apart = apart || (w->units->items[i].module == module && &w->units->items[i] != w->unit);
    return apart;
}

static fsdp_status each_module(const walk *w, fsdp_module *module,
                               fsdp_status (*visit)(const walk *w, fsdp_module *module))
{
    FSDP_TRY(visit(w, module));
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (!is_apart(w, module->parts->children[i].module))
            FSDP_TRY(each_module(w, module->parts->children[i].module, visit));
    return FSDP_OK;
}

static bool is_meta(const fsdp_tensor *tensor)
{
    return tensor && fsdp_device_is_meta(fsdp_tensor_device(tensor));
}

/* ---- what lies together ---- */

fsdp_status fsdp__fsdp1_check_unit(const fsdp_wrap_unit *unit, bool use_orig_params)
{
    const fsdp_parameter *items = unit->parameters.items;
    bool trained = unit->parameters.count > 0 && fsdp_tensor_requires_grad(items[0].tensor);

    for (int64_t i = 1; i < unit->parameters.count && !use_orig_params; i++)
        if (fsdp_tensor_requires_grad(items[i].tensor) != trained)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot wrap the %s '%s': its '%s' is frozen and its '%s' is not: set use_orig_params, or "
                             "give frozen modules a unit of their own",
                             unit->module->type->name, unit->name, items[trained ? i : 0].name,
                             items[trained ? 0 : i].name);

    for (int64_t i = 1; i < unit->parameters.count; i++)
        if (items[i].tensor->dtype != items[0].tensor->dtype)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot wrap the %s '%s': its '%s' is %s, and '%s' is %s: give modules of another dtype a "
                             "unit of their own",
                             unit->module->type->name, unit->name, items[0].name,
                             fsdp_dtype_name(items[0].tensor->dtype), items[i].name,
                             fsdp_dtype_name(items[i].tensor->dtype));
    return FSDP_OK;
}

/* ---- param_init_fn ---- */

static bool is_ignored(const walk *w, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < w->units->ignored_count; i++)
        if (w->units->ignored[i] == tensor)
            return true;
    return false;
}

static fsdp_status init_module(const walk *w, fsdp_module *module)
{
    bool meta = false;

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp_tensor *t = *module->parts->parameters[i].slot;

        meta = meta || (is_meta(t) && !is_ignored(w, t));
    }
    for (int64_t i = 0; i < module->parts->buffer_count; i++)
        meta = meta || is_meta(*module->parts->buffers[i].slot);
    return meta ? w->options->param_init_fn(w->options->param_init_arg, module) : FSDP_OK;
}

fsdp_status fsdp__fsdp1_init_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit,
                                  const fsdp_fsdp1_options *options)
{
    const walk w = {.units = units, .unit = unit, .options = options};

    if (!options->param_init_fn)
        return FSDP_OK;
    FSDP_TRY(each_module(&w, unit->module, init_module));
    for (int64_t i = 0; i < unit->parameters.count; i++)
        if (is_meta(unit->parameters.items[i].tensor))
            return FSDP_FAIL(FSDP_STATE,
                             "param_init_fn has left '%s' of the %s '%s' on the meta device: it must give it bytes "
                             "and values",
                             unit->parameters.items[i].name, unit->module->type->name, unit->name);
    return FSDP_OK;
}

/* ---- sync_module_states ---- */

static fsdp_status sync(const walk *w, fsdp_tensor *tensor, const char *name)
{
    fsdp_process_group *groups[] = {w->mesh ? w->mesh->shard_pg : NULL, w->mesh ? w->mesh->replicate_pg : NULL};

    if (is_meta(tensor) || !fsdp_tensor_is_contiguous(tensor))
        return FSDP_FAIL(FSDP_INVALID, "sync_module_states: '%s' of the %s '%s' %s", name, w->unit->module->type->name,
                         w->unit->name,
                         is_meta(tensor) ? "is on the meta device: give it bytes first, by param_init_fn for instance"
                                         : "is not contiguous");
    if (w->mesh)
        FSDP_TRY(fsdp_tensor_begin_write(tensor));
    for (int i = 0; i < 2; i++)
        if (groups[i] && fsdp_process_group_size(groups[i]) > 1)
            FSDP_TRY(fsdp_broadcast(groups[i], fsdp_tensor_data(tensor), fsdp_tensor_numel(tensor), tensor->dtype, 0,
                                    fsdp_device_stream(fsdp_tensor_device(tensor))));
    return FSDP_OK;
}

static fsdp_status sync_buffers(const walk *w, fsdp_module *module)
{
    for (int64_t i = 0; i < module->parts->buffer_count; i++) {
        const fsdp__buffer_slot *slot = &module->parts->buffers[i];

        if (*slot->slot)
            FSDP_TRY(sync(w, *slot->slot, slot->name));
    }
    return FSDP_OK;
}

fsdp_status fsdp__fsdp1_sync_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit, const fsdp__mesh_info *mesh)
{
    const walk w = {.units = units, .unit = unit, .mesh = mesh};

    for (int64_t i = 0; i < unit->parameters.count; i++)
        FSDP_TRY(sync(&w, unit->parameters.items[i].tensor, unit->parameters.items[i].name));
    return each_module(&w, unit->module, sync_buffers);
}
