/* module.c - the parameters and buffers of a module tree as a state. */
#include <string.h>

#include "base/alloc.h"
#include "fsdp/state.h"
#include "nn/module.h"

typedef struct collection {
    fsdp_state *state;
    /* Names of the sharded modules that the visited one is in, outermost first. */
    char **sharded;
    int64_t sharded_count, sharded_capacity;
} collection;

/* Whether `name` is `ancestor` or below it. */
static bool is_below(const char *name, const char *ancestor)
{
    size_t length = strlen(ancestor);

    return length == 0 || (strncmp(name, ancestor, length) == 0 && (name[length] == '.' || name[length] == '\0'));
}

/* The walk goes parents first, so the sharded modules around the visited one are a stack. */
static fsdp_status track_sharded(collection *c, const fsdp_module *module, const char *name)
{
    while (c->sharded_count > 0 && !is_below(name, c->sharded[c->sharded_count - 1]))
        fsdp__free(c->sharded[--c->sharded_count]);
    if (!module->parts->shard_state)
        return FSDP_OK;
    if (fsdp__grow(&c->sharded, c->sharded_count, &c->sharded_capacity, sizeof(*c->sharded)) != 0)
        return FSDP_NO_MEMORY;
    c->sharded[c->sharded_count] = fsdp__strdup(name);
    if (!c->sharded[c->sharded_count])
        return FSDP_NO_MEMORY;
    c->sharded_count++;
    return FSDP_OK;
}

static bool is_added(const fsdp_state *state, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < state->count; i++)
        if (state->entries[i].tensor == tensor)
            return true;
    return false;
}

static fsdp_status add_named(collection *c, const char *module, const char *name, fsdp_tensor *tensor)
{
    char *full = *module ? fsdp__sprintf("%s.%s", module, name) : fsdp__strdup(name);
    fsdp_status status;

    if (!full)
        return FSDP_NO_MEMORY;
    status = fsdp_state_add(c->state, full, tensor);
    fsdp__free(full);
    return status;
}

static fsdp_status visit(void *arg, fsdp_module *module, const char *name)
{
    struct fsdp__module_parts *parts = module->parts;
    collection *c = arg;

    FSDP_TRY(track_sharded(c, module, name));
    for (int64_t i = 0; i < parts->parameter_count; i++) {
        fsdp_tensor *tensor = *parts->parameters[i].slot;

        if (!tensor || is_added(c->state, tensor)) /* tied ones once */
            continue;
        if (c->sharded_count > 0 && !fsdp_tensor_distribution(tensor))
            return FSDP_FAIL(FSDP_STATE, "cannot take the state: parameter '%s%s%s' is gathered; reshard its module",
                             name, *name ? "." : "", parts->parameters[i].name);
        FSDP_TRY(add_named(c, name, parts->parameters[i].name, tensor));
    }
    for (int64_t i = 0; i < parts->buffer_count; i++)
        if (parts->buffers[i].persistent && *parts->buffers[i].slot)
            FSDP_TRY(add_named(c, name, parts->buffers[i].name, *parts->buffers[i].slot));
    return FSDP_OK;
}

fsdp_status fsdp_state_from_module(fsdp_module *module, fsdp_state **out)
{
    fsdp_status status = FSDP_OK;
    collection c = {.state = NULL};

    *out = NULL;
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "cannot take the state of a module: it is NULL");
    FSDP_TRY(fsdp_state_create(&c.state));
    FSDP_TRY_GOTO(status, fsdp__module_walk(module, visit, &c), out);
    *out = c.state;
    c.state = NULL;
out:
    while (c.sharded_count > 0)
        fsdp__free(c.sharded[--c.sharded_count]);
    fsdp__free(c.sharded);
    fsdp_state_free(c.state);
    return status;
}
