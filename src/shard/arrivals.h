/* arrivals.h - reduced gradients on their way from the device to the host, where shards are offloaded.
 *
 * They are copied by the stream of the reduction, and added to what the shard has by a stream of the host, so that
 * neither the host nor the device waits for the other. Until an arrival is settled, each gradient's storage has its
 * event (`written`), so whoever looks at the gradient waits for it. */
#ifndef SHARD_ARRIVALS_H
#define SHARD_ARRIVALS_H

#include "tensor/tensor.h"

/* What one reduction brings. */
typedef struct fsdp__arrival {
    fsdp_event *done;
    fsdp_tensor **gradients; /* on the host */
    int64_t count, capacity;
    fsdp__storage *staging; /* on the host: what is to be added; NULL: nothing */
} fsdp__arrival;

typedef struct fsdp__arrivals {
    fsdp__arrival *items; /* oldest first; behind them events and arrays for more */
    int64_t count, capacity;
    fsdp_stream *stream; /* a thread's that adds, where the host's own stream has none; NULL: not needed yet */
} fsdp__arrivals;

/* A result on the device, and the gradient on the host that it becomes or is added to. */
typedef struct fsdp__arriving {
    const void *result;
    fsdp_dtype dtype; /* of the result; that of the gradient, unless it is added */
    fsdp_tensor *gradient;
} fsdp__arriving;

/* After what `stream` has been given; the results must stay until then. `add`: to the gradients, in f32. */
fsdp_status fsdp__arrivals_bring(fsdp__arrivals *arrivals, fsdp_stream *stream, const fsdp__arriving *arriving,
                                 int64_t count, bool add);
/* All have arrived, for work of the host's stream; where that is inline, the host waits. */
fsdp_status fsdp__arrivals_settle(fsdp__arrivals *arrivals);
/* The same after a failure: nothing uses their memory any more. */
void fsdp__arrivals_drop(fsdp__arrivals *arrivals);
void fsdp__arrivals_close(fsdp__arrivals *arrivals);

#endif
