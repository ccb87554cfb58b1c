/* initialise.c - lazy initialisation: with the first forward the sharded modules below the outermost become one tree.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "shard/shard.h"

typedef struct collection {
    fsdp__shard_tree *tree;
    fsdp__shard_state *root;
    char **names; /* of tree->states, while they are collected */
    int64_t name_capacity;
} collection;

/* Names the parameters that were registered first in `module`. */
static fsdp_status name_parameters(fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        fsdp__shard_param *p = *slot->slot ? fsdp__param_of(*slot->slot) : NULL;

        if (!p || p->name || p->slot_count == 0 || p->slots[0].field != slot->slot)
            continue;
        p->name = fsdp__sprintf("%s%s%s", name, *name ? "." : "", slot->name);
        if (!p->name)
            return FSDP_NO_MEMORY;
    }
    return FSDP_OK;
}

static fsdp_status collect_state(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    fsdp__shard_state *state = fsdp__state_of(module);
    fsdp__shard_tree *tree = c->tree;
    int64_t i = 0;

    FSDP_TRY(name_parameters(module, name));
    if (!state)
        return FSDP_OK;
    while (i < tree->state_count && tree->states[i] != state)
        i++;
    if (i < tree->state_count) { /* a further module of one group: "norm, output" */
        char *joined = fsdp__sprintf("%s, %s", c->names[i], name);

        if (!joined)
            return FSDP_NO_MEMORY;
        fsdp__free(c->names[i]);
        c->names[i] = joined;
        return FSDP_OK;
    }
    if (state != c->root && state->initialised)
        return FSDP_FAIL(FSDP_STATE,
                         "'%s' has already run, by itself or inside another outermost module: run the first forward "
                         "through the outermost sharded module, and share no sharded module between two of them",
                         name);
    if (fsdp__grow(&tree->states, i, &tree->state_capacity, sizeof(fsdp__shard_state *)) ||
        fsdp__grow(&c->names, i, &c->name_capacity, sizeof(char *)))
        return FSDP_NO_MEMORY;
    c->names[i] = fsdp__strdup(name);
    if (!c->names[i])
        return FSDP_NO_MEMORY;
    tree->states[tree->state_count++] = state;
    return FSDP_OK;
}

/* "'a.weight', 'a.bias' and 3 more" */
static void list_parameters(const fsdp__shard_group *group, char *text, size_t bytes)
{
    enum {
        NAMED = 3
    };
    size_t used = 0;

    text[0] = '\0';
    for (int64_t i = 0; i < group->param_count && i < NAMED && used < bytes; i++) {
        char name[256];
        const char *before = i == 0 ? "" : i == group->param_count - 1 ? " and " : ", ";

        used += (size_t)snprintf(text + used, bytes - used, "%s%s", before,
                                 fsdp__param_text(&group->params[i], name, sizeof name));
    }
    if (group->param_count > NAMED && used < bytes)
        snprintf(text + used, bytes - used, " and %" PRId64 " more", group->param_count - NAMED);
}

static fsdp_status check_ready(const collection *c)
{
    for (int64_t i = 0; i < c->tree->state_count; i++) {
        const fsdp__shard_group *group = &c->tree->states[i]->group;
        char names[900];

        if (group->param_count == 0 || group->layout != FSDP__LAYOUT_NONE)
            continue;
        list_parameters(group, names, sizeof names);
        return FSDP_FAIL(FSDP_STATE,
                         "parameters %s are still on the meta device: call fsdp_module_materialize before the first "
                         "forward",
                         names);
    }
    return FSDP_OK;
}

/* Nothing here fails. */
static void commit(collection *c)
{
    fsdp__shard_tree *tree = c->tree;

    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        state->name = c->names[i];
        c->names[i] = NULL;
        state->initialised = true;
        if (state->reshard == FSDP_RESHARD_AUTO)
            state->group.reshard_after_forward = state != c->root;
        if (state->tree != tree) {
            if (state->tree->last_backward_set > tree->last_backward_set) {
                tree->last_backward = state->tree->last_backward;
                tree->last_backward_set = state->tree->last_backward_set;
            }
            tree->regions_out += state->tree->regions_out;
            fsdp__tree_unref(state->tree);
            state->tree = tree;
            tree->refs++;
        }
    }
}

fsdp_status fsdp__tree_initialise(fsdp__shard_state *root)
{
    collection c = {.tree = root->tree, .root = root};
    fsdp_device *device = NULL;
    fsdp_status st = FSDP_OK;

    if (root->initialised)
        return FSDP_OK;
    if (root->module_count != 1)
        return FSDP_FAIL(FSDP_STATE, "the outermost fully_shard call must name a single module, this one names %lld",
                         (long long)root->module_count);
    FSDP_TRY_GOTO(st, fsdp__module_walk(root->modules[0], collect_state, &c), out);
    FSDP_TRY_GOTO(st, check_ready(&c), out);
    for (int64_t i = 0; i < c.tree->state_count && !device; i++)
        device = c.tree->states[i]->group.device;
    if (device)
        FSDP_TRY_GOTO(st, fsdp__tree_open_stream(c.tree, device, root->overlap), out);
    commit(&c);
out:
    for (int64_t i = 0; c.names && i < c.tree->state_count; i++)
        fsdp__free(c.names[i]);
    fsdp__free(c.names);
    if (st != FSDP_OK)
        c.tree->state_count = 0;
    return st;
}
