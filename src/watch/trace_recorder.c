/* trace_recorder.c - the subscriber that notes what happens. */
#include "watch/trace_recorder.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/lock.h"
#include "base/pointer_table.h"
#include "base/status.h"
#include "base/text.h"
#include "device/kernels.h"
#include "device/owners.h"
#include "fsdp/comm.h"

enum {
    SHORTEST_WAIT_NS = 1000 /* what is shorter waits for nothing */
};

struct fsdp__recorder {
    fsdp_context *context;
    fsdp__subscriber *subscriber;
    _Atomic bool open;       /* whether what is told is noted */
    _Atomic int64_t inside;  /* threads that note something */
    fsdp__note *notes;       /* NULL: there is no room */
    int64_t capacity, timed; /* how many have their times */
    _Atomic int64_t count;   /* asked for, some of which may not have fitted */
    fsdp__own_record own;
    fsdp_device *recorded[FSDP__MOST_GPUS]; /* that keep a record of their own now */
    int recorded_count;
    fsdp__trace_lane lanes[FSDP__LANES];
    fsdp__trace_names names;
    pthread_mutex_t mutex;       /* guards what follows, and new lanes */
    fsdp__pointer_table modules; /* numbers of the names of those that have taken memory, + 1 */
};

/* ---- names ---- */

static uint32_t number_of(fsdp__recorder *r, const char *text, const fsdp_process_group *group)
{
    return fsdp__trace_names_number(&r->names, text, group);
}

const char *fsdp__recorder_name(const fsdp__recorder *r, uint32_t number)
{
    return fsdp__trace_names_text(&r->names, number);
}

uint32_t fsdp__recorder_names(const fsdp__recorder *r)
{
    return r->names.count;
}

fsdp__traced_ranks fsdp__recorder_ranks(const fsdp__recorder *r, uint32_t number)
{
    return fsdp__trace_names_ranks(&r->names, number);
}

/* Cuts the path of a module behind its first number: blocks have rows, and not all that is in them. */
static void cut_to_block(char *path)
{
    for (char *part = path; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
        size_t length = strcspn(part, ".");

        if (length > 0 && strspn(part, "0123456789") == length) {
            part[length] = '\0';
            return;
        }
    }
}

/* Returns the number of the name of the module, or of its block; 0: nobody's memory, or no room. */
static uint32_t module_number(fsdp__recorder *r, const void *owner)
{
    char path[256];
    int64_t *place, number;

    if (!owner)
        return 0;
    pthread_mutex_lock(&r->mutex);
    number = fsdp__pointer_table_find(&r->modules, owner);
    pthread_mutex_unlock(&r->mutex);
    if (number > 0)
        return (uint32_t)number - 1;
    fsdp__context_owner_name(r->context, owner, path, sizeof path);
    cut_to_block(path);
    number = number_of(r, path, NULL);
    pthread_mutex_lock(&r->mutex);
    place = number > 0 ? fsdp__pointer_table_at(&r->modules, owner) : NULL;
    if (place)
        *place = number + 1;
    pthread_mutex_unlock(&r->mutex);
    return (uint32_t)number;
}

/* ---- lanes ---- */

static uint16_t add_lane(fsdp__recorder *r, const void *key, uint32_t own, const char *device)
{
    int i = 0;

    FSDP__HELD(&r->mutex);
    while (i < FSDP__LANES - 1 && r->lanes[i].key && (r->lanes[i].key != key || r->lanes[i].own != own))
        i++;
    if (!r->lanes[i].key) {
        memccpy(r->lanes[i].device, device, '\0', sizeof r->lanes[i].device - 1);
        r->lanes[i].own = own;
        r->lanes[i].key = key;
    }
    return (uint16_t)i;
}

static uint16_t find_lane(fsdp__recorder *r, const void *key, uint32_t own, const char *device)
{
    for (int i = 0; i < FSDP__LANES; i++) {
        const void *here = atomic_load_explicit(&r->lanes[i].key, memory_order_acquire);

        if (here == key && r->lanes[i].own == own)
            return (uint16_t)i;
        if (!here)
            break;
    }
    return add_lane(r, key, own, device);
}

