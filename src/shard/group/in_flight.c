/* in_flight.c - a reduction from its issue to its landing. */
#include "shard/group/in_flight.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "device/device.h"

fsdp_status fsdp__landed_hook_set(fsdp__landed_hook **slot, fsdp_post_accumulate_grad_hook call, void *arg)
{
    if (!*slot && call) {
        FSDP__TRY_NEW(*slot = fsdp__calloc(1, sizeof **slot));
        (*slot)->refs = 1;
    }
    if (*slot) {
        (*slot)->call = call;
        (*slot)->arg = arg;
    }
    if (!call)
        fsdp__landed_hook_unref(fsdp__take(slot));
    return FSDP_OK;
}

fsdp__landed_hook *fsdp__landed_hook_ref(fsdp__landed_hook *hook)
{
    if (hook)
        hook->refs++;
    return hook;
}

void fsdp__landed_hook_unref(fsdp__landed_hook *hook)
{
    if (hook && --hook->refs == 0)
        fsdp__free(hook);
}

fsdp_status fsdp__landed_hook_call(const fsdp__landed_hook *hook, fsdp_tensor *const *shards, int64_t count)
{
    return hook && hook->call ? hook->call(hook->arg, shards, count) : FSDP_OK;
}

fsdp_status fsdp__in_flight_reserve(fsdp__in_flight *flight, int64_t count, fsdp_stream *stream)
{
    fsdp_tensor **tensors;

    flight->stream = stream;
    if (flight->capacity >= count)
        return FSDP_OK;
    FSDP__TRY_NEW(tensors = fsdp__calloc((size_t)count, 4 * sizeof *tensors + sizeof *flight->contributed));
    fsdp__free(flight->unsharded);
    *flight = (fsdp__in_flight){.unsharded = tensors,
                                .gradients = tensors + count,
                                .arriving = tensors + 2 * count,
                                .shards = tensors + 3 * count,
                                .contributed = (uint8_t *)(tensors + 4 * count),
                                .capacity = count,
                                .stream = stream,
                                .done = flight->done};
    return FSDP_OK;
}

fsdp_status fsdp__in_flight_depart(fsdp__in_flight *flight)
{
    FSDP_TRY(fsdp_event_record(flight->done, flight->stream));
    for (int64_t i = 0; i < flight->count && !fsdp__stream_is_inline(flight->stream); i++)
        if (flight->gradients[i] && !flight->results) /* results have events of their own: arrivals.h */
            flight->gradients[i]->storage->written = flight->done;
    return FSDP_OK;
}

static void let_go(fsdp_tensor **tensor)
{
    fsdp_tensor_unref(fsdp__take(tensor));
}

static void let_go_memory(fsdp__in_flight *flight)
{
    fsdp__storage_unref(flight->results);
    fsdp__storage_unref(flight->partial);
    flight->results = flight->partial = NULL;
    fsdp__region_unref(fsdp__take(&flight->packed));
}

bool fsdp__in_flight_contributed(const fsdp__in_flight *flight, int64_t i)
{
    return flight->contributed[flight->together ? 0 : i];
}

/* Marks the i-th result as available to whoever uses the device's stream. */
static void mark_written(const fsdp__in_flight *flight, int64_t i)
{
    if (flight->gradients[i] && flight->gradients[i]->storage->written == flight->done)
        flight->gradients[i]->storage->written = NULL;
}

static void drop(fsdp__in_flight *flight, int64_t i)
{
    let_go(&flight->unsharded[i]);
    let_go(&flight->gradients[i]);
    let_go(&flight->arriving[i]);
}

/* Makes the result the shard's gradient, or adds it to that, after hooks have seen it. */
static fsdp_status arrive(fsdp_context *context, fsdp_tensor *shard, fsdp_tensor *gradient)
{
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    status = fsdp__leaf_accumulate(shard, gradient);
    fsdp_scope_end(context, NULL);
    return status;
}

