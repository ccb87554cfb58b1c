/* circle.h - programs on several machines that wait for each other in a circle. As in symmetric/waits.h that is a
 * proof, not a guess, and needs no timeout. */
#ifndef COMM_MACHINES_CIRCLE_H
#define COMM_MACHINES_CIRCLE_H

#include "comm/machines/board.h"

/* What is known of a rank; false: nothing now. */
typedef bool fsdp__hear(void *arg, int rank, fsdp__heard *out);

/* Whether `rank`, of `ranks`, is a part of one. Then `text` says who waits for whom in which call. */
bool fsdp__circle_find(fsdp__hear *hear, void *arg, int rank, int ranks, char *text, size_t bytes);

#endif
