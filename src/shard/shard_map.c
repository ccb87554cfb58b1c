/* shard_map.c - of every parameter its unit, and this rank's part. */
#include "fsdp/shard_map.h"

#include <string.h>

#include "base/alloc.h"
#include "shard/describe.h"
#include "shard/gradients.h"

/* ---- names of units ---- */

typedef struct search {
    const fsdp__module_state *state;
    char *names; /* with commas between; NULL: none yet */
} search;

static fsdp_status add_name(void *arg, fsdp_module *module, const char *name)
{
    search *s = arg;
    char *names;

    if (fsdp__module_state_of(module) != s->state)
        return FSDP_OK;
    names = s->names ? fsdp__sprintf("%s,%s", s->names, name) : fsdp__strdup(name);
    if (!names)
        return FSDP_NO_MEMORY;
    fsdp__free(s->names);
    s->names = names;
    return FSDP_OK;
}

/* Of the state's modules that are below `root`; NULL: none is. */
static fsdp_status name_unit(fsdp_module *root, const fsdp__module_state *state, char **out)
{
    search s = {.state = state};
    fsdp_status status = fsdp__module_walk(root, add_name, &s);

    if (status != FSDP_OK)
        fsdp__free(s.names);
    *out = status == FSDP_OK ? s.names : NULL;
    return status;
}

/* ---- parts ---- */

static void set_shape(fsdp_shard_map_entry *e, int ndim, const int64_t *shape)
{
    e->ndim = ndim;
    e->numel = 1;
    for (int d = 0; d < ndim; d++) {
        e->shape[d] = shape[d];
        e->numel *= shape[d];
    }
}

/* Nobody's: all of it, as it is. */
static void set_plain(fsdp_shard_map_entry *e, const fsdp_tensor *t)
{
    set_shape(e, fsdp_tensor_ndim(t), fsdp_tensor_shape(t));
    e->local_numel = e->numel;
    e->ranks = e->replicas = 1;
    e->count = e->ndim > 0 ? e->shape[0] : 1;
    e->in_flat = -1;
}

static void set_managed(fsdp_shard_map_entry *e, const fsdp__param *p)
{
    const fsdp__param_group *group = p->group;
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp_distribution *whole = fsdp_tensor_distribution(p->sharded);

    set_shape(e, whole->ndim, whole->global_shape);
    e->local_numel = fsdp__param_shard_numel(p);
    e->ranks = mesh->ranks;
    e->rank = mesh->rank;
    e->replicas = mesh->replicas;
    e->dim = p->dim;
    e->in_flat = -1;
    e->count = fsdp_shard_range(p->extent.rows, mesh->ranks, mesh->rank, &e->first);
    if (!group->flat.on)
        return;
    e->dim = -1;
    e->first = p->piece.at;
    e->count = p->piece.inner;
    e->in_flat = e->count > 0 ? p->piece.in_shard : -1;
    e->flat_numel = group->flat.shard_numel;
}

/* ---- all of them ---- */

typedef struct collection {
    fsdp_module *root;
    fsdp_shard_map map;
    int64_t capacity;
    const void **seen; /* parameters: the engine's, or plain tensors */
    int64_t seen_capacity;
    const fsdp__module_state *state; /* of the entry before, with its unit: mostly it is the next one's */
    const char *unit;
} collection;

static fsdp_status set_unit(collection *c, const fsdp__module_state *state, fsdp_shard_map_entry *e)
{
    char *unit = NULL;

    if (state != c->state) {
        FSDP_TRY(name_unit(c->root, state, &unit));
    } else if (c->unit) {
        unit = fsdp__strdup(c->unit);
        if (!unit)
            return FSDP_NO_MEMORY;
    }
    c->state = state;
    c->unit = e->unit = unit;
    return FSDP_OK;
}

static fsdp_status fill(collection *c, const fsdp_tensor *t, fsdp_shard_map_entry *e)
{
    const fsdp__param *p = fsdp__param_of(t);

    e->dtype = p ? p->orig_dtype : fsdp_tensor_dtype(t);
    e->trained = fsdp_tensor_requires_grad(p ? p->sharded : t);
    if (!p) {
        set_plain(e, t);
        return FSDP_OK;
    }
    e->door = fsdp__door_of(p->group->state);
    set_managed(e, p);
    return set_unit(c, p->group->state, e);
}

static fsdp_status add(collection *c, const char *path, const fsdp__parameter_slot *slot)
{
    const fsdp_tensor *t = *slot->slot;
    const void *key = t ? fsdp__param_of(t) : NULL;
    fsdp_shard_map_entry *e;

    key = key ? key : t;
    for (int64_t i = 0; i < c->map.count; i++)
        if (c->seen[i] == key)
            return FSDP_OK;
    if (!t)
        return FSDP_OK;
    if (fsdp__grow(&c->map.items, c->map.count, &c->capacity, sizeof *c->map.items) ||
        fsdp__grow(&c->seen, c->map.count, &c->seen_capacity, sizeof(void *)))
        return FSDP_NO_MEMORY;
    c->seen[c->map.count] = key;
    e = &c->map.items[c->map.count++];
    *e = (fsdp_shard_map_entry){.name = fsdp__sprintf("%s%s%s", path, *path ? "." : "", slot->name)};
    return e->name ? fill(c, t, e) : FSDP_NO_MEMORY;
}

/* Not fsdp_module_parameters, which has flat parameters as such. */
static fsdp_status collect(void *arg, fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(add(arg, name, &module->parts->parameters[i]));
    return FSDP_OK;
}

fsdp_status fsdp_module_shard_map(fsdp_module *module, fsdp_shard_map *out)
{
    collection c = {.root = module};
    fsdp_status status;

    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "shard map: the module is null");
    status = fsdp__module_walk(module, collect, &c);
    fsdp__free(c.seen);
    if (status == FSDP_OK)
        *out = c.map;
    else
        fsdp_shard_map_release(&c.map);
    return status;
}

void fsdp_shard_map_release(fsdp_shard_map *map)
{
    if (!map)
        return;
    for (int64_t i = 0; i < map->count; i++) {
        fsdp__free((char *)(uintptr_t)map->items[i].name);
        fsdp__free((char *)(uintptr_t)map->items[i].unit);
    }
    fsdp__free(map->items);
    *map = (fsdp_shard_map){0};
}
