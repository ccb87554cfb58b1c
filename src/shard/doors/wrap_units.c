/* wrap_units.c - finds the units of a tree: PyTorch's _recursive_wrap, and _run_policy for policies of kind CUSTOM. */
#include <string.h>

#include "base/alloc.h"
#include "base/pointer_table.h"
#include "nn/managers.h"
#include "shard/doors/wrap_policy.h"
#include "shard/reduce/owner.h"
#include "shard/state/module_state.h"

/* Describes a module of the tree, in the order of the walk. */
typedef struct node {
    fsdp_module *module;
    char *name;
    bool ignored, asked, unit, full_precision;
    int64_t wrapped;               /* elements of units at and below it, once it was asked about */
    void *options;                 /* of a unit that chose its own */
    int64_t item;                  /* 1 + the index of the unit that it became */
    const fsdp_wrap_unit *entered; /* the unit whose parameters were last looked for in it */
} node;

typedef struct plan {
    const fsdp_wrap_policy *policy;
    const void *options;
    size_t option_bytes;
    node *nodes;
    int64_t node_count, node_capacity;
    fsdp__pointer_table places; /* of modules: 1 + the index of the node */
    fsdp_wrap_units units;
    int64_t item_capacity, ordered, ordered_capacity, ignored_capacity;
    fsdp__pointer_table taken; /* parameters that belong to a unit */
} plan;

static node *find_node(const plan *p, const fsdp_module *module)
{
    int64_t place = fsdp__pointer_table_find(&p->places, module);

    return place ? &p->nodes[place - 1] : NULL;
}

static fsdp_status add_node(void *arg, fsdp_module *module, const char *name)
{
    plan *p = arg;
    int64_t *place = fsdp__pointer_table_at(&p->places, module);
    char *copy;

    if (!place || fsdp__grow(&p->nodes, p->node_count, &p->node_capacity, sizeof *p->nodes))
        return FSDP_NO_MEMORY;
    FSDP__TRY_NEW(copy = fsdp__strdup(name));
    p->nodes[p->node_count++] = (node){.module = module, .name = copy};
    *place = p->node_count;
    return FSDP_OK;
}

/* ---- what is ignored ---- */

static bool is_ignored(const plan *p, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; i < p->units.ignored_count; i++)
        if (p->units.ignored[i] == tensor)
            return true;
    return false;
}

static fsdp_status ignore_parameter(plan *p, fsdp_tensor *tensor)
{
    fsdp_wrap_units *u = &p->units;

    if (!tensor || is_ignored(p, tensor))
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&u->ignored, u->ignored_count, &p->ignored_capacity, sizeof *u->ignored));
    u->ignored[u->ignored_count++] = fsdp_tensor_ref(tensor);
    return FSDP_OK;
}

static fsdp_status ignore_module(void *arg, fsdp_module *module, const char *name)
{
    plan *p = arg;
    node *n = find_node(p, module);

    (void)name;
    if (n)
        n->ignored = true;
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(ignore_parameter(p, *module->parts->parameters[i].slot));
    return FSDP_OK;
}

static fsdp_status ignore(plan *p)
{
    for (int64_t i = 0; i < p->policy->ignored_module_count; i++)
        if (p->policy->ignored_modules[i] == p->nodes[0].module)
            return FSDP_FAIL(FSDP_INVALID, "wrap policy: ignored_modules[%lld] is the root itself", (long long)i);
    for (int64_t i = 0; i < p->policy->ignored_module_count; i++)
        FSDP_TRY(fsdp__module_walk(p->policy->ignored_modules[i], ignore_module, p));
    for (int64_t i = 0; i < p->policy->ignored_param_count; i++)
        FSDP_TRY(ignore_parameter(p, p->policy->ignored_params[i]));
    return FSDP_OK;
}

/* Checks that nothing has been sharded yet, since a policy chooses the units itself. */
static fsdp_status check_not_sharded(const plan *p)
{
    for (int64_t i = 0; i < p->node_count && p->policy->kind != FSDP_WRAP_NONE; i++)
        if (!p->nodes[i].ignored && fsdp__module_state_of(p->nodes[i].module))
            return FSDP_FAIL(FSDP_STATE,
                             "wrap policy: %s '%s' has been sharded already: shard by a policy or by hand, or ignore "
                             "that module",
                             p->nodes[i].module->type->name, p->nodes[i].name);
    return FSDP_OK;
}

