/* objects.c - exchanges small objects between hosts, on top of any transport's plain collectives. */
#include "comm/objects.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "comm/counters.h"
#include "comm/health/failure.h"
#include "comm/issue.h"
#include "device/device.h"

enum {
    SMALL_OBJECT = 1024 /* up to this size all objects travel padded, in one gather */
};

/* Breaks the world when this rank alone has no memory, since peers would wait for it. */
static fsdp_status give_up(fsdp_process_group *group)
{
    fsdp__comm_break(group->comm, FSDP_NO_MEMORY, fsdp_last_error());
    return fsdp_fail_hop(FSDP_NO_MEMORY, __FILE__, __LINE__);
}

static fsdp_status gather_bytes(fsdp_process_group *group, fsdp__call_name name, const void *send, void *recv,
                                size_t bytes)
{
    fsdp__call call = {.name = name, .send = send, .recv = recv, .count = (int64_t)bytes, .dtype = FSDP_U8};

    return fsdp__comm_issue_host(group, FSDP_OBJECTS, fsdp__collectives_of(group, NULL)->all_gather, &call);
}

static fsdp_status broadcast_bytes(fsdp_process_group *group, fsdp__call_name name, void *buffer, size_t bytes,
                                   int root)
{
    fsdp__call call = {
        .name = name, .send = buffer, .recv = buffer, .count = (int64_t)bytes, .dtype = FSDP_U8, .root = root};

    return fsdp__comm_issue_host(group, FSDP_OBJECTS, fsdp__collectives_of(group, NULL)->broadcast, &call);
}

/* ---- gather ---- */

static fsdp_status gather_small(fsdp_process_group *group, const void *object, size_t largest, void **objects,
                                const size_t *bytes)
{
    FSDP__FREED unsigned char *all = fsdp__calloc((size_t)group->size + 1, largest);
    unsigned char *mine;

    if (!all)
        return give_up(group);
    mine = all + (size_t)group->size * largest;
    if (bytes[group->rank])
        memcpy(mine, object, bytes[group->rank]);
    FSDP_TRY(gather_bytes(group, FSDP__CALL_GATHER_OBJECTS, mine, all, largest));
    for (int r = 0; r < group->size; r++)
        memcpy(objects[r], all + (size_t)r * largest, bytes[r]);
    return FSDP_OK;
}

static fsdp_status gather_large(fsdp_process_group *group, const void *object, void **objects, const size_t *bytes)
{
    if (bytes[group->rank])
        memcpy(objects[group->rank], object, bytes[group->rank]);
    for (int r = 0; r < group->size; r++)
        if (bytes[r])
            FSDP_TRY(broadcast_bytes(group, FSDP__CALL_GATHER_OBJECTS, objects[r], bytes[r], r));
    return FSDP_OK;
}

fsdp_status fsdp_gather_objects(fsdp_process_group *group, const void *object, size_t bytes, void ***out,
                                size_t **out_bytes)
{
    uint64_t own = bytes;
    size_t *sizes, largest = 0;
    fsdp_status status;
    void **objects;

    FSDP_TRY(fsdp__comm_enter(group, FSDP__CALL_GATHER_OBJECTS));
    if (!out || !out_bytes || (bytes && !object))
        return FSDP_FAIL(FSDP_INVALID, "cannot gather_objects in group '%s': an argument is NULL", group->name);
    sizes = fsdp__calloc((size_t)group->size, sizeof *sizes);
    objects = fsdp__calloc((size_t)group->size, sizeof *objects);
    FSDP_TRY_GOTO(status, sizes && objects ? FSDP_OK : give_up(group), out);
    fsdp__comm_count(group, FSDP_OBJECTS, (group->size - 1) * (int64_t)bytes);
    FSDP_TRY_GOTO(status, gather_bytes(group, FSDP__CALL_GATHER_OBJECTS, &own, sizes, sizeof own), out);
    for (int r = 0; r < group->size; r++) {
        largest = sizes[r] > largest ? sizes[r] : largest;
        objects[r] = fsdp__malloc(sizes[r]);
        FSDP_TRY_GOTO(status, objects[r] ? FSDP_OK : give_up(group), out);
    }
    /* All know all sizes now, so all take the same path. In a fake world a gather delivers something, a broadcast does
     * not. */
    if (largest > 0)
        FSDP_TRY_GOTO(status,
                      largest <= SMALL_OBJECT || group->ops == &fsdp__comm_fake_ops
                          ? gather_small(group, object, largest, objects, sizes)
                          : gather_large(group, object, objects, sizes),
                      out);
    *out = objects;
    *out_bytes = sizes;
    return FSDP_OK;
out:
    fsdp_objects_free(group, objects, sizes);
    return status;
}

