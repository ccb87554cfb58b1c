/* clique_memory.h - memory of a rank that is shown to NCCL, which reads and writes there without buffers of its own.
 *
 * [Note: shown memory]
 * Exact sums are packed and exchanged in pieces (comm/transport/packed.h), and so are gathers where copy engines are
 * asked for. The pieces lie in this memory. It is taken and shown once, when the ranks join: its address stays the same
 * for as long as the group lives, and its size and the places in it are the same on all ranks. Calls use it one after
 * the other, on whatever streams: each begins by waiting until the device has done the call before. What is not packed
 * goes straight to and from the caller's memory, which NCCL is not shown. */
#pragma once

#include "comm/clique/clique_group.h"
#include "comm/transport/coalesced.h"

/* Takes memory, which is counted as workspace, and begins to show it to the group's clique for sums, and with `gathers`
 * to the clique for gathers, too. After a failure fsdp__clique_memory_free gives back what was taken. */
fsdp_status fsdp__clique_memory_show(fsdp__clique_group *group, const fsdp_context *context, bool gathers);
/* Gives what each of the cliques makes of its memory, and returns the least that one of them makes of it which sees it
 * (UNSEEN: none does). Memory that its clique does not see goes back; what another one sees stays. All are idle. */
fsdp__clique_sight fsdp__clique_memory_seen(fsdp__clique_group *group, fsdp__clique_sight seen[FSDP__CLIQUE_WAYS]);
/* Gives the memory back; the cliques are gone. */
void fsdp__clique_memory_free(fsdp__clique_group *group);
/* Returns how many bytes there are. */
size_t fsdp__clique_memory_bytes(const fsdp__clique_group *group);

/* Runs a coalesced call whose pieces lie in the clique's memory, or, if it has none, in the stream's workspace. */
fsdp_status fsdp__clique_packed(const fsdp__clique_group *group, fsdp__clique_way way, fsdp__plain_way *plain,
                                const fsdp__call *call, fsdp__traffic *traffic);
