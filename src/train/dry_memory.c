/* dry_memory.c - takes the steps of a run where they cost nothing. */
#include "train/dry_memory.h"

#include "train/run_steps.h"

enum {
    STEPS_TO_SETTLE = 2 /* the first makes what later ones reuse; the second, under DDP, its buckets */
};

fsdp_status fsdp__train_dry_twin(const fsdp_train_run *run, fsdp_train_run **out)
{
    int ranks = fsdp_context_world_size(run->context), machines = fsdp_context_machines(run->context);
    fsdp_context *context = NULL;
    fsdp_status status;
    bool held;

    *out = NULL;
    if (ranks % machines != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%d ranks on %d machines are not planned: they differ in their numbers",
                         ranks, machines);
    FSDP_TRY(fsdp_context_create_fake_machines(fsdp_context_rank(run->context), machines, ranks / machines, false,
                                               &context));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    status = fsdp__train_run_create_dry(context, run->config, run->own, out);
    if (status == FSDP_OK)
        return FSDP_OK;
    held = fsdp_hold_error(true);
    fsdp_context_free(context);
    fsdp_release_error(held);
    return status;
}

void fsdp__train_dry_twin_free(fsdp_train_run *dry)
{
    fsdp_context *context = dry ? dry->context : NULL;

    fsdp_train_run_free(dry);
    fsdp_context_free(context);
}

fsdp_status fsdp__train_dry_course(fsdp_train_run *dry, fsdp__train_step_taker *step, fsdp__memory_course *out)
{
    fsdp_status status;

    *out = (fsdp__memory_course){.changes = NULL};
    for (int i = 0; i < STEPS_TO_SETTLE; i++)
        FSDP_TRY(step(dry, NULL));
    status = fsdp__memory_course_begin(out, dry->device);
    if (status == FSDP_OK)
        status = step(dry, NULL);
    FSDP_KEEP_FIRST(status, fsdp__memory_course_end(out));
    return status;
}
