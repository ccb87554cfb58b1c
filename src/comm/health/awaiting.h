/* awaiting.h - one wait of a rank for others of its machine: what it has seen of them, and the words for it. */
#pragma once

#include "comm/health/calls.h"
#include "comm/health/pulse.h"
#include "comm/health/waits.h"

enum {
    FSDP__RANK_BYTES = 400, /* room for the text of a rank */
    FSDP__STATE_BYTES = 96
};

/* One wait of one thread. It is large, and not touched before the first tick. */
typedef struct fsdp__wait {
    const fsdp__health *own;
    fsdp__wait_place place;
    int64_t ticks;
    int64_t thread_ns;   /* processor time of this thread at its last look */
    int64_t next_notice; /* in ticks */
    uint64_t circle;     /* hash of the circle that was seen at the last tick; 0: none */
    uint64_t reach;
    int64_t same; /* ticks since the places of all ranks in reach last changed */
    fsdp__pulse pulses[FSDP__BOARD_RANKS];
} fsdp__wait;

/* Returns whether rank i of the reach is to be judged by its pulse. A rank whose program waits for others is not to
 * blame, and has no pulse; one that stands somewhere on a worker thread may still be about to do what others wait
 * for. */
bool fsdp__wait_has_pulse(const fsdp__board *board, const fsdp__reach *reach, int i);

/* Write "5 s" or "0.4 s"; the call in which the rank waits; and "rank 1, which is stopped (process 12), last in call 6
 * of ...", where `relative` is ", which" or "". */
void fsdp__wait_time_text(const fsdp__wait *wait, int64_t ticks, char text[FSDP__STATE_BYTES]);
void fsdp__wait_place_text(const fsdp__wait *wait, char text[FSDP__CALL_BYTES]);
void fsdp__wait_rank_text(const fsdp__wait *wait, int rank, const char *relative, char text[FSDP__RANK_BYTES]);
