/* arrivals.c - brings reduced gradients from the device to the host, after a reduction. */
#include "shard/group/arrivals.h"

#include "base/alloc.h"
#include "device/device.h"
#include "shard/group/region.h"

static fsdp_device *host_of(const fsdp__arriving *arriving)
{
    return arriving->gradient->storage->device;
}

/* ---- settling ---- */

static void release(fsdp__arrival *arrival)
{
    for (int64_t i = 0; i < arrival->count; i++) {
        fsdp__storage *storage = arrival->gradients[i]->storage;

        if (storage->written == arrival->done)
            storage->written = NULL;
        fsdp_tensor_unref(arrival->gradients[i]);
    }
    arrival->count = 0;
    fsdp__storage_unref(fsdp__take(&arrival->staging));
}

/* Settles the oldest `count` arrivals. */
static fsdp_status settle(fsdp__arrivals *arrivals, int64_t count)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < count; i++) {
        fsdp__arrival *arrival = &arrivals->items[i];
        fsdp_stream *host = fsdp_device_stream(arrival->gradients[0]->storage->device);
        fsdp_status arrived = fsdp_stream_wait_event(host, arrival->done);

        FSDP_KEEP_FIRST(status, arrived);
        if (arrived != FSDP_OK)
            (void)fsdp_event_synchronize(arrival->done); /* its memory is freed now */
        release(arrival);
    }
    for (int64_t i = count; count > 0 && i < arrivals->count; i++) { /* the others to the front, free ones behind */
        fsdp__arrival freed = arrivals->items[i - count];

        arrivals->items[i - count] = arrivals->items[i];
        arrivals->items[i] = freed;
    }
    arrivals->count -= count;
    return status;
}

fsdp_status fsdp__arrivals_settle(fsdp__arrivals *arrivals)
{
    return settle(arrivals, arrivals->count);
}

/* Settles earlier arrivals of the same gradients, which belong to an earlier backward. So at most one waits at a time,
 * or a few where ranks use different parameters. */
static fsdp_status settle_earlier(fsdp__arrivals *arrivals, const fsdp__arriving *arriving)
{
    for (int64_t i = 0; i < arrivals->count; i++)
        if (arrivals->items[i].gradients[0]->storage == arriving->gradient->storage)
            return settle(arrivals, i + 1);
    return FSDP_OK;
}

void fsdp__arrivals_drop(fsdp__arrivals *arrivals)
{
    if (arrivals->stream)
        (void)fsdp_stream_synchronize(arrivals->stream);
    (void)fsdp__arrivals_settle(arrivals);
}

void fsdp__arrivals_close(fsdp__arrivals *arrivals)
{
    fsdp__arrivals_drop(arrivals);
    for (int64_t i = 0; i < arrivals->capacity; i++) {
        fsdp__free(arrivals->items[i].gradients);
        fsdp_event_free(arrivals->items[i].done);
    }
    fsdp__free(arrivals->items);
    fsdp_stream_free(arrivals->stream);
    *arrivals = (fsdp__arrivals){0};
}

/* ---- bringing ---- */

static fsdp_status open_item(fsdp__arrivals *arrivals, fsdp_device *device, int64_t count, fsdp__arrival **out)
{
    int64_t before = arrivals->capacity;
    fsdp__arrival *item;

    FSDP_TRY(fsdp__grow(&arrivals->items, arrivals->count, &arrivals->capacity, sizeof *arrivals->items));
    for (int64_t i = before; i < arrivals->capacity; i++)
        arrivals->items[i] = (fsdp__arrival){0};
    item = &arrivals->items[arrivals->count];
    if (!item->done)
        FSDP_TRY(fsdp_event_create(device, &item->done));
    FSDP_TRY(fsdp__grow(&item->gradients, count - 1, &item->capacity, sizeof(fsdp_tensor *)));
    *out = item;
    return FSDP_OK;
}

