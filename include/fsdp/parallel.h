/* fsdp/parallel.h - tensor parallelism: collectives that have gradients, and distributed tensors in operations. Plans
 * of modules, which most programs want instead, are in fsdp/parallelize.h.
 *
 * The functions below are operations, as those of fsdp/ops.h: they return a tensor of the scope, or NULL and a last
 * error, and NULL for a NULL tensor. Every rank of the group must call them in the same order, and must run the same
 * backward, in which their transposes communicate. They run on the device's own stream, in the order of its work. The
 * graph keeps the group: group, mesh and modules may be freed before the backward. Any dtype can be moved; what is
 * added up must be floating to have a gradient. A sum is added in rank order with an f32 accumulator and rounded once,
 * so every run gives the same bits.
 *
 * [Note: whose gradient] If all ranks hold the same tensor (replicated), all hold its whole gradient. If each rank
 * holds a part of the tensor, it holds that part of the gradient. If the tensor is the sum of what the ranks hold
 * (partial), every rank holds the whole gradient. If a replicated tensor goes into a computation that differs from rank
 * to rank, each rank's backward has only its own contribution: put fsdp_parallel_copy in front, which adds the
 * contributions up.
 *
 * Parts follow the chunk rule of fsdp/dist.h: they may be uneven or empty. On the wire they are padded to the chunk.
 * Negative dimensions count from the end.
 *
 * | function       | forward                              | backward              | input -> result        |
 * |----------------|--------------------------------------|-----------------------|------------------------|
 * | copy           | nothing                              | all-reduce            | replicated -> differs  |
 * | all_reduce     | all-reduce (sum)                     | nothing               | partial -> replicated  |
 * | all_gather     | all-gather                           | reduce-scatter (sum)  | part -> differs        |
 * | collect        | all-gather                           | slice                 | part -> replicated     |
 * | reduce_scatter | reduce-scatter (sum)                 | all-gather            | partial -> part        |
 * | split          | slice                                | all-gather            | replicated -> part     |
 * | all_to_all     | all-to-all                           | all-to-all            | part -> part           |
 * | attention      | broadcasts of keys and values        | see below             | part -> part           |
 */
#ifndef FSDP_PARALLEL_H
#define FSDP_PARALLEL_H

#include "fsdp/autograd.h"
#include "fsdp/dist.h"
#include "fsdp/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns x, which is equal on all ranks and goes into a computation that differs from rank to rank. The backward adds
 * up the gradients of all ranks. [collective] in the backward */
FSDP_API fsdp_tensor *fsdp_parallel_copy(fsdp_tensor *x, fsdp_process_group *group);
/* Returns the sum of all ranks' x, of one shape. The gradient is passed on as it is. [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_all_reduce(fsdp_tensor *x, fsdp_process_group *group);
/* Puts the ranks' parts together: x is this rank's part of dimension `dim`, which is `whole` long. FSDP_INVALID: x has
 * another size than the chunk rule gives this rank. What follows may differ from rank to rank: the backward adds up
 * their gradients, and each rank keeps its part. [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_all_gather(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group);
/* Does the same for a computation that is the same on all ranks: the backward takes this rank's part of the gradient,
 * without communication. [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_collect(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group);
/* Returns this rank's part, in dimension `dim`, of the sum of all ranks' x. [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_reduce_scatter(fsdp_tensor *x, int dim, fsdp_process_group *group);
/* Returns this rank's part, a view, of x, which is equal on all ranks. The backward gathers the gradient. [collective]
 * in the backward */
FSDP_API fsdp_tensor *fsdp_parallel_split(fsdp_tensor *x, int dim, fsdp_process_group *group);
/* Cuts dimension `split_dim` and puts the parts of dimension `concat_dim`, which is `whole` long, together. x is this
 * rank's part of `concat_dim`; the result is its part of `split_dim`. [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_all_to_all(fsdp_tensor *x, int split_dim, int concat_dim, int64_t whole,
                                               fsdp_process_group *group);

/* ---- sequences cut over ranks ---- */

/* Returns attention (fsdp_attention of fsdp/ops.h) of sequences that are cut over the W ranks of the group, each in 2 W
 * equal chunks: rank r has chunk r and then chunk 2 W - 1 - r, so that causal attention is as much work for each. q
 * (B,T/W,H,D), k and v (B,T/W,G,D) and the result are this rank's. Options are those of fsdp_attention; positions are
 * those of this rank's tokens (B,T/W) in documents of the whole sequence, and are not checked. The last dimensions are
 * contiguous, or are made so by copies.
 *
 * Ranks take turns to broadcast their keys and values, n bytes, so that a rank holds those of one other rank, whatever
 * W is. (In a model of fsdp_model_context_parallel it holds those of two others, because the next ones are on their way
 * meanwhile: n more, and 2 n in the backward.) In the backward they do so again, and each turn's gradients are reduced
 * (reduce-scatter), and sent home at the end (all-to-all). With b bytes of q, f of as many f32 numbers, and l of one
 * f32 number for each query and head, a rank holds at most n + b + 10 l bytes beside the result, 2 f more unless the
 * dtype is f32, and 3 n + f + b in the backward. Documents and windows take at most copies of positions and of
 * gradients of a chunk besides. By a ring a rank sends (W-1) n bytes in the forward, and (2 + 1/W) times as many in the
 * backward. [collective], also in the backward */
