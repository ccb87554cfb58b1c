/* process_group_create.c - creates groups, by agreement of all ranks of the world. */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "comm/health/failure.h"
#include "comm/issue.h"
#include "comm/objects.h"
#include "comm/process_group.h"
#include "comm/world.h"

/* Holds what each rank tells the others about the group it asks for. */
typedef struct request {
    uint64_t ranks, name; /* hashes */
    int32_t count;
    int32_t first; /* lowest rank; -1: this rank has bad arguments, and will report that */
} request;

static fsdp_status check_ranks(const fsdp_process_group *world, const int *ranks, int count)
{
    if (!ranks || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "a group needs at least one rank");
    for (int i = 0; i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= world->size || (i > 0 && ranks[i] <= ranks[i - 1]))
            return FSDP_FAIL(FSDP_INVALID, "its ranks must ascend and lie in [0, %d), rank %d does not", world->size,
                             ranks[i]);
    return FSDP_OK;
}

/* Checks that all the ranks in my list have the same list. (A rank that is not in a group checks its first rank.) */
static fsdp_status compare_requests(const fsdp_process_group *world, const request *all, const int *ranks, int count,
                                    const char *name)
{
    const request *mine = &all[world->rank];
    int members = fsdp__position_of(world->rank, ranks, count) >= 0 ? count : 1;

    for (int i = 0; i < members; i++) {
        const request *other = &all[ranks[i]];

        if (other->first < 0)
            continue;
        if (other->ranks != mine->ranks || other->count != mine->count)
            return FSDP_FAIL(FSDP_MISMATCH,
                             "rank %d wants a group of %d ranks from rank %d on, rank %d one of %d from rank %d on%s",
                             world->ranks[world->rank], (int)mine->count, (int)mine->first, ranks[i], (int)other->count,
                             (int)other->first,
                             other->count == mine->count && other->first == mine->first ? " with other ranks" : "");
        if (other->name != mine->name)
            return FSDP_FAIL(FSDP_MISMATCH, "rank %d wants it under the name '%s', rank %d under another",
                             world->ranks[world->rank], name, ranks[i]);
    }
    return FSDP_OK;
}

static fsdp_status exchange_requests(fsdp_process_group *world, const int *ranks, int count, const char *name,
                                     bool valid, request *all)
{
    request mine = {.count = count, .first = -1};
    fsdp__call call = {
        .name = FSDP__CALL_PROCESS_GROUP_CREATE, .send = &mine, .recv = all, .count = sizeof mine, .dtype = FSDP_U8};

    if (valid) {
        mine.first = ranks[0];
        mine.ranks = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, ranks, (size_t)count * sizeof *ranks);
        mine.name = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, name, strlen(name));
    }
    return fsdp__comm_issue_host(world, FSDP_OBJECTS, fsdp__collectives_of(world, NULL)->all_gather, &call);
}

/* Opens the group on this rank; a failure becomes everybody's afterwards. */
static fsdp_status open_group(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                              fsdp_process_group **out)
{
    /* All ranks count the world's calls alike, so this number belongs to no other creation. */
    fsdp__process_group_spec spec = {
        .name = name, .ranks = ranks, .count = count, .rank = rank, .ticket = comm->world->issued};

    return rank < 0 ? FSDP_OK : fsdp__process_group_new(comm, &spec, NULL, out);
}

fsdp_status fsdp_process_group_create(fsdp_context *context, const int *ranks, int count, const char *name,
                                      fsdp_process_group **out)
{
    fsdp__comm *comm = fsdp__comm_get(context);
    fsdp_process_group *world, *group = NULL;
    request *all;
    fsdp_status status, agreed;

    if (!comm)
        return fsdp_last_status();
    if (!out || !name)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a group: a name and a place for the result are required");
    *out = NULL;
    world = comm->world;
    FSDP_TRY(fsdp__comm_enter(world, FSDP__CALL_PROCESS_GROUP_CREATE));
    all = fsdp__calloc((size_t)world->size, sizeof *all);
    if (!all) {
        fsdp__comm_break(comm, FSDP_NO_MEMORY, fsdp_last_error());
        return FSDP_NO_MEMORY;
    }
    /* A rank with bad arguments must still take part, or the others would wait. They are told at the end
     * (fsdp__comm_agree). */
    status = check_ranks(world, ranks, count);
    agreed = exchange_requests(world, ranks, count, name, status == FSDP_OK, all);
    if (agreed == FSDP_OK) {
        if (status == FSDP_OK)
            status = compare_requests(world, all, ranks, count, name);
        if (status == FSDP_OK)
            status = open_group(comm, ranks, count, fsdp__position_of(world->rank, ranks, count), name, &group);
        agreed = fsdp__comm_agree(world, FSDP__CALL_PROCESS_GROUP_CREATE, status);
    }
    fsdp__free(all);
    if (agreed != FSDP_OK) {
        fsdp__process_group_destroy(group);
        return fsdp_fail_prefix(agreed, "cannot create group '%s'", name);
    }
    /* The agreement says that all members have opened the group. */
    if (group && group->ops->group_ready)
        group->ops->group_ready(group->transport_group);
    if (group)
        fsdp__process_group_list(group);
    *out = group;
    return FSDP_OK;
}
