/* process_group.h - makes and ends a group on this rank alone, without its peers. */
#ifndef COMM_PROCESS_GROUP_H
#define COMM_PROCESS_GROUP_H

#include "comm/comm.h"

/* Creates a group of some ranks (NULL: of all) that has no transport group yet and is not listed. */
fsdp_status fsdp__process_group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                                    fsdp_process_group **out);
/* Adds the group to comm->groups, where workers see it too; so the group must be complete. */
void fsdp__process_group_list(fsdp_process_group *group);
/* Waits for the calls that were issued, then frees the group. NULL is allowed. [blocks] */
void fsdp__process_group_destroy(fsdp_process_group *group);

#endif
