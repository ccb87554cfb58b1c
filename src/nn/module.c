/* module.c - builds a tree: modules, their parameters, buffers, children and hooks. */
#include "nn/module.h"

#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/rng.h"
#include "base/status.h"
#include "device/device.h"
#include "device/kernels.h"

/* ---- life cycle ---- */

/* Removes the module from the context's list. */
static void strike(fsdp_module *module)
{
    struct fsdp__module_parts *parts = module->parts;

    if (!parts->link)
        return;
    *parts->link = parts->next;
    if (parts->next)
        parts->next->parts->link = parts->link;
    parts->link = NULL;
    parts->next = NULL;
}

static void modules_free(void *pointer)
{
    fsdp__modules *all = pointer;

    while (all->first)
        strike(all->first);
    fsdp__free(all);
}

static fsdp_status enlist(fsdp_module *module)
{
    fsdp__modules *all = fsdp__context_get_or_make(module->context, FSDP__SLOT_MODULES, sizeof *all, modules_free);

    FSDP__TRY_NEW(all);
    module->parts->number = ++all->made;
    module->parts->next = all->first;
    module->parts->link = &all->first;
    if (all->first)
        all->first->parts->link = &module->parts->next;
    all->first = module;
    return FSDP_OK;
}

fsdp_status fsdp_module_create(fsdp_context *context, const fsdp_module_type *type, size_t bytes, void *out_module)
{
    FSDP__FREED struct fsdp__module_parts *parts = NULL;
    FSDP__FREED fsdp_module *module = NULL;

    if (!context || !type || !type->name || bytes < sizeof(fsdp_module) || !out_module)
        return FSDP_FAIL(FSDP_INVALID, "a module needs a context, a type with a name and a struct that begins with "
                                       "fsdp_module");
    FSDP__TRY_NEW(module = fsdp__calloc(1, bytes));
    FSDP__TRY_NEW(parts = fsdp__calloc(1, sizeof *parts));
    module->parts = parts;
    module->type = type;
    module->context = context;
    module->training = true;
    parts->refs = 1;
    parts->bytes = bytes;
    FSDP_TRY(enlist(module));
    (void)fsdp__take(&parts); /* the module has them */
    memcpy(out_module, &module, sizeof module);
    (void)fsdp__take(&module);
    return FSDP_OK;
}

fsdp_module *fsdp_module_ref(fsdp_module *module)
{
    if (module)
        module->parts->refs++;
    return module;
}

static void free_parts(struct fsdp__module_parts *parts)
{
    for (int64_t i = 0; i < parts->parameter_count; i++) {
        fsdp_tensor_unref(*parts->parameters[i].slot);
        fsdp__free(parts->parameters[i].name);
    }
    for (int64_t i = 0; i < parts->buffer_count; i++) {
        fsdp_tensor_unref(*parts->buffers[i].slot);
        fsdp__free(parts->buffers[i].name);
    }
    for (int64_t i = 0; i < parts->child_count; i++) {
        fsdp_module_unref(parts->children[i].module);
        fsdp__free(parts->children[i].name);
    }
    FSDP__FREE_ALL(parts->parameters, parts->buffers, parts->children, parts->hooks, parts);
}

/* Hooks are freed first, while everything they look at is there; what is in the module's own struct comes last. */
void fsdp_module_unref(fsdp_module *module)
{
    struct fsdp__module_parts *parts = module ? module->parts : NULL;

    if (!module || --parts->refs > 0)
        return;
    while (parts->hook_count > 0) {
        fsdp__module_hooks *hooks = &parts->hooks[--parts->hook_count];

        if (hooks->free_arg)
            hooks->free_arg(hooks->arg, module);
    }
    if (module->type->destroy)
        module->type->destroy(module);
    strike(module);
    free_parts(parts);
    fsdp__free(module);
}

/* ---- registering ---- */

static bool taken(const struct fsdp__module_parts *parts, const char *name)
{
    for (int64_t i = 0; i < parts->parameter_count; i++)
        if (strcmp(parts->parameters[i].name, name) == 0)
            return true;
    for (int64_t i = 0; i < parts->buffer_count; i++)
        if (strcmp(parts->buffers[i].name, name) == 0)
            return true;
    for (int64_t i = 0; i < parts->child_count; i++)
        if (strcmp(parts->children[i].name, name) == 0)
            return true;
    return false;
}