FSDP_API fsdp_tensor *fsdp_parallel_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                              const fsdp_attention_options *options, fsdp_process_group *group);

/* ---- distributed tensors in operations ----
 *
 * A tensor that these functions return stands for the whole tensor of its distribution (fsdp/dist.h), of which it holds
 * this rank's part. The operations of fsdp/ops.h take it so: sizes and dimensions are those of the whole, and the
 * result is distributed, too. fsdp_tensor_shape and fsdp_tensor_read see the part.
 *
 *     x = fsdp_from_local(x, mesh, &(fsdp_placement){.kind = FSDP_REPLICATE}, NULL);
 *     y = fsdp_linear(x, up, FSDP_NO_BIAS);      // up: Shard(0)  -> y: Shard(1)
 *     y = fsdp_linear(fsdp_silu(y), down, bias); // down: Shard(1) -> y: Partial(sum)
 *     y = fsdp_to_local(fsdp_parallel_redistribute(y, &(fsdp_placement){.kind = FSDP_REPLICATE}));
 *
 * Rules, for each dimension of the mesh:
 *   - element by element, with broadcasting: inputs that are cut are cut alike, and so is the result; one that is
 *     replicated is cut without communication, unless another dimension of the mesh cuts that dimension of it already.
 *     Sums, differences, scale, neg, casts to floating dtypes and changes of shape of partial tensors are partial; so
 *     is a product or quotient of a partial and a replicated one. Any other operation on a partial tensor is an error.
 *   - linear, conv1d, matmul: cut rows of x, columns of the result, or batches stay cut; over a dimension that is added
 *     up the result is partial, and a bias is added once.
 *   - sum, mean: over a dimension that is cut the result is partial.
 *   - reshape, transpose, permute, slice, split, concat, stack, expand, flatten: a dimension that is cut must remain as
 *     it is, or be divided or merged evenly where it comes first.
 *   - layernorm, rmsnorm, softmax, log_softmax: the last dimension must not be cut.
 *   - embedding: of a table whose rows are cut the result is partial; ids must be below 2^24.
 *   - cross_entropy: rows may be cut: the result is partial; classes may not.
 *   - dropout draws as in the whole tensor if one dimension is cut, without segments; otherwise parts draw differently.
 * Another operation, or other placements, are an error (FSDP_UNSUPPORTED) that names both. Beside such a tensor a
 * distributed parameter counts with its placements, a plain tensor must have one element and be the same everywhere.
 * Gradients follow the note above; where a rank's gradient is only its own contribution, the operations add the
 * contributions up. Recomputation, modules' calls and fsdp_detach keep such a tensor distributed; but for a parameter
 * that a plan has placed, fsdp_detach and views give plain tensors of this rank's part. fsdp_tensor_item gives this
 * rank's number, also of a partial tensor: redistribute it first (fsdp_parallel_redistribute). */

/* Returns the distributed tensor whose part on this rank is `local`, without communication or copy. `global_shape` has
 * as many sizes as local dimensions; NULL is allowed if no placement cuts. The caller makes sure that ranks which
 * replicate have equal values. The mesh is kept as long as the tensor. A gradient of a partial average arrives divided
 * by its ranks. FSDP_INVALID: `local` does not have the size of this rank's part, or is distributed. */
FSDP_API fsdp_tensor *fsdp_from_local(fsdp_tensor *local, fsdp_mesh *mesh, const fsdp_placement *placements,
                                      const int64_t *global_shape);
/* Returns this rank's part as a plain tensor, without a copy. Its gradient must be as in [Note: whose gradient]. */
FSDP_API fsdp_tensor *fsdp_to_local(fsdp_tensor *tensor);
/* Changes the placements of a distributed tensor, which may also be a parameter, as fsdp_redistribute does; the
 * backward changes those of the gradient back. A partial maximum or minimum that requires a gradient is an error.
 * [collective] */
FSDP_API fsdp_tensor *fsdp_parallel_redistribute(fsdp_tensor *tensor, const fsdp_placement *placements);

#ifdef __cplusplus
}
#endif
#endif
