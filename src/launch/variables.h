/* variables.h - numbers in the environment. */
#ifndef LAUNCH_VARIABLES_H
#define LAUNCH_VARIABLES_H

#include "fsdp/status.h"

/* `*out` stays as it is when the variable is not set or empty. */
fsdp_status fsdp__read_number(const char *name, int low, int high, int *out);
/* Compute threads as OMP_NUM_THREADS has them; 0: it says nothing. */
int fsdp__read_threads(void);

#endif
