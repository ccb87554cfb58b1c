/* group.h - making and ending a group, without its peers. */
#ifndef COMM_GROUP_H
#define COMM_GROUP_H

#include "comm/comm.h"

/* Without a transport's group yet; the list and counters know it. */
fsdp_status fsdp__group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                            fsdp_group **out);
/* Waits for the calls that were issued. NULL is allowed. [blocks] */
void fsdp__group_destroy(fsdp_group *group);

#endif
