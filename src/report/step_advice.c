/* step_advice.c - what a traced step shows, said in words with figures. */
#include "report/step_advice.h"

#include <string.h>

#include "base/text.h"
#include "report/chart.h"

#define MS(ns) FSDP__VALUE(FSDP__UNIT_MS, (double)(ns) / 1e6)

/* Writes which step it is. */
static const char *name_of(const fsdp__traced_step *step, char text[FSDP__VALUE_TEXT])
{
    if (step->number > 0)
        snprintf(text, FSDP__VALUE_TEXT, "step %lld", (long long)step->number);
    else
        snprintf(text, FSDP__VALUE_TEXT, "the traced time");
    return text;
}

static bool has_machines(const fsdp__traced_step *step)
{
    for (int r = 1; r < step->trace.rank_count; r++)
        if (step->trace.ranks[r].machine != step->trace.ranks[0].machine)
            return true;
    return false;
}

/* Writes what a slow rank does longer than the others do. */
static void reason_text(const fsdp__traced_step *step, fsdp__step_reason why, int64_t its_ns, int64_t usual_ns,
                        char *text, size_t bytes)
{
    static const struct {
        const char *its, *usual, *so;
    } words[] = {
        [FSDP__SLOW_IN_COMPUTING] = {"it computes for", "the others for",
                                     "its processor or card is slower, is shared with other work, or has more to do"},
        [FSDP__SLOW_IN_DATA] = {"it waits for its data for", "the others for",
                                "its storage is slower, or its batches take longer to make"},
        [FSDP__SLOW_IN_CHECKPOINT] = {"it writes a checkpoint for", "the others for", "its disk is slower"},
        [FSDP__SLOW_IN_HOST] = {"between kernels its host takes", "the others'",
                                "its processor is slower, or shared with other work"},
        [FSDP__SLOW_IN_CALLS] = {"after the last rank has come to them, its calls take", "the others'",
                                 "its processor is slower, or shared with other work"},
        [FSDP__SLOW_BETWEEN_STEPS] = {"it begins after the first rank by", "the others by",
                                      "it does more between steps, as logging or saving"},
    };
    if (why == FSDP__SLOW_IN_NOTHING)
        snprintf(text, bytes, "the trace shows nothing that it does longer than they do");
    else
        snprintf(text, bytes, "%s %s, %s %s: %s%s", words[why].its, MS(its_ns), words[why].usual, MS(usual_ns),
                 why == FSDP__SLOW_IN_CALLS && has_machines(step) ? "its network or " : "", words[why].so);
}

fsdp_status fsdp__advise_of_slow_rank(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source)
{
    const fsdp__traced_step *step = &source->of.step;
    const fsdp__step_rank *slow = step->slowest < 0 ? NULL : &step->ranks[step->slowest];
    char which[FSDP__VALUE_TEXT], why[300];

    if (!slow)
        return FSDP_OK;
    reason_text(step, step->why, step->its, step->usual, why, sizeof why);
    FSDP_TRY(fsdp__advise(all, run, "Rank %d is slow: in %s of %s the others wait %s for it on the average; %s.",
                          step->slowest, name_of(step, which), MS(step->ns),
                          MS(slow->caused / (step->trace.rank_count - 1)), why));
    if (slow->checkpoint > 0)
        return fsdp__advise(all, run, "Rank %d writes its part of a checkpoint meanwhile, for %s of that step.",
                            step->slowest, MS(slow->checkpoint));
    return FSDP_OK;
}

fsdp_status fsdp__advise_of_odd_steps(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source)
{
    const fsdp__traced_step *step = &source->of.step;
    char which[FSDP__VALUE_TEXT], at[200], why[300];

    for (int i = 0; i < step->odd_count; i++) {
        const fsdp__odd_step *odd = &step->odd[i];

        reason_text(step, odd->why, odd->its, odd->usual, why, sizeof why);
        at[0] = '\0';
        if (odd->at)
            snprintf(at, sizeof at, ", longest at %s", fsdp__shown(odd->at, FSDP__ROOM(160)));
        FSDP_TRY(fsdp__advise(all, run,
                              "Rank %d was slow in step %lld, which took %s (%s, in the middle of all, took %s): the "
                              "others waited %s for it on the average%s; %s.",
                              odd->rank, (long long)odd->number, MS(odd->ns), name_of(step, which), MS(step->ns),
                              MS(odd->waited), at, why));
    }
    return FSDP_OK;
}

