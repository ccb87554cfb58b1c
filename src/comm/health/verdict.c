/* verdict.c - concludes that a rank will not come, and ends the world. */
#include "comm/health/verdict.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/health/process.h"

enum {
    DEVICE_TICKS = 10, /* for which a device works at what its peers have given it before one of them may leave */
    LEAVE_TICKS = 3    /* this long after the news that a rank has left, everything it did before has been seen */
};

void fsdp__verdict_end(fsdp__board *board, fsdp__fate fate, int rank, const char *text)
{
    fsdp__board_abort(board, fate == FSDP__DISAGREE ? FSDP_MISMATCH : FSDP_COMM, rank, text);
}

/* ---- ranks of this machine that are gone ---- */

/* Appends the rank's last call, if there are several machines. */
static void add_last_call(const fsdp__board *board, int rank, char *text, size_t bytes)
{
    size_t length = strlen(text);
    char call[FSDP__CALL_BYTES];

    if (board->host[0] && fsdp__call_text_of(board, -1, rank, call, sizeof call))
        snprintf(text + length, bytes - length, ", last in %s", call);
}

static void gone_text(const fsdp__board *board, int rank, const char *how, char *text, size_t bytes)
{
    const char *host = board->host;

    snprintf(text, bytes, "rank %d%s%s%s has %s", fsdp__board_global(board, rank), host[0] ? " (machine '" : "", host,
             host[0] ? "')" : "", how);
}

static void end_gone(fsdp__board *board, int rank, const char *how)
{
    char text[FSDP__HOST_BYTES + 96 + FSDP__CALL_BYTES];

    gone_text(board, rank, how, text, sizeof text);
    add_last_call(board, rank, text, sizeof text);
    fsdp__verdict_end(board, FSDP__GONE, fsdp__board_global(board, rank), text);
}

void fsdp__verdict_left(fsdp__board *board, int rank)
{
    end_gone(board, rank, "left");
}

static void death_text(const fsdp__board *board, int rank, char *text, size_t bytes)
{
    snprintf(text, bytes, "died (process %d)", fsdp__pulse_process(board, rank));
}

bool fsdp__verdict_was_found(const fsdp__board *board, int rank)
{
    char text[FSDP__HOST_BYTES + 96], how[48];

    death_text(board, rank, how, sizeof how);
    gone_text(board, rank, how, text, sizeof text);
    return fsdp__board_aborted(board) && strncmp(board->abort_text, text, strlen(text)) == 0;
}

/* Returns whether the process that started the ranks is stopped, and so tells nobody how one of them has ended. */
static bool keeper_is_stopped(const fsdp__board *board)
{
    int keeper = atomic_load(&board->keeper);
    char state = keeper > 0 ? fsdp__process_state(keeper, keeper) : '\0';

    return state == 'T' || state == 't';
}

void fsdp__verdict_check_alive(fsdp__board *board, int rank)
{
    const fsdp__row *row = fsdp__row_at(board, rank);
    uint32_t state;
    char how[48];

    /* A process that has left its world in good order may end when it likes, even between these two checks. */
    if (!fsdp__process_is_dead(fsdp__pulse_process(board, rank), atomic_load(&row->start_ticks)))
        return;
    state = atomic_load(&row->state);
    if (state == FSDP__RANK_LEFT || (state == FSDP__RANK_AWAITED && !keeper_is_stopped(board)))
        return;
    death_text(board, rank, how, sizeof how);
    end_gone(board, rank, how);
}

void fsdp__verdict_look_at(const fsdp__health *own, int rank, int64_t ticks)
{
    if (ticks > DEVICE_TICKS && fsdp__board_has_left(own->board, rank))
        fsdp__verdict_left(own->board, rank);
    fsdp__verdict_check_alive(own->board, rank);
}

bool fsdp__verdict_device_is_late(fsdp__wait *wait, int rank)
{
    int64_t timeout = atomic_load(&wait->own->timeout_ticks);

    fsdp__pulse_take(wait->own->board, rank, &wait->pulses[rank]);
    return timeout > 0 && wait->ticks >= timeout && wait->pulses[rank].silent >= timeout;
}

