/* gone.h - ranks of this machine that have left or died, and what is said of them. */
#ifndef COMM_HEALTH_GONE_H
#define COMM_HEALTH_GONE_H

#include "comm/health/board.h"

/* Aborts and names `rank`, which is awaited and has left. */
void fsdp__gone_abort_left(fsdp__board *board, int rank);
/* Aborts likewise if `rank` has died, which the system tells. */
void fsdp__gone_check_alive(fsdp__board *board, int rank);
/* Aborts if the process that started the ranks has died. */
void fsdp__gone_check_keeper(fsdp__board *board);
/* Returns whether the world ended because this rank was found dead. A peer has written that, and peers do not know what
 * the rank died of. */
bool fsdp__gone_found_dead(const fsdp__board *board, int rank);

#endif
