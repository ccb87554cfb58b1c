/* comm_context.h - how the groups below one root communicate (FSDP2's FSDPCommContext): one stream that runs gathers
 * and reductions in the same order on all ranks, a second one for reductions that run beside gathers, the memory of
 * gathers, and the reductions in flight. */
#pragma once

#include "fsdp/shard.h"
#include "shard/group/arrivals.h"
#include "shard/group/exposed.h"
#include "shard/group/gather_memory.h"
#include "shard/group/in_flight.h"

typedef struct fsdp__comm_context {
    fsdp_context *context;
    fsdp_stream *stream;        /* the device's own when inline; NULL before the first group that has a device */
    fsdp_stream *reduce_stream; /* of reductions that run beside gathers; NULL: there are none, or inline */
    bool own_stream;
    fsdp_event *compute;     /* scratch: "the device's stream up to now" */
    fsdp_event *after_optim; /* the caller's: all writes to shards come before it; NULL: not known */
    fsdp__in_flight in_flight;
    /* Older reductions in flight, oldest first; entries behind the count keep events and arrays for reuse. */
    fsdp__in_flight *departed;
    int64_t departed_count, departed_capacity;
    int max_inputs;          /* of reductions in flight: the most that any state below the root asks for */
    fsdp__arrivals arrivals; /* of gradients whose shards are offloaded */
    fsdp__spares spares;
    /* Groups that are gathered in other bytes (encoded.h) use these: the first holds what a gather receives until it is
     * decoded, the second what all ranks say of their shards. Work of `stream` uses them one piece after the other. */
    fsdp__region *received, *measures;
    size_t most_received;
    int64_t receiving; /* gathers that may still use `received`, on a stream of their own */
    /* Time so far in gathers (of all groups) and reductions that run inline, and waiting for those that do not. */
    int64_t gather_ns;
    fsdp__exposed reductions;
} fsdp__comm_context;

/* Makes the stream and events, once. Gathers before the first forward run on the device's own stream. */
fsdp_status fsdp__comm_context_open(fsdp__comm_context *comm, fsdp_device *device, fsdp_overlap overlap);
void fsdp__comm_context_close(fsdp__comm_context *comm);
/* Makes later work of the gathers' stream, or of `stream`, wait for all that the device's stream has been given. */
fsdp_status fsdp__comm_context_follow_compute(fsdp__comm_context *comm, fsdp_device *device);
fsdp_status fsdp__comm_context_follow_compute_on(fsdp__comm_context *comm, fsdp_device *device, fsdp_stream *stream);
/* Makes later work of the gathers' stream wait for the writes to shards, which are on `device`. */
fsdp_status fsdp__comm_context_follow_writes(fsdp__comm_context *comm, fsdp_device *device);
/* Gives the stream of a reduction: that of gathers, or another one if `separate` is set and the gathers' stream is not
 * the device's own. */
fsdp_status fsdp__comm_context_reduce_stream(fsdp__comm_context *comm, bool separate, fsdp_stream **out);
/* Makes room for another reduction: lands the oldest ones until there is room, and leaves `in_flight` free. */
fsdp_status fsdp__comm_context_make_room(fsdp__comm_context *comm);
/* Lands the reductions in flight: the device's stream waits for them. */
fsdp_status fsdp__comm_context_land_reductions(fsdp__comm_context *comm);
/* Ends a backward that is not the last. The reductions land now if a hook is to be told of it within the backward, or
 * if this rank does not know yet which gradients only other ranks had. (Those ranks have these gradients at once.) */
fsdp_status fsdp__comm_context_end_backward(fsdp__comm_context *comm);
/* Makes the reductions land without calling hooks. */
void fsdp__comm_context_forget_hooks(fsdp__comm_context *comm);
/* Lands the reductions and waits for what is on its way to the host; or drops all of that. */
fsdp_status fsdp__comm_context_finish_reduction(fsdp__comm_context *comm);
void fsdp__comm_context_drop_reduction(fsdp__comm_context *comm);

/* Makes the device's stream wait for the gathers' stream, so that memory that gathers use can be freed in the order of
 * the device's stream. */
void fsdp__comm_context_precede_compute(fsdp__comm_context *comm, fsdp_device *device);
/* Takes at least `bytes` for work of the gathers' stream, and makes that stream wait until the memory is free. Give it
 * back once the work has been issued (`arrived` false), and if the gathers' stream is not the device's own, once more
 * when the device's stream waits for the work (`arrived` true). Where the device runs behind the host, the memory stays
 * for the next gather until it is dropped. */
fsdp_status fsdp__comm_context_take_received(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, void **out);
void fsdp__comm_context_give_received(fsdp__comm_context *comm, fsdp_device *device, bool arrived);
/* Drops that memory and the spares, when no gather is expected soon. */
void fsdp__comm_context_drop_memory(fsdp__comm_context *comm);
/* Takes memory for measures in the same way; it stays. */
fsdp_status fsdp__comm_context_measures(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, float **out);
