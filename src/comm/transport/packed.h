/* packed.h - coalesced collectives for memory that peers do not see: pack, exchange, unpack.
 *
 * The longest parts of all buffers, one after the other, form a vector of bytes that is equally long on every rank,
 * whatever dtypes there are. It travels in pieces of bounded size. For each piece of a gather a rank packs its own
 * part, converted; for each piece of a reduction it packs the parts of every rank, rounded to the wire dtype and kept
 * apart by rank. The pieces are exchanged; then a gather copies everybody's parts to their places, and a reduction adds
 * up its own, in rank order. That is why a reduction exchanges contributions (all_to_all) and does not use a
 * transport's own reduce_scatter, which would add in an order and a precision of its own: this way the bits are the
 * same as on the paths that pack nothing.
 *
 * Who contributes to which buffer of a reduction is either known beforehand, or a bit for each buffer travels in front
 * of the first piece. From then on, buffers to which nobody contributes take no room in the vector. */
#pragma once

#include "comm/transport_ops.h"

/* Says what becomes of the rows of a call's buffers. */
typedef enum fsdp__pattern {
    FSDP__GATHERS, /* every rank gets every rank's */
    FSDP__REDUCES, /* every rank gets the sum of what all have in its own place */
    FSDP__SWAPS    /* every rank gets what all have in its own place, in rank order */
} fsdp__pattern;

/* Says how pieces travel. */
typedef struct fsdp__mover fsdp__mover;
struct fsdp__mover {
    int rank, size;
    int64_t room; /* most bytes of one rank's part of a piece; a multiple of 64 */
    int block;    /* number of ranks whose contributions are added first: see order.h */
    /* [Note: a world on paper]: only the exchanges are made, as if all ranks contributed to the buffers that this one
     * contributes to. Of what follows only `exchange` and `bits` are used. */
    bool on_paper;
    bool reads_peers;      /* parts lie in the memory of the ranks that packed them, so reading them moves them */
    void **parts;          /* scratch, `size` entries */
    const void **operands; /* the same */

    /* Returns where this rank packs a piece of which each rank has `bytes` bytes; a reduction packs those for rank r at
     * byte r * bytes. NULL and a last error when out of memory. */
    void *(*place)(fsdp__mover *mover, int64_t bytes);
    /* Called when this rank has packed; returns when all ranks have. parts[r] is then where the bytes lie that rank r
     * packed for this rank. They are read before the next piece is packed. */
    fsdp_status (*exchange)(fsdp__mover *mover, int64_t bytes);

    /* For a reduction: returns whether rank r contributes to buffer i. NULL: this travels along, into `bits`, which has
     * fsdp__packed_bits bytes for each rank. */
    bool (*contributes)(const fsdp__mover *mover, int rank, int64_t buffer);
    unsigned char *bits;
};

int64_t fsdp__packed_bits(const fsdp__call *call);

/* Runs the coalesced call through `mover`. Every rank makes the same exchanges, and at least one. */
fsdp_status fsdp__packed_run(fsdp__mover *mover, const fsdp__call *call, fsdp__pattern pattern, fsdp__traffic *traffic);
