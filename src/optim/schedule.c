/* schedule.c - computes learning-rate factors. */
#include <math.h>

#include "base/compiler.h"
#include "fsdp/optim.h"

double fsdp_schedule_factor(const fsdp_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t warmup = FSDP__MAX(schedule->warmup_steps, 0), decay_steps = FSDP__MAX(schedule->total_steps - warmup, 1);
    double progress, left;

    step = FSDP__MAX(step, 0);
    if (step < warmup)
        return (double)(step + 1) / (double)(warmup + 1);
    progress = FSDP__MIN((double)(step - warmup) / (double)decay_steps, 1.0);
    switch (schedule->decay) {
    case FSDP_DECAY_LINEAR:
        left = 1 - progress;
        break;
    case FSDP_DECAY_COSINE:
        left = 0.5 * (1 + cos(pi * progress));
        break;
    case FSDP_DECAY_CONSTANT:
    default:
        return 1;
    }
    return schedule->min_factor + (1 - schedule->min_factor) * left;
}
