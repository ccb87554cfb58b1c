/* process_group.h - making and ending a group, without its peers. */
#ifndef COMM_PROCESS_GROUP_H
#define COMM_PROCESS_GROUP_H

#include "comm/comm.h"

/* Without a transport's group yet, and not listed. */
fsdp_status fsdp__process_group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                                    fsdp_process_group **out);
/* From now on it is in comm->groups, where workers see it, too: all of it must be there. */
void fsdp__process_group_list(fsdp_process_group *group);
/* Waits for the calls that were issued. NULL is allowed. [blocks] */
void fsdp__process_group_destroy(fsdp_process_group *group);

#endif
