/* watchdog.h - what a rank does while it waits for others: it looks around, reports what holds it up, and ends the
 * world when what it waits for will not come.
 *
 * [Note: ticks]
 * A thread that waits sleeps for a tick at a time. Only ticks that passed in full while it slept count, each once, so
 * time during which the waiting rank itself is stopped (Ctrl-Z, a suspended machine) does not count. */
#ifndef COMM_HEALTH_WATCHDOG_H
#define COMM_HEALTH_WATCHDOG_H

#include "comm/health/calls.h"
#include "comm/health/pulse.h"
#include "comm/health/waits.h"

/* Returns the number of ticks after which a wait is first reported; later reports come at doubled intervals. It is a
 * fifth of the timeout, or 300 ticks without one (0). */
static inline int64_t fsdp__first_notice(int64_t timeout_ticks)
{
    return timeout_ticks <= 0 ? 300 : timeout_ticks < 5 ? 1 : timeout_ticks / 5;
}

/* One wait of one thread. It is large, and not touched before the first tick. */
typedef struct fsdp__wait {
    const fsdp__health *own;
    fsdp__place place;
    int64_t ticks;
    int64_t thread_ns;   /* processor time of this thread at its last look */
    int64_t next_notice; /* in ticks */
    uint64_t circle;     /* hash of the circle that was seen at the last tick; 0: none */
    uint64_t reach;
    int64_t same; /* ticks since the places of all ranks in reach last changed */
    fsdp__pulse pulses[FSDP__BOARD_RANKS];
} fsdp__wait;

void fsdp__wait_begin(fsdp__wait *wait, const fsdp__health *own, fsdp__place place);
/* Returns how long to sleep, in milliseconds. */
int fsdp__wait_tick_ms(const fsdp__wait *wait);
/* Looks around after a sleep of that length. Ends the world (fsdp__board_abort) when this rank is part of a circle, or
 * when what it waits for has stood still for the timeout. */
void fsdp__wait_tick(fsdp__wait *wait);

#endif
