/* steps.h - tells a device when steps of training begin and end, for the places of their memory. */
#ifndef DEVICE_STEPS_H
#define DEVICE_STEPS_H

#include "device/device.h"

/* Say that a step begins, before its first forward, and that it has ended, when its gradients are gone. Steps ask for
 * the same memory in the same order. So a GPU that maps its memory notes the requests of one step, and chooses places
 * for those of the next ones, with few holes between them (device/step_places.h). Other requests get the smallest free
 * block that fits: those of a step that differs, and those between steps. A step that has not ended when the next one
 * begins is forgotten. On other devices nothing happens.
 *
 * Ending a step fails with FSDP_NO_MEMORY where the host has no memory for the places; all is as it was then. */
void fsdp__device_begin_step(fsdp_device *device);
fsdp_status fsdp__device_end_step(fsdp_device *device);

#endif
