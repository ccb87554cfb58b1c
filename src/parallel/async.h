/* async.h - column-wise and row-wise products whose input or output is cut over ranks in another dimension than the
 * last, such as that of the sequence: collective and product in one operation, in pieces ([Note: pieces] in
 * product_pieces.h).
 *
 * Results are those of a gather and products, or a product and a reduce-scatter, one after the other, and so are the
 * bytes that are sent; a collective becomes as many calls as there are pieces. Sums over ranks are the same bits. A
 * product of some of the rows may be computed in another way than that of all of them, which can change last bits. */
#pragma once

#include "parallel/plan.h"

/* Holds what a linear layer multiplies by. */
typedef struct fsdp__linear_weight {
    fsdp_tensor *weight, *bias; /* (O,C), or of a Conv1D (C,O); (O), or NULL */
    bool conv1d;
} fsdp__linear_weight;

/* Gathers dimension `dim`, which ranks have parts of, and gives the linear layers of it: x (..,T/N,..,C) ->
 * (..,T,..,O_i). The gradient of x is added up over ranks, in pieces, while those of weights are computed. `outputs`
 * are NULL on failure. [collective] */
fsdp_status fsdp__gathered_linears(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, int count,
                                   const fsdp__linear_weight *layers, fsdp_tensor **outputs);
/* Returns this rank's part, in dimension `dim`, of the sum over ranks of the linear layer, which has no bias:
 * x (..,T,..,I) -> (..,T/N,..,O). [collective] */
fsdp_tensor *fsdp__scattered_linear(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, fsdp__linear_weight layer);
