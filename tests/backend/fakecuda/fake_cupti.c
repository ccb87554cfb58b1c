/* fake_cupti.c - CUPTI, as far as the plug-in calls it: libcupti.so.13 beside the tests.
 *
 * It makes a record of what streams of the runtime run, in the worst order that is allowed: those that say who made a
 * call come last, in buffers of their own. It has the real one's rules: who is told a clock has times by that clock, a
 * call has an external number only if calls are recorded, a buffer that is full is handed over, what has no room is
 * counted, what is not done when the flush is forced has no end, and nothing is left after cuptiFinalize. */
#include <cupti_activity.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake.h"

enum {
    MOST = 1 << 16, /* records between flushes */
    NESTED = 16,
    DROPPED = 1
};
#define KERNEL "_Z11fake_kernelIfEvPT_i"

typedef CUpti_ActivityKernel10 kernel_record;
typedef CUpti_ActivityMemcpy6 copy_record;
typedef CUpti_ActivityMemset4 fill_record;
typedef CUpti_ActivityExternalCorrelation caller_record;
typedef CUpti_ActivityAPI call_record;

typedef struct noted {
    fake_sort sort;
    int device;
    uint32_t stream;
    uint64_t bytes, external;
    bool has_external, goes, gone; /* it goes with this flush, or has gone */
    int64_t begin, end;
} noted;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by the mutex. */
static noted all[MOST];
static uint32_t first = 1, count; /* number of the first, how many */
static size_t dropped;
static bool attached, enabled[CUPTI_ACTIVITY_KIND_COUNT];
static CUpti_TimestampCallbackFunc now;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;

static _Thread_local uint64_t externals[NESTED];
static _Thread_local int depth;

/* ---- what runs ---- */

static uint32_t issued(fake_sort sort, cudaStream_t stream, size_t bytes)
{
    static const CUpti_ActivityKind kinds[] = {[FAKE_RUNS_KERNEL] = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                               [FAKE_COPIES_TO_DEVICE] = CUPTI_ACTIVITY_KIND_MEMCPY,
                                               [FAKE_COPIES_TO_HOST] = CUPTI_ACTIVITY_KIND_MEMCPY,
                                               [FAKE_FILLS] = CUPTI_ACTIVITY_KIND_MEMSET};
    int fate = fake_use(FAKE_record);
    uint32_t number = 0;

    pthread_mutex_lock(&mutex);
    if (fate == DROPPED || count == MOST)
        dropped++;
    else if (fate == 0 && enabled[kinds[sort]]) {
        all[count] =
            (noted){.sort = sort,
                    .device = fake_stream_device(stream),
                    .stream = fake_stream_number(stream),
                    .bytes = bytes,
                    .has_external = depth > 0 && enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION] &&
                                    (enabled[CUPTI_ACTIVITY_KIND_RUNTIME] || enabled[CUPTI_ACTIVITY_KIND_DRIVER]),
                    .external = depth > 0 ? externals[depth - 1] : 0};
        number = first + count++;
    }
    pthread_mutex_unlock(&mutex);
    return number;
}

static void ran(uint32_t number, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&mutex);
    if (number >= first && number - first < count) {
        all[number - first].begin = begin;
        all[number - first].end = end;
    }
    pthread_mutex_unlock(&mutex);
}

static const fake_recorder recorder = {.issued = issued, .ran = ran};

/* ---- buffers ---- */

typedef struct buffer {
    uint8_t *bytes;
    size_t size, used;
} buffer;

static void hand_over(buffer *b)
{
    if (b->bytes)
        complete(NULL, 0, b->bytes, b->size, b->used);
    *b = (buffer){.bytes = NULL};
}

static void add(buffer *b, const void *record, size_t bytes)
{
    size_t most = 0;

    if (b->used + bytes > b->size) {
        hand_over(b);
        request(&b->bytes, &b->size, &most);
    }
    if (!b->bytes || bytes > b->size) {
        dropped++;
        return;
    }
    memcpy(b->bytes + b->used, record, bytes);
    b->used += bytes;
}

static void add_kernel(buffer *b, const noted *n, uint32_t number)
{
    kernel_record record = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                            .start = (uint64_t)n->begin,
                            .end = (uint64_t)n->end,
                            .deviceId = (uint32_t)n->device,
                            .streamId = n->stream,
                            .correlationId = number,
                            .name = KERNEL};

    add(b, &record, sizeof record);
}