/* Takes the i-th result out, and hands it to its shard if that waits for it. */
static fsdp_status land(fsdp_context *context, fsdp__in_flight *flight, int64_t i, bool wanted)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *gradient = fsdp_tensor_ref(flight->gradients[i]);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *shard = fsdp_tensor_ref(flight->arriving[i]);

    drop(flight, i);
    return shard && wanted ? arrive(context, shard, gradient) : FSDP_OK;
}

/* Shows the shards that have a gradient to the caller's hook; they are the same on all ranks. */
static fsdp_status tell_landed(fsdp__in_flight *flight, bool wanted)
{
    fsdp__landed_hook *landed = fsdp__take(&flight->landed);
    fsdp_status status = FSDP_OK;
    int64_t with = 0;

    if (!landed)
        return FSDP_OK;
    for (int64_t i = 0; i < flight->count; i++)
        if (fsdp_tensor_grad(flight->shards[i])) {
            fsdp_tensor *shard = flight->shards[i];

            flight->shards[i] = flight->shards[with];
            flight->shards[with++] = shard;
        }
    if (wanted && with > 0)
        status = fsdp__landed_hook_call(landed, flight->shards, with);
    for (int64_t i = 0; i < flight->count; i++)
        let_go(&flight->shards[i]);
    fsdp__landed_hook_unref(landed);
    return status;
}

void fsdp__in_flight_forget_hook(fsdp__in_flight *flight)
{
    (void)tell_landed(flight, false);
}

fsdp_status fsdp__in_flight_await(const fsdp__in_flight *flight, fsdp__exposed *waited)
{
    fsdp_stream *compute = fsdp_device_stream(fsdp__stream_device(flight->stream));
    fsdp__stretch stretch;
    fsdp_status status;

    FSDP_TRY(fsdp__exposed_begin(waited, compute, flight->stream, false, &stretch));
    status = fsdp_stream_wait_event(compute, flight->done);
    if (status == FSDP_OK && flight->asked)
        status = fsdp_event_synchronize(flight->done);
    FSDP_KEEP_FIRST(status, fsdp__exposed_end(waited, &stretch, status == FSDP_OK));
    return status;
}

fsdp_status fsdp__in_flight_land(fsdp__in_flight *flight, fsdp_context *context, fsdp__exposed *waited)
{
    fsdp__in_flight landing = *flight;
    fsdp_stream *stream = landing.stream;
    fsdp_status status;

    if (landing.count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__in_flight_await(&landing, waited));
    /* If the stream runs behind the host, this may report earlier work. A failure breaks the world, and
     * later calls say so. */
    status = fsdp__stream_check(stream);
    *flight = (fsdp__in_flight){.done = landing.done}; /* a hook may start another reduction */
    for (int64_t i = 0; i < landing.count; i++)
        mark_written(&landing, i);
    for (int64_t i = 0; i < landing.count; i++)
        FSDP_KEEP_FIRST(status,
                        land(context, &landing, i, status == FSDP_OK && fsdp__in_flight_contributed(&landing, i)));
    let_go_memory(&landing);
    FSDP_KEEP_FIRST(status, tell_landed(&landing, status == FSDP_OK));
    if (flight->capacity > 0) { /* the hook's reduction has made new arrays */
        fsdp__free(landing.unsharded);
        return status;
    }
    landing.count = 0;
    *flight = landing;
    return status;
}

void fsdp__in_flight_drop(fsdp__in_flight *flight)
{
    if (flight->count == 0)
        return;
    (void)fsdp_stream_synchronize(flight->stream); /* what the stream reads and writes is freed now */
    for (int64_t i = 0; i < flight->count; i++) {
        mark_written(flight, i);
        drop(flight, i);
    }
    let_go_memory(flight);
    (void)tell_landed(flight, false);
    flight->count = 0;
}

void fsdp__in_flight_close(fsdp__in_flight *flight)
{
    fsdp__free(flight->unsharded);
    fsdp_event_free(flight->done);
}
