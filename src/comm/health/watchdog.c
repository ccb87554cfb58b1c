/* watchdog.c - what a rank does while it waits for others. */
#include "comm/health/watchdog.h"

#include <stdio.h>
#include <string.h>

#include "comm/health/process.h"
#include "comm/health/verdict.h"

/* ---- what it tells ---- */

/* Returns the number of ticks after which a wait is first reported; later reports come at doubled intervals. It is a
 * fifth of the timeout, or 300 ticks without one (0). */
static int64_t first_notice(int64_t timeout_ticks)
{
    return timeout_ticks <= 0 ? 300 : timeout_ticks < 5 ? 1 : timeout_ticks / 5;
}

/* Returns whether a wait is to be reported now; the next report comes after twice as long. */
static bool is_due(int64_t waited, int64_t timeout_ticks, int64_t *next)
{
    if (*next == 0)
        *next = first_notice(timeout_ticks);
    if (waited < *next)
        return false;
    *next *= 2;
    return true;
}

static void tell_stopped(fsdp__wait *wait, int rank)
{
    const fsdp__board *board = wait->own->board;
    fsdp__pulse *pulse = &wait->pulses[rank];
    char where[FSDP__CALL_BYTES], how[FSDP__HOST_BYTES + 48];
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
    fsdp__wait_place_text(wait, where);
    if (*fsdp__pulse_holder(pulse)) /* which no signal lets go on */
        snprintf(how, sizeof how, "only %s", pulse->state == FSDP__FROZEN ? "thawing that" : "that");
    else
        snprintf(how, sizeof how, "'kill -CONT %d'%s%s", pid, board->host[0] ? " on machine " : "", board->host);
    fsdp_log(wait->own->context, FSDP_LOG_WARNING,
             "rank %d is stopped%s, and rank %d waits for it %s%s: %s lets it continue",
             fsdp__board_global(board, rank), fsdp__pulse_holder(pulse), fsdp__board_global(board, wait->own->rank),
             wait->place.region ? "" : "in ", where, how);
}

/* Reports a wait that takes long, at longer and longer intervals. */
static void tell_slow(fsdp__wait *wait, const fsdp__reach *reach)
{
    char where[FSDP__CALL_BYTES], whom[FSDP__RANK_BYTES], waited[FSDP__STATE_BYTES];

    if (reach->count == 0 || !is_due(wait->ticks, atomic_load(&wait->own->timeout_ticks), &wait->next_notice))
        return;
    if (wait->pulses[reach->ranks[0]].told || !fsdp__stands_first(wait->own->board, wait->own->rank, &wait->place))
        return;
    fsdp__wait_place_text(wait, where);
    fsdp__wait_rank_text(wait, reach->ranks[0], ", which", whom);
    fsdp__wait_time_text(wait, wait->ticks, waited);
    fsdp_log(wait->own->context, FSDP_LOG_WARNING, "waiting %s %s%s for %s", waited, wait->place.region ? "" : "in ",
             where, whom);
}

/* ---- the same of a device ---- */

void fsdp__watchdog_tell_device(fsdp__wait *wait, const char *group, int rank)
{
    const fsdp__board *board = wait->own->board;
    char whom[FSDP__RANK_BYTES], waited[FSDP__STATE_BYTES];

    if (!is_due(wait->ticks, atomic_load(&wait->own->timeout_ticks), &wait->next_notice))
        return;
    fsdp__wait_rank_text(wait, rank, ", which", whom);
    fsdp__wait_time_text(wait, wait->ticks, waited);
    fsdp_log(wait->own->context, FSDP_LOG_WARNING, "the device of rank %d waits %s in group '%s' for that of %s",
             fsdp__board_global(board, wait->own->rank), waited, group, whom);
}

/* ---- the same of a rank on another machine ---- */

/* Writes "which is in call 7 of group 'world' (...)". */
static void peer_text(fsdp__peers *peers, int rank, char *text, size_t bytes)
{
    fsdp__known known = fsdp__peers_known(peers, rank);
    double tick_s = (double)atomic_load(&peers->own->tick_ms) / 1000;
    char doing[FSDP__DOING_BYTES];
    fsdp__said heard;

    if (!fsdp__board_said(peers->own->board, rank, &heard)) {
        snprintf(text, bytes, "is in an unknown call");
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

void fsdp__watchdog_tell_slow(fsdp__peers *peers, int rank, int64_t waited, int64_t *next)
{
    const fsdp__places *places = peers->places;
    char mine[FSDP__DOING_BYTES], theirs[512];

    if (!is_due(waited, atomic_load(&peers->own->timeout_ticks), next))
        return;
    fsdp__peers_doing_text(peers, mine, sizeof mine);
    peer_text(peers, rank, theirs, sizeof theirs);
    fsdp_log(peers->own->context, FSDP_LOG_WARNING, "rank %d waits %.6g s %s for rank %d (machine '%.64s'), which %s",
             places->rank, (double)(waited * atomic_load(&peers->own->tick_ms)) / 1000, mine, rank,
             fsdp__host_of(peers->places, rank), theirs);
}

/* ---- a tick ---- */

static void take_pulses(fsdp__wait *wait, const fsdp__reach *reach)
{
    const fsdp__board *board = wait->own->board;

    for (int i = 0; i < reach->count; i++) {
        int rank = reach->ranks[i];

        if (fsdp__wait_has_pulse(board, reach, i)) {
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

void fsdp__wait_begin(fsdp__wait *wait, const fsdp__health *own, fsdp__wait_place place)
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

    if (wait->ticks++ == 0) {
        memset(&wait->thread_ns, 0, sizeof *wait - offsetof(fsdp__wait, thread_ns));
        wait->thread_ns = fsdp__thread_cpu_ns();
    }
    if (fsdp__verdict_circle(wait))
        return;
    fsdp__find_reach(wait->own->board, wait->own->rank, &wait->place, &reach);
    take_pulses(wait, &reach);
    tell_slow(wait, &reach);
    fsdp__verdict_reach(wait, &reach);
    now = fsdp__thread_cpu_ns();
    fsdp__health_looked(wait->own, now - wait->thread_ns);
    wait->thread_ns = now;
}
