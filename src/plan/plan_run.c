/* plan_run.c - plans the schedule of a run that starts. */
#include <string.h>

#include "base/text.h"
#include "plan/measure.h"
#include "plan/schedule.h"
#include "plan/show_plan.h"
#include "train/run_config.h"

static fsdp_status find_prices(const fsdp_context *context, const fsdp_train_config *config, int ranks,
                               fsdp__prices *out)
{
    const char *device = config->training.device, *name = config->parallelism.schedule_prices;

    if (device && strcmp(device, "auto") == 0 && !name)
        return FSDP_FAIL(FSDP_INVALID, "training.device auto does not say what to plan for: set "
                                       "parallelism.schedule_prices, or training.device to cpu or cuda");
    FSDP_TRY(fsdp__prices_find("parallelism.schedule_prices",
                               name                         ? name
                               : fsdp__train_on_gpu(config) ? "cuda"
                                                            : "cpu",
                               true, out));
    if (!out->gpu && (!name || strcmp(name, "cpu") == 0))
        fsdp__prices_of_machine(fsdp_context_threads(context), ranks, out);
    return FSDP_OK;
}

static void tell(fsdp_context *context, const fsdp__scheduled *found)
{
    const fsdp__comm_schedule *plan = found->plan;

    fsdp_log(context, FSDP_LOG_INFO,
             "parallelism.schedule plan: %lld units, by %d dry runs at rates of %s: a step of %s, %s of it exposed, in "
             "%s of a rank; in blocks it would be %s, %s and %s",
             (long long)plan->unit_count + 1, found->tried, plan->prices, FSDP__SECONDS(plan->step),
             FSDP__SECONDS(plan->exposed), FSDP__SIZE(plan->peak_bytes), FSDP__SECONDS(found->rows[0].step),
             FSDP__SECONDS(found->rows[0].exposed), FSDP__SIZE(found->rows[0].bytes));
}

fsdp_status fsdp__schedule_plan_run(fsdp_context *context, const fsdp_train_config *config, FILE *out)
{
    fsdp__plan_options options = {.world_size = fsdp_context_world_size(context),
                                  .machines = fsdp_context_machines(context)};
    double room = (double)config->parallelism.schedule_memory;
    int ranks = options.world_size / options.machines;
    FSDP__SCOPED(fsdp__scheduled_release) fsdp__scheduled found = {0};
    fsdp__prices prices;
    const char *name;

    if (options.world_size % options.machines != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "machines that have unequally many ranks cannot be planned for: make a file "
                                           "by hand, or leave parallelism.schedule out");
    fsdp_log(context, FSDP_LOG_INFO, "parallelism.schedule plan: looking for a schedule, by up to %d dry runs%s",
             FSDP__SCHEDULE_TRIES, config->parallelism.schedule_prices ? "" : ", once this device is measured");
    FSDP_TRY(find_prices(context, config, ranks, &prices));
    options.prices = &prices;
    FSDP_TRY(fsdp__schedule_find(config, &options, room > 0 ? room : fsdp__room_of(&prices, ranks, &name),
                                 FSDP__SCHEDULE_TRIES, &found));
    tell(context, &found);
    return fsdp__comm_schedule_print(found.plan, out);
}
