/* cuda_activity.c - what GPUs run, as CUPTI records it.
 *
 * [Note: one recording]
 * CUPTI records a process, and calls back without saying for whom: so there is one recording, for all devices of all
 * contexts, from when the first of them wants it until the last one stops. Then CUPTI is detached, because launches
 * stay slower otherwise. Whoever issues something has told a number before, of which CUPTI makes a record of its own:
 * from the correlation number of the call, which the kernel's record has as well, to that number. In its upper bits is
 * the ticket of the device that records. Records come in any order, so they are put together at the end. */
#include "backend/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/activity_calls.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/sort.h"

#ifdef FSDP_HAVE_CUPTI

enum {
    BUFFER_BYTES = 1 << 20,
    MOST_RAN = 1 << 20, /* that are kept; every call of CUDA has a caller */
    MOST_CALLERS = 4 << 20,
    TICKET_SHIFT = 40
};
#define KIND CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
#endif
typedef CUpti_ActivityMemcpy5 copy_record; /* later ones have more at the end */
typedef CUpti_ActivityMemset4 fill_record;

typedef struct ran {
    fsdp__device_activity what; /* issuer: 0 */
    uint32_t correlation, device;
    bool told;
} ran;

/* Says who made a call. */
typedef struct caller {
    uint64_t id;
    uint32_t correlation;
} caller;

