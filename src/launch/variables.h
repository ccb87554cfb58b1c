/* variables.h - reads numbers from the environment. */
#pragma once

#include "fsdp/status.h"

/* Says how many turns libgomp's threads spin for each other before they sleep. The default is long, which costs a
 * hundred times the work on a core that they share with another program; so few turns as here cost nothing on an idle
 * one (docs/performance.md). It is read before main, so it must be in the environment that a program is started
 * with. */
#define FSDP__SPIN_VARIABLE "GOMP_SPINCOUNT"
enum {
    FSDP__SPIN_COUNT = 3000
};
/* Returns whether the environment has this variable, or OMP_WAIT_POLICY. */
bool fsdp__user_says_how_to_wait(void);

/* The descriptor of memory for flight records. */
#define FSDP__FLIGHT_VARIABLE "FSDP_FLIGHT_FD"

/* Reads a number. `*out` is unchanged when the variable is not set or empty. */
fsdp_status fsdp__read_number(const char *name, int low, int high, int *out);
/* Says how many seconds ranks wait for each other until all have joined. */
#define FSDP__JOIN_VARIABLE "FSDP_JOIN_TIMEOUT"
fsdp_status fsdp__read_join_seconds(int *out);
/* Reads the number of compute threads from OMP_NUM_THREADS; 0: it does not say. */
fsdp_status fsdp__read_threads(int *out);