/* Gives the stream that adds, and makes it if necessary. */
static fsdp_status open_stream(fsdp__arrivals *arrivals, fsdp_device *host, fsdp_stream **out)
{
    *out = fsdp_device_stream(host);
    if (!fsdp__stream_is_inline(*out))
        return FSDP_OK;
    if (!arrivals->stream)
        FSDP_TRY(fsdp_stream_create(host, FSDP_STREAM_WORKER, &arrivals->stream));
    *out = arrivals->stream;
    return FSDP_OK;
}

static size_t bytes_of(const fsdp__arriving *arriving)
{
    return (size_t)fsdp_tensor_numel(arriving->gradient) * fsdp_dtype_size(arriving->dtype);
}

/* Returns the address of the data, unlike fsdp_tensor_data without waiting for what is on its way. */
static void *data_of(const fsdp_tensor *tensor)
{
    return (char *)tensor->storage->data + (size_t)tensor->offset * fsdp_dtype_size(tensor->dtype);
}

static fsdp_status make_staging(const fsdp__arriving *arriving, int64_t count, fsdp__storage **out)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < count; i++)
        bytes += fsdp__device_rounded(bytes_of(&arriving[i]));
    return fsdp__storage_create(host_of(arriving), bytes, FSDP_MEMORY_GRADIENT, true, out);
}

static fsdp_status copy_all(fsdp_stream *stream, const fsdp__arriving *arriving, int64_t count, char *staging)
{
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = bytes_of(&arriving[i]);

        FSDP_TRY(
            fsdp__copy_to_host(stream, staging ? staging : data_of(arriving[i].gradient), arriving[i].result, bytes));
        staging += staging ? fsdp__device_rounded(bytes) : 0;
    }
    return FSDP_OK;
}

/* Adds in f32 and rounds once, as the reduction itself does. */
static fsdp_status add_all(fsdp_stream *stream, const fsdp__arriving *arriving, int64_t count, const char *staging)
{
    for (int64_t i = 0; i < count; i++) {
        const fsdp_tensor *gradient = arriving[i].gradient;

        if (gradient->storage->written)
            FSDP_TRY(fsdp_stream_wait_event(stream, gradient->storage->written));
        FSDP_TRY(fsdp__divide_run(stream, staging, arriving[i].dtype, data_of(gradient), gradient->dtype,
                                  fsdp_tensor_numel(gradient), 1, true));
        staging += fsdp__device_rounded(bytes_of(&arriving[i]));
    }
    return FSDP_OK;
}

static fsdp_status bring(fsdp__arrivals *arrivals, fsdp__arrival *item, fsdp_stream *stream,
                         const fsdp__arriving *arriving, int64_t count, bool add)
{
    fsdp_stream *host = fsdp_device_stream(host_of(arriving)), *adds = NULL;

    if (add) {
        FSDP_TRY(open_stream(arrivals, host_of(arriving), &adds));
        FSDP_TRY(make_staging(arriving, count, &item->staging));
    }
    /* Memory of the host is available in the order of the host's own stream. */
    FSDP_TRY(fsdp_event_record(item->done, host));
    FSDP_TRY(fsdp_stream_wait_event(stream, item->done));
    FSDP_TRY(copy_all(stream, arriving, count, add ? item->staging->data : NULL));
    FSDP_TRY(fsdp_event_record(item->done, stream));
    if (!add)
        return FSDP_OK;
    FSDP_TRY(fsdp_stream_wait_event(adds, item->done));
    FSDP_TRY(add_all(adds, arriving, count, item->staging->data));
    return fsdp_event_record(item->done, adds);
}

fsdp_status fsdp__arrivals_bring(fsdp__arrivals *arrivals, fsdp_stream *stream, const fsdp__arriving *arriving,
                                 int64_t count, bool add)
{
    fsdp__arrival *item = NULL;
    fsdp_status status;

    FSDP_TRY(settle_earlier(arrivals, arriving));
    FSDP_TRY(open_item(arrivals, fsdp__stream_device(stream), count, &item));
    status = bring(arrivals, item, stream, arriving, count, add);
    for (int64_t i = 0; i < count; i++) { /* even after a failure: part of the work may be queued */
        item->gradients[i] = fsdp_tensor_ref(arriving[i].gradient);
        arriving[i].gradient->storage->written = item->done;
    }
    item->count = count;
    arrivals->count++;
    return status;
}
