/* cast.h - shards in the dtype that they are gathered in. They are cast after a write, at the next gather, and stay for
 * all gathers until the next write: once a step, however often a step gathers.
 *
 * CAST they are this rank's rows of the unsharded parameters, which lie in shared memory anyway; COPY they have a
 * region of their own. The ledger counts the same bytes. Parameters that lie in runs (sharded above dimension 0) are
 * cast by each gather; so are offloaded ones, on the device (offload.h). Groups that are gathered in other bytes have
 * none (wire.h). */
#ifndef SHARD_CAST_H
#define SHARD_CAST_H

#include "shard/param.h"
#include "shard/residence.h"

bool fsdp__param_keeps_cast(const fsdp__param *param);
/* Places in the cast, and the residence's bytes for it. Extents and chunks are known. */
void fsdp__cast_lay_out(fsdp__residence *residence, fsdp__param *params, int64_t count);
/* Where the cast of a parameter that keeps one lies: what its gather reads. */
void *fsdp__cast_of(const fsdp__residence *residence, const fsdp__param *param);
/* Casts the shards, unless they have not been written since. A cast that another stream has made is complete in the
 * order of this one. [stream] */
fsdp_status fsdp__cast_shards(fsdp__residence *residence, const fsdp__param *params, int64_t count,
                              fsdp_stream *stream);

#endif