/* Holds the one recording of the process. */
static struct recording {
    pthread_mutex_t users_mutex; /* guards what follows, and is held while CUPTI is attached and detached */
    int users;
    bool shared; /* there has been more than one */
    uint64_t tickets;
    fsdp__cupti cupti;
    bool open;
    pthread_mutex_t mutex; /* guards what follows, which CUPTI's threads fill */
    ran *ran;
    int64_t ran_count, ran_capacity;
    caller *callers;
    int64_t caller_count, caller_capacity;
    int64_t dropped;
} recording = {.users_mutex = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                           /* The calls, without whose records there are none of who made them. */
                                           CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

/* ---- records ---- */

static void keep(const ran *what)
{
    if (recording.ran_count == MOST_RAN ||
        fsdp__grow(&recording.ran, recording.ran_count, &recording.ran_capacity, sizeof *recording.ran))
        recording.dropped++;
    else
        recording.ran[recording.ran_count++] = *what;
}

static void keep_kernel(const CUpti_Activity *base)
{
    const kernel_record *k = (const kernel_record *)base;

    keep(&(ran){.what = {.begin = (int64_t)k->start,
                         .end = (int64_t)k->end,
                         .stream = k->streamId,
                         .kind = FSDP__ACTIVITY_KERNEL,
                         .name = k->name},
                .correlation = k->correlationId,
                .device = k->deviceId});
}

static void keep_copy(const CUpti_Activity *base)
{
    const copy_record *c = (const copy_record *)base;
    const char *name = c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy from the host"
                       : c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to the host"
                                                                        : "copy on the device";

    keep(&(ran){.what = {.begin = (int64_t)c->start,
                         .end = (int64_t)c->end,
                         .bytes = c->bytes,
                         .stream = c->streamId,
                         .kind = FSDP__ACTIVITY_COPY,
                         .name = name},
                .correlation = c->correlationId,
                .device = c->deviceId});
}

static void keep_fill(const CUpti_Activity *base)
{
    const fill_record *f = (const fill_record *)base;

    keep(&(ran){.what = {.begin = (int64_t)f->start,
                         .end = (int64_t)f->end,
                         .bytes = f->bytes,
                         .stream = f->streamId,
                         .kind = FSDP__ACTIVITY_FILL,
                         .name = "fill"},
                .correlation = f->correlationId,
                .device = f->deviceId});
}

static void keep_caller(const CUpti_Activity *base)
{
    const CUpti_ActivityExternalCorrelation *e = (const CUpti_ActivityExternalCorrelation *)base;

    if (e->externalKind != KIND)
        return;
    if (recording.caller_count < MOST_CALLERS &&
        !fsdp__grow(&recording.callers, recording.caller_count, &recording.caller_capacity, sizeof *recording.callers))
        recording.callers[recording.caller_count++] = (caller){e->externalId, e->correlationId};
}

static void keep_record(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        keep_kernel(record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        keep_copy(record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        keep_fill(record);
        break;
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        keep_caller(record);
        break;
    default: /* calls */
        break;
    }
}

/* ---- what CUPTI calls ---- */

static uint64_t CUPTIAPI now(void)
{
    return (uint64_t)fsdp__clock_ns();
}

/* Gives CUPTI a buffer; without one it drops records, and counts them. */
static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    bool held = fsdp_hold_error(true);

    *most_records = 0;
    *buffer = fsdp__malloc(BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    fsdp_release_error(held);
}

/* Counts what CUPTI has had no room for. */
static void count_dropped(CUcontext context, uint32_t stream)
{
    size_t dropped = 0;

    if (recording.cupti.ActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
        recording.dropped += (int64_t)dropped;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    CUpti_Activity *record = NULL;
    bool held = fsdp_hold_error(true);

    (void)bytes;
    pthread_mutex_lock(&recording.mutex);
    while (valid > 0 && recording.cupti.ActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
        keep_record(record);
    count_dropped(context, stream);
    pthread_mutex_unlock(&recording.mutex);
    fsdp__free(buffer);
    fsdp_release_error(held);
}

/* ---- attaching ---- */

static void forget(void)
{
    pthread_mutex_lock(&recording.mutex);
    FSDP__FREE_ALL(recording.ran, recording.callers);
    recording.ran = NULL;
    recording.callers = NULL;
    recording.ran_count = recording.ran_capacity = recording.caller_count = recording.caller_capacity = 0;
    recording.dropped = 0;
    pthread_mutex_unlock(&recording.mutex);
}

static void detach(void)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++)
        (void)recording.cupti.ActivityDisable(kinds[i]);
    (void)recording.cupti.Finalize();
    forget();
}

static fsdp_status attach(void)
{
    const fsdp__cupti *cupti = &recording.cupti;
    fsdp_status status;

    if (!recording.open)
        FSDP_TRY(fsdp__cupti_open(&recording.cupti));
    recording.open = true;
    FSDP_TRY_GOTO(status, FSDP__CUPTI_CALL(cupti, ActivityRegisterTimestampCallback, now), out);
    FSDP_TRY_GOTO(status, FSDP__CUPTI_CALL(cupti, ActivityRegisterCallbacks, give_buffer, take_buffer), out);
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++)
        FSDP_TRY_GOTO(status, FSDP__CUPTI_CALL(cupti, ActivityEnable, kinds[i]), out);
    return FSDP_OK;
out:
    detach();
    recording.open = false; /* another one may be found next time */
    return status;
}

/* ---- putting together ---- */

FSDP__ORDER_BY_ONE(by_correlation, caller, correlation)

/* Comes from the C++ runtime. */
extern char *__cxa_demangle(const char *mangled, char *out, size_t *bytes, int *status);

/* Cuts a function's arguments, and the void that it returns; returns where the rest begins. */
static const char *cut_to_name(char *name)
{
    static const char nothing[] = "void ";
    char *at = name + strlen(name);
    int depth = 0;

    while (at > name && (at == name + strlen(name) || depth > 0)) {
        at--;
        depth += *at == ')' ? 1 : *at == '(' ? -1 : 0;
    }
    if (at > name && *at == '(')
        *at = '\0';
    return strncmp(name, nothing, strlen(nothing)) == 0 ? name + strlen(nothing) : name;
}

/* Reports one; a kernel under the name that it has in its source. */
static void tell_one(fsdp__device_activity *what, fsdp__activity_listener *tell, void *arg)
{
    char *source =
        what->kind == FSDP__ACTIVITY_KERNEL && what->name ? __cxa_demangle(what->name, NULL, NULL, NULL) : NULL;

    if (source)
        what->name = cut_to_name(source);
    tell(arg, what);
    free(source); /* it is malloc's */
}

/* Tells what a device has run under its ticket, and, if all that is recorded is for it, under none. */
static int64_t tell_all(uint64_t ticket, uint32_t device, fsdp__activity_listener *tell, void *arg)
{
    int64_t told = 0;

    if (recording.caller_count > 1)
        qsort(recording.callers, (size_t)recording.caller_count, sizeof *recording.callers, by_correlation);
    for (int64_t i = 0; i < recording.ran_count; i++) {
        ran *r = &recording.ran[i];
        const caller key = {.correlation = r->correlation},
                     *from = recording.caller_count > 0
                                 ? bsearch(&key, recording.callers, (size_t)recording.caller_count, sizeof key,
                                           by_correlation)
                                 : NULL;
        fsdp__device_activity what = r->what;

        if (r->told || r->device != device || (from ? from->id >> TICKET_SHIFT != ticket : recording.shared))
            continue;
        r->told = true;
        told++;
        what.issuer = from ? from->id & ((UINT64_C(1) << TICKET_SHIFT) - 1) : 0;
        tell_one(&what, tell, arg);
    }
    return told;
}

/* ---- for the table ---- */

fsdp_status fsdp__cuda_activities_start(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp__cuda_use(device));
    pthread_mutex_lock(&recording.users_mutex);
    if (recording.users == 0) {
        recording.shared = false;
        status = attach();
    }
    if (status == FSDP_OK) {
        recording.shared = ++recording.users > 1 || recording.shared;
        state->issued = 0;
        state->ticket = ++recording.tickets;
    }
    pthread_mutex_unlock(&recording.users_mutex);
    return status;
}

