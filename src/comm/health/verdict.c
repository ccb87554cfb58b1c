/* verdict.c - concludes from what is known of a rank that it will not come. */
#include "comm/health/verdict.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/health/gone.h"
#include "comm/health/process.h"
#include "comm/health/watchdog.h"

enum {
    DOING_BYTES = 320,
    LEAVE_TICKS = 3 /* this long after the news that a rank has left, everything it did before has been seen */
};

/* Appends which ranks are in other calls than this one, as far as there is room: where all wait for each other, these
 * are not the same calls in the same order. */
static void add_others(fsdp__peers *peers, int named, char *text, size_t bytes)
{
    char mine[DOING_BYTES], theirs[DOING_BYTES];
    size_t at = strlen(text);
    fsdp__said heard;

    fsdp__peers_doing_text(peers, mine, sizeof mine);
    for (int r = 0; r < peers->places->ranks; r++) {
        if (r == named || r == peers->places->rank || !fsdp__board_said(peers->own->board, r, &heard))
            continue;
        fsdp__doing_text(&heard.doing, heard.in, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && at + strlen(theirs) + 24 < bytes)
            at += (size_t)snprintf(text + at, bytes - at, "; rank %d is %s", r, theirs);
    }
}

/* Breaks the world because of `rank`: says what became of it, then what it was doing and what waits for it. */
static void break_world(fsdp__peers *peers, int rank, const char *became, bool all)
{
    char text[FSDP__ABORT_BYTES], was[DOING_BYTES] = "in a call that is not known", mine[DOING_BYTES];
    fsdp__said heard;

    if (fsdp__board_said(peers->own->board, rank, &heard))
        fsdp__doing_text(&heard.doing, heard.in, was, sizeof was);
    fsdp__peers_doing_text(peers, mine, sizeof mine);
    snprintf(text, sizeof text, "%s: it was %s; rank %d, which waits for it, is %s", became, was, peers->places->rank,
             mine);
    if (all)
        add_others(peers, rank, text, sizeof text);
    fsdp__board_abort(peers->own->board, FSDP_COMM, rank, text);
}

static void end_world(fsdp__peers *peers, int rank, const char *what, int64_t ticks, bool all)
{
    char became[256];

    snprintf(became, sizeof became, "rank %d (machine '%.64s') %s for %.6g s (comm.timeout is %.12g s)", rank,
             fsdp__host_of(peers->places, rank), what, (double)(ticks * atomic_load(&peers->own->tick_ms)) / 1000,
             (double)atomic_load(&peers->own->timeout_ms) / 1000);
    break_world(peers, rank, became, all);
}

/* Returns the timeout in ticks; 0: there is none. */
static int64_t limit_of(const fsdp__peers *peers)
{
    return atomic_load(&peers->own->timeout_ticks);
}

/* Returns whether ranks wait for each other, in whatever way, so that nobody gets anything done. */
static bool all_are_still(fsdp__peers *peers, int64_t limit)
{
    for (int r = 0; r < peers->places->ranks; r++) {
        fsdp__said heard;

        if (fsdp__board_left(peers->own->board, r))
            continue;
        if (!fsdp__peers_is_fresh(peers, r) || !fsdp__board_said(peers->own->board, r, &heard) || heard.still < limit)
            return false;
    }
    return true;
}

/* Ends the world if nothing was heard of the rank, or of the one that listens to it here. The listener is checked
 * first: one that no longer listens has heard something earlier. */
static bool end_silent(fsdp__peers *peers, int rank, int64_t limit)
{
    const fsdp__places *places = peers->places;
    int listener = fsdp__listener_of(places, rank);
    int64_t margin = listener == places->rank || listener == rank ? 0 : fsdp__peers_fresh_ticks(peers);
    int silent = fsdp__peers_known(peers, listener).silent >= limit        ? listener
                 : fsdp__peers_known(peers, rank).silent >= limit + margin ? rank
                                                                           : -1;

    if (silent >= 0)
        end_world(peers, silent, "has not been heard of", fsdp__peers_known(peers, silent).silent, false);
    return silent >= 0;
}

/* Checks that the process of a rank of this machine lives; breaks the world if it has died. */
static void check_alive(fsdp__peers *peers, int rank)
{
    if (rank != peers->places->rank)
        fsdp__gone_check_alive(peers->own->board, fsdp__local_of(peers->places, rank));
}

/* Returns how long to wait after the news that a rank has left. News of a counterpart arrives behind what it has sent,
 * and on one machine nothing arrives late; news of other ranks comes by another way. */
static int64_t leave_ticks(const fsdp__peers *peers, int rank)
{
    const fsdp__places *places = peers->places;
    bool behind = fsdp__are_counterparts(places, places->rank, rank) || !fsdp__is_elsewhere(places, rank);
    /* Something that is never sent must not be waited for without end, so no timeout means the default here. */
    int64_t limit = limit_of(peers) > 0 ? limit_of(peers) : FSDP__TIMEOUT_MS / atomic_load(&peers->own->tick_ms);

    return behind ? LEAVE_TICKS : FSDP__MAX(LEAVE_TICKS, limit);
}

