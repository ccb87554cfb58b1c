/* comm_context.c - the stream that the groups below one root share. */
#include "shard/group/comm_context.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
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
    fsdp__exposed_drop(&comm->reductions);
    for (int64_t i = 0; i < comm->departed_capacity; i++)
        fsdp__in_flight_close(&comm->departed[i]);
    fsdp__free(comm->departed);
    fsdp__in_flight_close(&comm->in_flight);
    fsdp__arrivals_close(&comm->arrivals);
    fsdp__spares_close(&comm->spares);
    fsdp_event_free(comm->compute);
    fsdp_stream_free(comm->reduce_stream);
    if (comm->own_stream)
        fsdp_stream_free(comm->stream);
    fsdp__region_unref(comm->received); /* after the work that used it */
    fsdp__region_unref(comm->measures);
}

fsdp_status fsdp__comm_context_follow_compute_on(fsdp__comm_context *comm, fsdp_device *device, fsdp_stream *stream)
{
    FSDP_TRY(fsdp_event_record(comm->compute, fsdp_device_stream(device)));
    return fsdp_stream_wait_event(stream, comm->compute);
}

fsdp_status fsdp__comm_context_follow_compute(fsdp__comm_context *comm, fsdp_device *device)
{
    return fsdp__comm_context_follow_compute_on(comm, device, comm->stream);
}

fsdp_status fsdp__comm_context_reduce_stream(fsdp__comm_context *comm, bool separate, fsdp_stream **out)
{
    *out = comm->stream;
    if (!separate || !comm->own_stream)
        return FSDP_OK;
    if (!comm->reduce_stream)
        FSDP_TRY(fsdp_stream_create(fsdp__stream_device(comm->stream), FSDP_STREAM_WORKER, &comm->reduce_stream));
    *out = comm->reduce_stream;
    return FSDP_OK;
}

fsdp_status fsdp__comm_context_follow_writes(fsdp__comm_context *comm, fsdp_device *device)
{
    return comm->after_optim ? fsdp_stream_wait_event(comm->stream, comm->after_optim)
                             : fsdp__comm_context_follow_compute(comm, device);
}

/* ---- memory of gathers in other bytes ---- */

void fsdp__comm_context_precede_compute(fsdp__comm_context *comm, fsdp_device *device)
{
    fsdp_stream *compute = fsdp_device_stream(device);

    if (comm->stream != compute && (fsdp_event_record(comm->compute, comm->stream) != FSDP_OK ||
                                    fsdp_stream_wait_event(compute, comm->compute) != FSDP_OK))
        (void)fsdp_stream_synchronize(comm->stream);
}

static void drop_region(fsdp__comm_context *comm, fsdp__region **region, bool waited)
{
    if (*region && !waited)
        fsdp__comm_context_precede_compute(comm, (*region)->device);
    fsdp__region_unref(fsdp__take(region));
}

static fsdp_status take_region(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, fsdp_memory_kind kind,
                               fsdp__region **region)
{
    fsdp_status status;

    if (*region && (*region)->bytes >= bytes)
        return FSDP_OK;
    drop_region(comm, region, false);
    FSDP_TRY(fsdp__region_make(device, bytes, kind, region));
    status = fsdp__comm_context_follow_compute(comm, device); /* the device's stream had the memory before */
    if (status != FSDP_OK)
        fsdp__region_unref(fsdp__take(region));
    return status;
}

fsdp_status fsdp__comm_context_take_received(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, void **out)
{
    bool own = comm->stream == fsdp_device_stream(device);

    /* A region that stays for later gathers is made large enough for the largest so far. */
    comm->most_received = FSDP__MAX(comm->most_received, bytes);
    FSDP_TRY(
        take_region(comm, device, own ? bytes : comm->most_received, FSDP_MEMORY_UNSHARDED_PARAMETER, &comm->received));
    comm->receiving += !own;
    *out = comm->received->data;
    return FSDP_OK;
}

