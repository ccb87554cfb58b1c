/* memory.h - what is done with a group's memory when the group ends. */
#pragma once

#include "comm/comm.h"

/* Passes freed buffers that peers of the group may still read to the care of the world. */
void fsdp__memory_hand_over(fsdp_process_group *group);
