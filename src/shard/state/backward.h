/* backward.h - the schedule of a backward, as the graph calls it. */
#ifndef SHARD_STATE_BACKWARD_H
#define SHARD_STATE_BACKWARD_H

#include "shard/state/root.h"

/* Is called at an output of a state's modules, with what the forward was trained for: gathers, waits, and gathers the
 * state that comes next. [collective] */
fsdp_status fsdp__enter_backward(void *trained, fsdp_tensor *output, fsdp_tensor **grad);
/* Counts a use of the state's modules that this backward will leave again. */
void fsdp__will_leave_backward(void *state);
/* Is called at the inputs of a state's modules: reshards, and reduces the gradients after the last use. [collective] */
fsdp_status fsdp__leave_backward(void *state);

#endif