void fsdp__verdict_device(const fsdp__wait *wait, const char *group, int rank)
{
    const fsdp__health *own = wait->own;
    char text[FSDP__ABORT_BYTES], whom[FSDP__RANK_BYTES], waited[FSDP__STATE_BYTES];

    fsdp__wait_rank_text(wait, rank, ", which", whom);
    fsdp__wait_time_text(wait, wait->ticks, waited);
    snprintf(text, sizeof text,
             "the device of rank %d has waited %s (comm.timeout is %.12g s) in group '%.64s' for that of %s",
             fsdp__board_global(own->board, own->rank), waited, (double)atomic_load(&own->timeout_ms) / 1000, group,
             whom);
    fsdp__verdict_end(own->board, FSDP__STILL, -1, text);
}

void fsdp__verdict_check_keeper(fsdp__board *board)
{
    if (fsdp__process_is_dead(atomic_load(&board->keeper), atomic_load(&board->keeper_ticks)))
        fsdp__verdict_end(board, FSDP__GONE, -1, "the process that started the ranks has died");
}

/* ---- ranks that disagree ---- */

fsdp_status fsdp__verdict_mismatch(fsdp__board *board, const char *group, const fsdp__signature *first, int first_rank,
                                   const fsdp__signature *other, int other_rank)
{
    char text[640];

    fsdp__signature_mismatch(group, first, first_rank, other, other_rank, text, sizeof text);
    fsdp__verdict_end(board, FSDP__DISAGREE, -1, text);
    return FSDP_FAIL(FSDP_MISMATCH, "%s", text);
}

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
        fsdp__verdict_end(board, FSDP__DISAGREE, -1, text);
        return;
    }
}

bool fsdp__verdict_circle(fsdp__wait *wait)
{
    fsdp__circle circle;
    char text[FSDP__ABORT_BYTES];
    uint64_t before = wait->circle;

    fsdp__find_circle(wait->own->board, wait->own->rank, &circle);
    wait->circle = circle.length > 0 ? circle.hash : 0;
    if (circle.length == 0 || circle.hash != before)
        return false;
    fsdp__circle_text(wait->own->board, &circle, text, sizeof text);
    fsdp__verdict_end(wait->own->board, FSDP__DISAGREE, -1, text);
    return true;
}

/* ---- ranks of this machine that stand still ---- */

