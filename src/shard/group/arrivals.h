/* arrivals.h - brings reduced gradients from the device to the host, where shards are offloaded.
 *
 * The stream of the reduction copies them, and a stream of the host adds them to the gradient that the shard has, so
 * that neither the host nor the device waits for the other. Until an arrival is settled, the storage of each of its
 * gradients carries the arrival's event (`written`), so whoever looks at the gradient waits for it. */
#pragma once

#include "tensor/tensor.h"

/* Holds the gradients that one reduction brings to the host. */
typedef struct fsdp__arrival {
    fsdp_event *done;
    fsdp_tensor **gradients; /* on the host */
    int64_t count, capacity;
    fsdp__storage *staging; /* what is to be added, on the host; NULL: nothing is added */
} fsdp__arrival;

typedef struct fsdp__arrivals {
    fsdp__arrival *items; /* oldest first; entries behind `count` keep events and arrays for reuse */
    int64_t count, capacity;
    fsdp_stream *stream; /* a worker's that adds, if the host's own stream is inline; NULL: not needed yet */
} fsdp__arrivals;

/* A result on the device, and the gradient on the host that it becomes or is added to. */
typedef struct fsdp__arriving {
    const void *result;
    fsdp_dtype dtype; /* of the result; the same as the gradient's, unless the result is added */
    fsdp_tensor *gradient;
} fsdp__arriving;

/* Brings the results to the host, after the work that `stream` has been given. The results must stay valid until then.
 * With `add` they are added to the gradients, in f32. */
fsdp_status fsdp__arrivals_bring(fsdp__arrivals *arrivals, fsdp_stream *stream, const fsdp__arriving *arriving,
                                 int64_t count, bool add);
/* Makes the host's own stream wait until everything has arrived; if that stream is inline, the host waits. */
fsdp_status fsdp__arrivals_settle(fsdp__arrivals *arrivals);
/* Does the same after a failure: afterwards nothing uses the memory of the arrivals. */
void fsdp__arrivals_drop(fsdp__arrivals *arrivals);
void fsdp__arrivals_close(fsdp__arrivals *arrivals);
