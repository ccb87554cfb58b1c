/* allocate.h - gives groups of parameters their memory and takes it back. */
#pragma once

#include "shard/group/param_group.h"

/* Lays out the group's parameters and turns their tensors into shards. The group still has no memory after that. A
 * failure changes nothing. */
fsdp_status fsdp__param_group_shard_parameters(fsdp__param_group *group);
/* Undoes fsdp__param_group_shard_parameters. Call it only while the group has no memory. */
void fsdp__param_group_unwrap_parameters(fsdp__param_group *group);

/* Gives every group its residence and memory on `device`, and makes the tensors of the unsharded parameters. The
 * sharded tensors get bytes in orig_dtype: undefined ones, or this rank's rows of the values they had. A write to a
 * shard of a group calls `before_write(group, storage)` first. Either all groups on all ranks succeed, or none does and
 * nothing has changed. [collective] */
fsdp_status fsdp__param_groups_allocate(fsdp__param_group *const *groups, int64_t count, fsdp_device *device,
                                        fsdp_status (*before_write)(void *group, const fsdp__storage *storage));
/* Makes a failure on one rank a failure on all: returns the status that all ranks of the groups' meshes agree on.
 * [collective] */
fsdp_status fsdp__param_groups_agree(fsdp__param_group *const *groups, int64_t count, fsdp_status status);
/* Frees the group. Tensors of the group that others hold stay valid. */
void fsdp__param_group_free(fsdp__param_group *group, fsdp__comm_context *comm);
