/* calls.h - where each rank is in the calls of its groups, for the messages and decisions of those that wait for it. */
#ifndef COMM_SYMMETRIC_CALLS_H
#define COMM_SYMMETRIC_CALLS_H

#include "comm/symmetric/group.h"

/* Of the table of a transport. */
void fsdp__symmetric_note(void *group, const fsdp__call *call, fsdp__moment moment);
void fsdp__symmetric_host_waits(void *group, const fsdp_stream *worker, bool waits);
/* The same of a group that has no place in the arena. */
void fsdp__symmetric_host_waits_elsewhere(fsdp__symmetric *world, bool waits);

/* Whether `rank` has a call of the group issued that it has not done: it may come by itself. */
bool fsdp__call_is_on_its_way(const fsdp__arena *arena, int group, int rank);
/* "call 7 of group 'world' (all_gather_coalesced for 'layers.3')": the last one that `rank` began in the group, or,
 * with group -1, in any; false when there was none. */
bool fsdp__call_text_of(const fsdp__arena *arena, int group, int rank, char *text, size_t bytes);

#endif
