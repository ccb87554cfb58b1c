/* plan_words.c - words and figures that a plan's text and its JSON share. */
#include "plan/show_plan.h"

#include <math.h>

#include "base/text.h"

const char *fsdp__plan_part_name(fsdp__plan_part part)
{
    static const char *const names[] = {[FSDP__PLAN_PRODUCTS] = "products",
                                        [FSDP__PLAN_ATTENTION] = "attention",
                                        [FSDP__PLAN_MEMORY_BOUND] = "memory-bound operations",
                                        [FSDP__PLAN_OPTIMIZER] = "optimizer",
                                        [FSDP__PLAN_COPIES] = "copies to and from the host",
                                        [FSDP__PLAN_GATHERS] = "gathers",
                                        [FSDP__PLAN_REDUCTIONS] = "reductions",
                                        [FSDP__PLAN_HOST] = "the host's launches"};

    return names[part];
}

double fsdp__plan_hidden(const fsdp__plan_time *t, fsdp__plan_part part)
{
    return part == FSDP__PLAN_GATHERS      ? t->hidden_gathers
           : part == FSDP__PLAN_REDUCTIONS ? t->hidden_reductions
           : part == FSDP__PLAN_COPIES     ? t->hidden_copies
                                           : 0;
}

double fsdp__plan_price(const fsdp__plan *plan, const fsdp__plan_question *question)
{
    double hours = plan->time.step * (double)plan->steps / 3600;

    return hours * question->price * (plan->gpu ? plan->e->world_size : plan->e->machines);
}

bool fsdp__plan_fits(const fsdp_explained_step *step, const fsdp__plan_question *question, char *text, size_t bytes)
{
    double left = question->room - (double)fsdp__needed_bytes(step);

    text[0] = '\0';
    if (question->room <= 0)
        return true;
    snprintf(text, bytes, "a rank has %s (%s), %s are %s", FSDP__SIZE(question->room), question->room_name,
             FSDP__SIZE(fabs(left)), left >= 0 ? "left" : "missing");
    return left >= 0;
}

const char *fsdp__plan_seconds(double seconds, char *text, size_t bytes)
{
    if (seconds < 1e-3)
        snprintf(text, bytes, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, bytes, "%.3g ms", seconds * 1e3);
    else if (seconds < 100)
        snprintf(text, bytes, "%.3g s", seconds);
    else if (seconds < 5400)
        snprintf(text, bytes, "%.3g minutes", seconds / 60);
    else if (seconds < 48 * 3600.0)
        snprintf(text, bytes, "%.3g hours", seconds / 3600);
    else
        snprintf(text, bytes, "%.4g days", seconds / 86400);
    return text;
}
