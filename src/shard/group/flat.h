/* flat.h - groups whose parameters, all of the same dtypes, lie one after the other in one vector, which is cut into
 * equal parts (FSDP1's FlatParameter).
 *
 * A parameter of such a group is a parameter like any other: a leaf with its own gradient, frozen or not, with a shard
 * of its own. What differs is where the cuts are, so that its shard is a run of its elements, and that the whole vector
 * is one buffer of a gather, of a reduction, and of partial gradients. So a parameter without a gradient counts as
 * zeros as soon as another of its group has one, on any rank. Memory and lengths are those of the vector, padding
 * included. */
#ifndef SHARD_GROUP_FLAT_H
#define SHARD_GROUP_FLAT_H

#include "shard/group/param.h"
#include "shard/group/residence.h"

typedef struct fsdp__flat {
    bool on;
    size_t align;        /* each parameter begins at a multiple of so many bytes of the gathered dtype; 0: they touch */
    int64_t shard_numel; /* of every rank's part, padding included */
    /* Optimizers get the vector as one parameter: this rank's part of it, a distributed tensor of one dimension, with
     * all gradients. The parameters' shards are parts of it, without gradients of their own. */
    bool as_one;
    fsdp_tensor *parameter; /* that one parameter; NULL: not wanted, or not made yet */
} fsdp__flat;

/* Returns the alignment in elements of `param_dtype`: each parameter begins at a multiple of it. */
int64_t fsdp__flat_align(const fsdp__flat *flat, fsdp_dtype param_dtype);
/* Lays out the parameters' parts, and sets the residence's bytes. The pieces must be known. */
void fsdp__flat_lay_out(fsdp__flat *flat, int64_t shard_numel, fsdp__residence *residence, fsdp__param *params,
                        int64_t count);
/* Returns this rank's part of the vector, where the shards lie. */
void *fsdp__flat_shard(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype);
/* Lends this rank's whole part of the vector to `storage`: see fsdp__region_lend_guarded. */
void fsdp__flat_lend(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype,
                     fsdp__storage *storage);
/* Fills this rank's part of the vector, which has memory, with zeros; padding stays zero. */
fsdp_status fsdp__flat_clear(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype);
/* Return the bytes of one rank's part in `dtype`, and of the whole vector, rounded up as the allocator does. */
size_t fsdp__flat_shard_bytes(const fsdp__flat *flat, fsdp_dtype dtype);
size_t fsdp__flat_unsharded_bytes(const fsdp__flat *flat, int ranks, fsdp_dtype dtype);
/* Returns the vector's shape for a collective; the caller fills in memory and dtypes. */
fsdp_sharded_buffer fsdp__flat_buffer(const fsdp__flat *flat, int ranks);
/* Returns the one buffer of a gather. `staging` is where offloaded shards are copied to; NULL: they go straight to
 * their places in the unsharded parameters, or are not offloaded. */
fsdp_sharded_buffer fsdp__flat_gather_buffer(const fsdp__flat *flat, const fsdp__residence *residence,
                                             const fsdp__param *params, const fsdp__region *staging);

#endif
