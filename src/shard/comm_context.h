/* comm_context.h - how the groups below one root communicate (FSDP2's FSDPCommContext): one stream in whose order
 * gathers and reductions run on all ranks, the memory of gathers, the reduction in flight. */
#ifndef SHARD_COMM_CONTEXT_H
#define SHARD_COMM_CONTEXT_H

#include "fsdp/shard.h"
#include "shard/arrivals.h"
#include "shard/in_flight.h"
#include "shard/spares.h"

typedef struct fsdp__comm_context {
    fsdp_context *context;
    fsdp_stream *stream;        /* the device's own when inline; NULL before the first group that has a device */
    fsdp_stream *reduce_stream; /* of reductions that have a channel of their own; NULL: there are none, or inline */
    bool own_stream;
    fsdp_event *compute;     /* scratch: "the device's stream up to now" */
    fsdp_event *after_optim; /* the caller's: all writes to shards come before it; NULL: not known */
    fsdp__in_flight in_flight;
    /* Reductions in flight besides that one, oldest first; behind them events and arrays for more. */
    fsdp__in_flight *departed;
    int64_t departed_count, departed_capacity;
    int max_inputs; /* reductions that may be in flight: of all states below the root the most that one asks for */
    fsdp__arrivals arrivals; /* where shards are offloaded */
    fsdp__spares spares;
    /* Of groups that are gathered in other bytes (wire.h): what a gather brings, until it is decoded, and what all
     * ranks say of their shards. Work of `stream` uses them, one after the other. */
    fsdp__region *received, *measures;
    size_t most_received;
    int64_t receiving; /* gathers that may still use it, on a stream of their own */
    /* Of the host, so far: in gathers and reductions that run inline, and waiting for those that do not. */
    int64_t gather_ns, reduce_ns;
} fsdp__comm_context;

/* Makes the stream and events, once. Gathers before the first forward run on the device's own stream. */
fsdp_status fsdp__comm_context_open(fsdp__comm_context *comm, fsdp_device *device, fsdp_overlap overlap);
void fsdp__comm_context_close(fsdp__comm_context *comm);
/* Work of the gathers' stream, or of `stream`, starts after everything the device's stream has been given. */
fsdp_status fsdp__comm_context_follow_compute(fsdp__comm_context *comm, fsdp_device *device);
fsdp_status fsdp__comm_context_follow_compute_on(fsdp__comm_context *comm, fsdp_device *device, fsdp_stream *stream);
/* ... after what was written to shards, which are on `device`. */
fsdp_status fsdp__comm_context_follow_writes(fsdp__comm_context *comm, fsdp_device *device);
/* The stream of a reduction: that of gathers, or `separate` from it, where that is not the device's own. */
fsdp_status fsdp__comm_context_reduce_stream(fsdp__comm_context *comm, bool separate, fsdp_stream **out);
/* Another reduction is to begin: the oldest ones land until there is room for it, and `in_flight` is free. */
fsdp_status fsdp__comm_context_make_room(fsdp__comm_context *comm);
/* The reductions in flight land: the device's stream waits for them. */
fsdp_status fsdp__comm_context_land_reductions(fsdp__comm_context *comm);
/* Of a backward that is not the last: they land where somebody is to be told of it within the backward, or this rank
 * does not know yet which gradients others have brought, which those have at once. */
fsdp_status fsdp__comm_context_end_backward(fsdp__comm_context *comm);
/* The reductions land, and what is on its way to the host has arrived; or all is dropped. */
fsdp_status fsdp__comm_context_finish_reduction(fsdp__comm_context *comm);
void fsdp__comm_context_drop_reduction(fsdp__comm_context *comm);

/* Memory that work of the gathers' stream uses is to go, in the order of the device's: that waits for the work. */
void fsdp__comm_context_precede_compute(fsdp__comm_context *comm, fsdp_device *device);
/* At least `bytes` for work of the gathers' stream, which starts when the memory is free. Given back when the work has
 * been issued (`arrived` false), and where that is not the device's own stream again when the device's waits for it.
 * Where the device runs behind the host the memory stays for the next gather, until it is dropped. */
fsdp_status fsdp__comm_context_take_received(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, void **out);
void fsdp__comm_context_give_received(fsdp__comm_context *comm, fsdp_device *device, bool arrived);
/* That, and the spares: no gather is to come soon. */
void fsdp__comm_context_drop_memory(fsdp__comm_context *comm);
/* The same for measures; they stay. */
fsdp_status fsdp__comm_context_measures(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, float **out);

#endif
