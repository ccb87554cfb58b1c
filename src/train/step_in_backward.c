/* step_in_backward.c - takes the step of each group in the backward, as soon as its gradients are ready, where shards
 * are offloaded: the host steps while the device computes. This is done only where nothing is decided about all
 * gradients together first: no clipping, no loss scale, no check whether the step is finite. The bits are those of one
 * step at the end. */
#include "train/run_config.h"
#include "train/run_steps.h"

static fsdp_status step_landed(void *arg, fsdp_tensor *const *parameters, int64_t count)
{
    fsdp_train_run *run = arg;

    return run->last_microbatch ? fsdp_optimizer_step_parameters(run->optimizer, parameters, count) : FSDP_OK;
}

fsdp_status fsdp__train_step_early(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    run->steps_early = !fsdp__train_steps_together(c) && run->offloaded && c->training.max_norm <= 0 && !run->scaler &&
                       c->training.on_nan == FSDP_TRAIN_CONTINUE;
    if (!run->steps_early)
        return FSDP_OK;
    return fsdp_module_set_post_accumulate_grad_hook(run->model, step_landed, run, true);
}
