/* cast.h - keeps shards in the dtype in which they are gathered. They are cast at the first gather after a write, and
 * the cast serves all gathers until the next write: it is made once a step, however often a step gathers.
 *
 * In CAST they are this rank's rows of the unsharded parameters, which lie in shared memory anyway; in COPY they have a
 * region of their own. The ledger counts the same bytes either way. Parameters whose rows lie in runs (sharded in a
 * later dimension than 0) are cast by each gather; offloaded ones are too, on the device (offload.h). Groups that are
 * gathered in other bytes keep no cast (encoded.h). */
#pragma once

#include "shard/group/param.h"
#include "shard/group/residence.h"

/* Returns whether a cast of the parameter is kept: it is gathered in another dtype, and its rows lie together. */
bool fsdp__param_keeps_cast(const fsdp__param *param);
/* Lays out the casts of parameters, or of a vector, and sets the residence's bytes for them. Extents and chunks must be
 * known. */
void fsdp__cast_lay_out(fsdp__residence *residence, fsdp__param *params, int64_t count);
/* Returns where the cast of a parameter or vector that keeps one lies: what its gather reads. */
void *fsdp__cast_of(const fsdp__residence *residence, const fsdp__param *param);
/* Lets who writes a whole shard, as an optimizer does, write its cast in the same pass, where no peer reads that. Call
 * it when the residence has its writer. */
void fsdp__cast_serve_writers(struct fsdp__param_group *group);
/* Notes a write: no cast is current any more. */
void fsdp__cast_before_write(struct fsdp__param_group *group);
/* Casts the shards, unless nothing was written since the last cast. A cast that another stream has made must be
 * complete in the order of this one. [stream] */
fsdp_status fsdp__cast_shards(struct fsdp__param_group *group, fsdp_stream *stream);
