/* wire.h - collectives on tensors, without gradients: parts are packed into boxes of one size, padded to the chunk.
 *
 * The results are new tensors of the scope, contiguous; NULL and a last error on failure. In a group of one rank they
 * are views of the input. Dimensions are not negative. */
#pragma once

#include "fsdp/dist.h"
#include "tensor/tensor.h"

/* Checks that a group is of the context of x; the operation `op` is named otherwise. */
bool fsdp__check_group(const char *op, const fsdp_tensor *x, const fsdp_process_group *group);
/* Returns how long the largest part of a dimension is by the chunk rule, and so the box of every part. */
int64_t fsdp__wire_chunk(int64_t size, int64_t ranks);
/* Reduces x over all ranks; with `over`, the result may be written over x, which then nobody else needs. */
fsdp_tensor *fsdp__wire_all_reduce(fsdp_tensor *x, fsdp_reduce_op op, bool over, fsdp_process_group *group);
/* Puts the ranks' parts of dimension `dim`, `whole` long, together. */
fsdp_tensor *fsdp__wire_all_gather(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group);
/* Returns this rank's part of the sum of all ranks' x. */
fsdp_tensor *fsdp__wire_reduce_scatter(fsdp_tensor *x, int dim, fsdp_process_group *group);
/* Cuts `split_dim` and puts the parts of `concat_dim`, `whole` long, together. */
fsdp_tensor *fsdp__wire_all_to_all(fsdp_tensor *x, int split_dim, int concat_dim, int64_t whole,
                                   fsdp_process_group *group);
/* Sets x, contiguous, to rank `root`'s, on that stream. */
fsdp_status fsdp__wire_broadcast(fsdp_tensor *x, int root, fsdp_process_group *group, fsdp_stream *stream);
/* Adds up x, contiguous and of as many equal parts as ranks, over all ranks: part `place` of `sums`, which is of the
 * same size, becomes this rank's part of the sum. */
fsdp_status fsdp__wire_reduce_part(const fsdp_tensor *x, fsdp_tensor *sums, int place, fsdp_process_group *group,
                                   fsdp_stream *stream);
/* Sends part r of `from` to rank r, where it becomes the part of this rank in `to`. Both are as those above. */
fsdp_status fsdp__wire_exchange(const fsdp_tensor *from, fsdp_tensor *to, fsdp_process_group *group);
/* Returns this rank's part of x, a view. */
fsdp_tensor *fsdp__wire_slice(fsdp_tensor *x, int dim, fsdp_process_group *group);
