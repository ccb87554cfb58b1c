/* lr_schedule.c - computes learning-rate factors. */
#include <math.h>

#include "base/compiler.h"
#include "fsdp/optim.h"

static const double pi = 3.14159265358979323846;

/* Returns a factor between min_factor and 1, of which `part` is left. */
static double between(const fsdp_schedule *schedule, double part)
{
    return FSDP__MAX(part * (1 - schedule->min_factor) + schedule->min_factor, 0.0);
}

static double wsd(const fsdp_schedule *s, int64_t step)
{
    int64_t warmup = FSDP__MAX(s->warmup_steps, 0), decay_steps = FSDP__MAX(s->decay_steps, 0);
    int64_t falls_at = FSDP__MAX(FSDP__MAX(s->total_steps, 0) - decay_steps, warmup);
    double progress = (double)(step - falls_at) / (double)FSDP__MAX(decay_steps, 1);

    if (step < warmup)
        return between(s, (double)step / (double)warmup);
    if (step < falls_at)
        return 1;
    if (step - falls_at >= decay_steps)
        return s->min_factor;
    return between(s, s->fall == FSDP_FALL_LINEAR ? 1 - progress
                      : s->fall == FSDP_FALL_SQRT ? 1 - sqrt(progress)
                                                  : 0.5 * (1 + cos(pi * progress)));
}

static double inverse_sqrt(const fsdp_schedule *s, int64_t step)
{
    int64_t warmup = FSDP__MAX(s->warmup_steps, 0);
    int64_t timescale = s->timescale > 0 ? s->timescale : warmup > 0 ? warmup : 10000;

    if (step < warmup)
        return (double)step / (double)warmup;
    return FSDP__MAX(1 / sqrt(((double)(step - warmup) + (double)timescale) / (double)timescale), s->min_factor);
}

double fsdp_schedule_factor(const fsdp_schedule *schedule, int64_t step)
{
    int64_t warmup, decay_steps;
    double progress, left;

    if (!schedule)
        return 1;
    warmup = FSDP__MAX(schedule->warmup_steps, 0);
    decay_steps = FSDP__MAX(FSDP__MAX(schedule->total_steps, 0) - warmup, 1);
    step = FSDP__MAX(step, 0);
    if (schedule->decay == FSDP_DECAY_WSD)
        return wsd(schedule, step);
    if (schedule->decay == FSDP_DECAY_INVERSE_SQRT)
        return inverse_sqrt(schedule, step);
    if (step < warmup)
        return ((double)step + 1) / ((double)warmup + 1);
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
