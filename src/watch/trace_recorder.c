/* trace_recorder.c - the subscriber that notes what happens. */
#include "watch/trace_recorder.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/hash.h"
#include "base/pointer_table.h"
#include "device/kernels.h"
#include "device/owners.h"
#include "fsdp/comm.h"

enum {
    NAMES = 8192, /* of which three quarters are used */
    NAME_BYTES = 512 * 1024,
    SHORTEST_WAIT_NS = 1000 /* what is shorter waits for nothing */
};

typedef struct name {
    uint64_t hash;
    uint32_t at, number; /* 0: free */
    fsdp__traced_ranks of;
} name;

struct fsdp__recorder {
    fsdp_context *context;
    fsdp__subscriber *subscriber;
    _Atomic bool open;       /* whether what is told is noted */
    _Atomic int64_t inside;  /* threads that note something */
    fsdp__note *notes;       /* NULL: there is no room */
    int64_t capacity, timed; /* how many have their times */
    _Atomic int64_t count;   /* asked for, some of which may not have fitted */
    fsdp__lane lanes[FSDP__LANES];
    pthread_mutex_t mutex; /* guards names and new lanes */
    name *table;           /* of NAMES, by hash */
    uint32_t *number_at;   /* index in the table by number */
    char *text;
    size_t text_used;
    uint32_t name_count;
    fsdp__pointer_table modules; /* numbers of the names of those that have taken memory, + 1; under the mutex */
};

/* ---- names ---- */

/* Returns the members of a group. `step` is a guess from the first two, which is_regular checks. */
static fsdp__traced_ranks ranks_of(const fsdp_process_group *group)
{
    fsdp__traced_ranks ranks = {.count = fsdp_process_group_size(group)};

    ranks.first = fsdp_process_group_global_rank(group, 0);
    ranks.step = ranks.count > 1 ? fsdp_process_group_global_rank(group, 1) - ranks.first : 1;
    return ranks;
}

static bool is_regular(const fsdp_process_group *group, const fsdp__traced_ranks *ranks)
{
    for (int i = 0; i < ranks->count; i++)
        if (fsdp_process_group_global_rank(group, i) != ranks->first + i * ranks->step)
            return false;
    return ranks->step > 0;
}

static bool is_named(const fsdp__recorder *r, const name *n, const char *text, const fsdp__traced_ranks *of)
{
    return n->of.count == of->count && n->of.first == of->first && (n->of.step == of->step || n->of.step == 0) &&
           strcmp(r->text + n->at, text) == 0;
}

/* Returns the number of a name, which gets one if it has none; 0: it has no room. `group`: whose name it is, or NULL.
 */
static uint32_t number_of(fsdp__recorder *r, const char *text, const fsdp_process_group *group)
{
    fsdp__traced_ranks of = group ? ranks_of(group) : (fsdp__traced_ranks){0};
    size_t length = text ? strlen(text) : 0;
    uint64_t hash;
    uint32_t number = 0;
    name *n;

    if (length == 0)
        return 0;
    hash = fsdp__mix(fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, length), (uint64_t)of.first);
    pthread_mutex_lock(&r->mutex);
    for (uint64_t i = hash % NAMES;; i = (i + 1) % NAMES) {
        n = &r->table[i];
        if (n->number == 0 || (n->hash == hash && is_named(r, n, text, &of)))
            break;
    }
    if (n->number == 0 && r->name_count < NAMES * 3 / 4 && length < NAME_BYTES - r->text_used) {
        if (group && !is_regular(group, &of))
            of.step = 0;
        *n = (name){.hash = hash, .at = (uint32_t)r->text_used, .number = ++r->name_count, .of = of};
        r->number_at[n->number] = (uint32_t)(n - r->table);
        memcpy(r->text + r->text_used, text, length + 1);
        r->text_used += length + 1;
    }
    number = n->number;
    pthread_mutex_unlock(&r->mutex);
    return number;
}

const char *fsdp__recorder_name(const fsdp__recorder *r, uint32_t number)
{
    return number ? r->text + r->table[r->number_at[number]].at : "";
}

uint32_t fsdp__recorder_names(const fsdp__recorder *r)
{
    return r->name_count;
}

fsdp__traced_ranks fsdp__recorder_ranks(const fsdp__recorder *r, uint32_t number)
{
    return number ? r->table[r->number_at[number]].of : (fsdp__traced_ranks){0};
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

static uint16_t add_lane(fsdp__recorder *r, const void *key, const char *device)
{
    int i = 0;

    pthread_mutex_lock(&r->mutex);
    while (i < FSDP__LANES - 1 && r->lanes[i].key && r->lanes[i].key != key)
        i++;
    if (!r->lanes[i].key) {
        memccpy(r->lanes[i].device, device, '\0', sizeof r->lanes[i].device - 1);
        r->lanes[i].key = key;
    }
    pthread_mutex_unlock(&r->mutex);
    return (uint16_t)i;
}

static uint16_t lane_of(fsdp__recorder *r, const void *key, const char *device)
{
    for (int i = 0; i < FSDP__LANES; i++) {
        const void *here = atomic_load_explicit(&r->lanes[i].key, memory_order_acquire);

        if (here == key)
            return (uint16_t)i;
        if (!here)
            break;
    }
    return add_lane(r, key, device);
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

/* Takes a stamp where a device runs behind the host. */
static void set_time(fsdp__note *n, const fsdp__probe_event *e)
{
    const fsdp_device *device = n->lane > 0 ? fsdp__stream_device(e->stream) : NULL;
    fsdp__stamp stamp;
    bool held;

    n->ns = e->ns ? e->ns : fsdp__clock_ns();
    if (!device || !(FSDP__POINT_BIT(e->point) & (BEGINS | ENDS)) || fsdp__device_host_access(device) ||
        !fsdp__device_has_bytes(device))
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
    if (!n)
        return;
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
    if (listed && e->point == FSDP__POINT_KERNEL_BEGUN && e->object)
        n->number = (uint64_t)fsdp__kernel_flops((fsdp__kernel)e->kind, e->object);
    if (e->point == FSDP__POINT_SHARD_CHANGED || e->point == FSDP__POINT_EVENT_RECORDED)
        n->number = (uint64_t)(uintptr_t)(e->event ? (const void *)e->event : e->object);
    set_time(n, e);
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
    /* It is subscribed once, and stays: a thread may be about to tell it something at any time. */
    r->subscriber = fsdp__context_subscribe(context, 0, see, r);
    if (!r->subscriber) {
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
    r->table = fsdp__calloc(NAMES, sizeof *r->table);
    r->number_at = fsdp__calloc(NAMES, sizeof *r->number_at);
    r->text = fsdp__malloc(NAME_BYTES);
    if (!r->notes || !r->table || !r->number_at || !r->text) {
        fsdp__recorder_close(r);
        return FSDP_NO_MEMORY;
    }
    (void)this_thread(r); /* gets lane 0 */
    return FSDP_OK;
}

void fsdp__recorder_close(fsdp__recorder *r)
{
    fsdp__free(r->notes);
    fsdp__free(r->table);
    fsdp__free(r->number_at);
    fsdp__free(r->text);
    fsdp__pointer_table_release(&r->modules);
    r->notes = NULL;
    r->table = NULL;
    r->number_at = NULL;
    r->text = NULL;
    r->text_used = 0;
    r->name_count = 0;
    r->count = r->timed = r->capacity = 0;
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

const fsdp__lane *fsdp__recorder_lanes(const fsdp__recorder *r)
{
    return r->lanes;
}
