/* watch.h - the end of a world: a failure that all are told of, ranks that leave, ranks that die. */
#ifndef COMM_SYMMETRIC_WATCH_H
#define COMM_SYMMETRIC_WATCH_H

#include "comm/symmetric/arena.h"
#include "comm/symmetric/process.h"

/* Ends every rank's calls, now and later. The first reason stays; `rank` is to blame, as all call it (-1: nobody). */
void fsdp__arena_abort(fsdp__arena *arena, fsdp_status status, int rank, const char *text);
bool fsdp__arena_aborted(const fsdp__arena *arena);
/* Fails with the reason, which must be set or about to be. */
fsdp_status fsdp__arena_failure(const fsdp__arena *arena);
/* `rank` takes part no more; who waits for it is told. */
void fsdp__arena_leave(fsdp__arena *arena, int rank);
/* To be asked before the look whether the rank has done what is awaited: between the two it may do that, and leave. */
bool fsdp__arena_has_left(const fsdp__arena *arena, int rank);
/* Aborts with the rank's name: one that is awaited has left. */
void fsdp__arena_abort_left(fsdp__arena *arena, int rank);
/* The same when it has died (asks the system). */
void fsdp__arena_check_alive(fsdp__arena *arena, int rank);
/* Whether that is what has ended the world: a peer's word, who does not know what the rank has died of. */
bool fsdp__arena_found_dead(const fsdp__arena *arena, int rank);
void fsdp__arena_check_keeper(fsdp__arena *arena);

#endif
