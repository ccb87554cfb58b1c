/* watchdog.c - what a rank does while it waits for others. */
#include "comm/health/watchdog.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/health/calls.h"
#include "comm/health/process.h"

enum {
    RANK_BYTES = 400,
    STATE_BYTES = 96
};

/* ---- texts ---- */

/* Writes "5 s" or "0.4 s". */
static void time_text(const fsdp__wait *wait, int64_t ticks, char text[STATE_BYTES])
{
    snprintf(text, STATE_BYTES, "%.*g s", ticks * atomic_load(&wait->own->tick_ms) < 1000 ? 1 : 6,
             (double)(ticks * atomic_load(&wait->own->tick_ms)) / 1000);
}

static void place_text(const fsdp__wait *wait, char text[FSDP__CALL_BYTES])
{
    const fsdp__board *board = wait->own->board;

    if (wait->place.region)
        snprintf(text, FSDP__CALL_BYTES, "before a write (others still read there)");
    else if (!fsdp__call_text_of(board, wait->place.group, wait->own->rank, text, FSDP__CALL_BYTES))
        snprintf(text, FSDP__CALL_BYTES, "the first meeting of all ranks");
}

static const char *activity_text(const fsdp__board *board, int rank)
{
    static const char *const texts[] = {
        [FSDP__COMPUTING] = "computes", [FSDP__READING] = "reads files", [FSDP__WRITING] = "writes files"};
    uint32_t activity = atomic_load_explicit(&fsdp__row_at(board, rank)->heart.activity, memory_order_relaxed);

    return activity < FSDP__COUNT_OF(texts) ? texts[activity] : "";
}

static void state_text(const fsdp__wait *wait, int rank, char text[STATE_BYTES])
{
    const fsdp__board *board = wait->own->board;
    const fsdp__pulse *pulse = &wait->pulses[rank];
    char still[STATE_BYTES];

    time_text(wait, pulse->still, still);
    if (atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_AWAITED)
        snprintf(text, STATE_BYTES,
                 fsdp__pulse_process(board, rank) > 0 ? "has not joined%s (process %d)" : "has not joined",
                 fsdp__pulse_is_stopped(pulse) ? ": is stopped" : "", fsdp__pulse_process(board, rank));
    else if (atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_LEFT)
        snprintf(text, STATE_BYTES, "has left");
    else if (!pulse->known) /* nothing depends on it, so nobody looked */
        snprintf(text, STATE_BYTES, "is elsewhere");
    else if (fsdp__pulse_is_stopped(pulse))
        snprintf(text, STATE_BYTES, "is stopped%s (process %d)", pulse->state == 't' ? " by a debugger" : "",
                 fsdp__pulse_process(board, rank));
    else if (pulse->still > 1)
        snprintf(text, STATE_BYTES, "has stood still for %.16s (process %d)", still, fsdp__pulse_process(board, rank));
    else if (pulse->state == 'D')
        snprintf(text, STATE_BYTES, "waits in the kernel, as for a disk (process %d)",
                 fsdp__pulse_process(board, rank));
    else
        snprintf(text, STATE_BYTES, "%s", activity_text(board, rank));
}

/* Returns whether the rank lives and its program waits, but for nobody on this machine. */
static bool waits_elsewhere(const fsdp__wait *wait, int rank)
{
    const fsdp__board *board = wait->own->board;
    const fsdp__pulse *pulse = &wait->pulses[rank];

    return board->host[0] && atomic_load(&fsdp__row_at(board, rank)->program_in) > 0 && pulse->known &&
           !fsdp__pulse_is_stopped(pulse) && pulse->still <= 1;
}

