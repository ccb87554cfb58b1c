/* shm.h - ranks as processes of one machine that map the same memory file. The file has no name anywhere: it lives as
 * long as a process holds it, so nothing can be left behind. */
#ifndef COMM_SHM_SHM_H
#define COMM_SHM_SHM_H

#include "comm/symmetric/arena.h"

/* For the process that starts the ranks and watches them. `arena->fd` (close-on-exec) is for the ranks to inherit;
 * fsdp__arena_abort and fsdp__arena_leave tell them what became of their peers. */
fsdp_status fsdp__shm_create(int world_size, fsdp__arena **out);

/* Says in the arena that this process is its rank `local_rank`, for those who watch it. */
fsdp_status fsdp__shm_take_place(fsdp__arena *arena, int local_rank);

/* A rank's context in the world behind `fd`. Waits until all ranks are there. `counted`: as many come as there are
 * places, so who is refused one is missed; else it is somebody else's process. [collective] [blocks] */
fsdp_status fsdp__shm_join(int fd, bool counted, const fsdp_context_options *options, fsdp_context **out);

#endif
