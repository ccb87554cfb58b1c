/* comm_context.h - how the groups below one root communicate (FSDP2's FSDPCommContext): one stream in whose order
 * gathers and reductions run on all ranks, the memory of gathers, the reduction in flight. */
#ifndef SHARD_COMM_CONTEXT_H
#define SHARD_COMM_CONTEXT_H

#include "fsdp/shard.h"
#include "shard/in_flight.h"
#include "shard/spares.h"

typedef struct fsdp__comm_context {
    fsdp_context *context;
    fsdp_stream *stream; /* the device's own when inline; NULL before the first group that has a device */
    bool own_stream;
    fsdp_event *compute; /* scratch: "the device's stream up to now" */
    fsdp__in_flight in_flight;
    fsdp__spares spares;
} fsdp__comm_context;

/* Makes the stream and events, once. Gathers before the first forward run on the device's own stream. */
fsdp_status fsdp__comm_context_open(fsdp__comm_context *comm, fsdp_device *device, fsdp_overlap overlap);
void fsdp__comm_context_close(fsdp__comm_context *comm);
/* Work of the stream starts after everything the device's stream has been given. */
fsdp_status fsdp__comm_context_follow_compute(fsdp__comm_context *comm, fsdp_device *device);
/* The reduction in flight: landed, or dropped. */
fsdp_status fsdp__comm_context_finish_reduction(fsdp__comm_context *comm);
void fsdp__comm_context_drop_reduction(fsdp__comm_context *comm);

#endif
