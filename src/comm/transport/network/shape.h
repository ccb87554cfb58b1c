/* shape.h - how the members of a group lie on the machines, and what follows from that for who sends what to whom. It
 * is arithmetic of ranks and sizes alone.
 *
 * [Note: size of a piece]
 * An MPI sends small messages at once, and asks before it sends a large one. Over TCP both directions of a pair of
 * ranks share one connection: the answer to such a question waits there behind the data that goes the same way. When
 * two ranks begin an exchange, the one that is a little earlier has its answer at once and sends all that it has asked
 * for; the other one's answer comes behind that. From there on the directions take turns, which takes up to twice the
 * time. So pieces are small enough to be sent at once: with its header each is below the 64 KiB of Open MPI
 * (btl_tcp_eager_limit). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__PIECE_BYTES = 60 << 10,              /* most bytes of a message: see the note */
    FSDP__BATCH_BYTES = 8 * FSDP__PIECE_BYTES, /* most bytes of a reduction's batch, for each rank */
    FSDP__AT_ONCE_BYTES = 4096,                /* an all_reduce of up to this many bytes is one exchange */
    FSDP__WHOLE_BYTES = 16 << 10,              /* see fsdp__reduces_by_machine */
    FSDP__ALONG_BYTES = 32 << 10               /* most bytes to a rank that go along with the header of the call */
};

/* Says how one rank's group lies: see network_group.h. */
typedef struct fsdp__group_shape {
    int machines; /* number of machines on which it has members */
    bool flat;
    int columns, place; /* size of its column, and this rank's place in it */
    int locals, local_rank;
    int block;  /* of a flat group: see comm/transport/order.h; else 0 */
    int rounds; /* of its meetings; 0: each rank of the column tells each: see meeting.h */
} fsdp__group_shape;

/* Returns the shape of the group of `ranks` (`count` global ranks, ascending) as ranks[rank] sees it, on machines with
 * `machine_ranks` ranks each. `one_level`: the group is flat, however its members lie. */
fsdp__group_shape fsdp__group_shape_of(const int *ranks, int count, int rank, int machine_ranks, bool one_level);

/* Returns the first element that local rank `local` of place `place` adds up in an all_reduce of `count` elements by
 * `columns` x `locals` ranks; `*length` is how many. */
int64_t fsdp__share_of(int columns, int locals, int64_t count, size_t element, int local, int place, int64_t *length);

/* Returns whether the ranks of a flat group, in an all_reduce of `bytes` bytes, first add up what those on their own
 * machine have, and then what the machines have. Up to FSDP__WHOLE_BYTES each rank does so with all elements, in two
 * exchanges; with more bytes each has a share, in four exchanges, and as many bytes travel as in a regular group.
 * `block` is that of comm/transport/order.h, 0 in a regular group. */
static inline bool fsdp__reduces_by_machine(int block, int64_t bytes)
{
    return block > 1 && bytes > FSDP__AT_ONCE_BYTES;
}

/* Returns the shape of such a group for the second step: that of a regular group with `block` ranks on each machine. */
fsdp__group_shape fsdp__group_by_machine(int rank, int size, int block);

/* Returns the number of messages that carry so many bytes. */
static inline int64_t fsdp__messages_of(int64_t bytes)
{
    return (bytes + FSDP__PIECE_BYTES - 1) / FSDP__PIECE_BYTES;
}
