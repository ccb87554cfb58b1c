/* iterate.c - lets the caller go through the modules of a tree. */
#include <string.h>

#include "base/alloc.h"
#include "nn/module.h"

static fsdp_status check(const fsdp_module *module, bool visit)
{
    return module && visit
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "cannot visit modules: there is no %s", module ? "function" : "module");
}

fsdp_status fsdp_module_walk(fsdp_module *module, fsdp_module_visit visit, void *arg)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *held = fsdp_module_ref(module); /* a visit may drop the caller's */

    FSDP_TRY(check(held, visit != NULL));
    return fsdp__module_walk(held, visit, arg);
}

fsdp_status fsdp_module_apply(fsdp_module *module, fsdp_module_visit visit, void *arg)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *held = fsdp_module_ref(module);

    FSDP_TRY(check(held, visit != NULL));
    return fsdp__module_walk_up(held, visit, arg);
}

typedef struct collection {
    fsdp_named_modules list;
    int64_t capacity;
    const char *type; /* NULL: any */
} collection;

static fsdp_status collect(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    char *copy;

    if (c->type && strcmp(c->type, module->type->name) != 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&c->list.items, c->list.count, &c->capacity, sizeof *c->list.items));
    FSDP__TRY_NEW(copy = fsdp__strdup(name));
    c->list.items[c->list.count++] = (fsdp_named_module){copy, fsdp_module_ref(module)};
    return FSDP_OK;
}

fsdp_status fsdp_module_modules(fsdp_module *module, const char *type, fsdp_named_modules *out)
{
    collection c = {.type = type};
    fsdp_status status;

    FSDP_TRY(check(module, true));
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot list modules: there is no place for the list");
    status = fsdp__module_walk(module, collect, &c);
    if (status != FSDP_OK)
        fsdp_named_modules_release(&c.list);
    else
        *out = c.list;
    return status;
}

void fsdp_named_modules_release(fsdp_named_modules *modules)
{
    if (!modules)
        return;
    for (int64_t i = 0; i < modules->count; i++) {
        fsdp__free((char *)(uintptr_t)modules->items[i].name);
        fsdp_module_unref(modules->items[i].module);
    }
    fsdp__free(modules->items);
    *modules = (fsdp_named_modules){0, NULL};
}
