/* partial.h - partial gradients: of hybrid sharding, this rank's part of the sum over its own replica's ranks.
 *
 * They are in the reduce dtype, chunk after chunk without a gap, so that one all-reduce takes them as they lie (one for
 * each reduce dtype, where the group has several). Only parameters that were reduced have a place. Between backwards
 * without all-reduce they add up. */
#ifndef SHARD_PARTIAL_H
#define SHARD_PARTIAL_H

#include "shard/group.h"

bool fsdp__param_has_partial(const fsdp__param *param);
/* Where the parameter's part lies. It has one. */
void *fsdp__param_partial(const fsdp__param *param);
/* Each of `params`, of the group, has a place, beside those that have one. `*adds`: there are values, which what comes
 * is to be added to; new places hold zeros then. Padding is zero. For work of the device's stream. */
fsdp_status fsdp__param_group_make_partial(fsdp__param_group *group, fsdp__param *const *params, int64_t count,
                                           bool *adds);
/* Zero, for a parameter that this rank adds nothing to: nobody may. For work of the device's stream. */
fsdp_status fsdp__param_zero_partial(const fsdp__param *param);
/* What waits for this parameter is not wanted. */
void fsdp__param_drop_partial(fsdp__param *param);
/* The group has no partial gradients any more: they are the caller's. */
fsdp__storage *fsdp__param_group_take_partial(fsdp__param_group *group);

#endif
