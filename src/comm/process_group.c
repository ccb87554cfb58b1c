/* process_group.c - what every group has: its ranks, its name, its settings. */
#include "comm/process_group.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/internal.h"
#include "comm/memory.h"
#include "comm/turns.h"

/* ---- life ---- */

fsdp_status fsdp__process_group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                                    fsdp_process_group **out)
{
    const fsdp__process_group_spec spec = {.name = name, .count = count, .rank = rank};
    fsdp_process_group *group = fsdp__calloc(1, sizeof *group);

    if (!group)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&group->mutex, NULL);
    pthread_cond_init(&group->moved, NULL);
    group->comm = comm;
    group->rank = rank;
    group->size = count;
    group->ops = count == 1 ? &fsdp__comm_fake_ops : comm->ops;
    group->name = fsdp__strdup(name);
    group->ranks = fsdp__malloc((size_t)count * sizeof *ranks);
    if (!group->name || !group->ranks ||
        (count == 1 && group->ops->group_open(NULL, &spec, &group->transport_group) != FSDP_OK)) {
        fsdp__process_group_destroy(group);
        return FSDP_NO_MEMORY;
    }
    for (int r = 0; r < count; r++)
        group->ranks[r] = ranks ? ranks[r] : r;
    *out = group;
    return FSDP_OK;
}

void fsdp__process_group_list(fsdp_process_group *group)
{
    fsdp__comm *comm = group->comm;

    pthread_mutex_lock(&comm->mutex);
    group->next = comm->groups;
    comm->groups = group;
    pthread_mutex_unlock(&comm->mutex);
}

static void unlist(const fsdp_process_group *group)
{
    fsdp__comm *comm = group->comm;

    pthread_mutex_lock(&comm->mutex);
    for (fsdp_process_group **link = &comm->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
    pthread_mutex_unlock(&comm->mutex);
}

void fsdp__process_group_destroy(fsdp_process_group *group)
{
    if (!group)
        return;
    /* Calls on workers still use the group. Peers' reads of its memory are tracked by the world's numbers from now
     * on. */
    fsdp__comm_wait_done(group, group->issued, NULL);
    fsdp__memory_hand_over(group);
    unlist(group);
    if (group->transport_group)
        group->ops->group_free(group->transport_group);
    pthread_cond_destroy(&group->moved);
    pthread_mutex_destroy(&group->mutex);
    fsdp__free(group->ranks);
    fsdp__free(group->name);
    fsdp__free(group);
}

void fsdp_process_group_free(fsdp_process_group *group)
{
    if (group && group != group->comm->world)
        fsdp__process_group_destroy(group);
}

/* ---- what it is ---- */

int fsdp_process_group_rank(const fsdp_process_group *group)
{
    return group->rank;
}

int fsdp_process_group_size(const fsdp_process_group *group)
{
    return group->size;
}

const char *fsdp_process_group_name(const fsdp_process_group *group)
{
    return group->name;
}

int fsdp_process_group_global_rank(const fsdp_process_group *group, int rank)
{
    return rank >= 0 && rank < group->size ? group->ranks[rank] : -1;
}

int fsdp__process_group_machines(const fsdp_process_group *group)
{
    return group->ops->machines ? group->ops->machines(group->transport_group) : 1;
}

fsdp_context *fsdp_process_group_context(const fsdp_process_group *group)
{
    return group->comm->context;
}

void fsdp_process_group_force_copy(fsdp_process_group *group, bool on)
{
    group->force_copy = on;
}

void fsdp__process_group_set_label(fsdp_process_group *group, const char *label)
{
    size_t length = label ? strlen(label) : 0;

    memset(group->label, 0, sizeof group->label); /* labels are compared as bytes */
    if (length < sizeof group->label)
        memcpy(group->label, label ? label : "", length);
    else
        snprintf(group->label, sizeof group->label, "%.*s...", (int)sizeof group->label - 4, label);
}