void fsdp_objects_free(fsdp_process_group *group, void **objects, size_t *bytes)
{
    for (int r = 0; objects && r < fsdp_process_group_size(group); r++)
        fsdp__free(objects[r]);
    FSDP__FREE_ALL(objects, bytes);
}

fsdp_status fsdp__gather(fsdp_process_group *group, const void *object, size_t bytes, fsdp__gathered *out)
{
    out->group = group;
    return fsdp_gather_objects(group, object, bytes, &out->objects, &out->bytes);
}

void fsdp__gathered_release(const fsdp__gathered *all)
{
    fsdp_objects_free(all->group, all->objects, all->bytes);
}

/* ---- scatter ---- */

/* Broadcasts each rank's object by itself: only the rank that it is for keeps it, the others discard it. */
static fsdp_status send_objects(fsdp_process_group *group, int root, const void *const *objects, const uint64_t *sizes,
                                unsigned char *mine, unsigned char *passing)
{
    bool is_root = group->rank == root;

    for (int r = 0; r < group->size; r++) {
        if (r == root || sizes[r] == 0)
            continue;
        if (is_root)
            memcpy(passing, objects[r], (size_t)sizes[r]);
        FSDP_TRY(broadcast_bytes(group, FSDP__CALL_SCATTER_OBJECTS, r == group->rank ? mine : passing, (size_t)sizes[r],
                                 root));
    }
    return FSDP_OK;
}

fsdp_status fsdp_scatter_objects(fsdp_process_group *group, int root, const void *const *objects, const size_t *bytes,
                                 void **out, size_t *out_bytes)
{
    bool is_root;
    FSDP__FREED uint64_t *sizes = NULL;
    size_t largest = 0, total = 0;
    FSDP__FREED unsigned char *passing = NULL, *object = NULL;

    FSDP_TRY(fsdp__comm_enter(group, FSDP__CALL_SCATTER_OBJECTS));
    is_root = group->rank == root;
    if (!out || !out_bytes || root < 0 || root >= group->size || (is_root && (!objects || !bytes)))
        return FSDP_FAIL(FSDP_INVALID, "cannot scatter_objects in group '%s' from rank %d: bad arguments", group->name,
                         root);
    sizes = fsdp__calloc((size_t)group->size, sizeof *sizes);
    if (!sizes)
        return give_up(group);
    for (int r = 0; is_root && r < group->size; r++) {
        sizes[r] = bytes[r];
        total += r == root ? 0 : bytes[r];
    }
    fsdp__comm_count(group, FSDP_OBJECTS, (int64_t)total);
    /* Every rank needs all sizes: each object is broadcast to all of them. */
    FSDP_TRY(broadcast_bytes(group, FSDP__CALL_SCATTER_OBJECTS, sizes, (size_t)group->size * sizeof *sizes, root));
    for (int r = 0; r < group->size; r++)
        largest = r != root && sizes[r] > largest ? (size_t)sizes[r] : largest;
    object = fsdp__malloc((size_t)sizes[group->rank]);
    passing = fsdp__malloc(largest);
    if (!object || !passing)
        return give_up(group);
    if (is_root && bytes[root])
        memcpy(object, objects[root], bytes[root]);
    FSDP_TRY(send_objects(group, root, objects, sizes, object, passing));
    *out = object;
    *out_bytes = (size_t)sizes[group->rank];
    object = NULL;
    return FSDP_OK;
}

