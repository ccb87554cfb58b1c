/* arena_watch.h - how a world ends: a failure that all ranks are told of, ranks that leave, ranks that die. */
#ifndef COMM_HEALTH_ARENA_WATCH_H
#define COMM_HEALTH_ARENA_WATCH_H

#include "comm/transport/arena/arena.h"
#include "comm/transport/arena/process.h"

/* Ends every rank's calls, now and later. The first reason stays; `rank` is the global rank to blame (-1: nobody). */
void fsdp__arena_abort(fsdp__arena *arena, fsdp_status status, int rank, const char *text);
bool fsdp__arena_aborted(const fsdp__arena *arena);
/* Fails with the reason, which must be set or about to be set. */
fsdp_status fsdp__arena_failure(const fsdp__arena *arena);
/* Says that `rank` takes part no more; ranks that wait for it are told. */
void fsdp__arena_leave(fsdp__arena *arena, int rank);
/* Returns whether the rank has left. Ask this before looking whether the rank has done what is awaited: between the two
 * looks it may do that, and leave. */
bool fsdp__arena_has_left(const fsdp__arena *arena, int rank);
/* Aborts and names `rank`, which is awaited and has left. */
void fsdp__arena_abort_left(fsdp__arena *arena, int rank);
/* Aborts likewise if `rank` has died, which the system tells. */
void fsdp__arena_check_alive(fsdp__arena *arena, int rank);
/* Returns whether the world ended because this rank was found dead. A peer has written that, and peers do not know what
 * the rank died of. */
bool fsdp__arena_found_dead(const fsdp__arena *arena, int rank);
void fsdp__arena_check_keeper(fsdp__arena *arena);

#endif
