/* calls.h - where each rank is in the calls of its groups. Ranks that wait for it need this for messages and
 * decisions. */
#ifndef COMM_ARENA_CALLS_H
#define COMM_ARENA_CALLS_H

#include "comm/transport/arena/arena_group.h"

/* Slots of a transport's table. */
void fsdp__symmetric_note(void *group, const fsdp__call *call, fsdp__moment moment);
void fsdp__symmetric_host_waits(void *group, const fsdp_stream *worker, bool waits);
/* Does the same for a group that has no place in the arena. */
void fsdp__symmetric_host_waits_elsewhere(fsdp__symmetric *world, bool waits);

/* Returns whether `rank` has issued a call of the group that is not done: it may get there by itself. */
bool fsdp__call_is_on_its_way(const fsdp__arena *arena, int group, int rank);
/* Writes the last call that `rank` began in the group, or with group -1 in any: "call 7 of group 'world'
 * (all_gather_coalesced for 'layers.3')". Returns false when there was none. */
bool fsdp__call_text_of(const fsdp__arena *arena, int group, int rank, char *text, size_t bytes);

#endif