/* Writes "rank 1, which is stopped (process 12), last in call 6 of ...". */
static void rank_text(const fsdp__wait *wait, int rank, const char *relative, char text[RANK_BYTES])
{
    const fsdp__board *board = wait->own->board;
    char call[FSDP__CALL_BYTES], state[STATE_BYTES];
    fsdp__place place;
    bool called = fsdp__call_text_of(board, -1, rank, call, sizeof call);
    int global = fsdp__board_global(board, rank);

    if (fsdp__program_place(board, rank, &place) && called) {
        snprintf(text, RANK_BYTES, "rank %d%s waits in %s", global, relative, call);
        return;
    }
    state_text(wait, rank, state);
    if (called && waits_elsewhere(wait, rank))
        snprintf(state, sizeof state, "waits for another machine");
    if (called)
        snprintf(text, RANK_BYTES, "rank %d%s %s, last in %s", global, relative, state, call);
    else
        snprintf(text, RANK_BYTES, "rank %d%s %s, before its first call of other ranks", global, relative, state);
}

/* ---- what it tells ---- */

static void tell_stopped(fsdp__wait *wait, int rank)
{
    const fsdp__board *board = wait->own->board;
    fsdp__pulse *pulse = &wait->pulses[rank];
    char where[FSDP__CALL_BYTES];
    int pid = fsdp__pulse_process(board, rank);

    if (!fsdp__pulse_is_stopped(pulse)) {
        pulse->told = false;
        return;
    }
    /* Report it only when it was seen twice, since a signal to all ranks reaches one after the other. */
    if (pulse->told || pulse->still == 0)
        return;
    pulse->told = true;
    if (!fsdp__stands_first(board, wait->own->rank, &wait->place))
        return;
    place_text(wait, where);
    fsdp_log(wait->own->context, FSDP_LOG_WARNING,
             "rank %d is stopped, and rank %d waits for it %s%s: 'kill -CONT %d'%s%s lets it go on",
             fsdp__board_global(board, rank), fsdp__board_global(board, wait->own->rank),
             wait->place.region ? "" : "in ", where, pid, board->host[0] ? " on machine " : "", board->host);
}

/* Reports a wait that takes long, at longer and longer intervals. */
static void tell_slow(fsdp__wait *wait, const fsdp__reach *reach)
{
    int64_t timeout = atomic_load(&wait->own->timeout_ticks);
    char where[FSDP__CALL_BYTES], whom[RANK_BYTES], waited[STATE_BYTES];

    if (wait->next_notice == 0)
        wait->next_notice = fsdp__first_notice(timeout);
    if (wait->ticks < wait->next_notice || reach->count == 0)
        return;
    wait->next_notice *= 2;
    if (wait->pulses[reach->ranks[0]].told || !fsdp__stands_first(wait->own->board, wait->own->rank, &wait->place))
        return;
    place_text(wait, where);
    rank_text(wait, reach->ranks[0], ", which", whom);
    time_text(wait, wait->ticks, waited);
    fsdp_log(wait->own->context, FSDP_LOG_WARNING, "waiting %s %s%s for %s", waited, wait->place.region ? "" : "in ",
             where, whom);
}

/* ---- how it ends the world ---- */

/* Appends what the other ranks do, as far as there is room. */
static void add_others(const fsdp__wait *wait, int named, char *text, size_t bytes)
{
    const fsdp__board *board = wait->own->board;
    size_t at = strlen(text), room = bytes - 48; /* leave room for the number of ranks that are left out */
    char one[RANK_BYTES];
    int out = 0;

    for (int r = 0; r < board->world; r++) {
        if (r == named || r == wait->own->rank)
            continue;
        rank_text(wait, r, "", one);
        if (out > 0 || at + strlen(one) + 2 > room)
            out++;
        else
            at += (size_t)snprintf(text + at, bytes - at, "; %s", one);
    }
    if (out > 0)
        snprintf(text + at, bytes - at, "; and %d more", out);
}

static void end_still(const fsdp__wait *wait, int rank)
{
    char text[FSDP__ABORT_BYTES], where[FSDP__CALL_BYTES], whom[RANK_BYTES], waited[STATE_BYTES];
    double limit = (double)atomic_load(&wait->own->timeout_ms) / 1000; /* as it was set, even in parts of a tick */

    place_text(wait, where);
    rank_text(wait, rank, ", which", whom);
    time_text(wait, wait->ticks, waited);
    snprintf(text, sizeof text, "rank %d has waited %s (%s is %.12g s) %s%s for %s",
             fsdp__board_global(wait->own->board, wait->own->rank), waited,
             wait->own->joins ? "FSDP_JOIN_TIMEOUT" : "comm.timeout", limit, wait->place.region ? "" : "in ", where,
             whom);
    add_others(wait, rank, text, sizeof text);
    fsdp__board_abort(wait->own->board, FSDP_COMM, -1, text);
}

