/* moment.h - moments of a device that runs behind the host, which a backend makes. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fsdp/device.h"

/* Marks a moment of a device. The device's own struct starts with this one, and its functions tell of which kind it
 * is. */
typedef struct fsdp__device_moment {
    _Atomic int64_t refs;
    /* Makes the host wait until the device gets there. It is called after the line has passed the mark's number. */
    fsdp_status (*wait)(struct fsdp__device_moment *moment);
    /* Returns whether the device has got there, and waits for nothing. */
    bool (*reached)(struct fsdp__device_moment *moment);
    /* Gives when the device got there, after `wait`: fsdp__stamp_read. NULL: it was not asked to notice. */
    fsdp_status (*time)(struct fsdp__device_moment *moment, int64_t *ns);
    void (*free)(struct fsdp__device_moment *moment);
} fsdp__device_moment;

/* Gives the moment behind all that a device's streams have been given so far, which the caller owns; NULL: all of it is
 * done. For a device that carries. It waits for nothing. */
fsdp_status fsdp__device_mark_all(fsdp_device *device, fsdp__device_moment **out);
/* Returns whether such a device is lost, and does nothing of what it was given any more. It waits for nothing. Any
 * thread. */
bool fsdp__device_has_ended(fsdp_device *device);

/* Drops a reference; NULL is allowed. */
static inline void fsdp__moment_unref(fsdp__device_moment *moment)
{
    if (moment && atomic_fetch_sub(&moment->refs, 1) == 1)
        (moment->free)(moment);
}
