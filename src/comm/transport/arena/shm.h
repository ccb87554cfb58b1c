/* shm.h - ranks as processes of one machine that map the same memory file. The file has no name anywhere: it lives as
 * long as a process holds it, so nothing can be left behind. */
#pragma once

#include "comm/transport/arena/arena.h"

/* Creates the arena, in the process that starts the ranks and watches them. The ranks inherit `arena->fd`
 * (close-on-exec); fsdp__board_abort and fsdp__board_leave tell them what became of their peers. */
fsdp_status fsdp__shm_create(int world_size, fsdp__arena **out);

/* Records in the arena that this process is its rank `local_rank`, for those who watch it. */
fsdp_status fsdp__shm_take_place(fsdp__arena *arena, int local_rank);

/* Makes a rank's context in the world behind `fd`. Waits until all ranks are there. `counted`: exactly as many
 * processes come as there are places, so one that is refused a place is a rank that the others miss; otherwise it is
 * somebody else's process. [collective] [blocks] */
fsdp_status fsdp__shm_join(int fd, bool counted, const fsdp_context_options *options, fsdp_context **out);