static void add_copy(buffer *b, const noted *n, uint32_t number)
{
    copy_record record = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                          .copyKind = n->sort == FAKE_COPIES_TO_DEVICE ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                                                                       : CUPTI_ACTIVITY_MEMCPY_KIND_DTOH,
                          .bytes = n->bytes,
                          .start = (uint64_t)n->begin,
                          .end = (uint64_t)n->end,
                          .deviceId = (uint32_t)n->device,
                          .streamId = n->stream,
                          .correlationId = number};

    add(b, &record, sizeof record);
}

static void add_fill(buffer *b, const noted *n, uint32_t number)
{
    fill_record record = {.kind = CUPTI_ACTIVITY_KIND_MEMSET,
                          .bytes = n->bytes,
                          .start = (uint64_t)n->begin,
                          .end = (uint64_t)n->end,
                          .deviceId = (uint32_t)n->device,
                          .streamId = n->stream,
                          .correlationId = number};

    add(b, &record, sizeof record);
}

static void add_call(buffer *b, const noted *n, uint32_t number)
{
    caller_record external = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                              .externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                              .externalId = n->external,
                              .correlationId = number};
    call_record call = {.kind = CUPTI_ACTIVITY_KIND_RUNTIME, .correlationId = number};

    if (n->has_external)
        add(b, &external, sizeof external);
    if (enabled[CUPTI_ACTIVITY_KIND_RUNTIME])
        add(b, &call, sizeof call);
}

/* Hands over what is done, or all. What has gone before has its place until all has. */
static void add_all(bool even_undone)
{
    buffer b = {.bytes = NULL};
    uint32_t kept = 0;

    for (uint32_t i = 0; i < count; i++) {
        all[i].goes = !all[i].gone && (all[i].end > 0 || even_undone);
        all[i].gone = all[i].gone || all[i].goes;
        kept += !all[i].gone;
        if (!all[i].goes)
            continue;
        if (all[i].sort == FAKE_RUNS_KERNEL)
            add_kernel(&b, &all[i], first + i);
        else if (all[i].sort == FAKE_FILLS)
            add_fill(&b, &all[i], first + i);
        else
            add_copy(&b, &all[i], first + i);
    }
    hand_over(&b);
    for (uint32_t i = 0; i < count; i++)
        if (all[i].goes)
            add_call(&b, &all[i], first + i);
    hand_over(&b);
    if (kept == 0) {
        first += count;
        count = 0;
    }
}

/* ---- the calls ---- */

#define USE(call)                         \
    do {                                  \
        int used = fake_use(FAKE_##call); \
                                          \
        if (used)                         \
            return (CUptiResult)used;     \
    } while (0)

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function)
{
    USE(cuptiActivityRegisterTimestampCallback);
    now = function;
    return function ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed)
{
    USE(cuptiActivityRegisterCallbacks);
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    USE(cuptiActivityEnable);
    if (!now || !request) /* the plug-in has both from the beginning, on the clock of the trace */
        return CUPTI_ERROR_INVALID_OPERATION;
    pthread_mutex_lock(&mutex);
    if (!attached)
        fake_count_object(1);
    attached = true;
    enabled[kind] = true;
    pthread_mutex_unlock(&mutex);
    fake_record(&recorder);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    pthread_mutex_lock(&mutex);
    enabled[kind] = false;
    pthread_mutex_unlock(&mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
    if (kind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 || depth == NESTED)
        return CUPTI_ERROR_INVALID_PARAMETER;
    externals[depth++] = id;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last)
{
    (void)kind;
    if (depth == 0)
        return CUPTI_ERROR_QUEUE_EMPTY;
    depth--;
    if (last)
        *last = externals[depth];
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    USE(cuptiActivityFlushAll);
    if (!complete)
        return CUPTI_ERROR_INVALID_OPERATION;
    pthread_mutex_lock(&mutex);
    add_all((flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0);
    pthread_mutex_unlock(&mutex);
    return CUPTI_SUCCESS;
}

static size_t size_of(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(kernel_record);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(copy_record);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(fill_record);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
        return sizeof(call_record);
    default:
        return sizeof(caller_record);
    }
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *bytes, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + size_of(*record) : bytes;

    if (next >= bytes + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(void *)next;
    return CUPTI_SUCCESS;
}

/* Called while buffers are handed over, so the mutex is held. */
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *out)
{
    (void)context, (void)stream;
    *out = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize(void)
{
    USE(cuptiFinalize);
    fake_record(NULL);
    pthread_mutex_lock(&mutex);
    if (attached)
        fake_count_object(-1);
    attached = false;
    memset(enabled, 0, sizeof enabled);
    now = NULL;
    request = NULL;
    complete = NULL;
    first += count;
    count = 0;
    dropped = 0;
    pthread_mutex_unlock(&mutex);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR";
    return CUPTI_SUCCESS;
}
