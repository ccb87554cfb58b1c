/* step_advice.c - what a traced step shows, said in words with figures. */
#include "report/step_advice.h"
#include "report/chart.h"

enum {
    MOST_WAITS = 3 /* that are named */
};

static const char *ms_text(int64_t ns, char text[FSDP__VALUE_TEXT])
{
    return fsdp__value_text(FSDP__UNIT_MS, (double)ns / 1e6, text);
}

/* Writes which step it is. */
static const char *name_of(const fsdp__traced_step *step, char text[FSDP__VALUE_TEXT])
{
    if (step->number > 0)
        snprintf(text, FSDP__VALUE_TEXT, "step %lld", (long long)step->number);
    else
        snprintf(text, FSDP__VALUE_TEXT, "the traced time");
    return text;
}

/* Writes what the slowest rank does longer than the others do. */
static void reason_text(const fsdp__traced_step *step, char *text, size_t bytes)
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
        [FSDP__SLOW_IN_CALLS] = {"once all have come to a call it still waits for it, together for", "the others for",
                                 "its network is slower, or its processor is shared with other work"},
        [FSDP__SLOW_BETWEEN_STEPS] = {"it begins after the first rank by", "the others by",
                                      "it does more between steps, as logging or saving"},
    };
    char its[FSDP__VALUE_TEXT], usual[FSDP__VALUE_TEXT];

    if (step->why == FSDP__SLOW_IN_NOTHING)
        snprintf(text, bytes, "the trace shows nothing that it does longer than they do");
    else
        snprintf(text, bytes, "%s %s, %s %s: %s", words[step->why].its, ms_text(step->its, its), words[step->why].usual,
                 ms_text(step->usual, usual), words[step->why].so);
}

static fsdp_status of_slowest(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__traced_step *step)
{
    const fsdp__step_rank *slow = step->slowest < 0 ? NULL : &step->ranks[step->slowest];
    char waited[FSDP__VALUE_TEXT], whole[FSDP__VALUE_TEXT], which[FSDP__VALUE_TEXT], written[FSDP__VALUE_TEXT],
        why[300];

    if (!slow)
        return FSDP_OK;
    reason_text(step, why, sizeof why);
    FSDP_TRY(fsdp__advise(all, run, "Rank %d is slow: in %s of %s the others wait %s for it on the average; %s.",
                          step->slowest, name_of(step, which), ms_text(step->ns, whole),
                          ms_text(slow->caused / (step->trace.rank_count - 1), waited), why));
    if (slow->checkpoint > 0)
        return fsdp__advise(all, run, "Rank %d writes its part of a checkpoint meanwhile, for %s of that step.",
                            step->slowest, ms_text(slow->checkpoint, written));
    return FSDP_OK;
}

/* Says what is waited for longest, if that is over a fiftieth of the step. */
static fsdp_status of_waits(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__traced_step *step)
{
    int ranks = step->trace.rank_count;
    char which[FSDP__VALUE_TEXT], waited[FSDP__VALUE_TEXT], late[FSDP__VALUE_TEXT], whole[FSDP__VALUE_TEXT];

    for (int i = 0; i < step->wait_count && i < MOST_WAITS; i++) {
        const fsdp__step_wait *w = &step->waits[i];

        if (w->ns / ranks * 50 < step->ns)
            break;
        FSDP_TRY(fsdp__advise(all, run,
                              "Nothing hides %s in %s: a rank waits %s of %s for it, %s of that until the last rank "
                              "has come to it%s.",
                              w->name, name_of(step, which), ms_text(w->ns / ranks, waited), ms_text(step->ns, whole),
                              ms_text(w->for_others / ranks, late),
                              2 * w->for_others > w->ns ? "; a faster network would not shorten that" : ""));
    }
    return FSDP_OK;
}

fsdp_status fsdp__advise_of_step(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__traced_step *step)
{
    FSDP_TRY(of_slowest(all, run, step));
    return of_waits(all, run, step);
}
