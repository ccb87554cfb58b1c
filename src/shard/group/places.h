/* places.h - decides where the parameters of a group lie, where the bytes are, and in which way they are gathered. */
#ifndef SHARD_GROUP_PLACES_H
#define SHARD_GROUP_PLACES_H

#include "shard/group/param_group.h"

/* Gives each of the group's parameters its place, from their extents and dtypes, and the group its way of a gather.
 * Call it only while the group has no memory. */
void fsdp__param_group_lay_out(fsdp__param_group *group);
/* Returns the residence of a group, which has been laid out, on `device`. */
fsdp__residence_kind fsdp__choose_residence(const fsdp__param_group *group, const fsdp_device *device);

#endif