/* Ends the world if the circle was also seen at the last tick; returns whether it did. */
static bool end_circle(fsdp__wait *wait)
{
    fsdp__circle circle;
    char text[FSDP__ABORT_BYTES];
    uint64_t before = wait->circle;

    fsdp__find_circle(wait->own->board, wait->own->rank, &circle);
    wait->circle = circle.length > 0 ? circle.hash : 0;
    if (circle.length == 0 || circle.hash != before)
        return false;
    fsdp__circle_text(wait->own->board, &circle, text, sizeof text);
    fsdp__board_abort(wait->own->board, FSDP_MISMATCH, -1, text);
    return true;
}

/* ---- a tick ---- */

/* Returns whether rank i of the reach is to be judged by its pulse. A rank whose program waits for others is not to
 * blame, and has no pulse; one that stands somewhere on a worker thread may still be about to do what others wait
 * for. */
static bool has_pulse(const fsdp__board *board, const fsdp__reach *reach, int i)
{
    return !reach->stands[i] ||
           atomic_load_explicit(&fsdp__row_at(board, reach->ranks[i])->program_in, memory_order_relaxed) == 0;
}

static void take_pulses(fsdp__wait *wait, const fsdp__reach *reach)
{
    const fsdp__board *board = wait->own->board;

    for (int i = 0; i < reach->count; i++) {
        int rank = reach->ranks[i];

        if (has_pulse(board, reach, i)) {
            fsdp__pulse_take(board, rank, &wait->pulses[rank]);
            tell_stopped(wait, rank);
        } else {
            wait->pulses[rank].known = false;
            wait->pulses[rank].still = 0;
        }
    }
    wait->same = reach->hash == wait->reach ? wait->same + 1 : 0;
    wait->reach = reach->hash;
}

/* Returns a rank that everything depends on and that has stood still for the timeout; or, if all wait for each other in
 * a way that is no circle of programs, and none of them has got anything done, one of these. -1: neither. */
static int who_stands_still(const fsdp__wait *wait, const fsdp__reach *reach)
{
    int64_t timeout = atomic_load(&wait->own->timeout_ticks);
    bool all_stand = reach->count > 0 && wait->same >= timeout;

    for (int i = 0; i < reach->count && timeout > 0; i++) {
        bool still = wait->pulses[reach->ranks[i]].still >= timeout;

        if (!reach->stands[i] && still)
            return reach->ranks[i];
        all_stand = all_stand && reach->stands[i] && (still || !has_pulse(wait->own->board, reach, i));
    }
    return timeout > 0 && all_stand ? reach->ranks[0] : -1;
}

void fsdp__wait_begin(fsdp__wait *wait, const fsdp__health *own, fsdp__place place)
{
    wait->own = own;
    wait->place = place;
    wait->ticks = 0;
}

int fsdp__wait_tick_ms(const fsdp__wait *wait)
{
    return (int)atomic_load_explicit(&wait->own->tick_ms, memory_order_relaxed);
}

void fsdp__wait_tick(fsdp__wait *wait)
{
    fsdp__reach reach;
    int64_t now;
    int rank;

    if (wait->ticks++ == 0) {
        memset(&wait->thread_ns, 0, sizeof *wait - offsetof(fsdp__wait, thread_ns));
        wait->thread_ns = fsdp__thread_cpu_ns();
    }
    if (end_circle(wait))
        return;
    fsdp__find_reach(wait->own->board, wait->own->rank, &wait->place, &reach);
    take_pulses(wait, &reach);
    tell_slow(wait, &reach);
    rank = who_stands_still(wait, &reach);
    if (rank >= 0)
        end_still(wait, rank);
    now = fsdp__thread_cpu_ns();
    fsdp__health_looked(wait->own, now - wait->thread_ns);
    wait->thread_ns = now;
}