/* Checks that `name` is new in `module` and without dots. */
static fsdp_status check_name(const fsdp_module *module, const char *name)
{
    if (!name || !*name || strchr(name, '.'))
        return FSDP_FAIL(FSDP_INVALID, "'%s' cannot name a part of %s: it is empty or has a dot", name ? name : "",
                         module->type->name);
    if (taken(module->parts, name))
        return FSDP_FAIL(FSDP_INVALID, "%s has a part called '%s' already", module->type->name, name);
    return FSDP_OK;
}

/* Returns the name of the tensor that lies in the slot; NULL: none does. */
static const char *holder_of(const struct fsdp__module_parts *parts, fsdp_tensor *const *slot)
{
    for (int64_t i = 0; i < parts->parameter_count; i++)
        if (parts->parameters[i].slot == slot)
            return parts->parameters[i].name;
    for (int64_t i = 0; i < parts->buffer_count; i++)
        if (parts->buffers[i].slot == slot)
            return parts->buffers[i].name;
    return NULL;
}

static fsdp_status check_slot(const fsdp_module *module, const char *name, fsdp_tensor *const *slot)
{
    const char *holder = holder_of(module->parts, slot);

    return holder ? FSDP_FAIL(FSDP_INVALID, "'%s' of %s: its slot holds '%s' already: give each tensor its own field",
                              name, module->type->name, holder)
                  : FSDP_OK;
}

/* Checks a tensor that is to be added, as far as it can be without it. */
static fsdp_status check_place(const fsdp_module *module, const char *name, fsdp_tensor *const *slot)
{
    if (!module)
        return FSDP__FAIL_NULL("cannot add a tensor to a module: it is NULL");
    return slot ? FSDP_OK
                : FSDP_FAIL(FSDP_INVALID, "'%s' of %s: there is no slot for it", name ? name : "", module->type->name);
}

static fsdp_status check_new(const fsdp_module *module, const char *name, fsdp_tensor *const *slot)
{
    FSDP_TRY(check_place(module, name, slot));
    FSDP_TRY(check_name(module, name));
    return check_slot(module, name, slot);
}

static fsdp_status append_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot, fsdp_init init,
                                    bool tied)
{
    struct fsdp__module_parts *parts = module->parts;
    char *copy;

    FSDP_TRY(
        fsdp__grow(&parts->parameters, parts->parameter_count, &parts->parameter_capacity, sizeof *parts->parameters));
    FSDP__TRY_NEW(copy = fsdp__strdup(name));
    parts->parameters[parts->parameter_count++] =
        (fsdp__parameter_slot){.name = copy, .slot = slot, .init = init, .tied = tied};
    return FSDP_OK;
}

fsdp_status fsdp__init_fill(fsdp_device *device, void *data, fsdp_dtype dtype, int64_t numel, fsdp_init init,
                            uint64_t seed, const char *full_name, int64_t first)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    bool constant = init.kind == FSDP_INIT_ZEROS || init.kind == FSDP_INIT_ONES;
    const fsdp__fill_args fill = {
        .dst = data, .dtype = dtype, .numel = numel, .value = init.kind == FSDP_INIT_ONES ? 1.0 : 0.0};
    const fsdp__random_args random = {.dst = data,
                                      .numel = numel,
                                      .key = fsdp__rng_key(seed, full_name),
                                      .offset = (uint64_t)first,
                                      .a = init.a,
                                      .b = init.kind == FSDP_INIT_UNIFORM ? init.b - init.a : init.b,
                                      .distribution = init.kind == FSDP_INIT_NORMAL ? FSDP__NORMAL : FSDP__UNIFORM,
                                      .dtype = dtype};

    if (numel == 0)
        return FSDP_OK;
    return constant ? fsdp__launch_fill(stream, &fill) : fsdp__launch_random(stream, &random);
}

typedef struct filling {
    const fsdp_tensor *tensor;
    fsdp_init init;
    uint64_t seed;
    const char *full_name;
} filling;

static fsdp_status fill_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const filling *f = arg;
    fsdp_dtype dtype = f->tensor->dtype;
    char *data = (char *)fsdp_tensor_data(f->tensor) + (size_t)local * fsdp_dtype_size(dtype);

    return fsdp__init_fill(f->tensor->storage->device, data, dtype, numel, f->init, f->seed, f->full_name, global);
}

