/* open.c - opens and closes the devices of a context. */
#include "device/dry.h"
#include "device/impl.h"
#include "device/steps.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/lock.h"
#include "base/probe.h"
#include "base/text.h"

/* Holds the context's devices. */
typedef struct device_list {
    fsdp_device *first;
    fsdp_device *front; /* NULL: the CPU */
} device_list;

/* ---- one device ---- */

static fsdp_status backend_segment_alloc(void *device, size_t bytes, void **out)
{
    fsdp_device *taker = device;

    FSDP_TRY(taker->backend->segment_alloc(device, bytes, out));
    if (taker->backend->has_bytes)
        FSDP__TELL(MEMORY_MAPPED, .context = taker->context, .memory = *out, .bytes = bytes);
    return FSDP_OK;
}

static void backend_segment_free(void *device, void *segment, size_t bytes)
{
    fsdp_device *giver = device;

    FSDP__TELL(MEMORY_UNMAPPED, .context = giver->context, .memory = segment);
    giver->backend->segment_free(device, segment, bytes);
}

static fsdp_status backend_segment_grow(void *device, void *segment, size_t bytes, size_t more)
{
    fsdp_device *taker = device;

    FSDP_TRY(taker->backend->segment_grow(device, segment, bytes, more));
    if (taker->backend->has_bytes)
        FSDP__TELL(MEMORY_MAPPED, .context = taker->context, .memory = segment, .bytes = bytes + more);
    return FSDP_OK;
}

static void backend_segment_fit(void *device, void *segment, size_t *from, size_t *end)
{
    const fsdp_device *giver = device;

    giver->backend->segment_fit(device, segment, from, end);
}

static void backend_segment_cut(void *device, void *segment, size_t from, size_t end)
{
    const fsdp_device *giver = device;

    giver->backend->segment_cut(device, segment, from, end);
}

/* Returns how far the device's own stream is: memory is given back in its order. */
static uint64_t backend_queued(void *device)
{
    const fsdp_device *giver = device;

    return giver->stream && giver->stream->worker ? fsdp__worker_queued(giver->stream->worker) : 0;
}

static uint64_t backend_done(void *device)
{
    const fsdp_device *giver = device;

    return giver->stream && giver->stream->worker ? fsdp__worker_done(giver->stream->worker) : UINT64_MAX;
}

/* Waits for the device's own stream: what is given back, it has used last; and for scratch that streams have given
 * back. Failures stay there. */
static void backend_settle(void *device)
{
    fsdp_device *taker = device;
    fsdp_event *event = NULL;

    if (fsdp_event_create(device, &event) == FSDP_OK && fsdp_event_record(event, taker->stream) == FSDP_OK)
        (void)fsdp_event_synchronize(event);
    fsdp_event_free(event);
    if (taker->backend->scratch_settle)
        taker->backend->scratch_settle(taker);
}

static fsdp_status backend_issued(void *device, fsdp__device_moment **out)
{
    const fsdp_device *giver = device;

    return giver->backend->issued(device, out);
}

static bool backend_owed(void *device)
{
    const fsdp_device *giver = device;

    return giver->backend->scratch_owed && giver->backend->scratch_owed(device);
}

static fsdp__taker backend_taker(void *device)
{
    const fsdp_device *taker = device;

    return fsdp__context_taker(taker->context);
}

/* Reports live bytes at the end, which are a leak of the layers above, by their kind. */
static void report_leaks(const fsdp_device *device)
{
    fsdp_memory_stats stats;
    char text[256] = "";
    size_t used = 0;

    fsdp_device_memory(device, &stats);
    if (stats.live_total_bytes == 0)
        return;
    for (int kind = 0; kind < FSDP_MEMORY_KINDS && used < sizeof text; kind++)
        if (stats.live_bytes[kind])
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %zu", used ? ", " : "",
                                     fsdp_memory_kind_name((fsdp_memory_kind)kind), stats.live_bytes[kind]);
    fsdp_log(device->context, FSDP_LOG_ERROR, "device '%s' freed with %zu live bytes: %s", device->name,
             stats.live_total_bytes, text);
}

