/* shard_map.c - lists each parameter's unit, and this rank's part of it. */
#include "fsdp/shard_map.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/pointer_table.h"
#include "dist/dist.h"
#include "shard/reduce/owner.h"
#include "shard/state/module_state.h"

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

/* Returns a dimension other than `dim` that the placements cut; -1: there is none. */
static int across(const fsdp_distribution *d, int dim)
{
    for (int i = 0; i < d->placement_count; i++)
        if (d->placements[i].kind == FSDP_SHARD && d->placements[i].dim != dim)
            return d->placements[i].dim;
    return -1;
}

/* Describes this rank's boxes, in dimension e->dim too. */
static void set_pieces(fsdp_shard_map_entry *e, const fsdp_distribution *d)
{
    e->piece_count = fsdp_distribution_pieces(d, d->mesh->coordinate, e->pieces);
    e->across = across(d, e->dim);
    e->piece_most = 1;
    for (int i = 0; i < d->placement_count; i++)
        if (d->placements[i].kind == FSDP_SHARD)
            e->piece_most = FSDP__MAX(e->piece_most, d->placements[i].segment_count);
    e->first = e->piece_count > 0 ? e->pieces[0].offset[e->dim] : e->shape[e->dim];
    e->count = 0;
    for (int i = 0; i < e->piece_count; i++)
        e->count += e->across >= 0 && i > 0 && e->pieces[i].offset[e->dim] == e->first ? 0 : e->pieces[i].size[e->dim];
}

/* Describes a parameter that no front door has taken: all of it, as it is, or its part of a team's. */
static void set_plain(fsdp_shard_map_entry *e, const fsdp_tensor *t)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(t);

    set_shape(e, d ? d->ndim : fsdp_tensor_ndim(t), d ? d->global_shape : fsdp_tensor_shape(t));
    e->local_numel = fsdp_tensor_numel(t);
    e->ranks = e->replicas = 1;
    e->count = e->ndim > 0 ? e->shape[0] : 1;
    e->in_flat = e->across = -1;
    if (d && e->ndim > 0)
        set_pieces(e, d);
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
    e->in_flat = e->across = -1;
    if (!fsdp_distribution_is_flat(whole) && e->ndim > 0) {
        set_pieces(e, whole);
        return;
    }
    e->count = fsdp_shard_range(p->extent.rows, mesh->ranks, mesh->rank, &e->first);
    if (!fsdp_distribution_is_flat(whole))
        return;
    e->dim = -1;
    e->first = p->part.at;
    e->count = p->part.inner;
    e->in_flat = e->count > 0 ? p->part.in_shard : -1;
    e->flat_numel = group->vector.chunk_numel;
}

/* ---- all of them ---- */

typedef struct collection {
    fsdp_shard_map map;
    int64_t capacity;
    fsdp__pointer_table seen;  /* parameters: the engine's params, or plain tensors */
    fsdp__pointer_table units; /* states: 1 + the index of the state's name */
    char **names;              /* names of all modules of a state, separated by commas */
    int64_t name_count, name_capacity;
} collection;

static fsdp_status name_unit(void *arg, fsdp_module *module, const char *name)
{
    collection *c = arg;
    const fsdp__module_state *state = fsdp__module_state_of(module);
    int64_t *number = state ? fsdp__pointer_table_at(&c->units, state) : NULL;
    char **place, *text;

    if (!number)
        return state ? FSDP_NO_MEMORY : FSDP_OK;
    FSDP_TRY(fsdp__grow(&c->names, c->name_count, &c->name_capacity, sizeof *c->names));
    place = &c->names[*number ? *number - 1 : c->name_count];
    FSDP__TRY_NEW(text = *number ? fsdp__sprintf("%s,%s", *place, name) : fsdp__strdup(name));
    if (*number)
        fsdp__free(*place);
    else
        *number = ++c->name_count;
    *place = text;
    return FSDP_OK;
}

/* Sets the entry's unit; NULL if the state has no module at or below the root. */
static fsdp_status set_unit(const collection *c, const fsdp__module_state *state, fsdp_shard_map_entry *e)
{
    int64_t number = fsdp__pointer_table_find(&c->units, state);

    e->unit = number ? fsdp__strdup(c->names[number - 1]) : NULL;
    return number && !e->unit ? FSDP_NO_MEMORY : FSDP_OK;
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
    e->door = p->group->state->door->kind;
    set_managed(e, p);
    return set_unit(c, p->group->state, e);
}

static fsdp_status add(collection *c, const char *path, const fsdp__parameter_slot *slot)
{
    const fsdp_tensor *t = *slot->slot;
    const void *key = t ? fsdp__param_of(t) : NULL;
    fsdp_shard_map_entry *e;
    int64_t *mark;

    if (!t)
        return FSDP_OK;
    mark = fsdp__pointer_table_at(&c->seen, key ? key : t);
    if (!mark || fsdp__grow(&c->map.items, c->map.count, &c->capacity, sizeof *c->map.items))
        return FSDP_NO_MEMORY;
    if (*mark)
        return FSDP_OK;
    *mark = 1;
    e = &c->map.items[c->map.count++];
    *e = (fsdp_shard_map_entry){.name = fsdp__dotted(path, slot->name)};
    return e->name ? fill(c, t, e) : FSDP_NO_MEMORY;
}

/* Collects the parameters of a module. fsdp_module_parameters would not do: it lists flat parameters as such. */
static fsdp_status collect(void *arg, fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(add(arg, name, &module->parts->parameters[i]));
    return FSDP_OK;
}

static void release(collection *c)
{
    for (int64_t i = 0; i < c->name_count; i++)
        fsdp__free(c->names[i]);
    fsdp__free(c->names);
    fsdp__pointer_table_release(&c->units);
    fsdp__pointer_table_release(&c->seen);
    fsdp_shard_map_release(&c->map);
}

fsdp_status fsdp_module_shard_map(fsdp_module *module, fsdp_shard_map *out)
{
    FSDP__SCOPED(release) collection c = {.capacity = 0};

    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "shard map: the module is null");
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "shard map: there is no place for it");
    FSDP_TRY(fsdp__module_walk(module, name_unit, &c));
    FSDP_TRY(fsdp__module_walk(module, collect, &c));
    *out = c.map;
    c.map = (fsdp_shard_map){0};
    return FSDP_OK;
}

void fsdp_shard_map_release(fsdp_shard_map *map)
{
    if (!map)
        return;
    for (int64_t i = 0; i < map->count; i++)
        FSDP__FREE_ALL(map->items[i].name, map->items[i].unit);
    fsdp__free(map->items);
    *map = (fsdp_shard_map){0};
}
