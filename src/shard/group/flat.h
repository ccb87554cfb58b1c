/* flat.h - groups whose parameters, all of the same dtypes, lie one after the other in one vector, which is cut into
 * equal parts (FSDP1's FlatParameter).
 *
 * A parameter of such a group is a parameter like any other: a leaf with its own gradient, frozen or not, with a shard
 * of its own. What differs is where the cuts are, so that its shard is a run of its elements, and that the whole vector
 * (`group->vector`) is the one buffer of a gather, of a reduction, and of partial gradients. So a parameter without a
 * gradient counts as zeros as soon as another of its group has one, on any rank. Memory and lengths are those of the
 * vector, padding included. */
#ifndef SHARD_GROUP_FLAT_H
#define SHARD_GROUP_FLAT_H

#include "shard/group/param.h"

typedef struct fsdp__flat {
    bool on;
    size_t align; /* each parameter begins at a multiple of so many bytes of the gathered dtype; 0: they touch */
    /* Optimizers get the vector as one parameter: this rank's part of it, a distributed tensor of one dimension, with
     * all gradients. The parameters' shards are parts of it, without gradients of their own. */
    bool as_one;
} fsdp__flat;

/* Returns the alignment in elements of `param_dtype`: each parameter begins at a multiple of it. */
int64_t fsdp__flat_align(const fsdp__flat *flat, fsdp_dtype param_dtype);
/* Lays out a flat group, whose pieces are known: makes its vector, of which every rank's part has `shard_numel`
 * elements, and gives the parameters their places in it. */
void fsdp__flat_lay_out(struct fsdp__param_group *group, int64_t shard_numel);

#endif
