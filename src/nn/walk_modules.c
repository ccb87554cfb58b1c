/* walk_modules.c - walks the tree, and finds parts of it by name. */
#include "autograd/autograd.h"
#include "nn/module.h"

#include <string.h>

#include "base/alloc.h"
#include "base/pointer_table.h"
#include "base/status.h"

/* ---- walking ---- */

typedef struct walk {
    fsdp__module_visit visit;
    void *arg;
    bool up;                  /* children before parents */
    fsdp__pointer_table seen; /* modules, since one may be the child of several */
} walk;

/* Marks the module or tensor; `*first` is false if it was met before. */
static fsdp_status first_time(fsdp__pointer_table *seen, const void *key, bool *first)
{
    int64_t *mark = fsdp__pointer_table_at(seen, key);

    FSDP__TRY_NEW(mark);
    *first = *mark == 0;
    *mark = 1;
    return FSDP_OK;
}

/* Copies and does not format: whoever plans a schedule walks over the modules of each dry run many times. */
char *fsdp__dotted(const char *module, const char *name)
{
    size_t before = strlen(module), bytes = strlen(name) + 1;
    bool dot = before > 0;
    char *full = fsdp__malloc(before + dot + bytes);

    if (!full)
        return NULL;
    memcpy(full, module, before);
    if (dot)
        full[before] = '.';
    memcpy(full + before + dot, name, bytes);
    return full;
}

static fsdp_status step(walk *w, fsdp_module *module, const char *name)
{
    bool first;

    FSDP_TRY(first_time(&w->seen, module, &first));
    if (!first)
        return FSDP_OK;
    if (!w->up)
        FSDP_TRY(w->visit(w->arg, module, name));
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        const fsdp__child_slot *child = &module->parts->children[i];
        char *path = fsdp__dotted(name, child->name);
        fsdp_status status = path ? step(w, child->module, path) : FSDP_NO_MEMORY;

        fsdp__free(path);
        FSDP_TRY(status);
    }
    return w->up ? w->visit(w->arg, module, name) : FSDP_OK;
}

static fsdp_status start(fsdp_module *root, fsdp__module_visit visit, void *arg, bool up)
{
    walk w = {.visit = visit, .arg = arg, .up = up};
    fsdp_status status;

    if (!root)
        return FSDP__FAIL_NULL("the module is NULL");
    status = step(&w, root, "");
    fsdp__pointer_table_release(&w.seen);
    return status;
}

fsdp_status fsdp__module_walk(fsdp_module *root, fsdp__module_visit visit, void *arg)
{
    return start(root, visit, arg, false);
}

fsdp_status fsdp__module_walk_up(fsdp_module *root, fsdp__module_visit visit, void *arg)
{
    return start(root, visit, arg, true);
}

/* ---- every parameter ---- */

typedef struct collection {
    fsdp_parameters list;
    int64_t capacity;
    fsdp__pointer_table seen; /* tensors, since a tied one has the name under which it is met first */
} collection;

static fsdp_status add(collection *c, const char *module_name, const char *name, fsdp_tensor *tensor)
{
    bool first;
    char *full;

    FSDP_TRY(first_time(&c->seen, tensor, &first));
    if (!first)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&c->list.items, c->list.count, &c->capacity, sizeof *c->list.items));
    FSDP__TRY_NEW(full = fsdp__dotted(module_name, name));
    c->list.items[c->list.count++] = (fsdp_parameter){full, fsdp_tensor_ref(tensor)};
    return FSDP_OK;
}

fsdp_tensor *fsdp__module_flat_parameter(const fsdp_module *module)
{
    fsdp_tensor *flat = NULL;

    for (int64_t i = 0; i < module->parts->hook_count && !flat; i++) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[i];

        flat = hooks->flat_parameter ? hooks->flat_parameter(hooks->arg, module) : NULL;
    }
    return flat;
}

static fsdp_status collect(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    fsdp_tensor *flat = fsdp__module_flat_parameter(module);

    if (flat)
        FSDP_TRY(add(c, name, "_flat_param", flat));
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];

        if (!fsdp__leaf_is_part(*slot->slot))
            FSDP_TRY(add(c, name, slot->name, *slot->slot));
    }
    return FSDP_OK;
}

static fsdp_status collect_all(fsdp_module *module, fsdp__module_visit visit, fsdp_parameters *out)
{
    collection c = {.capacity = 0};
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot list the tensors of a module: there is no place for the list");
    status = fsdp__module_walk(module, visit, &c);
    fsdp__pointer_table_release(&c.seen);
    if (status != FSDP_OK)
        fsdp_parameters_release(&c.list);
    *out = c.list; /* empty after a failure */
    return status;
}

