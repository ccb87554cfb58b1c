/* packed.h - coalesced collectives for memory that peers do not see: pack, exchange, unpack.
 *
 * The longest parts of all buffers, one after the other, are a vector of bytes that is equally long on every rank,
 * whatever dtypes there are. It travels in pieces of bounded size. Of each piece of a gather a rank packs its own part,
 * converted; of each piece of a reduction the parts of every rank, rounded to the wire dtype, each rank's apart. The
 * pieces are exchanged; then a gather copies everybody's parts to their places, and a reduction adds up its own, in
 * rank order. That is why a reduction exchanges contributions (all_to_all) and does not use a transport's own
 * reduce_scatter, which would add in an order and a precision of its own: the bits are those of the ways that pack
 * nothing.
 *
 * Who contributes to which buffer of a reduction is known before, or a bit for each buffer travels in front of the
 * first piece. From then on, what nobody contributes to takes no place in the vector. */
#ifndef COMM_PACKED_H
#define COMM_PACKED_H

#include "comm/comm_ops.h"

/* How pieces travel. */
typedef struct fsdp__carrier fsdp__carrier;
struct fsdp__carrier {
    int rank, size;
    int64_t room;          /* bytes of one rank's part of a piece, at most; a multiple of 64 */
    int block;             /* of ranks whose contributions are added first: see order.h */
    bool reads_peers;      /* parts lie in the memory of those who packed them: reading them is moving them */
    void **parts;          /* scratch, `size` entries */
    const void **operands; /* the same */

    /* Where this rank packs a piece of which each rank has `bytes` bytes; a reduction packs those for rank r at byte
     * r * bytes. NULL and a last error when out of memory. */
    void *(*place)(fsdp__carrier *carrier, int64_t bytes);
    /* All ranks have packed. parts[r]: where the bytes that rank r packed for this rank lie now. They are read before
     * the next piece is packed. */
    fsdp_status (*exchange)(fsdp__carrier *carrier, int64_t bytes);

    /* Of a reduction: whether rank r contributes to buffer i. NULL: that travels along, into `bits`, of
     * fsdp__packed_bits bytes for each rank. */
    bool (*contributes)(const fsdp__carrier *carrier, int rank, int64_t buffer);
    unsigned char *bits;
};

int64_t fsdp__packed_bits(const fsdp__call *call);

/* The coalesced call by way of `carrier`. Every rank makes the same exchanges, and at least one. */
fsdp_status fsdp__packed_gather(fsdp__carrier *carrier, const fsdp__call *call, fsdp_stream *stream,
                                fsdp__traffic *traffic);
fsdp_status fsdp__packed_reduce(fsdp__carrier *carrier, const fsdp__call *call, fsdp_stream *stream,
                                fsdp__traffic *traffic);

/* Calls `exchange` with the bytes of one rank's part for every exchange that the call would make with so much room,
 * where all ranks contribute to what this one does. Nothing is packed. */
void fsdp__packed_walk(const fsdp__call *call, int64_t room, bool reduces, void (*exchange)(void *arg, int64_t bytes),
                       void *arg);

#endif
