/* process_group.c - what every group has: its ranks, its name, its settings. */
#include "comm/process_group.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/lock.h"
#include "comm/carrier_watch.h"
#include "comm/group_calls.h"
#include "comm/memory.h"
#include "comm/turns.h"

/* ---- life ---- */

fsdp_status fsdp__process_group_new(fsdp__comm *comm, const fsdp__process_group_spec *spec, void *transport_group,
                                    fsdp_process_group **out)
{
    fsdp_process_group *group = fsdp__calloc(1, sizeof *group);
    fsdp_status status = FSDP_OK;

    FSDP__TRY_NEW(group);
    pthread_mutex_init(&group->mutex, NULL);
    pthread_cond_init(&group->moved, NULL);
    group->refs = 1;
    group->comm = comm;
    group->rank = spec->rank;
    group->size = spec->count;
    group->ticket = spec->ticket;
    group->wanted = comm->wanted;
    group->ops = spec->count == 1 ? &fsdp__comm_fake_ops : comm->ops;
    group->name = fsdp__strdup(spec->name);
    group->ranks = fsdp__malloc((size_t)spec->count * sizeof *group->ranks);
    if (!group->name || !group->ranks)
        status = FSDP_NO_MEMORY;
    else if (!transport_group)
        status = group->ops->group_open(spec->count == 1 ? NULL : comm->transport, spec, &group->transport_group);
    if (status != FSDP_OK) {
        fsdp__process_group_destroy(group);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    for (int r = 0; r < group->size; r++)
        group->ranks[r] = spec->ranks ? spec->ranks[r] : r;
    if (transport_group)
        group->transport_group = transport_group;
    *out = group;
    return FSDP_OK;
}

void fsdp__process_group_list(fsdp_process_group *group)
{
    fsdp__comm *comm = group->comm;

    FSDP__HELD(&comm->mutex);
    group->next = comm->groups;
    comm->groups = group;
}

static void unlist(const fsdp_process_group *group)
{
    fsdp__comm *comm = group->comm;

    FSDP__HELD(&comm->mutex);
    for (fsdp_process_group **link = &comm->groups; *link; link = &(*link)->next)
        if (*link == group) {
            *link = group->next;
            break;
        }
}

void fsdp__process_group_destroy(fsdp_process_group *group)
{
    if (!group)
        return;
    /* Calls on workers, and what counts readers there, still use the group. Peers' reads of its memory are tracked by
     * the world's numbers from now on. */
    fsdp__comm_wait_done(group, group->issued, NULL);
    fsdp__readers_wait_counted(group);
    fsdp__carrier_watch_settle(group);
    fsdp__memory_hand_over(group);
    unlist(group);
    if (group->carriage.ops)
        group->carriage.ops->free(group->carriage.state);
    if (group->transport_group)
        group->ops->group_free(group->transport_group);
    pthread_cond_destroy(&group->moved);
    pthread_mutex_destroy(&group->mutex);
    FSDP__FREE_ALL(group->ranks, group->name, group);
}

fsdp_process_group *fsdp__process_group_ref(fsdp_process_group *group)
{
    group->refs++;
    return group;
}

/* The world is freed with its context, whoever holds it. */
void fsdp_process_group_free(fsdp_process_group *group)
{
    if (group && group != group->comm->world && --group->refs == 0)
        fsdp__process_group_destroy(group);
}

/* ---- what it is ---- */

int fsdp_process_group_rank(const fsdp_process_group *group)
{
    return group ? group->rank : -1;
}

int fsdp_process_group_size(const fsdp_process_group *group)
{
    return group ? group->size : 0;
}

const char *fsdp_process_group_name(const fsdp_process_group *group)
{
    return group ? group->name : NULL;
}

int fsdp_process_group_global_rank(const fsdp_process_group *group, int rank)
{
    return rank >= 0 && rank < fsdp_process_group_size(group) ? group->ranks[rank] : -1;
}

int fsdp__process_group_machines(const fsdp_process_group *group)
{
    return group->ops->machines ? group->ops->machines(group->transport_group) : 1;
}

fsdp_context *fsdp_process_group_context(const fsdp_process_group *group)
{
    return group ? group->comm->context : NULL;
}

void fsdp_process_group_force_copy(fsdp_process_group *group, bool on)
{
    if (group)
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