/* ---- asking ---- */

static fsdp_status count_parameters(const plan *p, fsdp_module *module, int64_t *out)
{
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};

    *out = 0;
    FSDP_TRY(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (parameters.items[i].tensor && !is_ignored(p, parameters.items[i].tensor))
            *out += fsdp_tensor_numel(parameters.items[i].tensor);
    return FSDP_OK;
}

static bool is_full_precision(const plan *p, const fsdp_module *module)
{
    return fsdp__wrap_is_of_class(module, p->policy->full_precision_classes, p->policy->full_precision_class_count);
}

static bool was_child(const fsdp_module *parent, int64_t index)
{
    for (int64_t i = 0; i < index; i++)
        if (parent->parts->children[i].module == parent->parts->children[index].module)
            return true;
    return false;
}

/* Asks about a module and those below it, and sets n->wrapped. */
static fsdp_status ask(const plan *p, node *n, bool is_root)
{
    const fsdp_module *module = n->module;
    int64_t numel, wrapped = 0;

    n->asked = true;
    FSDP_TRY(count_parameters(p, n->module, &numel));
    if (p->policy->full_precision_class_count == 0 &&
        !fsdp__wrap_policy_decide(p->policy, module, n->name, true, numel))
        return FSDP_OK;
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        node *child = find_node(p, module->parts->children[i].module);

        if (child->ignored || was_child(module, i))
            continue;
        if (!child->asked)
            FSDP_TRY(ask(p, child, false));
        wrapped += child->wrapped;
    }
    n->full_precision = is_full_precision(p, module);
    n->unit =
        !is_root && (n->full_precision || fsdp__wrap_policy_decide(p->policy, module, n->name, false, numel - wrapped));
    n->wrapped = n->unit ? numel : wrapped;
    return FSDP_OK;
}

static fsdp_status copy_options(const plan *p, void **out)
{
    *out = NULL;
    if (!p->options)
        return FSDP_OK;
    FSDP__TRY_NEW(*out = fsdp__malloc(p->option_bytes));
    memcpy(*out, p->options, p->option_bytes);
    return FSDP_OK;
}

/* Asks a CUSTOM policy about each module by itself. */
static fsdp_status ask_each(const plan *p)
{
    for (int64_t i = 1; i < p->node_count; i++) {
        node *n = &p->nodes[i];

        if (n->ignored)
            continue;
        FSDP_TRY(copy_options(p, &n->options));
        FSDP_TRY(p->policy->choose(p->policy->arg, n->module, n->name, n->options, &n->unit));
        n->full_precision = is_full_precision(p, n->module);
        n->unit = n->unit || n->full_precision;
    }
    return FSDP_OK;
}

static fsdp_status choose_units(const plan *p)
{
    if (p->policy->kind == FSDP_WRAP_CUSTOM)
        return ask_each(p);
    return p->policy->kind == FSDP_WRAP_NONE ? FSDP_OK : ask(p, &p->nodes[0], true);
}

/* ---- units ---- */

static fsdp_status add_unit(plan *p, node *n)
{
    fsdp_wrap_units *u = &p->units;
    fsdp_wrap_unit *unit;

    FSDP_TRY(fsdp__grow(&u->items, u->count, &p->item_capacity, sizeof *u->items));
    if (!n->options)
        FSDP_TRY(copy_options(p, &n->options));
    unit = &u->items[u->count++];
    *unit = (fsdp_wrap_unit){
        .name = n->name, .module = n->module, .full_precision = n->full_precision, .options = n->options};
    n->name = NULL; /* the unit owns them now */
    n->options = NULL;
    n->item = u->count;
    return FSDP_OK;
}

static fsdp_status add_units(plan *p)
{
    FSDP_TRY(add_unit(p, &p->nodes[0]));
    for (int64_t i = 1; i < p->node_count; i++)
        if (p->nodes[i].unit)
            FSDP_TRY(add_unit(p, &p->nodes[i]));
    return FSDP_OK;
}

static fsdp_status add_bottom_up(void *arg, fsdp_module *module, const char *name)
{
    plan *p = arg;
    fsdp_wrap_units *u = &p->units;
    int64_t item = find_node(p, module)->item;

    (void)name;
    if (item == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&u->bottom_up, p->ordered, &p->ordered_capacity, sizeof *u->bottom_up));
    u->bottom_up[p->ordered++] = item - 1;
    return FSDP_OK;
}

