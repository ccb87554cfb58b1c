/* strategy.c - parallelism.strategy: what it excludes, and which stage of ZeRO it is. */
#include <math.h>

#include "base/text.h"
#include "fsdp/adapter.h"
#include "fsdp/parallelize.h"
#include "train/run_config.h"

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

const char *fsdp__train_strategy_name(const fsdp_train_config *config)
{
    const fsdp__choice *choice = fsdp__key_find(&fsdp__train_keys, "parallelism", "strategy")->choices;

    while (choice->value != config->parallelism.strategy)
        choice++;
    return choice->text;
}

bool fsdp__train_chooses_stays(const fsdp_train_config *config)
{
    return config->parallelism.strategy == FSDP_TRAIN_FSDP2 || config->parallelism.strategy == FSDP_TRAIN_HSDP;
}

static fsdp_status check_reshard(const fsdp_train_config *config, int stage)
{
    int reshard = config->parallelism.reshard_after_forward;

    if (stage < 3 && (reshard == -FSDP_RESHARD_ALWAYS || reshard > 1))
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero%d keeps parameters whole from the forward to the backward, but "
                         "parallelism.fsdp_reshard_after_forward gives them up: leave that out, or set "
                         "parallelism.strategy to zero3",
                         stage);
    if (stage == 3 && (reshard == -FSDP_RESHARD_NEVER || reshard == 1))
        return FSDP_FAIL(FSDP_INVALID, "parallelism.strategy zero3 shards parameters between forward and backward, but "
                                       "parallelism.fsdp_reshard_after_forward keeps them whole: leave that out, or "
                                       "set parallelism.strategy to zero2");
    return FSDP_OK;
}

static fsdp_status check_no_sync(const fsdp_train_config *config, int stage)
{
    if (stage == 1 && config->training.no_sync == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero1 reduces gradients once a step, but training.no_sync false asks "
                         "for it in each microbatch: leave that out, or set parallelism.strategy to zero2");
    if (stage > 1 && config->training.no_sync == 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy zero%d shards gradients, but training.no_sync true adds up whole ones: "
                         "leave that out, or set parallelism.strategy to %s",
                         stage, stage == 2 ? "zero1" : "fsdp2");
    return FSDP_OK;
}

fsdp_sharding_strategy fsdp__train_fsdp1_strategy(const fsdp_train_config *config)
{
    if (config->parallelism.fsdp1_strategy >= 0)
        return (fsdp_sharding_strategy)config->parallelism.fsdp1_strategy;
    return config->parallelism.data_parallel_replicate_degree > 1 ? FSDP_HYBRID_SHARD : FSDP_FULL_SHARD;
}

bool fsdp__train_holds_all(const fsdp_train_config *config)
{
    return config->parallelism.strategy == FSDP_TRAIN_DDP ||
           (config->parallelism.strategy == FSDP_TRAIN_FSDP1 && fsdp__train_fsdp1_strategy(config) == FSDP_NO_SHARD);
}

bool fsdp__train_on_gpu(const fsdp_train_config *config)
{
    return config->training.device && fsdp__behind(config->training.device, "cuda");
}

int fsdp__train_replicas(const fsdp_train_config *config, int world_size)
{
    return fsdp__train_holds_all(config) ? world_size : (int)config->parallelism.data_parallel_replicate_degree;
}

int fsdp__train_team(const fsdp_train_config *config)
{
    return (int)(config->parallelism.context_parallel_degree * config->parallelism.tensor_parallel_degree);
}

int fsdp__train_data_ranks(const fsdp_train_config *config, int world_size)
{
    return world_size / fsdp__train_team(config);
}

/* Refuses keys of strategies other than the one in use. */
static fsdp_status refuse_key(bool set, const char *strategy, const char *key, const char *why)
{
    return set ? FSDP_FAIL(FSDP_INVALID, "parallelism.strategy %s %s: leave %s out, or set another strategy", strategy,
                           why, key)
               : FSDP_OK;
}

/* Checks the copies for strategies that shard nothing; `door` is the word for such a strategy. */
static fsdp_status check_copies(const fsdp_train_config *config, int world_size, const char *door)
{
    int64_t replicas = config->parallelism.data_parallel_replicate_degree;

    FSDP_TRY(refuse_key(config->parallelism.data_parallel_shard_degree > 1, door,
                        "parallelism.data_parallel_shard_degree", "shards nothing"));
    if (replicas != 1 && replicas != world_size)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.strategy %s has a copy on each of %d ranks, but "
                         "parallelism.data_parallel_replicate_degree is %lld: leave that out, or set hsdp",
                         door, world_size, (long long)replicas);
    return FSDP_OK;
}

static fsdp_status check_fsdp1(const fsdp_train_config *config, int world_size)
{
    fsdp_sharding_strategy strategy = fsdp__train_fsdp1_strategy(config);
    bool hybrid = strategy == FSDP_HYBRID_SHARD || strategy == FSDP_HYBRID_SHARD_ZERO2;

    if (strategy == FSDP_NO_SHARD)
        FSDP_TRY(check_copies(config, world_size, "fsdp1 with fsdp1_strategy no_shard"));
    else if (hybrid != (config->parallelism.data_parallel_replicate_degree > 1))
        return FSDP_FAIL(
            FSDP_INVALID,
            "parallelism.fsdp1_strategy is %s hybrid one, but parallelism.data_parallel_replicate_degree is %lld: %s",
            hybrid ? "a" : "no", (long long)config->parallelism.data_parallel_replicate_degree,
            hybrid ? "set it to the number of copies" : "leave it out, or set hybrid_shard or hybrid_shard_zero2");
    FSDP_TRY(refuse_key(config->parallelism.reshard_after_forward != -FSDP_RESHARD_AUTO, "fsdp1",
                        "parallelism.fsdp_reshard_after_forward", "has parallelism.fsdp1_strategy for that"));
    FSDP_TRY(refuse_key(config->parallelism.keep_last_unit, "fsdp1", "parallelism.keep_last_unit",
                        "has parallelism.fsdp1_strategy for that"));
    FSDP_TRY(refuse_key(config->parallelism.prefetch > 0, "fsdp1", "parallelism.prefetch",
                        "has parallelism.fsdp1_forward_prefetch and fsdp1_backward_prefetch for that"));
    FSDP_TRY(refuse_key(config->training.split_shards, "fsdp1", "training.split_shards", "has flat parameters"));
    return refuse_key(config->parallelism.gather_dtype != FSDP_TRAIN_GATHER_NONE, "fsdp1", "parallelism.gather_dtype",
                      "gathers in the compute dtype");
}

