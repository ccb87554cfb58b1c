/* side_stream.c - a stream beside the one that computes. */
#include "parallel/side_stream.h"

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "device/device.h"

FSDP__SCOPED_POINTER(fsdp__side_stream, fsdp__side_stream_unref)

fsdp_status fsdp__side_stream_open(fsdp__side_stream **side, fsdp_device *device)
{
    FSDP__SCOPED(fsdp__side_stream_unref_at) fsdp__side_stream *made = NULL;

    if (*side && (*side)->device == device)
        return FSDP_OK;
    FSDP__TRY_NEW(made = fsdp__calloc(1, sizeof *made));
    made->refs = 1;
    made->device = device;
    FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &made->stream));
    FSDP_TRY(fsdp_event_create(device, &made->ready));
    for (int i = 0; i < FSDP__SIDE_STREAM_EVENTS; i++)
        FSDP_TRY(fsdp_event_create(device, &made->done[i]));
    fsdp__side_stream_unref(*side);
    *side = fsdp__take(&made);
    return FSDP_OK;
}

void fsdp__side_stream_unref(fsdp__side_stream *side)
{
    if (!side || --side->refs > 0)
        return;
    fsdp_stream_free(side->stream);
    fsdp_event_free(side->ready);
    for (int i = 0; i < FSDP__SIDE_STREAM_EVENTS; i++)
        fsdp_event_free(side->done[i]);
    fsdp__free(side);
}

fsdp_stream *fsdp__side_stream_or_compute(const fsdp__side_stream *side, fsdp_stream *compute)
{
    return side ? side->stream : compute;
}

fsdp_status fsdp__side_stream_follow(const fsdp__side_stream *side, fsdp_stream *compute)
{
    if (!side)
        return FSDP_OK;
    FSDP_TRY(fsdp_event_record(side->ready, compute));
    return fsdp_stream_wait_event(side->stream, side->ready);
}

fsdp_status fsdp__side_stream_mark(const fsdp__side_stream *side, int i)
{
    return side ? fsdp_event_record(side->done[i], side->stream) : FSDP_OK;
}

fsdp_status fsdp__side_stream_await(const fsdp__side_stream *side, int i, fsdp_process_group *group,
                                    fsdp_stream *compute)
{
    fsdp_status status;

    if (!side)
        return FSDP_OK;
    fsdp__process_group_host_waits(group, side->stream, true);
    status = fsdp_stream_wait_event(compute, side->done[i]);
    fsdp__process_group_host_waits(group, side->stream, false);
    FSDP_TRY(status);
    return fsdp__stream_check(side->stream);
}

fsdp_status fsdp__side_stream_settled(const fsdp__side_stream *side, fsdp_status status)
{
    if (status == FSDP_OK)
        return FSDP_OK;
    if (side)
        (void)fsdp_stream_synchronize(side->stream);
    return fsdp_fail_hop(status, __FILE__, __LINE__);
}

/* ---- of nodes ---- */

fsdp_status fsdp__route_record(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *const *inputs,
                               int input_count, fsdp_tensor *const *outputs, int output_count,
                               fsdp_tensor *const *saved, int saved_count, const void *state, size_t state_bytes)
{
    const fsdp__route *route = state;
    bool takes = fsdp__will_record(inputs, input_count);
    fsdp_status status;

    if (takes) {
        (void)fsdp__process_group_ref(route->group);
        if (route->side)
            route->side->refs++;
    }
    status = fsdp__record_with(traits, op, inputs, input_count, outputs, output_count, saved, saved_count, state,
                               state_bytes);
    if (takes && status != FSDP_OK)
        fsdp__route_free((void *)(uintptr_t)state);
    return status;
}

void fsdp__route_free(void *state)
{
    const fsdp__route *route = state;

    fsdp__side_stream_unref(route->side);
    fsdp_process_group_free(route->group);
}
