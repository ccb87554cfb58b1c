/* partition.h - who steps which whole parameter, where an optimizer's state is partitioned among ranks (ZeRO-1 by whole
 * parameters). */
#ifndef OPTIM_PARTITION_H
#define OPTIM_PARTITION_H

#include "optim/optim.h"

struct fsdp__partition {
    fsdp_process_group *group;
    bool bucket_view;
    int64_t *loads;                /* elements that each rank steps */
    fsdp_state_dict *consolidated; /* the state of all ranks, since the last step; NULL: not here */
};

/* What a partition has can be broadcast whole: parameters may have been sharded since they came. Without one, OK. */
fsdp_status fsdp__partition_check(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param);
/* Of a group that comes to an optimizer with such a partition; does nothing without. */
fsdp_status fsdp__partition_add_group(fsdp_optimizer *optimizer, fsdp__optimizer_group *group);
void fsdp__partition_free(fsdp_optimizer *optimizer);
/* Whether this rank steps the parameter, and has its state: of an optimizer without a partition all. */
bool fsdp__partition_owns(const fsdp_optimizer *optimizer, const fsdp__optimizer_param *param);
/* What was consolidated is of the past. */
void fsdp__partition_forget(fsdp_optimizer *optimizer);
/* After the steps of all ranks: their parameters to everybody. [collective] */
fsdp_status fsdp__partition_publish(const fsdp_optimizer *optimizer);
/* The rank has failed where its peers are about to communicate. Returns `status`. */
fsdp_status fsdp__partition_abort(const fsdp_optimizer *optimizer, fsdp_status status);

#endif
