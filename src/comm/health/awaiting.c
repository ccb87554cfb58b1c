/* awaiting.c - what is said of a wait, and of the ranks that are awaited. */
#include "comm/health/awaiting.h"

#include <stdio.h>

#include "base/compiler.h"

void fsdp__wait_time_text(const fsdp__wait *wait, int64_t ticks, char text[FSDP__STATE_BYTES])
{
    snprintf(text, FSDP__STATE_BYTES, "%.*g s", ticks * atomic_load(&wait->own->tick_ms) < 1000 ? 1 : 6,
             (double)(ticks * atomic_load(&wait->own->tick_ms)) / 1000);
}

void fsdp__wait_place_text(const fsdp__wait *wait, char text[FSDP__CALL_BYTES])
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

static void state_text(const fsdp__wait *wait, int rank, const fsdp__pulse *pulse, char text[FSDP__STATE_BYTES])
{
    const fsdp__board *board = wait->own->board;
    char still[FSDP__STATE_BYTES];

    fsdp__wait_time_text(wait, pulse->still, still);
    if (atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_AWAITED)
        snprintf(text, FSDP__STATE_BYTES,
                 fsdp__pulse_process(board, rank) > 0 ? "has not joined%s%s (process %d)" : "has not joined",
                 fsdp__pulse_is_stopped(pulse) ? ": is stopped" : "", fsdp__pulse_holder(pulse),
                 fsdp__pulse_process(board, rank));
    else if (atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_LEFT)
        snprintf(text, FSDP__STATE_BYTES, "has left");
    else if (!pulse->known) /* nothing depends on it, so nobody looked */
        snprintf(text, FSDP__STATE_BYTES, "is elsewhere");
    else if (fsdp__pulse_is_stopped(pulse))
        snprintf(text, FSDP__STATE_BYTES, "is stopped%s (process %d)", fsdp__pulse_holder(pulse),
                 fsdp__pulse_process(board, rank));
    else if (pulse->still > 1)
        snprintf(text, FSDP__STATE_BYTES, "has stood still for %.16s (process %d)", still,
                 fsdp__pulse_process(board, rank));
    else if (pulse->state == 'D')
        snprintf(text, FSDP__STATE_BYTES, "waits in the kernel, as for a disk (process %d)",
                 fsdp__pulse_process(board, rank));
    else
        snprintf(text, FSDP__STATE_BYTES, "%s", activity_text(board, rank));
}

/* Returns whether the rank lives and its program waits, though for nobody on this machine. */
static bool waits_elsewhere(const fsdp__wait *wait, int rank)
{
    const fsdp__board *board = wait->own->board;
    const fsdp__pulse *pulse = &wait->pulses[rank];

    return board->host[0] && atomic_load(&fsdp__row_at(board, rank)->program_in) > 0 && pulse->known &&
           !fsdp__pulse_is_stopped(pulse) && pulse->still <= 1;
}

void fsdp__wait_rank_text(const fsdp__wait *wait, int rank, const char *relative, char text[FSDP__RANK_BYTES])
{
    const fsdp__board *board = wait->own->board;
    char call[FSDP__CALL_BYTES], state[FSDP__STATE_BYTES];
    fsdp__wait_place place;
    fsdp__pulse now = {0}; /* nobody looks again and again at a rank that waits for another machine */
    bool called = fsdp__call_text_of(board, -1, rank, call, sizeof call);
    int global = fsdp__board_global(board, rank);

    fsdp__pulse_take(board, rank, &now);
    if (fsdp__program_place(board, rank, &place) && called && !fsdp__pulse_is_stopped(&now)) {
        snprintf(text, FSDP__RANK_BYTES, "rank %d%s waits in %s", global, relative, call);
        return;
    }
    state_text(wait, rank, fsdp__pulse_is_stopped(&now) ? &now : &wait->pulses[rank], state);
    if (called && waits_elsewhere(wait, rank))
        snprintf(state, sizeof state, "waits for another machine");
    if (called)
        snprintf(text, FSDP__RANK_BYTES, "rank %d%s %s, last in %s", global, relative, state, call);
    else
        snprintf(text, FSDP__RANK_BYTES, "rank %d%s %s, before its first call of other ranks", global, relative, state);
}

bool fsdp__wait_has_pulse(const fsdp__board *board, const fsdp__reach *reach, int i)
{
    return !reach->stands[i] ||
           atomic_load_explicit(&fsdp__row_at(board, reach->ranks[i])->program_in, memory_order_relaxed) == 0;
}
