/* verdict.c - concludes from what is known of a rank that it will not come. */
#include "comm/health/verdict.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/context.h"
#include "comm/health/arena_watch.h"
#include "comm/health/watchdog.h"
#include "comm/transport/arena/process.h"
#include "comm/world.h"

enum {
    DOING_BYTES = 320,
    LEAVE_TICKS = 3 /* this long after the news that a rank has left, everything it did before has been seen */
};

/* Appends which ranks are in other calls than this one, as far as there is room: where all wait for each other, these
 * are not the same calls in the same order. */
static void add_others(fsdp__watch *watch, int named, char *text, size_t bytes)
{
    char mine[DOING_BYTES], theirs[DOING_BYTES];
    size_t at = strlen(text);
    fsdp__heard heard;

    fsdp__watch_doing_text(watch, mine, sizeof mine);
    for (int r = 0; r < watch->link->places.ranks; r++) {
        if (r == named || r == watch->link->places.rank || !fsdp__watch_heard(watch, r, &heard))
            continue;
        fsdp__doing_text(&heard.doing, theirs, sizeof theirs);
        if (strcmp(mine, theirs) != 0 && at + strlen(theirs) + 24 < bytes)
            at += (size_t)snprintf(text + at, bytes - at, "; rank %d is %s", r, theirs);
    }
}

/* Breaks the world because of `rank`: says what became of it, then what it was doing and what waits for it. */
static void break_world(fsdp__watch *watch, int rank, const char *became, bool all)
{
    char text[FSDP__ABORT_BYTES], was[DOING_BYTES] = "in a call that is not known", mine[DOING_BYTES];
    fsdp__heard heard;

    if (fsdp__watch_heard(watch, rank, &heard))
        fsdp__doing_text(&heard.doing, was, sizeof was);
    fsdp__watch_doing_text(watch, mine, sizeof mine);
    snprintf(text, sizeof text, "%s: it was %s; rank %d, which waits for it, is %s", became, was,
             watch->link->places.rank, mine);
    if (all)
        add_others(watch, rank, text, sizeof text);
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, rank, text);
}

static void end_world(fsdp__watch *watch, int rank, const char *what, int64_t ticks, bool all)
{
    char became[256];

    snprintf(became, sizeof became, "rank %d (machine '%.64s') %s for %.6g s (comm.timeout is %.12g s)", rank,
             fsdp__host_of(&watch->link->places, rank), what, (double)(ticks * atomic_load(&watch->tick_ms)) / 1000,
             (double)atomic_load(&watch->timeout_ms) / 1000);
    break_world(watch, rank, became, all);
}

/* Returns the timeout in ticks; 0: there is none. */
static int64_t limit_of(const fsdp__watch *watch)
{
    return atomic_load(&watch->local->timeout_ticks);
}

/* Returns whether ranks wait for each other, in whatever way, so that nobody gets anything done. */
static bool all_are_still(fsdp__watch *watch, int64_t limit)
{
    for (int r = 0; r < watch->link->places.ranks; r++) {
        fsdp__heard heard;

        if (fsdp__board_left(watch->board, r))
            continue;
        if (!fsdp__watch_is_fresh(watch, r) || !fsdp__board_read(watch->board, r, &heard) || heard.still < limit)
            return false;
    }
    return true;
}

/* Ends the world if nothing was heard of the rank, or of the one that listens to it here. The listener is checked
 * first: one that no longer listens has heard something earlier. */
static bool end_silent(fsdp__watch *watch, int rank, int64_t limit)
{
    const fsdp__places *places = &watch->link->places;
    int listener = fsdp__listener_of(places, rank);
    int64_t margin = listener == places->rank || listener == rank ? 0 : fsdp__watch_fresh_ticks(watch);
    int silent = fsdp__watch_known(watch, listener).silent >= limit        ? listener
                 : fsdp__watch_known(watch, rank).silent >= limit + margin ? rank
                                                                           : -1;

    if (silent >= 0)
        end_world(watch, silent, "has not been heard of", fsdp__watch_known(watch, silent).silent, false);
    return silent >= 0;
}

/* Checks that the process of a rank of this machine lives; breaks the world if it has died. */
static void check_alive(fsdp__watch *watch, int rank)
{
    if (rank != watch->link->places.rank)
        fsdp__arena_check_alive(watch->link->arena, fsdp__local_of(&watch->link->places, rank));
}

/* Returns how long to wait after the news that a rank has left. News of a counterpart arrives behind what it has sent,
 * and on one machine nothing arrives late; news of other ranks comes by another way. */