static uint16_t lane_of(fsdp__recorder *r, const void *key, const char *device)
{
    return find_lane(r, key, 0, device);
}

static uint16_t this_thread(fsdp__recorder *r)
{
    return lane_of(r, (const void *)(uintptr_t)pthread_self(), "");
}

/* Returns the lane of a stream that has a thread; 0: the caller's thread does its work. */
static uint16_t stream_lane(fsdp__recorder *r, const fsdp_stream *stream)
{
    if (!stream || fsdp__stream_is_inline(stream))
        return 0;
    return lane_of(r, stream, fsdp_device_name(fsdp__stream_device(stream)));
}

/* ---- what it hears ---- */

#define BIT(point) FSDP__POINT_BIT(FSDP__POINT_##point)
#define BEGINS (BIT(KERNEL_BEGUN) | BIT(COPY_BEGUN) | BIT(COLLECTIVE_BEGUN))
#define ENDS (BIT(KERNEL_DONE) | BIT(COPY_DONE) | BIT(COLLECTIVE_DONE))
#define ISSUES (BIT(KERNEL_ISSUED) | BIT(COPY_ISSUED) | BIT(COLLECTIVE_ISSUED))
#define ITEMS (BIT(ITEM_QUEUED) | BIT(ITEM_BEGUN) | BIT(ITEM_DONE))
#define WAITS (BIT(EVENT_AWAITED) | BIT(EVENT_REACHED) | BIT(STREAM_REACHED))
#define RUNS                                                                                                         \
    (BIT(SHARD_CHANGED) | BIT(STAGE_BEGUN) | BIT(STAGE_DONE) | BIT(STEP_BEGUN) | BIT(STEP_DONE) | BIT(BATCH_BEGUN) | \
     BIT(BATCH_DONE) | BIT(PART_BEGUN) | BIT(PART_DONE))
#define HEARD (BEGINS | ENDS | ISSUES | ITEMS | WAITS | RUNS | BIT(MEMORY_COUNTED) | BIT(EVENT_RECORDED))

/* Returns the next place for a note; NULL: there is no room. */
static fsdp__note *take_place(fsdp__recorder *r)
{
    int64_t place = atomic_fetch_add_explicit(&r->count, 1, memory_order_relaxed);

    return place < r->capacity ? &r->notes[place] : NULL;
}

/* Notes a wait of the host, or of a stream that the host works for; that of another stream holds up nobody yet. */
static void note_wait(fsdp__recorder *r, const fsdp__probe_event *e)
{
    int64_t now = fsdp__clock_ns();
    bool queued = e->point == FSDP__POINT_EVENT_AWAITED && stream_lane(r, e->stream) > 0;
    fsdp__note *n = queued || e->ns == 0 || now - e->ns < SHORTEST_WAIT_NS ? NULL : take_place(r);

    if (!n)
        return;
    *n = (fsdp__note){.ns = now,
                      .number = (uint64_t)e->ns,
                      .bytes = (uint64_t)(uintptr_t)e->event,
                      .thread = this_thread(r),
                      .lane = e->point == FSDP__POINT_STREAM_REACHED ? stream_lane(r, e->stream) : 0,
                      .point = (uint8_t)e->point};
}

static void note_memory(fsdp__recorder *r, const fsdp__probe_event *e)
{
    const fsdp_device *device = e->stream ? fsdp__stream_device(e->stream) : NULL;
    bool held = fsdp_hold_error(true);
    uint32_t module = module_number(r, e->object);
    fsdp__note *n = device && fsdp__device_has_bytes(device) ? take_place(r) : NULL;

    if (n)
        *n = (fsdp__note){.ns = fsdp__clock_ns(),
                          .number = e->number,
                          .name = module,
                          .thread = this_thread(r),
                          .lane = lane_of(r, device, fsdp_device_name(device)),
                          .point = (uint8_t)e->point,
                          .kind = (uint8_t)e->kind};
    fsdp_release_error(held);
}

/* Returns the device on which an event begins or ends behind the host; NULL: there is none. */
static fsdp_device *device_behind(const fsdp__probe_event *e, uint16_t lane)
{
    fsdp_device *device =
        lane > 0 && FSDP__POINT_BIT(e->point) & (BEGINS | ENDS) ? fsdp__stream_device(e->stream) : NULL;

    return device && !fsdp__device_host_access(device) && fsdp__device_has_bytes(device) ? device : NULL;
}

