/* process_group.h - making and ending a group, without its peers. */
#ifndef COMM_PROCESS_GROUP_H
#define COMM_PROCESS_GROUP_H

#include "comm/comm.h"

/* Without a transport's group yet; the list and counters know it. */
fsdp_status fsdp__process_group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                                    fsdp_process_group **out);
/* Waits for the calls that were issued. NULL is allowed. [blocks] */
void fsdp__process_group_destroy(fsdp_process_group *group);

#endif
