/* strategy.c - parallelism.strategy: what it excludes, and the stage of ZeRO that it is. */
#include "train/config.h"

int fsdp__train_zero_stage(const fsdp_train_config *config)
{
    switch (config->parallelism.strategy) {
    case FSDP_TRAIN_ZERO1:
        return 1;
    case FSDP_TRAIN_ZERO2:
        return 2;
    case FSDP_TRAIN_ZERO3:
        return 3;
    default:
        return 0;
    }
}

static fsdp_status check_reshard(const fsdp_train_config *config, int stage)
{
    int reshard = config->parallelism.reshard_after_forward;

    if (stage < 3 && (reshard == -FSDP_RESHARD_ALWAYS || reshard > 1))
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero%d keeps parameters whole from the forward to the backward, and "
                         "parallelism.fsdp_reshard_after_forward gives them up: leave that out, or set "
                         "parallelism.strategy to zero3",
                         stage);
    if (stage == 3 && (reshard == -FSDP_RESHARD_NEVER || reshard == 1))
        return FSDP_FAIL(FSDP_INVALID, "parallelism.strategy zero3 shards parameters between forward and backward, and "
                                       "parallelism.fsdp_reshard_after_forward keeps them whole: leave that out, or "
                                       "set parallelism.strategy to zero2");
    return FSDP_OK;
}

static fsdp_status check_no_sync(const fsdp_train_config *config, int stage)
{
    if (stage == 1 && config->training.no_sync == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero1 reduces gradients once a step, and training.no_sync false in each "
                         "microbatch: leave that out, or set parallelism.strategy to zero2");
    if (stage > 1 && config->training.no_sync == 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero%d shards gradients, and training.no_sync true adds up whole ones: "
                         "leave that out, or set parallelism.strategy to %s",
                         stage, stage == 2 ? "zero1" : "fsdp2");
    return FSDP_OK;
}

fsdp_status fsdp__train_check_strategy(const fsdp_train_config *config)
{
    int stage = fsdp__train_zero_stage(config);

    if (config->parallelism.strategy == FSDP_TRAIN_HSDP && config->parallelism.data_parallel_replicate_degree == 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy hsdp keeps several copies of the parameters, and "
                         "parallelism.data_parallel_replicate_degree is 1: set it to their number, which only follows "
                         "by itself where there are several machines");
    if (stage == 0)
        return FSDP_OK;
    FSDP_TRY(check_reshard(config, stage));
    return check_no_sync(config, stage);
}
