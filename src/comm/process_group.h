/* process_group.h - makes and ends a group on this rank alone, without its peers. */
#pragma once

#include "comm/comm.h"

/* Creates a group, which is not listed. `transport_group`: the transport has made its own already; NULL: it does now.
 * After a failure the caller still owns that. */
fsdp_status fsdp__process_group_new(fsdp__comm *comm, const fsdp__process_group_spec *spec, void *transport_group,
                                    fsdp_process_group **out);
/* Adds the group to comm->groups, where workers see it too; so the group must be complete. */
void fsdp__process_group_list(fsdp_process_group *group);
/* Waits for the calls that were issued, and for what streams have in their queues of it, then frees the group. NULL is
 * allowed. [blocks] */
void fsdp__process_group_destroy(fsdp_process_group *group);

/* ---- readers.c ---- */

/* Waits until all ends of reads, and waits for readers, that stand in the queues of streams have been there. [blocks]
 */
void fsdp__readers_wait_counted(fsdp_process_group *group);
