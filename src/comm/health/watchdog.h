/* watchdog.h - what a rank does while it waits for others: it looks around, reports what holds it up, and asks
 * whether those will come (verdict.h).
 *
 * [Note: ticks]
 * A thread that waits sleeps for a tick at a time. Only ticks that passed in full while it slept count, each once, so
 * time during which the waiting rank itself is stopped (Ctrl-Z, a suspended machine) does not count. */
#pragma once

#include "comm/health/awaiting.h"
#include "comm/health/peers.h"

void fsdp__wait_begin(fsdp__wait *wait, const fsdp__health *own, fsdp__wait_place place);
/* Returns how long to sleep, in milliseconds. */
int fsdp__wait_tick_ms(const fsdp__wait *wait);
/* Looks around after a sleep of that length. */
void fsdp__wait_tick(fsdp__wait *wait);

/* Warns in the log that this rank waits for `rank`, of any machine: after a fifth of the timeout, then at doubled
 * intervals. `*next` must be 0 when a wait begins. */
void fsdp__watchdog_tell_slow(fsdp__peers *peers, int rank, int64_t waited, int64_t *next);
/* Does the same for this rank's device, which has waited wait->ticks in a group for that of `rank`, on this machine. */
void fsdp__watchdog_tell_device(fsdp__wait *wait, const char *group, int rank);
