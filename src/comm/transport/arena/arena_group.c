/* arena_group.c - gives groups their places in the arena. */
#include "comm/transport/arena/arena_group.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/arena/arena_readers.h"
#include "comm/transport/arena/slot.h"
#include "comm/transport/order.h"

enum {
    WORLD_INDEX = 0,
    WORLD_KEY = 1
};

static fsdp_status group_new(fsdp__arena_view *world, const fsdp__process_group_spec *spec, fsdp__arena_group **out)
{
    fsdp__arena_group *group = fsdp__calloc(1, sizeof *group);
    size_t count = (size_t)spec->count;

    FSDP__TRY_NEW(group);
    group->world = world;
    group->index = -1;
    group->rank = spec->rank;
    group->size = spec->count;
    group->name = fsdp__strdup(spec->name);
    group->ranks = fsdp__malloc(count * sizeof *group->ranks);
    group->sources = fsdp__calloc(count, sizeof *group->sources);
    group->operands = fsdp__calloc(count, sizeof *group->operands);
    if (!group->name || !group->ranks || !group->sources || !group->operands) {
        fsdp__arena_group_free(group);
        return FSDP_NO_MEMORY;
    }
    for (int r = 0; r < group->size; r++)
        group->ranks[r] = spec->ranks ? spec->ranks[r] : r;
    group->block = fsdp__order_block(group->ranks, group->size, world->machine_ranks);
    *out = group;
    return FSDP_OK;
}

static void bind(fsdp__arena_group *group, int index)
{
    const fsdp__doing none = {.sequence = 0};

    group->index = index;
    group->place = fsdp__group_at(group->world->arena->board, index);
    group->desk = fsdp__desk_at(group->world->arena->board, index, group->world->rank);
    group->slot = fsdp__slot_at(group->world->arena, index, group->world->rank);
    /* The place may have belonged to another group. */
    atomic_store(&group->desk->issued, 0);
    atomic_store(&group->desk->done, 0);
    fsdp__cell_write(group->desk->doing, &none, sizeof none);
}

/* Writes the group's members, for those who look from outside. */
static void describe(const fsdp__arena_group *group)
{
    fsdp__rank_set set = {{0}};

    for (int r = 0; r < group->size; r++)
        fsdp__rank_set_add(&set, group->ranks[r]);
    for (size_t i = 0; i < FSDP__COUNT_OF(set.bits); i++)
        atomic_store(&group->place->ranks[i], set.bits[i]);
}

fsdp_status fsdp__arena_group_world(fsdp__arena_view *view, fsdp__arena_group **out)
{
    fsdp__process_group_spec spec = {.name = "world", .count = view->arena->board->world, .rank = view->rank};

    FSDP_TRY(group_new(view, &spec, out));
    bind(*out, WORLD_INDEX);
    describe(*out);
    /* Every rank writes the same values, whichever comes first. */
    atomic_store(&(*out)->place->key, WORLD_KEY);
    atomic_store(&(*out)->place->members, INT32_MAX); /* never freed */
    return FSDP_OK;
}

/* Takes a free place, as the group's first rank, and writes a key on it that the other members look for. */
static fsdp_status claim(fsdp__arena_group *group)
{
    fsdp__board *board = group->world->arena->board;

    for (int i = WORLD_INDEX + 1; i < FSDP__BOARD_GROUPS; i++) {
        fsdp__board_group *shared = fsdp__group_at(board, i);
        uint64_t unused = 0;

        if (!atomic_compare_exchange_strong(&shared->key, &unused, group->key))
            continue;
        atomic_store(&shared->members, group->size);
        bind(group, i);
        describe(group);
        group->claimed = true;
        return FSDP_OK;
    }
    return FSDP_FAIL(FSDP_UNSUPPORTED, "%d process groups are alive, and there can be no more: free some",
                     FSDP__BOARD_GROUPS);
}

fsdp_status fsdp__arena_group_open(void *transport, const fsdp__process_group_spec *spec, void **out)
{
    fsdp__arena_group *group = NULL;
    fsdp_status status;

    FSDP_TRY(group_new(transport, spec, &group));
    /* Groups with the same ticket have no rank in common, so their first ranks tell them apart. */
    group->key = (spec->ticket << 16) | (uint64_t)(group->ranks[0] + 1);
    if (group->rank == 0) {
        status = claim(group);
        if (status != FSDP_OK) {
            fsdp__arena_group_free(group);
            return fsdp_fail_hop(status, __FILE__, __LINE__);
        }
    }
    *out = group;
    return FSDP_OK;
}

/* Binds the group to its place. All members have opened it, so the place is marked. */
void fsdp__arena_group_ready(void *g)
{
    fsdp__arena_group *group = g;
    fsdp__board *board = group->world->arena->board;

    for (int i = WORLD_INDEX + 1; group->index < 0 && i < FSDP__BOARD_GROUPS; i++)
        if (atomic_load(&fsdp__group_at(board, i)->key) == group->key)
            bind(group, i);
    group->claimed = false; /* from now on every member counts */
}

/* Hands the shared memory that the group has not taken back yet (arena_memory.c) to the world, which takes it back. */
static void hand_over(fsdp__arena_group *group)
{
    while (group->freed) {
        fsdp__shared_header *header = group->freed;

        group->freed = header->next;
        header->next = group->world->freed;
        group->world->freed = header;
    }
}

void fsdp__arena_group_free(void *g)
{
    fsdp__arena_group *group = g;

    hand_over(group);
    /* If it is claimed and not ready, no other member has found the place, and none will count itself out. */
    if (group->place && (group->claimed || atomic_fetch_sub(&group->place->members, 1) == 1))
        atomic_store(&group->place->key, 0);
    FSDP__FREE_ALL(group->operands, group->sources, group->ranks, group->name, group);
}

int fsdp__arena_block(const void *group)
{
    return ((const fsdp__arena_group *)group)->block;
}

void fsdp__arena_add_by_machine(void *transport, void *world_group, int ranks)
{
    fsdp__arena_view *view = transport;
    fsdp__arena_group *world = world_group;

    view->machine_ranks = ranks;
    world->block = fsdp__order_block(world->ranks, world->size, ranks);
}
