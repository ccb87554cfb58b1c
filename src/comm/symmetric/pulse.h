/* pulse.h - whether a rank gets anything done: what a peer that waits for it can see from outside. */
#ifndef COMM_SYMMETRIC_PULSE_H
#define COMM_SYMMETRIC_PULSE_H

#include "comm/symmetric/arena.h"

/* As one rank has seen another at its last looks. */
typedef struct fsdp__pulse {
    uint64_t beats;
    int64_t cpu_ns; /* but for what went into looking after others */
    int64_t still;  /* looks since something moved */
    char state;     /* of its program: see process.h */
    bool known;
    bool told; /* that it is stopped */
} fsdp__pulse;

/* Looks. A rank whose program runs, or would if it had a core, or waits for a disk never stands still; neither does one
 * that has computed, on whatever thread. Ranks that are threads of one process share its processor time: if one moves,
 * so do all. */
void fsdp__pulse_take(const fsdp__arena *arena, int rank, fsdp__pulse *pulse);
bool fsdp__pulse_is_stopped(const fsdp__pulse *pulse);
/* Its process; that of this rank where ranks are threads; 0: not known. */
int fsdp__pulse_process(const fsdp__arena *arena, int rank);

#endif