/* Lets the device's own record know what is issued from here on, or no longer. */
static void mark_issuer(const fsdp__recorder *r, const fsdp__probe_event *e, uint16_t lane, const fsdp__note *n)
{
    fsdp_device *device = r->recorded_count > 0 ? device_behind(e, lane) : NULL;

    if (device && FSDP__POINT_BIT(e->point) & BEGINS)
        fsdp__device_activity_enter(device, n ? (uint64_t)(n - r->notes) + 1 : 0);
    else if (device)
        fsdp__device_activity_leave(device);
}

/* Takes a stamp where a device runs behind the host. */
static void set_time(fsdp__note *n, const fsdp__probe_event *e)
{
    const fsdp_device *device = device_behind(e, n->lane);
    fsdp__stamp stamp;
    bool held;

    n->ns = e->ns ? e->ns : fsdp__clock_ns();
    if (!device)
        return;
    held = fsdp_hold_error(true);
    if (fsdp__stream_stamp(e->stream, &stamp) == FSDP_OK) {
        n->moment = stamp.moment;
        n->ns = stamp.moment ? n->ns : stamp.ns;
    }
    fsdp_release_error(held);
}

static void note_event(fsdp__recorder *r, const fsdp__probe_event *e)
{
    uint64_t bit = FSDP__POINT_BIT(e->point);
    uint16_t lane = stream_lane(r, e->stream);
    bool listed = bit & (BIT(KERNEL_ISSUED) | BIT(KERNEL_BEGUN) | BIT(KERNEL_DONE)) && e->kind < FSDP__KERNELS;
    fsdp__note *n;

    /* What the caller's thread does at once is not issued to anybody. */
    if (lane == 0 && bit & (ISSUES | BIT(EVENT_RECORDED)))
        return;
    n = take_place(r);
    if (!n) {
        mark_issuer(r, e, lane, NULL);
        return;
    }
    *n = (fsdp__note){.bytes = e->bytes,
                      .number = e->number,
                      .label = number_of(r, e->point == FSDP__POINT_SHARD_CHANGED ? e->word : e->label, NULL),
                      .group = number_of(r, e->group, e->group ? e->object : NULL),
                      .thread = this_thread(r),
                      .lane = lane,
                      .point = (uint8_t)e->point,
                      .kind = (uint8_t)e->kind,
                      .dtype = (uint8_t)e->dtype};
    if (!listed) /* otherwise the list has its name */
        n->name = number_of(r, e->name, NULL);
    if (listed && e->point == FSDP__POINT_KERNEL_BEGUN && e->object) {
        n->number = (uint64_t)fsdp__kernel_flops((fsdp__kernel)e->kind, e->object);
        n->bytes = (uint64_t)fsdp__kernel_bytes((fsdp__kernel)e->kind, e->object);
    }
    if (e->point == FSDP__POINT_SHARD_CHANGED || e->point == FSDP__POINT_EVENT_RECORDED)
        n->number = (uint64_t)(uintptr_t)(e->event ? (const void *)e->event : e->object);
    set_time(n, e);
    mark_issuer(r, e, lane, n);
}

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    fsdp__recorder *r = arg;
    uint64_t bit = FSDP__POINT_BIT(e->point);

    atomic_fetch_add(&r->inside, 1);
    if (!atomic_load(&r->open))
        ;
    else if (bit & WAITS)
        note_wait(r, e);
    else if (bit & BIT(MEMORY_COUNTED))
        note_memory(r, e);
    else
        note_event(r, e);
    atomic_fetch_sub(&r->inside, 1);
    return FSDP_OK;
}

/* ---- life ---- */

static void free_recorder(void *state)
{
    fsdp__recorder *r = state;

    fsdp__listen(r->subscriber, 0);
    fsdp__recorder_close(r);
    fsdp__trace_names_destroy(&r->names);
    pthread_mutex_destroy(&r->mutex);
    fsdp__free(r);
}

