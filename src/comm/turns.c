/* turns.c - the calls of a group run one at a time, in the order in which they were issued, and so do those of
 * carriers: see [Note: turns]. */
#include "comm/turns.h"

#include "base/lock.h"
#include "base/probe.h"

void fsdp__comm_wait_done(fsdp_process_group *group, uint64_t sequence, fsdp_stream *stream)
{
    pthread_mutex_lock(&group->mutex);
    while (group->done < sequence)
        pthread_cond_wait(&group->moved, &group->mutex);
    pthread_mutex_unlock(&group->mutex);
    FSDP__TELL(ORDER_ACQUIRED, .context = group->comm->context, .stream = stream, .object = group, .number = sequence);
}

void fsdp__turn_end(fsdp_process_group *group, fsdp_stream *stream)
{
    /* Nobody else changes `done` now: calls run one at a time. */
    FSDP__TELL(ORDER_PUBLISHED, .context = group->comm->context, .stream = stream, .object = group,
               .number = group->done + 1);
    FSDP__HELD(&group->mutex);
    group->done++;
    pthread_cond_broadcast(&group->moved); /* each stream waits for another number */
}

void fsdp__carried_wait_done(fsdp__comm *comm, uint64_t number)
{
    FSDP__HELD(&comm->mutex);
    while (comm->carried_done < number)
        pthread_cond_wait(&comm->carried_moved, &comm->mutex);
}

bool fsdp__carried_is_done(fsdp__comm *comm, uint64_t number)
{
    FSDP__HELD(&comm->mutex);
    return comm->carried_done >= number;
}

void fsdp__carried_turn_end(fsdp__comm *comm)
{
    FSDP__HELD(&comm->mutex);
    comm->carried_done++;
    pthread_cond_broadcast(&comm->carried_moved);
}
