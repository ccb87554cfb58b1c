/* flat.h - groups whose parameters, of the same dtypes, lie one after the other in one vector that is cut into equal
 * parts (FSDP1's FlatParameter).
 *
 * A parameter of such a group is a parameter like others: a leaf with its own gradient, frozen or not, with a shard of
 * its own. What differs is where that is cut, by which its shard is a run of its elements, and that the whole vector is
 * one buffer of a gather, of a reduction, and of partial gradients. So a parameter without a gradient counts as zeros
 * as soon as another of its group has one, on any rank. Memory and lengths are those of the vector, padding included.
 */
#ifndef SHARD_FLAT_H
#define SHARD_FLAT_H

#include "shard/param.h"
#include "shard/residence.h"

typedef struct fsdp__flat {
    bool on;
    size_t align;        /* bytes of the gathered dtype: a parameter begins at a multiple. 0: they touch */
    int64_t shard_numel; /* of every rank's part, padding included */
    /* Optimizers are given the vector, as one parameter: this rank's part of it, a distributed tensor of one dimension,
     * with all gradients. The parameters' shards are parts of it, without gradients of their own. */
    bool as_one;
    fsdp_tensor *parameter; /* that; NULL: it is not to be one, or not yet */
} fsdp__flat;

/* Elements of `param_dtype` that parameters begin at a multiple of. */
int64_t fsdp__flat_align(const fsdp__flat *flat, fsdp_dtype param_dtype);
/* Places of the parts, and the residence's bytes; the pieces are known. */
void fsdp__flat_lay_out(fsdp__flat *flat, int64_t shard_numel, fsdp__residence *residence, fsdp__param *params,
                        int64_t count);
/* This rank's part of the vector, as the shards have it. */
void *fsdp__flat_shard(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype);
/* `storage` takes this rank's part of the vector, whole: see fsdp__region_lend_guarded. */
void fsdp__flat_lend(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype,
                     fsdp__storage *storage);
/* Zeros for this rank's part of the vector, which has memory: what is padding stays so. */
fsdp_status fsdp__flat_clear(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype);
/* Of a rank's part in `dtype`, and of the whole vector: rounded up as the allocator does. */
size_t fsdp__flat_shard_bytes(const fsdp__flat *flat, fsdp_dtype dtype);
size_t fsdp__flat_unsharded_bytes(const fsdp__flat *flat, int ranks, fsdp_dtype dtype);
/* Its shape for a collective: memory and dtypes are the caller's business. */
fsdp_sharded_buffer fsdp__flat_buffer(const fsdp__flat *flat, int ranks);
/* What a gather is given in place of one buffer for each parameter. `staging`: where offloaded shards are sent to;
 * NULL: their places in the unsharded parameters, or nowhere. */
fsdp_sharded_buffer fsdp__flat_gather_buffer(const fsdp__flat *flat, const fsdp__residence *residence,
                                             const fsdp__param *params, const fsdp__region *staging);

#endif
