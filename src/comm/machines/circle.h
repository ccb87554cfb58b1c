/* circle.h - programs on several machines that wait for each other in a circle.
 *
 * [Note: what is on its way]
 * A rank that waits may be about to get what the other one sent before that began to wait, too. Between counterparts
 * news come behind all else: a rank that has heard the other one's first beat of that wait, and has looked since, waits
 * for what nobody sends. On one machine nothing is on its way for as long as the beats that are asked for take. So
 * there a circle is a proof, as in symmetric/waits.h, and needs no timeout. Of other ranks, in a flat group, news come
 * by another way than data: there the other one must have waited for half of the timeout. */
#ifndef COMM_MACHINES_CIRCLE_H
#define COMM_MACHINES_CIRCLE_H

#include "comm/machines/board.h"
#include "comm/machines/places.h"

/* What is known of a rank; false: nothing now. */
typedef bool fsdp__hear(void *arg, int rank, fsdp__heard *out);

/* Whether this rank is a part of one. Then `text` says who waits for whom in which call. `half`: of the timeout, in
 * beats. */
bool fsdp__circle_find(fsdp__hear *hear, void *arg, const fsdp__places *places, int64_t half, char *text, size_t bytes);

#endif
