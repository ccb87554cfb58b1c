/* collect.c - collects the units, parameters and parts of a sharded module, and frees an explanation. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "explain/explain.h"
#include "nn/module.h"
#include "shard/state/module_state.h"

/* ---- units ---- */

typedef struct units {
    fsdp_explained_unit *items;
    int64_t count, capacity;
} units;

bool fsdp__explain_is_unit(const fsdp_module *module)
{
    const fsdp__module_state *state = fsdp__module_state_of(module);

    return state && state->modules[0] == module;
}

static fsdp_status add_unit(void *arg, fsdp_module *module, const char *name)
{
    units *all = arg;
    fsdp_explained_unit *u;
    fsdp_shard_info info;

    if (!fsdp__explain_is_unit(module))
        return FSDP_OK;
    FSDP_TRY(fsdp_module_shard_info(module, &info));
    FSDP_TRY(fsdp__grow(&all->items, all->count, &all->capacity, sizeof *all->items));
    u = &all->items[all->count];
    *u = (fsdp_explained_unit){.name = fsdp__strdup(name),
                               .type = fsdp__strdup(module->type->name),
                               .parameter_count = info.parameter_count,
                               .numel = info.numel,
                               .padded_numel = info.padded_numel,
                               .shard_numel = info.shard_numel};
    all->count++;
    return u->name && u->type ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__explain_units(fsdp_explanation *e, fsdp_module *module)
{
    units all = {.count = 0};
    fsdp_status status = fsdp__module_walk(module, add_unit, &all);

    e->units = all.items;
    e->unit_count = all.count;
    return status;
}

/* Finds the unit of a parameter. Several modules of one call are one unit, which has the name of the first. The search
 * begins at `from`, because parameters come nearly in the order of units. */
static int64_t find_unit(const fsdp_explanation *e, const char *names, int64_t from)
{
    size_t length = names ? strcspn(names, ",") : 0;

    for (int64_t i = 0; names && i < e->unit_count; i++) {
        int64_t at = (from + i) % e->unit_count;

        if (strlen(e->units[at].name) == length && memcmp(e->units[at].name, names, length) == 0)
            return at;
    }
    return -1;
}

/* ---- parameters ---- */

static fsdp_status add_parameter(fsdp_explanation *e, const fsdp_shard_map_entry *from, fsdp_explained_parameter *p)
{
    int64_t before = p > e->parameters && p[-1].unit >= 0 ? p[-1].unit : 0;

    *p = (fsdp_explained_parameter){.name = fsdp__strdup(from->name),
                                    .unit = find_unit(e, from->unit, before),
                                    .dtype = from->dtype,
                                    .trained = from->trained,
                                    .ndim = from->ndim,
                                    .numel = from->numel,
                                    .dim = from->dim,
                                    .across = from->across,
                                    .box_count = FSDP__MAX(from->piece_most, 1),
                                    .parts = fsdp__calloc((size_t)e->part_count, sizeof *p->parts)};
    if (p->box_count > 1)
        FSDP__TRY_NEW(p->boxes = fsdp__calloc((size_t)(e->part_count * p->box_count), sizeof *p->boxes));
    memcpy(p->shape, from->shape, sizeof p->shape);
    e->numel += p->numel;
    e->model_numel += p->numel;
    e->trained_numel += p->trained ? p->numel : 0;
    if (from->door != FSDP_DOOR_NONE)
        e->replicas = from->replicas;
    return p->name && p->parts ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__explain_parameters(fsdp_explanation *e, fsdp_module *module)
{
    fsdp_explained_parameter *items;
    FSDP__SCOPED(fsdp_shard_map_release) fsdp_shard_map map = {0};

    FSDP_TRY(fsdp_module_shard_map(module, &map));
    items = fsdp__calloc((size_t)map.count + 1, sizeof *items);
    e->parameters = items;
    FSDP__TRY_NEW(items);
    for (int64_t i = 0; i < map.count; i++) {
        e->parameter_count = i + 1;
        FSDP_TRY(add_parameter(e, &map.items[i], &items[i]));
    }
    return FSDP_OK;
}

static fsdp_explained_box box_of(const fsdp_explained_parameter *p, const fsdp_piece *piece)
{
    bool cut = p->across >= 0;

    return (fsdp_explained_box){piece->offset[p->dim], piece->size[p->dim], cut ? piece->offset[p->across] : 0,
                                cut ? piece->size[p->across] : 0};
}

static void set_part(const fsdp_explained_parameter *p, int index, const fsdp_shard_map_entry *from)
{
    fsdp_explained_part *part = &((fsdp_explained_part *)(uintptr_t)p->parts)[index];
    fsdp_explained_box *boxes = (fsdp_explained_box *)(uintptr_t)p->boxes;
    fsdp_explained_box first = {0};

    if (from->piece_count > 0)
        first = box_of(p, &from->pieces[0]);
    *part = (fsdp_explained_part){from->first, from->count, from->local_numel, first.across_first, first.across_count};
    for (int i = 0; boxes && i < FSDP__MIN(from->piece_count, p->box_count); i++)
        boxes[index * p->box_count + i] = box_of(p, &from->pieces[i]);
}

fsdp_status fsdp__explain_parts(fsdp_explanation *e, fsdp_module *module, int rank)
{
    int index = rank - e->first_part;
    FSDP__SCOPED(fsdp_shard_map_release) fsdp_shard_map map = {0};
    bool same;

    if (index < 0 || index >= e->part_count)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_shard_map(module, &map));
    same = map.count == e->parameter_count;
    for (int64_t i = 0; same && i < map.count; i++)
        set_part(&e->parameters[i], index, &map.items[i]);
    return same ? FSDP_OK
                : FSDP_FAIL(FSDP_INVALID,
                            "rank %d has other parameters than rank 0: a model that is explained must be built alike "
                            "on all ranks",
                            rank);
}

fsdp_status fsdp__explain_tree(fsdp_explanation *e, fsdp_module *module)
{
    char *text;
    size_t bytes;
    FILE *stream = fsdp__begin_text(&text, &bytes);
    fsdp_status status = stream ? fsdp_module_print(module, stream) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(stream));
    e->tree = text;
    return status;
}

/* ---- giving it back ---- */

static void free_text(const char *text)
{
    fsdp__free((char *)(uintptr_t)text);
}

static void free_units(fsdp_explanation *e)
{
    for (int64_t i = 0; i < e->unit_count; i++) {
        free_text(e->units[i].name);
        free_text(e->units[i].type);
        fsdp__free((fsdp_explained_life *)(uintptr_t)e->units[i].lives);
    }
    fsdp__free((fsdp_explained_unit *)(uintptr_t)e->units);
}

static void free_parameters(fsdp_explanation *e)
{
    for (int64_t i = 0; i < e->parameter_count; i++) {
        free_text(e->parameters[i].name);
        FSDP__FREE_ALL(e->parameters[i].parts, e->parameters[i].boxes);
    }
    fsdp__free((fsdp_explained_parameter *)(uintptr_t)e->parameters);
}

void fsdp_explanation_free(fsdp_explanation *e)
{
    if (!e)
        return;
    free_units(e);
    free_parameters(e);
    for (int64_t i = 0; i < e->variant_count; i++)
        free_text(e->variants[i].policy);
    FSDP__FREE_ALL(e->variants, e->events);
    free_text(e->model);
    free_text(e->strategy);
    free_text(e->policy);
    free_text(e->tree);
    fsdp__free(e);
}