static int64_t leave_ticks(const fsdp__watch *watch, int rank)
{
    const fsdp__places *places = &watch->link->places;
    bool behind = fsdp__are_counterparts(places, places->rank, rank) || !fsdp__is_elsewhere(places, rank);
    /* Something that is never sent must not be waited for without end, so no timeout means the default here. */
    int64_t limit = limit_of(watch) > 0 ? limit_of(watch) : FSDP__TIMEOUT_MS / atomic_load(&watch->tick_ms);

    return behind ? LEAVE_TICKS : FSDP__MAX(LEAVE_TICKS, limit);
}

void fsdp__verdict_look(fsdp__watch *watch, int rank, int64_t waited)
{
    int64_t limit = limit_of(watch), left = fsdp__watch_known(watch, rank).left, ticks = leave_ticks(watch, rank);
    fsdp__heard heard;
    char became[128];

    if (left > ticks && waited > ticks) {
        snprintf(became, sizeof became, "rank %d has left (machine '%.64s')", rank,
                 fsdp__host_of(&watch->link->places, rank));
        break_world(watch, rank, became, false);
    }
    if (left > 0) /* it has left and says nothing more */
        return;
    check_alive(watch, fsdp__listener_of(&watch->link->places, rank));
    if (limit == 0 || waited < limit || end_silent(watch, rank, limit))
        return;
    if (fsdp__watch_heard(watch, rank, &heard) && heard.still >= limit &&
        (heard.doing.in == 0 || all_are_still(watch, limit)))
        end_world(watch, rank, "has stood still", heard.still, heard.doing.in > 0);
}

/* Handles a rank of this machine that has left the arena, and has died before it could hear the last word of `rank`, or
 * send its own: nobody else would write it down. */
static void check_last_word(fsdp__watch *watch, int listener, int rank)
{
    const fsdp__places *places = &watch->link->places;
    const fsdp__arena_rank *shared = &watch->link->arena->control->ranks[fsdp__local_of(places, listener)];
    char text[96];

    if (listener == places->rank ||
        !fsdp__process_is_dead(atomic_load(&shared->pid), atomic_load(&shared->start_ticks)) ||
        fsdp__board_left(watch->board, rank))
        return;
    snprintf(text, sizeof text, "rank %d has died as it left (process %d)", listener, atomic_load(&shared->pid));
    fsdp__arena_abort(watch->link->arena, FSDP_COMM, listener, text);
}

void fsdp__verdict_last_word(fsdp__watch *watch, int rank)
{
    int64_t limit = limit_of(watch);
    int listener = fsdp__listener_of(&watch->link->places, rank);

    check_alive(watch, listener);
    check_last_word(watch, listener, rank);
    if (limit > 0)
        (void)end_silent(watch, rank, limit);
}

/* ---- before that ---- */

/* Writes "which is in call 7 of group 'world' (...)". */
static void state_text(fsdp__watch *watch, int rank, char *text, size_t bytes)
{
    fsdp__known known = fsdp__watch_known(watch, rank);
    double tick_s = (double)atomic_load(&watch->tick_ms) / 1000;
    char doing[DOING_BYTES];
    fsdp__heard heard;

    if (!fsdp__watch_heard(watch, rank, &heard)) {
        snprintf(text, bytes, "is doing what is not known");
        return;
    }
    fsdp__doing_text(&heard.doing, doing, sizeof doing);
    if (known.left > 0)
        snprintf(text, bytes, "has left");
    else if (known.silent > 2 * fsdp__watch_fresh_ticks(watch))
        snprintf(text, bytes, "has not been heard of for %.6g s, and was %s", (double)known.silent * tick_s, doing);
    else if (heard.awaits > 0)
        snprintf(text, bytes, "waits for rank %d %s", (int)heard.awaits - 1, doing);
    else
        snprintf(text, bytes, "is %s", doing);
}

void fsdp__verdict_tell_slow(fsdp__watch *watch, int rank, int64_t waited, int64_t *next)
{
    const fsdp__places *places = &watch->link->places;
    char mine[DOING_BYTES], theirs[512];

    if (*next == 0)
        *next = fsdp__first_notice(limit_of(watch));
    if (waited < *next)
        return;
    *next *= 2;
    fsdp__watch_doing_text(watch, mine, sizeof mine);
    state_text(watch, rank, theirs, sizeof theirs);
    fsdp_log(watch->context, FSDP_LOG_WARNING, "rank %d waits %.6g s %s for rank %d (machine '%.64s'), which %s",
             places->rank, (double)(waited * atomic_load(&watch->tick_ms)) / 1000, mine, rank,
             fsdp__host_of(&watch->link->places, rank), theirs);
}
