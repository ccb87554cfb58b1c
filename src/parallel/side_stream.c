/* side_stream.c - a stream beside the one that computes. */
#include "parallel/side_stream.h"

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "device/device.h"

FSDP__SCOPED_POINTER(fsdp__lane, fsdp__lane_unref)

fsdp_status fsdp__lane_open(fsdp__lane **lane, fsdp_device *device)
{
    FSDP__SCOPED(fsdp__lane_unref_at) fsdp__lane *made = NULL;

    if (*lane && (*lane)->device == device)
        return FSDP_OK;
    FSDP__TRY_NEW(made = fsdp__calloc(1, sizeof *made));
    made->refs = 1;
    made->device = device;
    FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &made->stream));
    FSDP_TRY(fsdp_event_create(device, &made->ready));
    for (int i = 0; i < FSDP__LANE_EVENTS; i++)
        FSDP_TRY(fsdp_event_create(device, &made->done[i]));
    fsdp__lane_unref(*lane);
    *lane = fsdp__take(&made);
    return FSDP_OK;
}

void fsdp__lane_unref(fsdp__lane *lane)
{
    if (!lane || --lane->refs > 0)
        return;
    fsdp_stream_free(lane->stream);
    fsdp_event_free(lane->ready);
    for (int i = 0; i < FSDP__LANE_EVENTS; i++)
        fsdp_event_free(lane->done[i]);
    fsdp__free(lane);
}

fsdp_stream *fsdp__lane_stream(const fsdp__lane *lane, fsdp_stream *compute)
{
    return lane ? lane->stream : compute;
}

fsdp_status fsdp__lane_follow(const fsdp__lane *lane, fsdp_stream *compute)
{
    if (!lane)
        return FSDP_OK;
    FSDP_TRY(fsdp_event_record(lane->ready, compute));
    return fsdp_stream_wait_event(lane->stream, lane->ready);
}

fsdp_status fsdp__lane_mark(const fsdp__lane *lane, int i)
{
    return lane ? fsdp_event_record(lane->done[i], lane->stream) : FSDP_OK;
}

fsdp_status fsdp__lane_await(const fsdp__lane *lane, int i, fsdp_process_group *group, fsdp_stream *compute)
{
    fsdp_status status;

    if (!lane)
        return FSDP_OK;
    fsdp__process_group_host_waits(group, lane->stream, true);
    status = fsdp_stream_wait_event(compute, lane->done[i]);
    fsdp__process_group_host_waits(group, lane->stream, false);
    FSDP_TRY(status);
    return fsdp__stream_check(lane->stream);
}

fsdp_status fsdp__lane_settled(const fsdp__lane *lane, fsdp_status status)
{
    if (status == FSDP_OK)
        return FSDP_OK;
    if (lane)
        (void)fsdp_stream_synchronize(lane->stream);
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
        if (route->lane)
            route->lane->refs++;
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

    fsdp__lane_unref(route->lane);
    fsdp_process_group_free(route->group);
}