void fsdp__verdict_look(fsdp__peers *peers, int rank, int64_t waited)
{
    int64_t limit = limit_of(peers), left = fsdp__peers_known(peers, rank).left, ticks = leave_ticks(peers, rank);
    fsdp__said heard;
    char became[128];

    if (left > ticks && waited > ticks) {
        snprintf(became, sizeof became, "rank %d has left (machine '%.64s')", rank, fsdp__host_of(peers->places, rank));
        break_world(peers, rank, became, false);
    }
    if (left > 0) /* it has left and says nothing more */
        return;
    check_alive(peers, fsdp__listener_of(peers->places, rank));
    if (limit == 0 || waited < limit || end_silent(peers, rank, limit))
        return;
    if (fsdp__board_said(peers->own->board, rank, &heard) && heard.still >= limit &&
        (heard.in == 0 || all_are_still(peers, limit)))
        end_world(peers, rank, "has stood still", heard.still, heard.in > 0);
}

/* Handles a rank of this machine that has left the arena, and has died before it could hear the last word of `rank`, or
 * send its own: nobody else would write it down. */
static void check_last_word(fsdp__peers *peers, int listener, int rank)
{
    const fsdp__places *places = peers->places;
    const fsdp__row *row = fsdp__row_of(peers->own->board, listener);
    char text[96];

    if (listener == places->rank || !fsdp__process_is_dead(atomic_load(&row->pid), atomic_load(&row->start_ticks)) ||
        fsdp__board_left(peers->own->board, rank))
        return;
    snprintf(text, sizeof text, "rank %d has died as it left (process %d)", listener, atomic_load(&row->pid));
    fsdp__board_abort(peers->own->board, FSDP_COMM, listener, text);
}

void fsdp__verdict_last_word(fsdp__peers *peers, int rank)
{
    int64_t limit = limit_of(peers);
    int listener = fsdp__listener_of(peers->places, rank);

    check_alive(peers, listener);
    check_last_word(peers, listener, rank);
    if (limit > 0)
        (void)end_silent(peers, rank, limit);
}

/* ---- ranks that disagree ---- */

void fsdp__verdict_disagreement(fsdp__board *board, int group, int rank)
{
    fsdp__doing mine, other;
    char text[256];

    if (!fsdp__call_last(board, group, rank, &mine))
        return;
    for (int r = 0; r < board->world; r++) {
        const fsdp__doing *first = r < rank ? &other : &mine, *second = r < rank ? &mine : &other;

        /* Another tag: it has not come to this group yet, whose place was that of another one. */
        if (!fsdp__call_last(board, group, r, &other) || other.tag != mine.tag || other.sequence != mine.sequence ||
            other.name == mine.name)
            continue;
        snprintf(text, sizeof text, "ranks disagree in group '%s': call %llu is %s on rank %d but %s on rank %d",
                 mine.group, (unsigned long long)mine.sequence, fsdp__call_text((fsdp__call_name)first->name),
                 fsdp__board_global(board, FSDP__MIN(r, rank)), fsdp__call_text((fsdp__call_name)second->name),
                 fsdp__board_global(board, FSDP__MAX(r, rank)));
        fsdp__board_abort(board, FSDP_MISMATCH, -1, text);
        return;
    }
}

/* ---- before that ---- */

/* Writes "which is in call 7 of group 'world' (...)". */
static void state_text(fsdp__peers *peers, int rank, char *text, size_t bytes)
{
    fsdp__known known = fsdp__peers_known(peers, rank);
    double tick_s = (double)atomic_load(&peers->own->tick_ms) / 1000;
    char doing[DOING_BYTES];
    fsdp__said heard;

    if (!fsdp__board_said(peers->own->board, rank, &heard)) {
        snprintf(text, bytes, "is doing what is not known");
        return;
    }
    fsdp__doing_text(&heard.doing, heard.in, doing, sizeof doing);
    if (known.left > 0)
        snprintf(text, bytes, "has left");
    else if (known.silent > 2 * fsdp__peers_fresh_ticks(peers))
        snprintf(text, bytes, "has not been heard of for %.6g s, and was %s", (double)known.silent * tick_s, doing);
    else if (heard.awaits > 0)
        snprintf(text, bytes, "waits for rank %d %s", (int)heard.awaits - 1, doing);
    else
        snprintf(text, bytes, "is %s", doing);
}

void fsdp__verdict_tell_slow(fsdp__peers *peers, int rank, int64_t waited, int64_t *next)
{
    const fsdp__places *places = peers->places;
    char mine[DOING_BYTES], theirs[512];

    if (*next == 0)
        *next = fsdp__first_notice(limit_of(peers));
    if (waited < *next)
        return;
    *next *= 2;
    fsdp__peers_doing_text(peers, mine, sizeof mine);
    state_text(peers, rank, theirs, sizeof theirs);
    fsdp_log(peers->own->context, FSDP_LOG_WARNING, "rank %d waits %.6g s %s for rank %d (machine '%.64s'), which %s",
             places->rank, (double)(waited * atomic_load(&peers->own->tick_ms)) / 1000, mine, rank,
             fsdp__host_of(peers->places, rank), theirs);
}
