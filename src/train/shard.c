/* shard.c - shards the model by the public function that parallelism.strategy selects, as the other keys say. */
#include <math.h>

#include "fsdp/fsdp1.h"
#include "fsdp/parallelize.h"
#include "fsdp/replicate.h"
#include "shard/doors/fsdp1_prepare.h"
#include "train/run_config.h"
#include "train/run_start.h"

static fsdp_status make_meshes(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const fsdp__parallel_degrees degrees = {
        fsdp__train_holds_all(c) ? 1 : c->parallelism.data_parallel_replicate_degree,
        c->parallelism.context_parallel_degree, c->parallelism.tensor_parallel_degree};

    return fsdp__parallel_meshes_create(run->context, &degrees, &run->meshes);
}

/* Says, if so, that the ranks of a team are on several machines. */
static void warn_of_machines(const fsdp_train_run *run)
{
    int local = fsdp_context_local_world_size(run->context);
    const fsdp_train_config *c = run->config;
    int64_t cp = c->parallelism.context_parallel_degree, tp = c->parallelism.tensor_parallel_degree;

    if (fsdp_context_machines(run->context) == 1 || fsdp_context_rank(run->context) != 0)
        return;
    if (local % tp != 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "parallelism.tensor_parallel_degree %lld does not divide the %d ranks of a machine: results of layers "
                 "travel between machines",
                 (long long)tp, local);
    else if (local % (cp * tp) != 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "parallelism.context_parallel_degree %lld (x %lld) does not divide the %d ranks of a machine: keys "
                 "and values travel between machines",
                 (long long)cp, (long long)tp, local);
}

/* Cuts the model's layers over the ranks that compute each together, and sequences over theirs. [collective] */
static fsdp_status parallelize(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp_model_parallel_options options = {.sequence_parallel = c->parallelism.sequence_parallel,
                                           .async = c->parallelism.enable_async_tensor_parallel,
                                           .loss_parallel = c->parallelism.loss_parallel};

    warn_of_machines(run);
    if (run->meshes.tp && fsdp_model_parallelize(run->model, run->meshes.tp, &options) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "parallelism.tensor_parallel_degree");
    if (run->meshes.cp && fsdp_model_context_parallel(run->model, run->meshes.cp) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "parallelism.context_parallel_degree");
    return FSDP_OK;
}

static fsdp_shard_options shard_options(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int reshard = c->parallelism.reshard_after_forward;
    fsdp_shard_options options = {.mesh = run->meshes.sharded,
                                  .reshard_after_forward = reshard < 0 ? (fsdp_reshard)-reshard : FSDP_RESHARD_AUTO,
                                  .reshard_after_forward_ranks = reshard > 0 ? reshard : 0};
    fsdp_dtype param = (fsdp_dtype)c->training.mixed_precision_param;

    if (param != FSDP_F32)
        options.mp_policy.param_dtype = param;
    options.mp_policy.reduce_dtype = (fsdp_dtype)c->training.mixed_precision_reduce;
    options.mp_policy.split_shards = c->training.split_shards;
    if (c->parallelism.gather_dtype != FSDP_TRAIN_GATHER_NONE)
        options.gather_extension =
            c->parallelism.gather_dtype == FSDP_TRAIN_GATHER_FLOAT8 ? fsdp_gather_float8() : fsdp_gather_int8();
    options.zero_stage = fsdp__train_zero_stage(c);
    options.offload_policy.cpu = c->training.enable_cpu_offload;
    return options;
}

static fsdp_fsdp1_options fsdp1_options(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp_dtype param = (fsdp_dtype)c->training.mixed_precision_param;
    fsdp_fsdp1_options options = {.mesh = run->meshes.sharded,
                                  .strategy = fsdp__train_fsdp1_strategy(c),
                                  .use_orig_params = c->parallelism.fsdp1_use_orig_params == 1,
                                  .forward_prefetch = c->parallelism.fsdp1_forward_prefetch == 1};
    int ranks = fsdp_context_world_size(run->context);

    /* this is what it is in any case then, after a warning for each unit */
    if (fsdp__train_replicas(c, ranks) == ranks) {
        options.strategy = FSDP_NO_SHARD;
        options.mesh = NULL;
    }
    if (c->parallelism.fsdp1_backward_prefetch >= 0)
        options.backward_prefetch = (fsdp_backward_prefetch)c->parallelism.fsdp1_backward_prefetch;
    if (param != FSDP_F32)
        options.mixed_precision.param_dtype = param;
    options.mixed_precision.reduce_dtype = (fsdp_dtype)c->training.mixed_precision_reduce;
    options.cpu_offload.cpu = c->training.enable_cpu_offload;
    return options;
}

static fsdp_replicate_options ddp_options(const fsdp_train_config *c)
{
    return (fsdp_replicate_options){
        .bucket_cap_mb = isnan(c->parallelism.ddp_bucket_cap_mb) ? 0 : c->parallelism.ddp_bucket_cap_mb,
        .find_unused_parameters = c->parallelism.ddp_find_unused_parameters == 1,
        .static_graph = c->parallelism.ddp_static_graph == 1,
        .gradient_as_bucket_view = c->parallelism.ddp_gradient_as_bucket_view == 1,
        .compress = c->parallelism.ddp_compress > 0 ? (fsdp_dtype)c->parallelism.ddp_compress : FSDP_DTYPE_NONE};
}

/* Shards every unit, and the root last. */
static fsdp_status shard_units(const fsdp_train_run *run)
{
    bool fsdp1 = run->config->parallelism.strategy == FSDP_TRAIN_FSDP1;
    fsdp_shard_options options = shard_options(run);
    fsdp_fsdp1_options options1 = fsdp1_options(run);

    if (run->comm_schedule)
        return fsdp__train_shard_scheduled(run, &options);
    for (int64_t i = 0; i < run->units.count && fsdp1; i++) /* at this point they still have names */
        FSDP_TRY(fsdp__fsdp1_check_unit(&run->units.items[i], options1.use_orig_params));
    for (int64_t i = 0; i < run->units.count; i++) {
        fsdp_module *unit = run->units.items[run->units.bottom_up[i]].module;

        FSDP_TRY(fsdp1 ? fsdp_fsdp1_wrap(unit, &options1) : fsdp_fully_shard(unit, &options));
    }
    FSDP_TRY(fsdp__train_keep_last_unit(run));
    return fsdp__train_set_prefetch(run);
}

fsdp_status fsdp__train_shard_model(fsdp_train_run *run)
{
    bool ddp = run->config->parallelism.strategy == FSDP_TRAIN_DDP;
    fsdp_replicate_options options = ddp_options(run->config);

    FSDP_TRY(make_meshes(run));
    FSDP_TRY(parallelize(run));
    FSDP_TRY(ddp ? fsdp_replicate(run->model, &options) : shard_units(run));
    run->unit_count = ddp ? 1 : run->comm_schedule ? run->comm_schedule->unit_count + 1 : run->units.count;
    if (run->config->metrics.histogram_freq > 0 && run->loader)
        FSDP_TRY(fsdp__histograms_create(run->context, &run->units, &run->histograms));
    fsdp_wrap_units_release(&run->units);
    FSDP_TRY(fsdp__train_set_recompute(run->config, run->model));
    return fsdp_module_materialize(run->model, run->device);
}
