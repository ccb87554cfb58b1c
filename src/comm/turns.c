/* turns.c - the calls of a group run one at a time, in the order in which they were issued: see [Note: turns]. */
#include "comm/turns.h"

void fsdp__comm_wait_done(fsdp_process_group *group, uint64_t sequence)
{
    pthread_mutex_lock(&group->mutex);
    while (group->done < sequence)
        pthread_cond_wait(&group->moved, &group->mutex);
    pthread_mutex_unlock(&group->mutex);
}

void fsdp__turn_begin(fsdp_process_group *group, uint64_t sequence)
{
    fsdp__comm_wait_done(group, sequence - 1);
}

void fsdp__turn_end(fsdp_process_group *group)
{
    pthread_mutex_lock(&group->mutex);
    group->done++;
    pthread_cond_broadcast(&group->moved); /* each stream waits for another number */
    pthread_mutex_unlock(&group->mutex);
}