/* ---- agree ---- */

typedef struct answer {
    int32_t status;
    int32_t says; /* yes (1) or no, where something is asked */
    char message[504];
} answer;

/* Returns whether the message already names a rank, as it does after an agreement in another group. */
static bool names_rank(const char *message)
{
    return fsdp__text_behind_rank(message, &(int){0}) != message;
}

/* Writes " (machine 'b')", where the ranks are on several machines and the message does not name the machine. */
static void write_machine(const fsdp_process_group *group, int rank, const char *message, char *text, size_t bytes)
{
    const fsdp__comm *comm = group->comm;
    const char *host = comm->ops->host_of ? comm->ops->host_of(comm->transport, rank) : NULL;
    char named[96];

    snprintf(named, sizeof named, "machine '%.64s'", host ? host : "");
    if (host && !strstr(message, named))
        snprintf(text, bytes, " (%s)", named);
}

/* Reports the failure of the lowest rank that failed. */
static fsdp_status report(const fsdp_process_group *group, int rank, const answer *said)
{
    fsdp_status status = (fsdp_status)said->status;
    char machine[100] = "";

    if (group->size == 1 || names_rank(said->message)) /* a rank that is alone needs no number */
        return FSDP_FAIL(status, "%s", said->message);
    write_machine(group, group->ranks[rank], said->message, machine, sizeof machine);
    return FSDP_FAIL(status, "rank %d: %s%s", group->ranks[rank], said->message, machine);
}

/* Gives the first rank that says yes, and the first that says no. */
static void find_first(const fsdp_process_group *group, const answer *all, int count, int first[2])
{
    first[0] = first[1] = -1;
    for (int r = count - 1; r >= 0; r--)
        first[all[r].says] = group->ranks[r];
}

static fsdp_status agree(fsdp_process_group *group, fsdp__call_name name, fsdp_status mine, bool says, int first[2])
{
    /* In a fake world every rank says what this one says, and one copy of it will do for a million. */
    bool fake = group->ops == &fsdp__comm_fake_ops;
    int count = fake ? 1 : group->size;
    answer own = {.status = mine, .says = says};
    FSDP__FREED answer *all = fsdp__malloc((size_t)count * sizeof *all);

    if (!all)
        return give_up(group);
    if (mine != FSDP_OK)
        fsdp__shown(fsdp_last_status() == mine ? fsdp_last_error() : fsdp_status_text(mine), own.message,
                    sizeof own.message);
    all[0] = own;
    FSDP_TRY(gather_bytes(group, name, &own, fake ? NULL : all, sizeof own));
    for (int r = 0; r < count; r++)
        if (all[r].status != FSDP_OK)
            return report(group, r, &all[r]);
    find_first(group, all, count, first);
    return FSDP_OK;
}

fsdp_status fsdp__comm_agree(fsdp_process_group *group, fsdp__call_name name, fsdp_status mine)
{
    return agree(group, name, mine, false, (int[2]){0});
}

fsdp_status fsdp__agree_and_ask(fsdp_process_group *group, fsdp_status mine, bool says, int first[2])
{
    FSDP_TRY(fsdp__comm_enter(group, FSDP__CALL_AGREE));
    fsdp__comm_count(group, FSDP_OBJECTS, 0);
    return agree(group, FSDP__CALL_AGREE, mine, says, first);
}

fsdp_status fsdp_agree(fsdp_process_group *group, fsdp_status mine)
{
    return fsdp__agree_and_ask(group, mine, false, (int[2]){0});
}
