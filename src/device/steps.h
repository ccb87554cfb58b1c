/* steps.h - tells a device when steps of training begin and end, for the places of their memory. */
#pragma once

#include "device/device.h"

/* Steps ask for the same memory in the same order. So a GPU that maps its memory notes the requests of one step, and
 * chooses places for those of the next ones, with few holes between them ([Note: places of a step] in
 * device/step_places.h). Other requests get the smallest free block that fits. On other devices nothing happens.
 *
 * Every loop marks its steps: the outermost call of a module that records a graph is a step's forward, the first one
 * after a step has ended, and fsdp_optimizer_zero_grad ends it. Both are for all devices of a context. At a forward
 * places are chosen, which fails with FSDP_NO_MEMORY where the host has no memory for them; all is as it was then. */
fsdp_status fsdp__note_forward(const fsdp_context *context);
void fsdp__end_step(const fsdp_context *context);
/* Tells a device that for the rest of the step that runs `owner` asks for other memory of gradients than in the
 * steps before, as for buckets that have been divided anew. Failures are as above. */
fsdp_status fsdp__note_renewal(fsdp_device *device, const void *owner);