/* Appends what the other ranks do, as far as there is room. */
static void add_local_others(const fsdp__wait *wait, int named, char *text, size_t bytes)
{
    const fsdp__board *board = wait->own->board;
    size_t at = strlen(text), room = bytes - 48; /* leave room for the number of ranks that are left out */
    char one[FSDP__RANK_BYTES];
    int out = 0;

    for (int r = 0; r < board->world; r++) {
        if (r == named || r == wait->own->rank)
            continue;
        fsdp__wait_rank_text(wait, r, "", one);
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
    char text[FSDP__ABORT_BYTES], where[FSDP__CALL_BYTES], whom[FSDP__RANK_BYTES], waited[FSDP__STATE_BYTES];
    double limit = (double)atomic_load(&wait->own->timeout_ms) / 1000; /* as it was set, even in parts of a tick */

    fsdp__wait_place_text(wait, where);
    fsdp__wait_rank_text(wait, rank, ", which", whom);
    fsdp__wait_time_text(wait, wait->ticks, waited);
    snprintf(text, sizeof text, "rank %d has waited %s (%s is %.12g s) %s%s for %s",
             fsdp__board_global(wait->own->board, wait->own->rank), waited,
             wait->own->joins ? "FSDP_JOIN_TIMEOUT" : "comm.timeout", limit, wait->place.region ? "" : "in ", where,
             whom);
    add_local_others(wait, rank, text, sizeof text);
    fsdp__verdict_end(wait->own->board, FSDP__STILL, -1, text);
}

/* Returns the rank to blame when nothing that the wait depends on has moved for the timeout; -1: nobody. It is a rank
 * that waits for no other rank and stands still. If there is none, because all ranks wait for each other (in a way that
 * is no circle of programs) and all of them stand still, it is the nearest rank. */
static int who_stands_still(const fsdp__wait *wait, const fsdp__reach *reach)
{
    int64_t timeout = atomic_load(&wait->own->timeout_ticks);
    bool all_stand = reach->count > 0 && wait->same >= timeout;

    for (int i = 0; i < reach->count && timeout > 0; i++) {
        bool still = wait->pulses[reach->ranks[i]].still >= timeout;

        if (!reach->stands[i] && still)
            return reach->ranks[i];
        all_stand = all_stand && reach->stands[i] && (still || !fsdp__wait_has_pulse(wait->own->board, reach, i));
    }
    return timeout > 0 && all_stand ? reach->ranks[0] : -1;
}

void fsdp__verdict_reach(const fsdp__wait *wait, const fsdp__reach *reach)
{
    int rank = who_stands_still(wait, reach);

    if (rank >= 0)
        end_still(wait, rank);
}

/* ---- ranks of any machine, awaited over the network ---- */

/* Appends which ranks are in other calls than this one, as far as there is room: where all wait for each other, these
 * are not the same calls in the same order. */
static void add_others(fsdp__peers *peers, int named, char *text, size_t bytes)
{
    char mine[FSDP__DOING_BYTES], theirs[FSDP__DOING_BYTES];
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

/* Ends the world because of `rank`: says what became of it, then what it was doing and what waits for it. */
static void end_for(fsdp__peers *peers, fsdp__fate fate, int rank, const char *became, bool all)
{
    char text[FSDP__ABORT_BYTES], was[FSDP__DOING_BYTES] = "in an unknown call", mine[FSDP__DOING_BYTES];
    fsdp__said heard;

    if (fsdp__board_said(peers->own->board, rank, &heard))
        fsdp__doing_text(&heard.doing, heard.in, was, sizeof was);
    fsdp__peers_doing_text(peers, mine, sizeof mine);
    snprintf(text, sizeof text, "%s: it was %s; rank %d, which waits for it, is %s", became, was, peers->places->rank,
             mine);
    if (all)
        add_others(peers, rank, text, sizeof text);
    fsdp__verdict_end(peers->own->board, fate, rank, text);
}

static void end_after(fsdp__peers *peers, fsdp__fate fate, int rank, const char *what, int64_t ticks, bool all)
{
    char became[256];

    snprintf(became, sizeof became, "rank %d (machine '%.64s') %s for %.6g s (comm.timeout is %.12g s)", rank,
             fsdp__host_of(peers->places, rank), what, (double)(ticks * atomic_load(&peers->own->tick_ms)) / 1000,
             (double)atomic_load(&peers->own->timeout_ms) / 1000);
    end_for(peers, fate, rank, became, all);
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
        end_after(peers, FSDP__SILENT, silent, "has not been heard of", fsdp__peers_known(peers, silent).silent, false);
    return silent >= 0;
}

/* Checks that the process of a rank of this machine lives; breaks the world if it has died. */
static void check_neighbour(fsdp__peers *peers, int rank)
{
    if (rank != peers->places->rank)
        fsdp__verdict_check_alive(peers->own->board, fsdp__local_of(peers->places, rank));
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

/* Returns whether the rank had left, and was awaited, for long enough when something of it was still missing. What has
 * come since then nobody has looked at. */
static bool is_missed(fsdp__peers *peers, int rank, fsdp__awaited wait)
{
    int64_t left = fsdp__peers_known(peers, rank).left, ticks = leave_ticks(peers, rank);

    return left - (atomic_load(&peers->ticks) - wait.tested) > ticks && wait.tested - wait.since > ticks;
}

void fsdp__verdict_look(fsdp__peers *peers, int rank, fsdp__awaited wait)
{
    int64_t limit = limit_of(peers), waited = atomic_load(&peers->ticks) - wait.since;
    fsdp__said heard;
    char became[128];

    if (is_missed(peers, rank, wait)) {
        snprintf(became, sizeof became, "rank %d has left (machine '%.64s')", rank, fsdp__host_of(peers->places, rank));
        end_for(peers, FSDP__GONE, rank, became, false);
    }
    if (fsdp__peers_known(peers, rank).left > 0) /* it has left and says nothing more */
        return;
    check_neighbour(peers, fsdp__listener_of(peers->places, rank));
    if (limit == 0 || waited < limit || end_silent(peers, rank, limit))
        return;
    if (fsdp__board_said(peers->own->board, rank, &heard) && heard.still >= limit &&
        (heard.in == 0 || all_are_still(peers, limit)))
        end_after(peers, FSDP__STILL, rank, "has stood still", heard.still, heard.in > 0);
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
    fsdp__verdict_end(peers->own->board, FSDP__GONE, listener, text);
}

void fsdp__verdict_last_word(fsdp__peers *peers, int rank)
{
    int64_t limit = limit_of(peers);
    int listener = fsdp__listener_of(peers->places, rank);

    check_neighbour(peers, listener);
    check_last_word(peers, listener, rank);
    if (limit > 0)
        (void)end_silent(peers, rank, limit);
}
