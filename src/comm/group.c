/* group.c - process groups: making them by common consent, and the memory they hand out. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "comm/comm.h"
#include "device/device.h"

enum {
    HEADER_BYTES = 64, /* in front of a visible block, so that giving it back needs no memory */
    CALLS_IN_FLIGHT = 2
};

/* What each rank tells the others about the group it wants to be in. */
typedef struct wish {
    uint64_t hash; /* of ranks and name */
    int32_t count;
    int32_t first; /* lowest rank; -1: it cannot say, and will report that */
} wish;

/* ---- life ---- */

fsdp_status fsdp__group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name, fsdp_group **out)
{
    fsdp_group *group = fsdp__calloc(1, sizeof *group);

    if (!group)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&group->mutex, NULL);
    pthread_cond_init(&group->moved, NULL);
    group->comm = comm;
    group->rank = rank;
    group->size = count;
    group->ops = count == 1 ? &fsdp__comm_fake_ops : comm->ops;
    if (group->ops == &fsdp__comm_fake_ops)
        group->transport_group = group;
    group->next = comm->groups;
    comm->groups = group;
    group->name = fsdp__strdup(name);
    group->ranks = fsdp__malloc((size_t)count * sizeof *ranks);
    if (!group->name || !group->ranks) {
        fsdp__group_destroy(group);
        return FSDP_NO_MEMORY;
    }
    memcpy(group->ranks, ranks, (size_t)count * sizeof *ranks);
    *out = group;
    return FSDP_OK;
}

/* Blocks that peers may still read pass to the world's care. The world's own die with the heap, whose pages stay. */
static void hand_over_held(fsdp_group *group)
{
    fsdp_group *world = group->comm->world;

    while (group->held && world && world != group) {
        fsdp__held_block *block = group->held;
        group->held = block->next;
        block->issued = world->issued;
        block->next = world->held;
        world->held = block;
    }
}

