/* comm_context.c - the stream that the groups below one root share. */
#include "shard/comm_context.h"

#include "device/device.h"

fsdp_status fsdp__comm_context_open(fsdp__comm_context *comm, fsdp_device *device, fsdp_overlap overlap)
{
    if (!comm->compute)
        FSDP_TRY(fsdp_event_create(device, &comm->compute));
    if (!comm->in_flight.done)
        FSDP_TRY(fsdp_event_create(device, &comm->in_flight.done));
    FSDP_TRY(fsdp__spares_open(&comm->spares, device));
    if (overlap == FSDP_OVERLAP_WORKER && !comm->own_stream) {
        FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &comm->stream));
        comm->own_stream = true;
    } else if (!comm->stream) {
        comm->stream = fsdp_device_stream(device);
    }
    return FSDP_OK;
}

void fsdp__comm_context_close(fsdp__comm_context *comm)
{
    fsdp__comm_context_drop_reduction(comm);
    fsdp__in_flight_close(&comm->in_flight);
    fsdp__spares_close(&comm->spares);
    fsdp_event_free(comm->compute);
    if (comm->own_stream)
        fsdp_stream_free(comm->stream);
}

fsdp_status fsdp__comm_context_follow_compute(fsdp__comm_context *comm, fsdp_device *device)
{
    FSDP_TRY(fsdp_event_record(comm->compute, fsdp_device_stream(device)));
    return fsdp_stream_wait_event(comm->stream, comm->compute);
}

fsdp_status fsdp__comm_context_finish_reduction(fsdp__comm_context *comm)
{
    return fsdp__in_flight_land(&comm->in_flight, comm->context, comm->stream);
}

void fsdp__comm_context_drop_reduction(fsdp__comm_context *comm)
{
    fsdp__in_flight_drop(&comm->in_flight, comm->stream);
}