fsdp_status fsdp_module_parameters(fsdp_module *module, fsdp_parameters *out)
{
    return collect_all(module, collect, out);
}

fsdp_status fsdp__module_device(fsdp_module *module, fsdp_device **out)
{
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};

    *out = NULL;
    FSDP_TRY(fsdp_module_parameters(module, &parameters));
    if (parameters.count)
        *out = fsdp_tensor_device(parameters.items[0].tensor);
    return FSDP_OK;
}

static fsdp_status collect_buffers(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;

    for (int64_t i = 0; i < module->parts->buffer_count; i++) {
        const fsdp__buffer_slot *slot = &module->parts->buffers[i];

        if (*slot->slot)
            FSDP_TRY(add(c, name, slot->name, *slot->slot));
    }
    return FSDP_OK;
}

fsdp_status fsdp_module_buffers(fsdp_module *module, fsdp_parameters *out)
{
    return collect_all(module, collect_buffers, out);
}

void fsdp_parameters_release(fsdp_parameters *parameters)
{
    if (!parameters)
        return;
    for (int64_t i = 0; i < parameters->count; i++) {
        fsdp__free((char *)(uintptr_t)parameters->items[i].name);
        fsdp_tensor_unref(parameters->items[i].tensor);
    }
    fsdp__free(parameters->items);
    *parameters = (fsdp_parameters){0, NULL};
}

/* ---- by name ---- */

static fsdp_module *child_named(const fsdp_module *module, const char *name, size_t length)
{
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        const fsdp__child_slot *child = &module->parts->children[i];

        if (strlen(child->name) == length && memcmp(child->name, name, length) == 0)
            return child->module;
    }
    return NULL;
}

/* Follows `length` characters of a dotted name. Returns NULL if that leads nowhere. */
static fsdp_module *follow(fsdp_module *module, const char *name, size_t length)
{
    const char *end = name + length;

    while (module && name < end) {
        const char *dot = memchr(name, '.', (size_t)(end - name));
        const char *stop = dot ? dot : end;

        module = child_named(module, name, (size_t)(stop - name));
        name = dot ? dot + 1 : end;
    }
    return module;
}

static fsdp_status check_name(const fsdp_module *module, const char *name)
{
    if (!module)
        return FSDP__FAIL_NULL("cannot look into a module: it is NULL");
    return name ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "cannot look into a %s: the name is NULL", module->type->name);
}

fsdp_module *fsdp_module_child(fsdp_module *module, const char *dotted_name)
{
    fsdp_module *child;

    if (check_name(module, dotted_name) != FSDP_OK)
        return NULL;
    child = follow(module, dotted_name, strlen(dotted_name));
    if (!child)
        FSDP_FAIL(FSDP_NOT_FOUND, "%s has no module '%s'", module->type->name, dotted_name);
    return child;
}

fsdp_tensor *fsdp_module_parameter(fsdp_module *module, const char *dotted_name)
{
    const char *dot, *local;
    fsdp_module *owner;

    if (check_name(module, dotted_name) != FSDP_OK)
        return NULL;
    dot = strrchr(dotted_name, '.');
    local = dot ? dot + 1 : dotted_name;
    owner = follow(module, dotted_name, dot ? (size_t)(dot - dotted_name) : 0);
    for (int64_t i = 0; owner && i < owner->parts->parameter_count; i++)
        if (strcmp(owner->parts->parameters[i].name, local) == 0)
            return *owner->parts->parameters[i].slot;
    FSDP_FAIL(FSDP_NOT_FOUND, "%s has no parameter '%s'", module->type->name, dotted_name);
    return NULL;
}

int64_t fsdp_module_child_count(const fsdp_module *module)
{
    return module ? module->parts->child_count : 0;
}

fsdp_module *fsdp_module_child_at(const fsdp_module *module, int64_t index, const char **name)
{
    if (!module) {
        FSDP__FAIL_NULL("cannot return a child: the module is NULL");
        return NULL;
    }
    if (index < 0 || index >= module->parts->child_count) {
        FSDP_FAIL(FSDP_NOT_FOUND, "%s has %lld children: there is none with number %lld", module->type->name,
                  (long long)module->parts->child_count, (long long)index);
        return NULL;
    }
    if (name)
        *name = module->parts->children[index].name;
    return module->parts->children[index].module;
}