void fsdp__group_destroy(fsdp_group *group)
{
    if (!group)
        return;
    fsdp__comm_wait_done(group, group->issued);
    hand_over_held(group);
    for (fsdp_group **link = &group->comm->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    if (group->transport_group)
        group->ops->group_free(group->transport_group);
    pthread_cond_destroy(&group->moved);
    pthread_mutex_destroy(&group->mutex);
    fsdp__free(group->ranks);
    fsdp__free(group->name);
    fsdp__free(group);
}

/* ---- making one by common consent ---- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

static fsdp_status check_ranks(const fsdp_group *world, const int *ranks, int count)
{
    if (!ranks || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "a group needs at least one rank");
    for (int i = 0; i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= world->size || (i > 0 && ranks[i] <= ranks[i - 1]))
            return FSDP_FAIL(FSDP_INVALID, "its ranks must ascend and lie in [0, %d), rank %d does not", world->size,
                             ranks[i]);
    return FSDP_OK;
}

static int position_of(int rank, const int *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

/* Do all the ranks that I list, list the same? (Who is not in a group looks at its first rank.) */
static fsdp_status compare_wishes(const fsdp_group *world, const wish *all, const int *ranks, int count)
{
    const wish *mine = &all[world->rank];
    int members = position_of(world->rank, ranks, count) >= 0 ? count : 1;

    for (int i = 0; i < members; i++)
        if (all[ranks[i]].first >= 0 && (all[ranks[i]].hash != mine->hash || all[ranks[i]].count != mine->count))
            return FSDP_FAIL(FSDP_MISMATCH,
                             "rank %d wants a group of %d ranks from rank %d on, rank %d one of %d from rank %d on, or "
                             "under another name",
                             world->ranks[world->rank], (int)mine->count, (int)mine->first, ranks[i],
                             (int)all[ranks[i]].count, (int)all[ranks[i]].first);
    return FSDP_OK;
}

static fsdp_status exchange_wishes(fsdp_group *world, const int *ranks, int count, const char *name, bool valid,
                                   wish *all)
{
    wish mine = {.hash = 0xcbf29ce484222325u, .count = count, .first = -1};
    fsdp__call call = {
        .name = FSDP__CALL_GROUP_CREATE, .send = &mine, .recv = all, .count = sizeof mine, .dtype = FSDP_U8};

    if (valid) {
        mine.first = ranks[0];
        mine.hash = hash_bytes(hash_bytes(mine.hash, ranks, (size_t)count * sizeof *ranks), name, strlen(name));
    }
    FSDP_TRY(fsdp__comm_issue_host(world, FSDP_OBJECTS, world->ops->all_gather, &call));
    return FSDP_OK;
}

/* This rank's own part; a failure becomes everybody's afterwards. */
static fsdp_status open_group(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                              fsdp_group **out)
{
    fsdp__group_spec spec = {.name = name, .ranks = ranks, .count = count, .rank = rank, .ticket = comm->world->issued};
    fsdp_group *group = NULL;
    fsdp_status st;

    if (rank < 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__group_new(comm, ranks, count, rank, name, &group));
    if (group->ops != &fsdp__comm_fake_ops) {
        st = group->ops->group_open(comm->transport, &spec, &group->transport_group);
        if (st != FSDP_OK) {
            fsdp__group_destroy(group);
            return fsdp_fail_hop(st, __FILE__, __LINE__);
        }
    }
    *out = group;
    return FSDP_OK;
}

fsdp_status fsdp_group_create(fsdp_context *context, const int *ranks, int count, const char *name, fsdp_group **out)
{
    fsdp__comm *comm = fsdp__comm_get(context);
    fsdp_group *world, *group = NULL;
    wish *all;
    fsdp_status st, agreed;

    if (!comm)
        return fsdp_last_status();
    if (!out || !name)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a group: a name and a place for the result are required");
    *out = NULL;
    world = comm->world;
    FSDP_TRY(fsdp__comm_enter(world, FSDP__CALL_GROUP_CREATE));
    all = fsdp__calloc((size_t)world->size, sizeof *all);
    if (!all) {
        fsdp__comm_break(comm, FSDP_NO_MEMORY, fsdp_last_error());
        return FSDP_NO_MEMORY;
    }
    st = check_ranks(world, ranks, count);
    agreed = exchange_wishes(world, ranks, count, name, st == FSDP_OK, all);
    if (agreed == FSDP_OK) {
        if (st == FSDP_OK)
            st = compare_wishes(world, all, ranks, count);
        if (st == FSDP_OK)
            st = open_group(comm, ranks, count, position_of(world->rank, ranks, count), name, &group);
        agreed = fsdp__comm_agree(world, FSDP__CALL_GROUP_CREATE, st);
    }
    fsdp__free(all);
    if (agreed != FSDP_OK) {
        fsdp__group_destroy(group);
        return fsdp_fail_prefix(agreed, "cannot create group '%s'", name);
    }
    if (group && group->ops->group_ready)
        group->ops->group_ready(group->transport_group);
    *out = group;
    return FSDP_OK;
}

void fsdp_group_free(fsdp_group *group)
{
    if (group && group != group->comm->world)
        fsdp__group_destroy(group);
}

/* ---- what it is ---- */

int fsdp_group_rank(const fsdp_group *group)
{
    return group->rank;
}

int fsdp_group_size(const fsdp_group *group)
{
    return group->size;
}

const char *fsdp_group_name(const fsdp_group *group)
{
    return group->name;
}

int fsdp_group_global_rank(const fsdp_group *group, int rank)
{
    return rank >= 0 && rank < group->size ? group->ranks[rank] : -1;
}

fsdp_context *fsdp_group_context(const fsdp_group *group)
{
    return group->comm->context;
}

void fsdp_group_force_copy(fsdp_group *group, bool on)
{
    group->force_copy = on;
}

void fsdp__group_set_label(fsdp_group *group, const char *label)
{
    size_t length = label ? strlen(label) : 0;

    memset(group->label, 0, sizeof group->label); /* labels are compared as bytes */
    if (length < sizeof group->label)
        memcpy(group->label, label ? label : "", length);
    else
        snprintf(group->label, sizeof group->label, "%.*s...", (int)sizeof group->label - 4, label);
}

/* ---- memory that peers see ---- */

bool fsdp_group_can_share(const fsdp_group *group, fsdp_memory_sharing sharing)
{
    (void)sharing;
    return group->size > 1 && group->ops->alloc;
}

/* Whether all peers have left call number `issued` behind: they have when a later one is done here. What has run by
 * itself is known from the program's order; of calls on workers the last few are left in flight and older ones waited
 * for, so that the same program always finds the same blocks free. */
static bool is_released(fsdp_group *group, uint64_t issued)
{
    if (group->known_done > issued)
        return true;
    if (group->issued <= issued + CALLS_IN_FLIGHT)
        return false;
    fsdp__comm_wait_done(group, issued + 1);
    return true;
}

static void release_held(fsdp__comm *comm)
{
    for (fsdp_group *group = comm->groups; group; group = group->next)
        for (fsdp__held_block **link = &group->held; *link;) {
            fsdp__held_block *block = *link;
            if (!is_released(group, block->issued)) {
                link = &block->next;
                continue;
            }
            *link = block->next;
            group->ops->free(comm->transport, block);
        }
}

static fsdp_status alloc_visible(fsdp_group *group, size_t bytes, void **out)
{
    void *block = NULL;

    if (fsdp__fault(FSDP__FAULT_ALLOCATION))
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot allocate %zu bytes that peers see: fault injected", bytes);
    if (bytes > SIZE_MAX - HEADER_BYTES)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot allocate %zu bytes that peers see", bytes);
    release_held(group->comm);
    FSDP_TRY(group->ops->alloc(group->comm->transport, bytes + HEADER_BYTES, &block));
    *out = (char *)block + HEADER_BYTES;
    return FSDP_OK;
}

static fsdp_status alloc_common(fsdp_group *group, size_t bytes, void **out)
{
    fsdp__call call = {.name = FSDP__CALL_GROUP_ALLOC, .bytes = bytes};

    FSDP_TRY(fsdp__comm_enter(group, call.name));
    if (fsdp__fault(FSDP__FAULT_ALLOCATION))
        call.own_status = FSDP_NO_MEMORY;
    release_held(group->comm);
    FSDP_TRY(fsdp__comm_issue_alloc(group, &call, out));
    return FSDP_OK;
}

fsdp_status fsdp_group_alloc(fsdp_group *group, fsdp_memory_sharing sharing, size_t bytes, void **out)
{
    if (!group || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot allocate shared memory: group and out are required");
    *out = NULL;
    if (!fsdp_group_can_share(group, sharing))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "group '%s' of %d ranks (transport '%s') has no memory that peers see",
                         group->name, group->size, group->ops->name);
    FSDP_TRY(sharing == FSDP_MEMORY_COMMON ? alloc_common(group, bytes, out) : alloc_visible(group, bytes, out));
    return FSDP_OK;
}

void fsdp_group_free_memory(fsdp_group *group, fsdp_memory_sharing sharing, void *pointer, size_t bytes)
{
    fsdp__held_block *block;

    (void)bytes;
    if (!pointer)
        return;
    if (sharing == FSDP_MEMORY_COMMON) {
        group->ops->free_common(group->transport_group, pointer);
        return;
    }
    block = (fsdp__held_block *)((char *)pointer - HEADER_BYTES);
    block->issued = group->issued;
    block->next = group->held;
    group->held = block;
}
