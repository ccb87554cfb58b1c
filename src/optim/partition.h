/* partition.h - assigns whole parameters to the ranks that step them, if an optimizer's state is partitioned among
 * ranks (ZeRO-1 by whole parameters). */
#pragma once

#include "optim/optim.h"

struct fsdp__partition {
    fsdp_process_group *group;
    bool bucket_view;
    int64_t *loads;                /* number of elements that each rank steps */
    fsdp_state_dict *consolidated; /* the state of all ranks, since the last step; NULL: not on this rank */
};

/* Checks that a partitioned parameter can be broadcast whole; it may have been sharded since it was added. Without a
 * partition the answer is OK. */
fsdp_status fsdp__partition_check(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param);
/* Assigns the parameters of a group that is added to an optimizer with a partition; does nothing without one. */
fsdp_status fsdp__partition_add_group(fsdp_optimizer *optimizer, fsdp__optimizer_group *group);
void fsdp__partition_free(fsdp_optimizer *optimizer);
/* Returns whether this rank steps the parameter and has its state; always true without a partition. */
bool fsdp__partition_owns(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param);
/* Forgets the consolidated state, which has become outdated. */
void fsdp__partition_forget(fsdp_optimizer *optimizer);
/* Broadcasts the parameters after the steps of all ranks. [collective] */
fsdp_status fsdp__partition_publish(const fsdp_optimizer *optimizer);
/* Aborts the world if this rank has failed where its peers are about to communicate. Returns `status`. */
fsdp_status fsdp__partition_abort(const fsdp_optimizer *optimizer, fsdp_status status);