static void device_free(fsdp_device *device)
{
    if (!device)
        return;
    /* This waits for the stream's work, which still uses memory, and gives back its scratch, which would look like a
     * leak. */
    fsdp__stream_close(device->stream);
    device->stream = NULL;
    if (device->allocator)
        report_leaks(device);
    fsdp__allocator_free(device->allocator);
    if (device->state)
        device->backend->close(device);
    pthread_mutex_destroy(&device->refusal_mutex);
    FSDP__TELL(DEVICE_CLOSED, .context = device->context, .object = device);
    fsdp__free(device);
}

/* Creates a device, its allocator and its default stream. */
static fsdp_status device_create(fsdp_context *context, const fsdp__backend *backend, int ordinal, fsdp_device **out)
{
    fsdp_status status = FSDP_OK;
    fsdp_device *device = fsdp__calloc(1, sizeof *device);
    fsdp__segment_source source = {.name = device ? device->name : NULL,
                                   .has_bytes = backend->has_bytes,
                                   .alloc = backend_segment_alloc,
                                   .free = backend_segment_free,
                                   .arg = device,
                                   .queued = backend_queued,
                                   .done = backend_done,
                                   .settle = backend_settle,
                                   .owed = backend_owed,
                                   .taker = backend_taker};

    FSDP__TRY_NEW(device);
    device->backend = backend;
    device->context = context;
    device->ordinal = ordinal;
    pthread_mutex_init(&device->refusal_mutex, NULL);
    if (backend->most == 1)
        snprintf(device->name, sizeof device->name, "%s", backend->name);
    else
        snprintf(device->name, sizeof device->name, "%s:%d", backend->name, ordinal);
    /* Open the backend first: segments and streams may need its state. It is closed last (device_free). */
    if (backend->open)
        FSDP_TRY_GOTO(status, backend->open(device), out);
    if (backend->issued)
        source.issued = backend_issued;
    if (device->grows) {
        source.grow = backend_segment_grow;
        source.fit = backend_segment_fit;
        source.cut = backend_segment_cut;
    }
    FSDP_TRY_GOTO(status, fsdp__allocator_create(&source, &device->allocator), out);
    FSDP_TRY_GOTO(status, fsdp_stream_create(device, FSDP_STREAM_INLINE, &device->stream), out);
    if (!fsdp__stream_is_inline(device->stream))
        fsdp__allocator_runs_behind(device->allocator);
    if (backend->prepare_thread)
        FSDP_TRY_GOTO(status, backend->prepare_thread(device), out);
    *out = device;
    device = NULL;
out:
    device_free(device);
    return status;
}

/* ---- the context's devices ---- */

static void list_free(void *state)
{
    device_list *list = state;

    while (list->first) {
        fsdp_device *device = list->first;

        list->first = device->next;
        device_free(device);
    }
    fsdp__free(list);
}

static device_list *list_of(fsdp_context *context)
{
    return fsdp__context_get_or_make(context, FSDP__SLOT_DEVICES, sizeof(device_list), list_free);
}

fsdp_device *fsdp__device_find(const fsdp_context *context, const char *name, int ordinal)
{
    const device_list *list = fsdp__context_get(context, FSDP__SLOT_DEVICES);

    for (fsdp_device *device = list ? list->first : NULL; device; device = device->next)
        if (device->ordinal == ordinal && strcmp(device->backend->name, name) == 0)
            return device;
    return NULL;
}

fsdp_status fsdp__note_forward(const fsdp_context *context)
{
    const device_list *list = fsdp__context_get(context, FSDP__SLOT_DEVICES);

    for (fsdp_device *device = list ? list->first : NULL; device; device = device->next)
        if (device->grows)
            FSDP_TRY(fsdp__allocator_note_forward(device->allocator));
    return FSDP_OK;
}

void fsdp__end_step(const fsdp_context *context)
{
    const device_list *list = fsdp__context_get(context, FSDP__SLOT_DEVICES);

    for (fsdp_device *device = list ? list->first : NULL; device; device = device->next)
        if (device->grows)
            fsdp__allocator_end_step(device->allocator);
}

fsdp_status fsdp__note_renewal(fsdp_device *device, const void *owner)
{
    return device->grows ? fsdp__allocator_renew(device->allocator, owner, FSDP_MEMORY_GRADIENT) : FSDP_OK;
}