fsdp_status fsdp__init_tensor(const fsdp_tensor *tensor, fsdp_init init, uint64_t seed, const char *full_name)
{
    filling f = {tensor, init, seed, full_name};

    return tensor->distribution.runs ? tensor->distribution.runs(tensor, fill_run, &f)
                                     : fill_run(&f, 0, 0, fsdp_tensor_numel(tensor));
}

fsdp_status fsdp_module_add_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot, fsdp_device *device,
                                      fsdp_dtype dtype, int ndim, const int64_t *shape, fsdp_init init)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *parameter = NULL;

    if (init.kind < FSDP_INIT_ZEROS || init.kind > FSDP_INIT_UNIFORM)
        return FSDP_FAIL(FSDP_INVALID, "cannot add a parameter: there is no kind %d of initial values", (int)init.kind);
    FSDP_TRY(check_new(module, name, slot));
    FSDP_TRY(fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_PARAMETER_SHARD, &parameter));
    FSDP_TRY(fsdp_tensor_set_requires_grad(parameter, true));
    FSDP_TRY(
        fsdp__init_fill(device, fsdp_tensor_data(parameter), dtype, fsdp_tensor_numel(parameter), init, 0, name, 0));
    FSDP_TRY(append_parameter(module, name, slot, init, false));
    *slot = fsdp__take(&parameter);
    return FSDP_OK;
}

fsdp_status fsdp_module_tie_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot, fsdp_tensor *parameter)
{
    FSDP_TRY(check_new(module, name, slot));
    if (!parameter)
        return FSDP_FAIL(FSDP_INVALID, "cannot tie '%s' of %s: the parameter is NULL", name, module->type->name);
    FSDP_TRY(append_parameter(module, name, slot, (fsdp_init){.kind = FSDP_INIT_ZEROS}, true));
    *slot = fsdp_tensor_ref(parameter);
    return FSDP_OK;
}

fsdp_status fsdp__module_add_filled_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                           fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer))
{
    struct fsdp__module_parts *parts = module->parts;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *buffer = fsdp__take(slot);
    FSDP__FREED char *copy = NULL;

    if (!buffer)
        return FSDP_FAIL(FSDP_INVALID, "buffer '%s' of %s: the slot is empty", name, module->type->name);
    FSDP_TRY(check_name(module, name));
    FSDP_TRY(check_slot(module, name, slot));
    FSDP__TRY_NEW(copy = fsdp__strdup(name));
    /* On the meta device there is nothing to fill; that follows when the module gets its bytes. */
    if (fill && !fsdp_device_is_meta(buffer->storage->device))
        FSDP_TRY(fill(module, buffer));
    FSDP_TRY(fsdp__grow(&parts->buffers, parts->buffer_count, &parts->buffer_capacity, sizeof *parts->buffers));
    *slot = fsdp__take(&buffer);
    parts->buffers[parts->buffer_count++] =
        (fsdp__buffer_slot){fsdp__take(&copy), slot, fill == NULL, fill, fill != NULL};
    return FSDP_OK;
}

fsdp_status fsdp_module_add_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot, bool persistent)
{
    FSDP_TRY(check_place(module, name, slot));
    FSDP_TRY(fsdp__module_add_filled_buffer(module, name, slot, NULL));
    module->parts->buffers[module->parts->buffer_count - 1].persistent = persistent;
    return FSDP_OK;
}

fsdp_status fsdp__module_add_initial_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                            fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer))
{
    fsdp__buffer_slot *added;

    FSDP_TRY(fsdp__module_add_filled_buffer(module, name, slot, fill));
    added = &module->parts->buffers[module->parts->buffer_count - 1];
    added->persistent = true;
    added->table = false;
    return FSDP_OK;
}

/* Fails at the module that is to have a new child. */
static fsdp_status refuse_circle(void *arg, fsdp_module *at, const char *path)
{
    static const char advice[] = "modules must not lie in a circle: keep a plain pointer to it in your struct instead";

    if (at != arg)
        return FSDP_OK;
    return *path ? FSDP_FAIL(FSDP_INVALID, "it holds that %s itself, as '%s', and %s", at->type->name, path, advice)
                 : FSDP_FAIL(FSDP_INVALID, "it is that %s itself, and %s", at->type->name, advice);
}