/* ---- parameters ---- */

typedef struct collection {
    plan *plan;
    fsdp_wrap_unit *unit;
    int64_t capacity;
} collection;

static fsdp_status collect_parameter(collection *c, const char *path, const fsdp__parameter_slot *slot)
{
    fsdp_parameters *list = &c->unit->parameters;
    plan *p = c->plan;
    fsdp_tensor *t = *slot->slot;
    int64_t *taken;
    char *name;

    if (!t || is_ignored(p, t) || fsdp__param_of(t))
        return FSDP_OK;
    FSDP_TRY(fsdp__check_not_gathered(t, "wrap", path, slot->name));
    taken = fsdp__pointer_table_at(&p->taken, t);
    if (!taken || fsdp__grow(&list->items, list->count, &c->capacity, sizeof *list->items))
        return FSDP_NO_MEMORY;
    if (*taken)
        return FSDP_OK;
    FSDP__TRY_NEW(name = fsdp__dotted(path, slot->name));
    list->items[list->count++] = (fsdp_parameter){name, fsdp_tensor_ref(t)};
    *taken = 1;
    c->unit->numel += fsdp_tensor_numel(t);
    return FSDP_OK;
}

/* Returns whether the walk of a unit's parameters goes into the module. */
static bool enters(const collection *c, const fsdp_module *module)
{
    const node *n = find_node(c->plan, module);

    return !n->unit && !n->ignored && n->entered != c->unit && !fsdp__module_state_of(module);
}

static fsdp_status collect(collection *c, fsdp_module *module, const char *path)
{
    find_node(c->plan, module)->entered = c->unit;
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(collect_parameter(c, path, &module->parts->parameters[i]));
    for (int64_t i = 0; i < module->parts->child_count; i++) {
        const fsdp__child_slot *child = &module->parts->children[i];
        fsdp_status status;
        char *below;

        if (!enters(c, child->module))
            continue;
        below = fsdp__dotted(path, child->name);
        status = below ? collect(c, child->module, below) : FSDP_NO_MEMORY;
        fsdp__free(below);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status collect_all(plan *p)
{
    for (int64_t i = 0; i < p->ordered; i++) {
        collection c = {.plan = p, .unit = &p->units.items[p->units.bottom_up[i]]};

        FSDP_TRY(collect(&c, c.unit->module, ""));
    }
    return FSDP_OK;
}

/* ---- the call ---- */

static void release_plan(plan *p)
{
    for (int64_t i = 0; i < p->node_count; i++)
        FSDP__FREE_ALL(p->nodes[i].name, p->nodes[i].options);
    fsdp__free(p->nodes);
    fsdp__pointer_table_release(&p->places);
    fsdp__pointer_table_release(&p->taken);
    fsdp_wrap_units_release(&p->units);
}

fsdp_status fsdp_module_wrap_units(fsdp_module *module, const fsdp_wrap_policy *policy, const void *options,
                                   size_t option_bytes, fsdp_wrap_units *out)
{
    FSDP__SCOPED(release_plan) plan p = {.policy = policy, .options = options, .option_bytes = option_bytes};

    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: the module is null");
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: there is no place for the units");
    FSDP_TRY(fsdp__wrap_policy_check(policy));
    FSDP_TRY(fsdp__module_walk(module, add_node, &p));
    FSDP_TRY(ignore(&p));
    FSDP_TRY(check_not_sharded(&p));
    FSDP_TRY(choose_units(&p));
    FSDP_TRY(add_units(&p));
    FSDP_TRY(fsdp__module_walk_up(module, add_bottom_up, &p));
    FSDP_TRY(collect_all(&p));
    *out = p.units;
    p.units = (fsdp_wrap_units){0};
    return FSDP_OK;
}

void fsdp_wrap_units_release(fsdp_wrap_units *units)
{
    if (!units)
        return;
    for (int64_t i = 0; i < units->count; i++) {
        fsdp__free((char *)(uintptr_t)units->items[i].name);
        fsdp_parameters_release(&units->items[i].parameters);
        fsdp__free(units->items[i].options);
    }
    for (int64_t i = 0; i < units->ignored_count; i++)
        fsdp_tensor_unref(units->ignored[i]);
    FSDP__FREE_ALL(units->items, units->bottom_up, units->ignored);
    *units = (fsdp_wrap_units){0};
}