fsdp_device *fsdp__device_that_refused(const fsdp_context *context)
{
    const device_list *list = fsdp__context_get(context, FSDP__SLOT_DEVICES);
    fsdp_device *found = NULL;

    for (fsdp_device *device = list ? list->first : NULL; device && !found; device = device->next) {
        FSDP__HELD(&device->refusal_mutex);
        found = device->refused ? device : NULL;
    }
    return found;
}

/* Finds the backend, and the ordinal: an `*ordinal` below 0 becomes that of the rank. */
static fsdp_status choose(const fsdp_context *context, const char *name, const fsdp__backend **out, int *ordinal)
{
    int count = 1;

    FSDP_TRY(fsdp__backend_find(name, out));
    if (!*out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open device '%s': " FSDP__DEVICE_NAMES, FSDP__SHOWN_NAME(name));
    if (*ordinal < 0 && (*out)->count)
        FSDP_TRY((*out)->count(&count));
    if (*ordinal < 0)
        *ordinal = fsdp_context_local_rank(context) % FSDP__MIN(count, (*out)->most);
    if (*ordinal >= (*out)->most)
        return FSDP_FAIL(FSDP_INVALID, "cannot open device '%s': its number %d is not below %d", name, *ordinal,
                         (*out)->most);
    return FSDP_OK;
}

fsdp_device *fsdp__device_open(fsdp_context *context, const char *name, int ordinal)
{
    const fsdp__backend *backend;
    fsdp_device *device, **end;
    device_list *list;

    if (!context) {
        (void)FSDP_FAIL(FSDP_INVALID, "cannot open device '%s': the context is NULL", name);
        return NULL;
    }
    device = fsdp__device_find(context, name, ordinal);
    if (device)
        return device;
    if (choose(context, name, &backend, &ordinal) != FSDP_OK)
        return NULL;
    device = fsdp__device_find(context, name, ordinal); /* the rank's own one may be open */
    if (device)
        return device;
    list = list_of(context);
    if (!list || device_create(context, backend, ordinal, &device) != FSDP_OK)
        return NULL;
    for (end = &list->first; *end; end = &(*end)->next)
        continue;
    *end = device;
    return device;
}

fsdp_device *fsdp_device_open(fsdp_context *context, const char *name)
{
    char kind[FSDP__DEVICE_KIND];
    int ordinal;

    if (!name || !fsdp__device_name_split(name, kind, &ordinal)) {
        (void)FSDP_FAIL(FSDP_INVALID, "cannot open device '%s': " FSDP__DEVICE_NAMES,
                        name ? FSDP__SHOWN_NAME(name) : "NULL");
        return NULL;
    }
    return fsdp__device_open(context, kind, ordinal);
}

fsdp_device *fsdp_cuda(fsdp_context *context, int ordinal)
{
    return fsdp__device_open(context, "cuda", ordinal);
}

fsdp_device *fsdp_cpu(fsdp_context *context)
{
    return fsdp__device_open(context, "cpu", 0);
}

fsdp_device *fsdp_meta(fsdp_context *context)
{
    return fsdp__device_open(context, "meta", 0);
}

fsdp_device *fsdp__front_device(fsdp_context *context)
{
    const device_list *list = fsdp__context_get(context, FSDP__SLOT_DEVICES);

    return list && list->front ? list->front : fsdp_cpu(context);
}

void fsdp__set_front_device(fsdp_device *device)
{
    list_of(device->context)->front = device;
}

fsdp_device *fsdp__dry(fsdp_context *context)
{
    return fsdp__device_open(context, "dry", 0);
}

fsdp_device *fsdp__dry_gpu(fsdp_context *context)
{
    return fsdp__device_open(context, "dry-gpu", 0);
}

fsdp_device *fsdp__device_host(fsdp_device *device)
{
    return fsdp__device_has_bytes(device) ? fsdp_cpu(device->context) : fsdp__dry(device->context);
}

fsdp_stream *fsdp__host_stream(fsdp_context *context)
{
    fsdp_device *cpu = fsdp_cpu(context);

    return cpu ? cpu->stream : NULL;
}
