/* module_path.c - names modules and their tensors in messages.
 *
 * A module does not know who holds it. So the context has a list of its modules, and names are looked for only when
 * there is something to say: a module's name from the outermost module that is being called, a tensor's name from the
 * root. */
#include "nn/module_path.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/status.h"

static fsdp__modules *modules_of(const fsdp_context *context)
{
    return fsdp__context_get(context, FSDP__SLOT_MODULES);
}

/* ---- places in the tree ---- */

/* Holds what is looked for: a module, or the first one that has a tensor in `storage` as a parameter or buffer. */
typedef struct wanted {
    const fsdp_module *module; /* or NULL */
    const fsdp__storage *storage;
    const char *kind, *name; /* of the tensor, in its module */
} wanted;

static bool has(const fsdp_module *at, wanted *w)
{
    const struct fsdp__module_parts *parts = at->parts;

    if (w->module)
        return at == w->module;
    w->kind = "parameter";
    for (int64_t i = 0; i < parts->parameter_count; i++) {
        w->name = parts->parameters[i].name;
        if (*parts->parameters[i].slot && (*parts->parameters[i].slot)->storage == w->storage)
            return true;
    }
    w->kind = "buffer";
    for (int64_t i = 0; i < parts->buffer_count; i++) {
        w->name = parts->buffers[i].name;
        if (*parts->buffers[i].slot && (*parts->buffers[i].slot)->storage == w->storage)
            return true;
    }
    return false;
}

/* Writes the path of what is wanted below `at` behind the `used` bytes that `text` has. */
static bool find(const fsdp_module *at, wanted *w, char text[FSDP__PATH_TEXT], size_t used)
{
    if (has(at, w))
        return true;
    for (int64_t i = 0; i < at->parts->child_count; i++) {
        const fsdp__child_slot *child = &at->parts->children[i];
        int more = snprintf(text + used, FSDP__PATH_TEXT - used, "%s%s", used > 0 ? "." : "", child->name);

        if (more > 0 && (size_t)more < FSDP__PATH_TEXT - used && find(child->module, w, text, used + (size_t)more))
            return true;
    }
    text[used] = '\0';
    return false;
}

const char *fsdp__module_path(const fsdp_module *module, char text[FSDP__PATH_TEXT])
{
    const fsdp__modules *all = modules_of(module->context);

    text[0] = '\0';
    if (!all->outermost)
        return text;
    snprintf(text, FSDP__PATH_TEXT, "%s", all->path);
    if (!find(all->outermost, &(wanted){.module = module}, text, strlen(text)))
        text[0] = '\0';
    return text;
}

/* ---- prefixes of messages ---- */

/* Returns the length of a message's prefix that names an operation, if the type is that operation's module: "conv2d: "
 * for a Conv2d, "batch_norm: " for a BatchNorm2d. Otherwise returns 0. */
static size_t named_alike(const char *message, const char *type)
{
    const char *end = strstr(message, ": ");

    if (!end)
        return 0;
    for (const char *at = message; at < end; at++) {
        if (*at == '_')
            continue;
        if (tolower((unsigned char)*at) != tolower((unsigned char)*type))
            return 0;
        type++;
    }
    return (size_t)(end - message) + 2;
}

void fsdp__module_say(const fsdp_module *module, fsdp_status status)
{
    fsdp__modules *all = modules_of(module->context);
    const char *type = module->type->name;
    char path[FSDP__PATH_TEXT];

    if (fsdp_last_status() == status && all->said == fsdp__errors())
        return;
    if (fsdp_last_status() == status)
        fsdp__cut_error(named_alike(fsdp_last_error(), type));
    if (*fsdp__module_path(module, path))
        fsdp_fail_prefix(status, "%s (%s)", path, type);
    else
        fsdp_fail_prefix(status, "%s", type);
    all->said = fsdp__errors();
}

/* ---- the name of a tensor ---- */

