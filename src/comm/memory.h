/* memory.h - what is left to do about a group's memory when the group ends. */
#ifndef COMM_MEMORY_H
#define COMM_MEMORY_H

#include "comm/comm.h"

/* Freed buffers that peers of the group may still read pass to the world's care. */
void fsdp__memory_hand_over(fsdp_process_group *group);

#endif
