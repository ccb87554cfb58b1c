/* dry_run.c - a run in which everything happens except computing: it shows the memory that the run takes and what it
 * sends. */
#include <string.h>

#include "base/alloc.h"
#include "device/dry.h"
#include "train/run.h"
#include "train/run_config.h"

static bool own_model(const fsdp_train_run *run)
{
    return run->own && run->own->build;
}

static bool stands_for_gpu(const fsdp_train_config *config)
{
    return config->training.device && strncmp(config->training.device, "cuda", strlen("cuda")) == 0;
}

static fsdp_status build(fsdp_train_run *run)
{
    int ranks = fsdp_context_world_size(run->context);

    run->device = stands_for_gpu(run->config) ? fsdp__dry_gpu(run->context) : fsdp__dry(run->context);
    if (!run->device)
        return fsdp_last_status();
    fsdp__train_resolve_replicas(run);
    FSDP_TRY(fsdp__train_config_check_step(run->config, ranks));
    fsdp__train_count_ranks(run);
    if (!own_model(run)) {
        FSDP_TRY(fsdp__train_config_check_model(run->config));
        FSDP_TRY(fsdp__train_model_config(run->config, &run->model_config));
        FSDP_TRY(fsdp__train_check_model(run));
    }
    FSDP_TRY(fsdp__train_count_batches(run));
    FSDP_TRY(fsdp__train_read_schedule(run));
    FSDP_TRY(fsdp__train_read_adapter(run));
    FSDP_TRY(fsdp__train_make_model(run));
    FSDP_TRY(fsdp__train_shard_model(run));
    FSDP_TRY(fsdp__train_fill_model(run));
    return fsdp__train_make_optimizer(run);
}

fsdp_status fsdp__train_run_create_dry(fsdp_context *context, const fsdp_train_config *config,
                                       const fsdp__train_own *own, fsdp_train_run **out)
{
    static const fsdp_train_listener nobody;
    fsdp_train_run *run = fsdp__calloc(1, sizeof *run);
    fsdp_status status = FSDP_NO_MEMORY;
    bool held;

    *out = NULL;
    if (run) {
        run->context = context;
        run->config = config;
        run->listener = &nobody;
        run->own = own;
        status = build(run);
    }
    if (status == FSDP_OK) {
        *out = run;
        return FSDP_OK;
    }
    held = fsdp_hold_error(true);
    fsdp_train_run_free(run);
    fsdp_release_error(held);
    return status;
}
