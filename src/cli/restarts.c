/* restarts.c - decides when ranks are started again, how many, and from where.
 *
 * Normally that is as many as before: a process that was killed says nothing about the machine it ran on. Only if the
 * same failure comes back, and --min-ranks allows it, is there one rank less, or as many less as it takes to split the
 * batch evenly. What fails twice in the same way before the first step would fail forever. */
#include "cli/restarts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"

/* ---- the command line ---- */

fsdp_status fsdp__restarts_read(fsdp__restarts *r, const fsdp_train_config *config, int64_t ranks, const char *starter)
{
    char step[24] = "best";

    FSDP_TRY(fsdp__args_integer("--max-restarts", r->most_text, 0, 1000000, &r->most));
    FSDP_TRY(fsdp__args_integer("--min-ranks", r->least_text, 1, ranks, &r->least));
    if (r->least_text && !r->most_text)
        return FSDP_FAIL(FSDP_INVALID, "--min-ranks is for runs that are restarted: give --max-restarts, too");
    if (r->most == 0)
        return FSDP_OK;
    if (starter)
        return FSDP_FAIL(FSDP_INVALID,
                         "--max-restarts starts ranks again that this program has started, but %s has started these "
                         "and has to start them again (see docs/cluster.md)",
                         starter);
    if (!fsdp__train_saves(config))
        return FSDP_FAIL(FSDP_INVALID,
                         "--max-restarts continues from the newest checkpoint, but this run writes none: %s",
                         config->checkpoint.folder ? "checkpoint.enable is false" : "set checkpoint.folder");
    if (config->checkpoint.load_step != FSDP_CHECKPOINT_BEST)
        snprintf(step, sizeof step, "%lld", (long long)config->checkpoint.load_step);
    if (config->checkpoint.load_step != FSDP_CHECKPOINT_NEWEST)
        return FSDP_FAIL(FSDP_INVALID,
                         "--max-restarts continues from the newest checkpoint, but checkpoint.load_step is %s: leave "
                         "one of the two out",
                         step);
    return FSDP_OK;
}

/* ---- how far the run is ---- */

fsdp_status fsdp__restarts_begin(fsdp__restarts *r)
{
    if (r->steps_fd < 0)
        r->steps_fd = memfd_create("fsdp-steps", 0); /* inherited by the ranks */
    if (r->steps_fd < 0 || ftruncate(r->steps_fd, 0) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot watch over the run: %s%s", strerror(errno), fsdp__limit_behind(errno));
    return FSDP_OK;
}

void fsdp__restarts_step(int steps_fd, int64_t step)
{
    ssize_t unheard = steps_fd >= 0 ? pwrite(steps_fd, &step, sizeof step, 0) : 0;

    (void)unheard;
}

void fsdp__restarts_note(int steps_fd, fsdp__restarts_news news)
{
    const uint8_t noted = 1;
    ssize_t unheard = steps_fd >= 0 ? pwrite(steps_fd, &noted, sizeof noted, sizeof(int64_t) + news) : 0;

    (void)unheard;
}

bool fsdp__restarts_heard(const fsdp__restarts *r, fsdp__restarts_news news)
{
    uint8_t noted = 0;

    return pread(r->steps_fd, &noted, sizeof noted, sizeof(int64_t) + news) == sizeof noted && noted;
}

void fsdp__restarts_end(fsdp__restarts *r)
{
    if (r->steps_fd >= 0)
        close(r->steps_fd);
    r->steps_fd = -1;
}

int64_t fsdp__restarts_last_step(const fsdp__restarts *r)
{
    int64_t step = 0;

    return pread(r->steps_fd, &step, sizeof step, 0) == sizeof step ? step : 0;
}

/* ---- whether it is the same failure again ---- */

/* Copies the words of a reason, without the numbers of ranks, processes and steps, and without the call that the ranks
 * were in. */
static void words_of(const char *reason, char *out)
{
    const char *end = strstr(reason, " in call ");

    for (; *reason && reason != end; reason++)
        if (!strchr("0123456789.", *reason))
            *out++ = *reason;
    *out = '\0';
}

static bool is_same(const fsdp__restarts *r, const char *reason)
{
    char before[FSDP__REASON_BYTES], now[FSDP__REASON_BYTES];

    words_of(r->reason, before);
    words_of(reason, now);
    return *r->reason && strcmp(before, now) == 0;
}

/* ---- from where ---- */

/* Returns how many sequences per step the checkpoint asks for; 0: none. */
static int64_t sequences_of(const char *checkpoint)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;
    int64_t sequences = 0;

    if (checkpoint && fsdp_checkpoint_open(checkpoint, &reader) == FSDP_OK &&
        fsdp_checkpoint_get_integer(reader, FSDP__VALUE_SEQUENCES, &sequences) != FSDP_OK)
        sequences = 0;
    return sequences;
}

