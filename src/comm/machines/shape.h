/* shape.h - how the members of a group lie on the machines, and what follows of that for who sends what to whom.
 * Arithmetic of ranks and sizes alone.
 *
 * [Note: size of a piece]
 * An MPI sends small messages at once, and asks before it sends a large one. Over TCP both directions of a pair of
 * ranks have one connection: the answer to a question waits there behind the data that goes the same way. Of two ranks
 * that begin an exchange, the one that is a little earlier has its answer at once and sends all that it has asked for;
 * the other one's comes behind that. From there on the directions take turns, which takes up to twice the time. So
 * pieces are small enough to be sent at once: with its header each is below the 64 KiB of Open MPI
 * (btl_tcp_eager_limit). */
#ifndef COMM_MACHINES_SHAPE_H
#define COMM_MACHINES_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__PIECE_BYTES = 60 << 10,              /* of a message, at most: see the note */
    FSDP__BATCH_BYTES = 8 * FSDP__PIECE_BYTES, /* of a reduction, to each rank, at most */
    FSDP__AT_ONCE_BYTES = 4096,                /* an all_reduce up to here is one exchange */
    FSDP__WHOLE_BYTES = 16 << 10,              /* see fsdp__reduces_by_machine */
    FSDP__ALONG_BYTES = 32 << 10               /* to a rank: so much goes along with the header of the call */
};

/* See group.h. */
typedef struct fsdp__group_shape {
    int machines; /* on which it has members */
    bool flat;
    int columns, place; /* of its column: how many, and which is this one */
    int locals, local_rank;
    int elsewhere; /* of its column: how many are on other machines */
    int block;     /* of a flat group: see comm/order.h; 0 */
    int rounds;    /* of its meetings; 0: each of the column tells each: see meeting.h */
    int near;      /* of the rounds, within a machine: the first ones */
} fsdp__group_shape;

/* Of the group of `ranks` (`count` global ones, ascending) as ranks[rank] sees it, on machines with `machine_ranks`
 * ranks each. `one_level`: it is flat, however its members lie. */
fsdp__group_shape fsdp__group_shape_of(const int *ranks, int count, int rank, int machine_ranks, bool one_level);

/* Of an all_reduce of `count` elements by `columns` x `locals` ranks: [result, result + *length) are those that local
 * rank `local` of place `place` adds up. */
int64_t fsdp__share_of(int columns, int locals, int64_t count, size_t element, int local, int place, int64_t *length);

/* Whether the ranks of a flat group add up what those on their machine have first, in an all_reduce of so many bytes,
 * and then what the machines have. Up to FSDP__WHOLE_BYTES each does so with all elements, in two exchanges; of more
 * each has a share, in four, and as many bytes travel as in a regular group. `block`: of comm/order.h, 0 in a regular
 * group. */
static inline bool fsdp__reduces_by_machine(int block, int64_t bytes)
{
    return block > 1 && bytes > FSDP__AT_ONCE_BYTES;
}

/* How such a group lies for the second step: as a regular one of `block` ranks on each machine. */
fsdp__group_shape fsdp__group_by_machine(int rank, int size, int block);

/* Messages that so many bytes go in. */
static inline int64_t fsdp__messages_of(int64_t bytes)
{
    return (bytes + FSDP__PIECE_BYTES - 1) / FSDP__PIECE_BYTES;
}

#endif
