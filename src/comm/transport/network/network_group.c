/* network_group.c - decides which way the bytes of a group go. */
#include "comm/transport/network/network_group.h"

#include "base/alloc.h"
#include "comm/transport/network/shape.h"
#include "comm/transport/network/tags.h"

static fsdp_status fill_column(fsdp__network_group *group)
{
    FSDP__TRY_NEW(group->column = fsdp__malloc((size_t)group->columns * sizeof *group->column));
    for (int p = 0; p < group->columns; p++)
        group->column[p] = group->ranks[fsdp__network_member(group, p, group->local_rank)];
    return FSDP_OK;
}

static fsdp_status group_new(fsdp__network_view *world, const fsdp__process_group_spec *spec, fsdp__network_group **out)
{
    fsdp__network_group *group = fsdp__calloc(1, sizeof *group);
    fsdp__group_shape s;

    FSDP__TRY_NEW(group);
    *out = group; /* the caller frees it, even when this fails */
    group->world = world;
    group->rank = spec->rank;
    group->size = spec->count;
    group->tag = fsdp__tag_base(spec->ticket);
    group->name = fsdp__strdup(spec->name);
    group->ranks = fsdp__malloc((size_t)spec->count * sizeof *group->ranks);
    FSDP__TRY_NEW(group->name && group->ranks);
    for (int r = 0; r < group->size; r++)
        group->ranks[r] = spec->ranks ? spec->ranks[r] : r;
    s = fsdp__group_shape_of(group->ranks, group->size, group->rank, world->link.places.machine_ranks,
                             world->one_level);
    group->flat = s.flat;
    group->machines = s.machines;
    group->locals = s.locals;
    group->local_rank = s.local_rank;
    group->columns = s.columns;
    group->place = s.place;
    group->block = s.block;
    group->rounds = s.rounds;
    return fill_column(group);
}

static void list(fsdp__network_group *group)
{
    group->next = group->world->groups;
    group->world->groups = group;
}

fsdp_status fsdp__network_group_world(fsdp__network_view *machines, fsdp__arena_group *local, fsdp__network_group **out)
{
    const fsdp__places *places = &machines->link.places;
    fsdp__process_group_spec spec = {.name = "world", .count = places->ranks, .rank = places->rank};
    fsdp_status status;

    *out = NULL;
    status = group_new(machines, &spec, out);
    if (status != FSDP_OK) {
        if (*out)
            fsdp__network_group_free(fsdp__take(out));
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    if (machines->one_level)
        fsdp__arena_group_free(local);
    else
        (*out)->local = local;
    list(*out);
    return FSDP_OK;
}

/* Refuses a tag that is in use: two groups with one tag would get each other's messages. Tickets come round again after
 * a million calls of the world. */
static fsdp_status check_tag(const fsdp__network_group *group)
{
    for (const fsdp__network_group *other = group->world->groups; other; other = other->next)
        if (other->tag == group->tag)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "its messages cannot be told from those of group '%s': free that first",
                             other->name);
    return FSDP_OK;
}

fsdp_status fsdp__network_open_local(fsdp__network_group *group, const fsdp__process_group_spec *spec)
{
    const fsdp__places *places = &group->world->link.places;
    int *ranks = fsdp__malloc((size_t)group->locals * sizeof *ranks);
    fsdp__process_group_spec local = {
        .name = spec->name, .ranks = ranks, .count = group->locals, .rank = group->local_rank, .ticket = spec->ticket};
    void *opened = NULL;
    fsdp_status status;

    FSDP__TRY_NEW(ranks);
    for (int j = 0; j < group->locals; j++)
        ranks[j] = group->ranks[fsdp__network_member(group, group->place, j)] % places->machine_ranks;
    status = fsdp__arena_group_open(group->world->local, &local, &opened);
    fsdp__free(ranks);
    group->local = opened;
    if (group->local)
        group->local->tag = group->tag;
    return status;
}

fsdp_status fsdp__network_group_open(void *transport, const fsdp__process_group_spec *spec, void **out)
{
    fsdp__network_view *machines = transport;
    fsdp__network_group *group = NULL;
    fsdp_status status = group_new(machines, spec, &group);

    if (status == FSDP_OK)
        status = check_tag(group);
    if (status == FSDP_OK && !group->flat)
        status = machines->acts->open_local(group, spec);
    if (status != FSDP_OK) {
        if (group)
            fsdp__network_group_free(group);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    list(group);
    *out = group;
    return FSDP_OK;
}

void fsdp__network_group_ready(void *g)
{
    fsdp__network_group *group = g;

    if (group->local)
        fsdp__arena_group_ready(group->local);
}

void fsdp__network_group_free(void *g)
{
    fsdp__network_group *group = g;

    for (fsdp__network_group **link = &group->world->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    if (group->local)
        fsdp__arena_group_free(group->local);
    FSDP__FREE_ALL(group->scratch, group->messages, group->column, group->ranks, group->name, group);
}

void *fsdp__network_scratch(fsdp__network_group *group, size_t bytes)
{
    if (bytes > group->scratch_bytes) {
        fsdp__free(group->scratch);
        group->scratch = group->world->acts->take(bytes);
        group->scratch_bytes = group->scratch ? bytes : 0;
    }
    return group->scratch;
}
