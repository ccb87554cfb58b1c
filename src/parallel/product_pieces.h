/* product_pieces.h - products of a tensor whose rows are cut over ranks, with the communication in pieces beside them.
 *
 * [Note: pieces]
 * A part is cut in up to FSDP__PIECES pieces, over the dimensions before the one that ranks cut if those are long
 * enough, otherwise over that dimension itself. A collective moves a piece of each rank's part, on a stream of its own
 * (the side stream), while the device's stream multiplies another piece: a gather brings the next one, a reduce-scatter
 * takes the last one away. The pieces together send the bytes of the whole, and sums are added in the order of ranks,
 * so what is sent, and what comes of it, is that of one collective.
 *
 * On the wire a piece is as many boxes (o,s,mid,C) as there are ranks, padded where parts are uneven. Products read
 * gathered boxes, and write those that are to be reduced, so nothing is packed for a reduction. */
#pragma once

#include "ops/op.h"
#include "parallel/side_stream.h"

enum {
    FSDP__PIECES = FSDP__SIDE_STREAM_EVENTS
};

/* Says how dimension `dim` of a tensor, with rows of the last dimension, is cut: (outer, whole, mid, last). */
typedef struct fsdp__pieces {
    fsdp__route route;      /* with a side stream; borrowed */
    int ranks, rank, count; /* of pieces */
    int64_t outer, whole, mid, chunk;
    bool by_outer;
    fsdp_tensor *boxes;  /* owned: of all pieces, one after the other */
    fsdp_tensor *result; /* owned; of a reduction: this rank's box of each piece */
    int64_t columns;     /* of a box */
    fsdp_stream *compute;
} fsdp__pieces;

/* Describes `whole` in dimension `dim` of tensors like `like`, which is not their last one. The result must be closed.
 */
fsdp__pieces fsdp__pieces_of(const fsdp_tensor *like, int dim, int64_t whole, const fsdp__route *route);
void fsdp__pieces_close(fsdp__pieces *p);

/* A product of the rows of a tensor that all ranks have, `full` (outer,whole,mid,n), with a matrix. */
typedef struct fsdp__factor {
    fsdp_tensor *full;
    fsdp__matrix weight;
    const fsdp_tensor *bias; /* or NULL */
} fsdp__factor;

/* Gathers the ranks' parts, of which this rank's is `part`, and sets each factor's `full` to the product of all rows
 * with its weight, plus its bias. `gathered`, or NULL, is set to all rows. */
fsdp_status fsdp__gather_and_multiply(fsdp__pieces *p, fsdp_tensor *part, const fsdp__factor *factors, int count,
                                      fsdp_tensor *gathered);
/* Adds up the products of each factor's rows with its weight, in the order of the factors, and reduces them over the
 * ranks. `part` will be this rank's part of the sum once fsdp__scattered is called: what is done in between runs beside
 * the reduction of the last pieces. Factors have no bias. */
fsdp_status fsdp__multiply_and_scatter(fsdp__pieces *p, const fsdp__factor *factors, int count,
                                       const fsdp_tensor *part);
fsdp_status fsdp__scattered(fsdp__pieces *p, fsdp_tensor *part);
