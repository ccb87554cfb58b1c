/* backward.h - the schedule of a backward, as the graph calls it. */
#pragma once

#include "shard/state/root.h"

/* Begins a state's backward at an output of its modules, with what the forward was trained for: gathers, waits, and
 * gathers the state that comes next. [collective] */
fsdp_status fsdp__enter_backward(void *trained, fsdp_tensor *output, fsdp_tensor **grad);
/* Counts a use of the state's modules that this backward will leave again. */
void fsdp__will_leave_backward(void *state);
/* Ends a state's backward at the inputs of its modules: reshards, and reduces the gradients after the last use.
 * [collective] */
fsdp_status fsdp__leave_backward(void *state);