fsdp__recorder *fsdp__recorder_of(fsdp_context *context)
{
    fsdp__recorder *r = fsdp__context_get(context, FSDP__SLOT_TRACE);

    if (r)
        return r;
    r = fsdp__calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->context = context;
    pthread_mutex_init(&r->mutex, NULL);
    fsdp__trace_names_init(&r->names);
    /* It is subscribed once, and stays: a thread may be about to tell it something at any time. */
    r->subscriber = fsdp__context_subscribe(context, 0, see, r);
    if (!r->subscriber) {
        fsdp__trace_names_destroy(&r->names);
        pthread_mutex_destroy(&r->mutex);
        fsdp__free(r);
        return NULL;
    }
    fsdp__context_attach(context, FSDP__SLOT_TRACE, r, free_recorder);
    return r;
}

fsdp_status fsdp__recorder_open(fsdp__recorder *r, int64_t most_bytes)
{
    if (r->notes)
        return FSDP_FAIL(FSDP_STATE, "a trace is being recorded already");
    r->capacity = most_bytes / (int64_t)sizeof *r->notes;
    r->notes = fsdp__malloc((size_t)r->capacity * sizeof *r->notes); /* pages come as they are used */
    if (!r->notes || fsdp__trace_names_open(&r->names) != FSDP_OK) {
        fsdp__recorder_close(r);
        return FSDP_NO_MEMORY;
    }
    (void)this_thread(r); /* gets lane 0 */
    return FSDP_OK;
}

void fsdp__recorder_close(fsdp__recorder *r)
{
    fsdp__free(r->notes);
    fsdp__trace_names_close(&r->names);
    fsdp__pointer_table_release(&r->modules);
    r->notes = NULL;
    r->count = r->timed = r->capacity = 0;
    r->own = (fsdp__own_record){.wanted = false};
    memset(r->lanes, 0, sizeof r->lanes);
}

typedef struct owned_noter {
    fsdp__recorder *recorder;
    uint16_t lane;
} owned_noter;

/* Notes which module has what is live. */
static void note_owned(void *arg, const fsdp__owned *owned)
{
    const owned_noter *noter = arg;
    uint32_t module = module_number(noter->recorder, owned->taker.owner);
    fsdp__note *n = module > 0 ? take_place(noter->recorder) : NULL;

    if (n)
        *n = (fsdp__note){.ns = fsdp__clock_ns(),
                          .bytes = owned->bytes,
                          .name = module,
                          .lane = noter->lane,
                          .point = FSDP__NOTE_OWNED,
                          .kind = (uint8_t)owned->kind};
}

/* Notes what is live on a device; `first` of all, when a recording begins or goes on. */
static void note_ledger(fsdp__recorder *r, const fsdp_device *device, bool first)
{
    fsdp_memory_stats stats;
    bool held;

    fsdp_device_memory(device, &stats);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        fsdp__note *n = take_place(r);

        if (n)
            *n = (fsdp__note){.ns = fsdp__clock_ns(),
                              .bytes = stats.live_bytes[kind],
                              .number = first && kind == 0,
                              .lane = lane_of(r, device, fsdp_device_name(device)),
                              .point = FSDP__NOTE_LEDGER,
                              .kind = (uint8_t)kind};
    }
    held = fsdp_hold_error(true);
    fsdp__device_each_owned(device, note_owned, &(owned_noter){r, lane_of(r, device, fsdp_device_name(device))});
    fsdp_release_error(held);
}

/* ---- what GPUs record themselves ---- */

/* Keeps the first reason why a GPU's own record is missing. */
static void note_missing(fsdp__recorder *r, fsdp_status status)
{
    if (status != FSDP_OK && !*r->own.missing)
        fsdp__shown(fsdp_last_error(), r->own.missing, sizeof r->own.missing);
}

static void start_own(fsdp__recorder *r)
{
    fsdp__error_aside aside;

    fsdp__put_error_aside(&aside);
    for (int i = 0; i < FSDP__MOST_GPUS; i++) {
        fsdp_device *gpu = fsdp__device_find(r->context, "cuda", i);
        fsdp_status status;

        if (!gpu || !fsdp__device_has_activities(gpu))
            continue;
        r->own.wanted = true;
        status = fsdp__device_activities_start(gpu);
        note_missing(r, status);
        if (status == FSDP_OK)
            r->recorded[r->recorded_count++] = gpu;
    }
    fsdp__put_error_back(&aside);
}