void fsdp__comm_context_give_received(fsdp__comm_context *comm, fsdp_device *device, bool arrived)
{
    fsdp_stream *compute = fsdp_device_stream(device);

    comm->receiving -= arrived;
    if (comm->stream == compute || (arrived && comm->receiving == 0 && fsdp__stream_is_inline(compute)))
        drop_region(comm, &comm->received, true);
}

void fsdp__comm_context_drop_memory(fsdp__comm_context *comm)
{
    fsdp__spares_drop(&comm->spares);
    drop_region(comm, &comm->received, comm->receiving == 0);
}

fsdp_status fsdp__comm_context_measures(fsdp__comm_context *comm, fsdp_device *device, size_t bytes, float **out)
{
    FSDP_TRY(take_region(comm, device, fsdp__device_rounded(bytes), FSDP_MEMORY_WORKSPACE, &comm->measures));
    *out = comm->measures->data;
    return FSDP_OK;
}

/* ---- reductions in flight ---- */

static fsdp_status land_oldest(fsdp__comm_context *comm)
{
    fsdp_status status = fsdp__in_flight_land(&comm->departed[0], comm->context, &comm->reductions);
    fsdp__in_flight landed = comm->departed[0];

    if (landed.count > 0) /* it could not be waited for */
        return status;
    comm->departed_count--;
    memmove(comm->departed, comm->departed + 1, (size_t)comm->departed_count * sizeof *comm->departed);
    comm->departed[comm->departed_count] = landed; /* keeps its event and arrays for the next one */
    return status;
}

/* Moves `in_flight` to the end of those that have departed. */
static fsdp_status depart(fsdp__comm_context *comm)
{
    int64_t before = comm->departed_capacity;
    fsdp__in_flight free;

    FSDP_TRY(fsdp__grow(&comm->departed, comm->departed_count, &comm->departed_capacity, sizeof *comm->departed));
    for (int64_t i = before; i < comm->departed_capacity; i++)
        comm->departed[i] = (fsdp__in_flight){0};
    free = comm->departed[comm->departed_count];
    if (!free.done)
        FSDP_TRY(fsdp_event_create(fsdp__stream_device(comm->stream), &free.done));
    comm->departed[comm->departed_count++] = comm->in_flight;
    comm->in_flight = free;
    return FSDP_OK;
}

fsdp_status fsdp__comm_context_make_room(fsdp__comm_context *comm)
{
    if (comm->max_inputs < 2)
        return fsdp__comm_context_land_reductions(comm);
    if (comm->in_flight.count > 0)
        FSDP_TRY(depart(comm));
    while (comm->departed_count >= comm->max_inputs)
        FSDP_TRY(land_oldest(comm));
    return FSDP_OK;
}

fsdp_status fsdp__comm_context_land_reductions(fsdp__comm_context *comm)
{
    while (comm->departed_count > 0)
        FSDP_TRY(land_oldest(comm));
    return fsdp__in_flight_land(&comm->in_flight, comm->context, &comm->reductions);
}

fsdp_status fsdp__comm_context_end_backward(fsdp__comm_context *comm)
{
    bool now = comm->in_flight.landed || (comm->in_flight.count > 0 && comm->in_flight.asked);

    for (int64_t i = 0; i < comm->departed_count; i++)
        now = now || comm->departed[i].landed || comm->departed[i].asked;
    return now ? fsdp__comm_context_land_reductions(comm) : FSDP_OK;
}

fsdp_status fsdp__comm_context_finish_reduction(fsdp__comm_context *comm)
{
    FSDP_TRY(fsdp__comm_context_land_reductions(comm));
    return fsdp__arrivals_settle(&comm->arrivals);
}

void fsdp__comm_context_forget_hooks(fsdp__comm_context *comm)
{
    for (int64_t i = 0; i < comm->departed_count; i++)
        fsdp__in_flight_forget_hook(&comm->departed[i]);
    fsdp__in_flight_forget_hook(&comm->in_flight);
}

void fsdp__comm_context_drop_reduction(fsdp__comm_context *comm)
{
    while (comm->departed_count > 0)
        fsdp__in_flight_drop(&comm->departed[--comm->departed_count]);
    fsdp__in_flight_drop(&comm->in_flight);
    fsdp__arrivals_drop(&comm->arrivals);
}