/* Checks what fsdp_replicate would refuse, by the names of the keys. */
static fsdp_status check_buckets(const fsdp_train_config *config)
{
    if (config->parallelism.ddp_static_graph == 1 && config->parallelism.ddp_find_unused_parameters == 1)
        return FSDP_FAIL(FSDP_INVALID, "parallelism.ddp_static_graph finds unused parameters by itself: leave out "
                                       "parallelism.ddp_find_unused_parameters, which looks for them in every step");
    return FSDP_OK;
}

static fsdp_status check_ddp(const fsdp_train_config *config, int world_size)
{
    int reshard = config->parallelism.reshard_after_forward;

    FSDP_TRY(check_copies(config, world_size, "ddp"));
    FSDP_TRY(check_buckets(config));
    FSDP_TRY(refuse_key(reshard == -FSDP_RESHARD_ALWAYS || reshard > 1, "ddp", "parallelism.fsdp_reshard_after_forward",
                        "keeps parameters whole"));
    FSDP_TRY(refuse_key(config->parallelism.gather_dtype != FSDP_TRAIN_GATHER_NONE, "ddp", "parallelism.gather_dtype",
                        "gathers nothing"));
    FSDP_TRY(refuse_key(config->parallelism.prefetch > 0, "ddp", "parallelism.prefetch", "gathers nothing"));
    FSDP_TRY(refuse_key(config->parallelism.keep_last_unit, "ddp", "parallelism.keep_last_unit", "gathers nothing"));
    FSDP_TRY(refuse_key(config->parallelism.wrap_policy != FSDP_TRAIN_WRAP_BLOCKS, "ddp", "parallelism.wrap_policy",
                        "has buckets, and no units"));
    FSDP_TRY(refuse_key(config->training.mixed_precision_param != FSDP_F32, "ddp", "training.mixed_precision_param",
                        "computes in the dtype of the parameters"));
    FSDP_TRY(refuse_key(config->training.mixed_precision_reduce != FSDP_F32, "ddp", "training.mixed_precision_reduce",
                        "reduces in the dtype of the parameters"));
    FSDP_TRY(refuse_key(config->training.split_shards, "ddp", "training.split_shards",
                        "computes in the dtype of the parameters"));
    return refuse_key(config->training.enable_cpu_offload, "ddp", "training.enable_cpu_offload",
                      "has all on the device");
}

/* Checks what can be said of split shards before there are any. */
static fsdp_status check_split(const fsdp_train_config *config)
{
    const char *base = config->adapter.quantize != FSDP_QUANTIZE_NONE ? "quantize"
                       : config->adapter.base_dtype != FSDP_F32       ? "base_dtype"
                                                                      : NULL;

    if (!config->training.split_shards)
        return FSDP_OK;
    if (config->training.mixed_precision_param != FSDP_BF16)
        return FSDP_FAIL(FSDP_INVALID,
                         "training.split_shards splits float32 into the bfloat16 that is computed with and "
                         "16 more bits: set training.mixed_precision_param to bfloat16");
    if (config->parallelism.gather_dtype != FSDP_TRAIN_GATHER_NONE)
        return FSDP_FAIL(FSDP_INVALID,
                         "training.split_shards keeps what is gathered, but parallelism.gather_dtype makes "
                         "it anew for each gather: leave one of them out");
    if (config->training.enable_cpu_offload)
        return FSDP_FAIL(FSDP_INVALID, "training.split_shards saves memory of the device, where "
                                       "training.enable_cpu_offload keeps no shards: leave one of them out");
    if (base)
        return FSDP_FAIL(FSDP_INVALID,
                         "training.split_shards splits float32, but adapter.%s holds the frozen weights otherwise: "
                         "leave one of them out",
                         base);
    return FSDP_OK;
}

fsdp_status fsdp__train_check_strategy(const fsdp_train_config *config, int world_size)
{
    int stage = fsdp__train_zero_stage(config);

    if (config->parallelism.strategy == FSDP_TRAIN_FSDP1)
        return check_fsdp1(config, world_size);
    if (config->parallelism.strategy == FSDP_TRAIN_DDP)
        return check_ddp(config, world_size);
    FSDP_TRY(check_split(config));
    if (config->parallelism.strategy == FSDP_TRAIN_HSDP && config->parallelism.data_parallel_replicate_degree == 1)
        return FSDP_FAIL(FSDP_INVALID, "parallelism.strategy hsdp keeps several copies of the parameters, but "
                                       "parallelism.data_parallel_replicate_degree is 1: set it to their number (on "
                                       "several machines, the default is one on each)");
    if (stage == 0)
        return FSDP_OK;
    FSDP_TRY(check_reshard(config, stage));
    return check_no_sync(config, stage);
}
