/* shape.h - how the members of a group lie on the machines, and what follows of that for who sends what to whom.
 * Arithmetic of ranks and sizes alone. */
#ifndef COMM_MACHINES_SHAPE_H
#define COMM_MACHINES_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__PIECE_BYTES = 512 << 10, /* of a message, at most */
    FSDP__AT_ONCE_BYTES = 4096     /* an all_reduce up to here is one exchange */
};

/* See group.h. */
typedef struct fsdp__group_shape {
    int machines; /* on which it has members */
    bool flat;
    int columns, place; /* of its column: how many, and which is this one */
    int locals, local_rank;
    int elsewhere; /* of its column: how many are on other machines */
} fsdp__group_shape;

/* Of the group of `ranks` (`count` global ones, ascending) as ranks[rank] sees it, on machines with `machine_ranks`
 * ranks each. `one_level`: it is flat, however its members lie. */
fsdp__group_shape fsdp__group_shape_of(const int *ranks, int count, int rank, int machine_ranks, bool one_level);

/* Of an all_reduce of `count` elements by `columns` x `locals` ranks: [result, result + *length) are those that local
 * rank `local` of place `place` adds up. */
int64_t fsdp__share_of(int columns, int locals, int64_t count, size_t element, int local, int place, int64_t *length);

/* Messages that so many bytes go in. */
static inline int64_t fsdp__messages_of(int64_t bytes)
{
    return (bytes + FSDP__PIECE_BYTES - 1) / FSDP__PIECE_BYTES;
}

#endif
