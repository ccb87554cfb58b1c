/* links.h - by what the GPUs of a machine are joined. */
#pragma once

#include "fsdp/device.h"

/* Lists ways between two GPUs, from the one that is not known to the best. */
typedef enum fsdp__link {
    FSDP__LINK_UNKNOWN, /* nothing is known, or there are no two */
    FSDP__LINK_HOST,    /* neither reaches the other's memory */
    FSDP__LINK_PCIE,
    FSDP__LINK_NVLINK
} fsdp__link;

/* Returns the worst way between two of the GPUs that so many ranks of this machine have. */
fsdp__link fsdp__device_worst_link(fsdp_device *device, int ranks);