static bool is_root(const fsdp__modules *all, const fsdp_module *module)
{
    for (const fsdp_module *m = all->first; m; m = m->parts->next)
        for (int64_t i = 0; i < m->parts->child_count; i++)
            if (m->parts->children[i].module == module)
                return false;
    return true;
}

static bool name_storage(const fsdp_context *context, const fsdp__storage *storage, char *text, size_t bytes)
{
    const fsdp__modules *all = modules_of(context);
    wanted w = {.storage = storage};

    for (const fsdp_module *m = all->first; m; m = m->parts->next) {
        char path[FSDP__PATH_TEXT] = "";

        if (!is_root(all, m) || !find(m, &w, path, 0))
            continue;
        snprintf(text, bytes, "%s '%s%s%s'", w.kind, path, *path ? "." : "", w.name);
        return true;
    }
    return false;
}

/* Returns the module that has `module` as a child, and the child's name; NULL: none has. */
static const fsdp_module *parent_of(const fsdp__modules *all, const fsdp_module *module, const char **name)
{
    for (const fsdp_module *m = all->first; m; m = m->parts->next)
        for (int64_t i = 0; i < m->parts->child_count; i++)
            if (m->parts->children[i].module == module) {
                *name = m->parts->children[i].name;
                return m;
            }
    return NULL;
}

const fsdp_module *fsdp__module_parent(const fsdp_module *module)
{
    const char *name;

    return parent_of(modules_of(module->context), module, &name);
}

const char *fsdp__module_path_from_root(const fsdp_module *module, char text[FSDP__PATH_TEXT])
{
    const fsdp__modules *all = modules_of(module->context);
    char longer[2 * FSDP__PATH_TEXT];
    const char *name = "";

    text[0] = '\0';
    for (const fsdp_module *m = parent_of(all, module, &name); m; m = parent_of(all, m, &name)) {
        snprintf(longer, sizeof longer, "%s%s%s", name, *text ? "." : "", text);
        snprintf(text, FSDP__PATH_TEXT, "%.*s", FSDP__PATH_TEXT - 1, longer);
    }
    return text;
}

const void *fsdp__module_owner(const fsdp_module *module)
{
    return (const void *)module->parts->number;
}

/* Names a module that may be gone (fsdp__owner_namer), from the outermost one that has it: by its type, if it is that
 * itself. */
static bool owner_name(const fsdp_context *context, const void *owner, char *text, size_t bytes)
{
    const fsdp__modules *all = modules_of(context);
    const fsdp_module *module = all ? all->first : NULL;
    char path[FSDP__PATH_TEXT];

    while (module && fsdp__module_owner(module) != owner)
        module = module->parts->next;
    if (!module)
        return false;
    snprintf(text, bytes, "%s", *fsdp__module_path_from_root(module, path) ? path : module->type->name);
    return true;
}

fsdp__taker fsdp__module_enter(const fsdp_module *module)
{
    fsdp__context_set_namer(module->context, owner_name);
    return fsdp__context_enter(module->context, fsdp__module_owner(module));
}

/* ---- viewpoints ---- */

static void look_from(const fsdp_context *context, fsdp__viewpoint view)
{
    fsdp__modules *all = modules_of(context);

    all->outermost = view.module;
    all->path = view.path;
}

fsdp_status fsdp__viewpoint_begin(const fsdp_module *module, const char *path, fsdp__viewpoint *before)
{
    const fsdp__modules *all = modules_of(module->context);

    FSDP_TRY(fsdp__set_storage_namer(module->context, name_storage));
    *before = (fsdp__viewpoint){all->outermost, all->path};
    if (path || !all->outermost)
        look_from(module->context, (fsdp__viewpoint){module, path ? path : ""});
    return FSDP_OK;
}

void fsdp__viewpoint_end(const fsdp_context *context, fsdp__viewpoint before)
{
    look_from(context, before);
}
