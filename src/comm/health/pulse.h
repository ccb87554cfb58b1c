/* pulse.h - tells whether a rank gets anything done, as far as a peer that waits for it can see from outside. */
#pragma once

#include "comm/health/board.h"

enum {
    FSDP__FROZEN = 'F' /* a state: the process's control group is frozen */
};

/* Holds what one rank has seen of another at its latest looks. */
typedef struct fsdp__pulse {
    uint64_t beats;
    int64_t cpu_ns; /* without the time spent on looking at others */
    int64_t still;  /* number of looks since something moved */
    int64_t silent; /* and since its heart beat, whatever else moved */
    uint64_t ready; /* its threads that were ready to run, where nothing has moved: see process.h */
    char state;     /* of its program's thread: see process.h; FSDP__FROZEN */
    bool known;
    bool starves; /* one of its threads has waited for a core since the look before, in vain */
    bool told;    /* it was reported as stopped */
} fsdp__pulse;

/* Takes a look. A rank whose program runs, or would if it had a core, or waits for a disk never stands still; neither
 * does one that has computed, on whatever thread. A look at one that starves does not count. Ranks that are threads of
 * one process share its processor time, and its cores: if one moves or starves, so do all. */
void fsdp__pulse_take(const fsdp__board *board, int rank, fsdp__pulse *pulse);
bool fsdp__pulse_is_stopped(const fsdp__pulse *pulse);
/* Returns by what one that is stopped is held, as an end of "is stopped"; "": a signal. */
const char *fsdp__pulse_holder(const fsdp__pulse *pulse);
/* Returns the pid of the rank's process, which is this process where ranks are threads; 0: not known. */
int fsdp__pulse_process(const fsdp__board *board, int rank);
