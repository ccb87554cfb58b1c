/* allocate.h - groups get their memory, and give it back. */
#ifndef SHARD_ALLOCATE_H
#define SHARD_ALLOCATE_H

#include "shard/group.h"

/* Where all of the group's parameters lie, by their extents and dtypes; while it has no memory only. */
fsdp_status fsdp__param_group_lay_out(fsdp__param_group *group);
/* Lays out the group's parameters and turns their tensors into shards, still without the group's memory. A failure
 * changes nothing. */
fsdp_status fsdp__param_group_shard_parameters(fsdp__param_group *group);
/* Undoes that; while the group has no memory only. */
void fsdp__param_group_unwrap_parameters(fsdp__param_group *group);

/* Gives every group its residence and memory on `device` and makes the unsharded parameters' tensors; the sharded
 * tensors get bytes (undefined, or this rank's rows of the values they had), in
 * orig_dtype. Writes to the shards of a group ask
 * `before_write(group, storage)` first. All groups on all ranks succeed, or none and nothing has changed.
 * [collective] */
fsdp_status fsdp__param_groups_allocate(fsdp__param_group *const *groups, int64_t count, fsdp_device *device,
                                        fsdp_status (*before_write)(void *group, const fsdp__storage *storage));
/* What went wrong on one rank went wrong on all. [collective] */
fsdp_status fsdp__param_groups_agree(fsdp__param_group *const *groups, int64_t count, fsdp_status status);
/* Frees the group; who holds its tensors keeps them. */
void fsdp__param_group_free(fsdp__param_group *group, fsdp__comm_context *comm);

#endif
