/* partial.h - partial gradients: with hybrid sharding, this rank's part of the sum over its own replica's ranks.
 *
 * They are in the reduce dtype, chunk after chunk without a gap, so that one all-reduce takes them as they lie (one for
 * each reduce dtype, if the group has several). Only parameters that were reduced have a place. Between backwards
 * without all-reduce they add up. */
#pragma once

#include "shard/group/param_group.h"

/* Returns whether the parameter has a place among the group's partial gradients. */
bool fsdp__param_has_partial(const fsdp__param *param);
/* Returns where the parameter's partial gradient lies. It must have one. */
void *fsdp__param_partial(const fsdp__param *param);
/* Gives each of `params`, which belong to the group, a place, beside those that have one. `*adds` says whether there
 * are values that what comes is to be added to; new places hold zeros then. Padding is zero. For work of the device's
 * stream. */
fsdp_status fsdp__param_group_make_partial(fsdp__param_group *group, fsdp__param *const *params, int64_t count,
                                           bool *adds);
/* Fills with zeros the place of a parameter that this rank has no gradient of: perhaps no rank has. For work of the
 * device's stream. */
fsdp_status fsdp__param_zero_partial(const fsdp__param *param);
/* Drops the parameter's partial gradient. */
void fsdp__param_drop_partial(fsdp__param *param);
/* Takes the partial gradients out of the group; the caller owns them. */
fsdp__storage *fsdp__param_group_take_partial(fsdp__param_group *group);