static bool fits(const fsdp_train_config *config, int64_t sequences, int ranks)
{
    if (fsdp_train_config_check(config, ranks) != FSDP_OK)
        return false;
    return config->training.global_batch_size != -1 || sequences == 0 ||
           fsdp__train_check_batch(config, fsdp__train_data_ranks(config, ranks), sequences, "") == FSDP_OK;
}

static int fewer_ranks(const fsdp__restarts *r, const fsdp_train_config *config, const char *checkpoint, int ranks)
{
    int64_t sequences = sequences_of(checkpoint);

    for (int fewer = ranks - 1; fewer >= r->least; fewer--)
        if (fits(config, sequences, fewer))
            return fewer;
    return ranks;
}

/* ---- again, or not ---- */

static bool give_up(const char *reason, const char *why)
{
    char text[FSDP__REASON_BYTES];

    snprintf(text, sizeof text, "%s", why); /* `why` may be the last error */
    (void)FSDP_FAIL(FSDP_COMM, "%s; not started again: %s", reason, text);
    return false;
}

/* Returns whether somebody has sent a rank a signal that ends a program. The ranks save if they can, and end in the
 * same way. */
static bool was_told_to_end(const fsdp_launch_report *report)
{
    return report->ended_by == SIGTERM || report->ended_by == SIGINT || report->ended_by == SIGHUP;
}

static bool may_go_on(const fsdp__restarts *r, const fsdp_launch_report *report, const char *reason)
{
    char text[80];

    if (report->interrupted_by)
        return give_up(reason, "it was interrupted");
    if (was_told_to_end(report))
        return give_up(reason, "a rank was told to end");
    if (report->exit_code == FSDP__USAGE)
        return give_up(reason, "the command line is wrong");
    if (r->early && fsdp__restarts_last_step(r) == 0 && is_same(r, reason))
        return give_up(reason, "it is the same failure as before, and no step was taken in between");
    snprintf(text, sizeof text, "%lld restart%s of %lld", (long long)r->done, fsdp__plural(r->done),
             (long long)r->most);
    return r->done < r->most || give_up(reason, text);
}

/* Announces a restart. `back` is what to say about a failure that is the same as the one before. */
static void announce(const fsdp__restarts *r, const char *reason, const char *checkpoint, const char *back, int ranks)
{
    char from[64] = "the start, because there is no checkpoint yet", after[48] = "before its first step";
    int64_t last = fsdp__restarts_last_step(r);

    if (checkpoint)
        snprintf(from, sizeof from, "%s", strrchr(checkpoint, '/') ? strrchr(checkpoint, '/') + 1 : checkpoint);
    if (last > 0)
        snprintf(after, sizeof after, "after step %lld", (long long)last);
    (void)fsdp__failure("%s, %s; restart %lld of %lld: %d rank%s%s from %s", reason, after, (long long)r->done,
                        (long long)r->most, ranks, fsdp__plural(ranks), back, from);
}

bool fsdp__restarts_again(fsdp__restarts *r, const fsdp_train_config *config, fsdp_status status,
                          const fsdp_launch_report *report, int *ranks)
{
    char reason[FSDP__REASON_BYTES], *checkpoint = NULL;
    const char *back = "";
    int before = *ranks;

    if (r->most == 0 || status != FSDP_COMM) /* ended by a signal to this process; or no rank could be started */
        return false;
    snprintf(reason, sizeof reason, "%s", report->reason);
    if (!may_go_on(r, report, reason))
        return false;
    status = fsdp_checkpoint_find(config->checkpoint.folder, -1, &checkpoint);
    if (status != FSDP_OK && status != FSDP_NOT_FOUND)
        return give_up(reason, fsdp_last_error());
    if (r->least > 0 && is_same(r, reason)) {
        *ranks = fewer_ranks(r, config, checkpoint, before);
        back = *ranks == before && r->least < before
                   ? (fsdp__train_team(config) > 1
                          ? " (that failure came back, and no smaller number of whole teams divides the batch)"
                          : " (that failure came back, and no smaller number of ranks divides the batch)")
                   : " (that failure came back)";
    }
    r->done++;
    announce(r, reason, checkpoint, back, *ranks);
    r->early = fsdp__restarts_last_step(r) == 0;
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    free(checkpoint);
    return true;
}