fsdp_status fsdp__cuda_activities_stop(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                       fsdp__activity_sum *out)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    uint64_t ticket = state->ticket;
    fsdp_status status;

    *out = (fsdp__activity_sum){.told = 0};
    if (ticket == 0)
        return FSDP_OK;
    status = fsdp__cuda_use(device);
    if (status == FSDP_OK) {
        fsdp__cuda_await_streams(device);
        status = fsdp__cuda_alive(device);
    }
    pthread_mutex_lock(&recording.users_mutex);
    /* Of what others have under way a forced flush would make records without an end. */
    FSDP_KEEP_FIRST(status, FSDP__CUPTI_CALL(&recording.cupti, ActivityFlushAll,
                                             recording.users == 1 ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0));
    state->ticket = 0;
    pthread_mutex_lock(&recording.mutex);
    count_dropped(NULL, 0);
    out->told = tell_all(ticket, (uint32_t)device->ordinal, tell, arg);
    out->issued = state->issued;
    out->dropped = recording.dropped;
    pthread_mutex_unlock(&recording.mutex);
    if (--recording.users == 0)
        detach();
    pthread_mutex_unlock(&recording.users_mutex);
    return status;
}

static void tell_nobody(void *arg, const fsdp__device_activity *activity)
{
    (void)arg, (void)activity;
}

void fsdp__cuda_activities_close(fsdp_device *device)
{
    fsdp__activity_sum unused;
    bool held = fsdp_hold_error(true);

    (void)fsdp__cuda_activities_stop(device, tell_nobody, NULL, &unused);
    fsdp_release_error(held);
}

void fsdp__cuda_activity_enter(fsdp_device *device, uint64_t number)
{
    uint64_t ticket = fsdp__cuda_state_of(device)->ticket;

    if (ticket > 0)
        (void)recording.cupti.ActivityPushExternalCorrelationId(KIND, ticket << TICKET_SHIFT | number);
}

void fsdp__cuda_activity_leave(fsdp_device *device)
{
    if (fsdp__cuda_state_of(device)->ticket > 0)
        (void)recording.cupti.ActivityPopExternalCorrelationId(KIND, NULL);
}

#else

fsdp_status fsdp__cuda_activities_start(fsdp_device *device)
{
    (void)device;
    return FSDP_FAIL(FSDP_UNSUPPORTED, "this plug-in was built where the headers of CUPTI were missing: install them "
                                       "(CUDA's toolkit has them), and build it again");
}

fsdp_status fsdp__cuda_activities_stop(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                       fsdp__activity_sum *out)
{
    (void)device, (void)tell, (void)arg;
    *out = (fsdp__activity_sum){.told = 0};
    return FSDP_OK;
}

void fsdp__cuda_activity_enter(fsdp_device *device, uint64_t number)
{
    (void)device, (void)number;
}

void fsdp__cuda_activity_leave(fsdp_device *device)
{
    (void)device;
}

void fsdp__cuda_activities_close(fsdp_device *device)
{
    (void)device;
}

#endif
