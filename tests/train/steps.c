/* steps.c - some steps. */
#include "train/steps.h"

void train_steps(fsdp_context *context, fsdp_train_config *config, int steps, fsdp_train_report *reports)
{
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, config, &run));
    for (int step = 0; step < steps; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            reports[step] = report;
    }
    fsdp_train_run_free(run);
}