fsdp_status fsdp_module_add_child(fsdp_module *module, const char *name, fsdp_module *child)
{
    struct fsdp__module_parts *parts = module ? module->parts : NULL;
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *owned = child;
    char *copy;

    if (!module)
        return FSDP__FAIL_NULL("cannot add a child: the module is NULL");
    if (!child) /* its constructor has said why */
        return FSDP__FAIL_NULL("child '%s' of %s is missing", name, module->type->name);
    FSDP_TRY(fsdp_fail_prefix(fsdp__module_walk(child, refuse_circle, module), "cannot add a %s as child '%s' of a %s",
                              child->type->name, name ? name : "", module->type->name));
    if (child->context != module->context)
        return FSDP_FAIL(FSDP_INVALID, "cannot add a %s as child '%s' of a %s: it belongs to another context",
                         child->type->name, name ? name : "", module->type->name);
    FSDP_TRY(fsdp__grow(&parts->children, parts->child_count, &parts->child_capacity, sizeof *parts->children));
    FSDP_TRY(check_name(module, name));
    FSDP__TRY_NEW(copy = fsdp__strdup(name));
    parts->children[parts->child_count++] = (fsdp__child_slot){copy, fsdp__take(&owned)};
    return FSDP_OK;
}

fsdp_status fsdp__module_add_hooks(fsdp_module *module, const fsdp__module_hooks *hooks)
{
    struct fsdp__module_parts *parts = module->parts;

    if (fsdp__grow(&parts->hooks, parts->hook_count, &parts->hook_capacity, sizeof *parts->hooks) != 0) {
        if (hooks->free_arg)
            hooks->free_arg(hooks->arg, module);
        return FSDP_NO_MEMORY;
    }
    parts->hooks[parts->hook_count++] = *hooks;
    return FSDP_OK;
}

void fsdp__module_remove_hooks(fsdp_module *module, const void *arg)
{
    struct fsdp__module_parts *parts = module->parts;

    for (int64_t i = 0; i < parts->hook_count;) {
        fsdp__module_hooks hooks = parts->hooks[i];

        if (hooks.arg != arg) {
            i++;
            continue;
        }
        /* Taken out before free_arg runs, so that nobody finds them by their key any more. */
        parts->hook_count--;
        memmove(&parts->hooks[i], &parts->hooks[i + 1], (size_t)(parts->hook_count - i) * sizeof *parts->hooks);
        if (hooks.free_arg)
            hooks.free_arg(hooks.arg, module);
    }
}

const fsdp__module_hooks *fsdp__module_hooks_before(const fsdp_module *module, int64_t number)
{
    const struct fsdp__module_parts *parts = module->parts;

    for (int first = 1; first >= 0; first--)
        for (int64_t i = 0; i < parts->hook_count; i++)
            if (parts->hooks[i].first == (first == 1) && number-- == 0)
                return &parts->hooks[i];
    return NULL;
}

void *fsdp__module_hooks_arg(const fsdp_module *module, const void *key)
{
    for (int64_t i = 0; i < module->parts->hook_count; i++)
        if (module->parts->hooks[i].key == key)
            return module->parts->hooks[i].arg;
    return NULL;
}

/* ---- switches of a subtree ---- */

void fsdp_module_train(fsdp_module *module, bool training)
{
    if (!module)
        return;
    module->training = training;
    for (int64_t i = 0; i < module->parts->child_count; i++)
        fsdp_module_train(module->parts->children[i].module, training);
}

void fsdp_module_zero_grad(fsdp_module *module)
{
    fsdp_tensor *flat = module ? fsdp__module_flat_parameter(module) : NULL;

    if (!module)
        return;
    if (flat)
        (void)fsdp_tensor_set_grad(flat, NULL);
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        (void)fsdp_tensor_set_grad(*module->parts->parameters[i].slot, NULL);
    for (int64_t i = 0; i < module->parts->child_count; i++)
        fsdp_module_zero_grad(module->parts->children[i].module);
}

fsdp_status fsdp_module_set_requires_grad(fsdp_module *module, bool requires_grad)
{
    if (!module)
        return FSDP__FAIL_NULL("cannot freeze or thaw a module: it is NULL");
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(fsdp_tensor_set_requires_grad(*module->parts->parameters[i].slot, requires_grad));
    for (int64_t i = 0; i < module->parts->child_count; i++)
        FSDP_TRY(fsdp_module_set_requires_grad(module->parts->children[i].module, requires_grad));
    return FSDP_OK;
}