typedef struct activity_noter {
    fsdp__recorder *recorder;
    fsdp_device *device;
} activity_noter;

/* Notes what a GPU has run. What was not complete when the record was stopped has no end. */
static void note_activity(void *arg, const fsdp__device_activity *a)
{
    const activity_noter *noter = arg;
    fsdp__recorder *r = noter->recorder;
    uint32_t name = number_of(r, a->name, NULL);
    fsdp__note *n = a->begin > 0 && a->end >= a->begin ? take_place(r) : NULL;

    if (n)
        *n = (fsdp__note){.ns = a->begin,
                          .number = (uint64_t)a->end,
                          .bytes = a->bytes,
                          .name = name,
                          .label = (uint32_t)a->issuer,
                          .lane = find_lane(r, noter->device, a->stream + 1, fsdp_device_name(noter->device)),
                          .point = FSDP__NOTE_ACTIVITY,
                          .kind = (uint8_t)a->kind};
}

static void stop_own(fsdp__recorder *r)
{
    fsdp__error_aside aside;

    fsdp__put_error_aside(&aside);
    for (int i = 0; i < r->recorded_count; i++) {
        fsdp__activity_sum sum;

        note_missing(
            r, fsdp__device_activities_stop(r->recorded[i], note_activity, &(activity_noter){r, r->recorded[i]}, &sum));
        r->own.sum.told += sum.told;
        r->own.sum.issued += sum.issued;
        r->own.sum.dropped += sum.dropped;
    }
    r->recorded_count = 0;
    fsdp__put_error_back(&aside);
}

void fsdp__recorder_start(fsdp__recorder *r)
{
    const fsdp_device *cpu = fsdp__device_find(r->context, "cpu", 0), *front = NULL;

    if (fsdp__context_get(r->context, FSDP__SLOT_DEVICES))
        front = fsdp__front_device(r->context);
    if (cpu)
        note_ledger(r, cpu, true);
    if (front && front != cpu)
        note_ledger(r, front, !cpu);
    for (int i = 0; i < FSDP__MOST_GPUS; i++) {
        const fsdp_device *gpu = fsdp__device_find(r->context, "cuda", i);

        if (gpu && gpu != front)
            note_ledger(r, gpu, false);
    }
    start_own(r);
    atomic_store(&r->open, true);
    fsdp__listen(r->subscriber, HEARD);
}

/* Reads the times that were taken on devices. */
static void read_times(fsdp__recorder *r)
{
    int64_t count = 0;
    const fsdp__note *notes = fsdp__recorder_notes(r, &count);

    for (; r->timed < count; r->timed++) {
        fsdp__note *n = &r->notes[r->timed];
        fsdp__stamp stamp = {.moment = n->moment};
        int64_t ns;

        if (notes[r->timed].moment && fsdp__stamp_read(&stamp, &ns) == FSDP_OK)
            n->ns = ns;
        n->moment = NULL;
    }
}

void fsdp__recorder_stop(fsdp__recorder *r)
{
    bool held = fsdp_hold_error(true);

    fsdp__listen(r->subscriber, 0);
    atomic_store(&r->open, false);
    while (atomic_load(&r->inside) > 0) /* for the time of a note */
        sched_yield();
    read_times(r);
    fsdp_release_error(held);
    stop_own(r);
}

/* ---- reading ---- */

fsdp_context *fsdp__recorder_context(const fsdp__recorder *r)
{
    return r->context;
}

const fsdp__note *fsdp__recorder_notes(const fsdp__recorder *r, int64_t *count)
{
    *count = FSDP__MIN(r->count, r->capacity);
    return r->notes;
}

int64_t fsdp__recorder_dropped(const fsdp__recorder *r)
{
    return FSDP__MAX(r->count - r->capacity, 0);
}

const fsdp__own_record *fsdp__recorder_own(const fsdp__recorder *r)
{
    return &r->own;
}

const fsdp__trace_lane *fsdp__recorder_lanes(const fsdp__recorder *r)
{
    return r->lanes;
}
