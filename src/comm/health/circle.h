/* circle.h - finds programs on several machines that wait for each other in a circle.
 *
 * [Note: what is on its way]
 * A rank that waits may be about to get what the other rank sent before it, too, began to wait. Between counterparts
 * news arrives behind everything else: a rank that has heard the other's first beat of that wait, and has looked since,
 * waits for something that nobody sends. Within one machine nothing stays on its way for as long as the required number
 * of beats takes. So there a circle is a proof, as in health/waits.h, and needs no timeout. From other ranks, in a
 * flat group, news comes by another way than data: there the other rank must have waited for half of the timeout. */
#ifndef COMM_HEALTH_CIRCLE_H
#define COMM_HEALTH_CIRCLE_H

#include "comm/health/board.h"
#include "comm/transport/network/places.h"

/* Gets what is known of a rank; returns false if that cannot be read now. */
typedef bool fsdp__hear(void *arg, int rank, fsdp__heard *out);

/* Returns whether this rank is part of a circle. Then `text` says who waits for whom in which call. `half` is half of
 * the timeout, in beats. */
bool fsdp__circle_find(fsdp__hear *hear, void *arg, const fsdp__places *places, int64_t half, char *text, size_t bytes);

#endif