/* Returns the rank that most of all waiting for ranks is for; -1: for none in particular. */
static int awaited_rank(const fsdp__traced_step *step)
{
    double all = 0;
    int most = 0;

    for (int r = 0; r < step->trace.rank_count; r++) {
        all += (double)step->ranks[r].caused;
        most = step->ranks[r].caused > step->ranks[most].caused ? r : most;
    }
    return (double)step->ranks[most].caused >= 0.6 * all ? most : -1;
}

/* Returns whether the ranks of a team wait for each other's results of a layer: what comes next needs them. */
static bool is_of_team(const fsdp__step_wait *w)
{
    return w->group && strcmp(w->group, "tp") == 0;
}

/* Returns what may shorten a wait for which all ranks have come, if no change is planned. */
static const char *remedy(const fsdp__traced_step *step, const fsdp__step_wait *w)
{
    bool network = has_machines(step);

    if (is_of_team(w))
        return network
                   ? "the next layer needs it at once: try a smaller parallelism.tensor_parallel_degree, or a faster "
                     "network"
                   : "the next layer needs it at once: try a smaller parallelism.tensor_parallel_degree";
    switch (w->kind) {
    case FSDP_ALL_GATHER:
        return network ? "try parallelism.prefetch=2, which gathers two units ahead, or a faster network"
                       : "try parallelism.prefetch=2, which gathers two units ahead";
    case FSDP_REDUCE_SCATTER:
    case FSDP_ALL_REDUCE:
        return network ? "try a larger training.global_batch_size, whose microbatches share one reduction, or a faster "
                         "network"
                       : "try a larger training.global_batch_size, whose microbatches share one reduction";
    default:
        return network ? "a faster network would shorten it" : "it is the call's own time";
    }
}

/* Writes why the longest wait is as long as it is, or what would shorten it. */
static fsdp_status explain_wait(const fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__traced_step *step,
                                char text[FSDP__PLANNED_TEXT])
{
    const fsdp__step_wait *w = &step->waits[0];
    bool gathers = w->kind == FSDP_ALL_GATHER, reduces = w->kind == FSDP_REDUCE_SCATTER || w->kind == FSDP_ALL_REDUCE;
    int awaited = awaited_rank(step);

    if (2 * w->for_others <= w->ns && all->planner && run && (gathers || reduces) && !is_of_team(w))
        return all->planner->shorten(all->planner->arg, run, gathers, text);
    if (2 * w->for_others <= w->ns)
        snprintf(text, FSDP__PLANNED_TEXT, "%s.", remedy(step, w));
    else if (awaited >= 0)
        snprintf(text, FSDP__PLANNED_TEXT, "most of that is waiting for ranks that come late, and mostly for rank %d.",
                 awaited);
    else
        snprintf(text, FSDP__PLANNED_TEXT, "most of that is waiting for ranks that come late, now one, now another.");
    return FSDP_OK;
}

fsdp_status fsdp__advise_of_wait(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source)
{
    const fsdp__traced_step *step = &source->of.step;
    const fsdp__step_wait *w = &step->waits[0];
    int ranks = step->trace.rank_count;
    char which[FSDP__VALUE_TEXT];
    char why[FSDP__PLANNED_TEXT];

    if (step->wait_count == 0 || w->ns / ranks * 50 < step->ns)
        return FSDP_OK;
    FSDP_TRY(explain_wait(all, run, step, why));
    return fsdp__advise(all, run,
                        "Nothing hides %s%s in %s: a rank waits %s of %s for it on the average, %s of that until the "
                        "last rank has come to it; %s",
                        w->name, is_of_team(w) ? " of tensor parallel teams" : "", name_of(step, which),
                        MS(w->ns / ranks), MS(step->ns), MS(w->for_others / ranks), why);
}
