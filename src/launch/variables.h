/* variables.h - numbers in the environment. */
#ifndef LAUNCH_VARIABLES_H
#define LAUNCH_VARIABLES_H

#include "fsdp/status.h"

/* How long libgomp's threads spin for each other before they sleep. By default for long, which on a core that they
 * share with another program costs a hundred times the work; so few turns cost nothing on an idle one
 * (docs/performance.md). It is read before main, so it must stand in the environment that a program is started with. */
#define FSDP__SPIN_VARIABLE "GOMP_SPINCOUNT"
enum {
    FSDP__SPIN_COUNT = 3000
};
/* Whether the environment has it, or OMP_WAIT_POLICY. */
bool fsdp__user_says_how_to_wait(void);

/* `*out` stays as it is when the variable is not set or empty. */
fsdp_status fsdp__read_number(const char *name, int low, int high, int *out);
/* Seconds that ranks wait for each other until all have joined. */
#define FSDP__JOIN_VARIABLE "FSDP_JOIN_TIMEOUT"
fsdp_status fsdp__read_join_seconds(int *out);
/* Compute threads as OMP_NUM_THREADS has them; 0: it says nothing. */
fsdp_status fsdp__read_threads(int *out);

#endif
