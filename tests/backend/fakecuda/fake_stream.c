/* fake_stream.c - streams, each a thread with a queue, and events.
 *
 * Work that is given to a stream is done later, in order, with small random pauses (FSDP_SIM_SEED decides which), so
 * that nothing is in time by luck. An event holds the moment of its last record; a wait is for the moment that the
 * event has when the wait is called for. */
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake.h"

enum {
    PRIORITY_MOST = 5, /* the greatest is -PRIORITY_MOST, the least is 0 */
    EVENT_LIVES = 0x45764e74
};

/* A point of a stream, which is reached when its thread gets there. */
typedef struct moment {
    pthread_mutex_t mutex;
    pthread_cond_t reached;
    int refs; /* this and what follows are guarded by the mutex */
    bool done;
    int64_t ns;
} moment;

/* Work; or a moment that is reached here, or that is waited for. */
typedef struct item {
    struct item *next;
    uint64_t turn; /* in the hardware's queue */
    fake_work work;
    moment *reaches, *awaits;
    bool even_lost;
    _Alignas(16) unsigned char argument[];
} item;

struct CUstream_st {
    struct CUstream_st *next; /* guarded by the list's lock */
    int device;
    uint32_t number;
    uint64_t seed, pauses, room; /* for so many items; 0: for any number */
    int queue;                   /* of the hardware: see fake_hardware_of */
    pthread_mutex_t mutex;
    pthread_cond_t arrived, moved;
    item *first, *last; /* this and what follows are guarded by the mutex */
    uint64_t queued, done;
    int refs;
    bool stop;
    _Atomic bool waits; /* for another stream, or device */
};

struct CUevent_st {
    struct CUevent_st *next; /* guarded by the list's lock */
    int lives, device;
    unsigned flags;
    pthread_mutex_t mutex;
    moment *last; /* guarded by the mutex; NULL: never recorded */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
/* Those that live; guarded by the lock. */
static struct CUstream_st *streams;
static struct CUevent_st *events;
static _Atomic uint64_t created;
static _Atomic long live;

/* ---- moments ---- */

static moment *moment_new(void)
{
    moment *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->reached, NULL);
    m->refs = 1;
    return m;
}

static moment *moment_ref(moment *m)
{
    if (m) {
        pthread_mutex_lock(&m->mutex);
        m->refs++;
        pthread_mutex_unlock(&m->mutex);
    }
    return m;
}

static void moment_unref(moment *m)
{
    bool last;

    if (!m)
        return;
    pthread_mutex_lock(&m->mutex);
    last = --m->refs == 0;
    pthread_mutex_unlock(&m->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&m->reached);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

static void moment_reach(moment *m)
{
    pthread_mutex_lock(&m->mutex);
    m->done = true;
    m->ns = fake_clock_ns();
    pthread_cond_broadcast(&m->reached);
    pthread_mutex_unlock(&m->mutex);
}

static void moment_wait(moment *m)
{
    pthread_mutex_lock(&m->mutex);
    while (!m->done)
        pthread_cond_wait(&m->reached, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

/* Returns whether it is reached, and when it was. */
static bool moment_done(moment *m, int64_t *ns)
{
    bool done;

    pthread_mutex_lock(&m->mutex);
    done = m->done;
    *ns = m->ns;
    pthread_mutex_unlock(&m->mutex);
    return done;
}

/* ---- a stream's thread ---- */

static void stream_unref(struct CUstream_st *s)
{
    bool last;

    pthread_mutex_lock(&s->mutex);
    last = --s->refs == 0;
    pthread_mutex_unlock(&s->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&s->moved);
    pthread_cond_destroy(&s->arrived);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static item *take_item(struct CUstream_st *s)
{
    item *it;

    pthread_mutex_lock(&s->mutex);
    while (!s->first && !s->stop)
        pthread_cond_wait(&s->arrived, &s->mutex);
    it = s->first;
    if (it)
        s->first = it->next;
    s->last = s->first ? s->last : NULL;
    pthread_mutex_unlock(&s->mutex);
    return it;
}

static _Thread_local struct CUstream_st *own; /* stream, of a stream's thread */

void fake_tell_wait(bool waits)
{
    if (own)
        own->waits = waits;
}

static void do_item(struct CUstream_st *s, item *it)
{
    fake_pause(s->seed + s->pauses++);
    fake_hardware_wait(s->queue, it->turn);
    if (it->awaits) {
        fake_tell_wait(true);
        moment_wait(it->awaits);
        fake_tell_wait(false);
    }
    if (it->work && (it->even_lost || !fake_is_lost(s->device)))
        it->work(it->argument);
    if (it->reaches)
        moment_reach(it->reaches);
    fake_hardware_pass(s->queue);
    moment_unref(it->awaits);
    moment_unref(it->reaches);
    free(it);
    pthread_mutex_lock(&s->mutex);
    s->done++;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->mutex);
}

static void *run_stream(void *argument)
{
    struct CUstream_st *s = argument;
    item *it;

    own = s;
    while ((it = take_item(s)) != NULL)
        do_item(s, it);
    stream_unref(s);
    return NULL;
}

/* Queues an item, for which it waits until there is room; takes the references to its moments in any case. */
static cudaError_t push(struct CUstream_st *s, const item *what, const void *argument, size_t bytes)
{
    item *it = malloc(sizeof *it + bytes);

    if (!it) {
        moment_unref(what->reaches);
        moment_unref(what->awaits);
        return fake_error(cudaErrorMemoryAllocation);
    }
    *it = *what;
    if (bytes)
        memcpy(it->argument, argument, bytes);
    pthread_mutex_lock(&s->mutex);
    while (s->room > 0 && s->queued - s->done >= s->room)
        pthread_cond_wait(&s->moved, &s->mutex);
    it->turn = fake_hardware_queue(s->queue);
    *(s->last ? &s->last->next : &s->first) = it;
    s->last = it;
    s->queued++;
    pthread_cond_signal(&s->arrived);
    pthread_mutex_unlock(&s->mutex);
    return cudaSuccess;
}

cudaError_t fake_enqueue(cudaStream_t stream, fake_work work, const void *argument, size_t bytes, bool even_lost)
{
    return push(stream, &(item){.work = work, .even_lost = even_lost}, argument, bytes);
}

/* ---- streams ---- */

bool fake_is_stream(cudaStream_t stream)
{
    const struct CUstream_st *s;

    pthread_rwlock_rdlock(&lock);
    for (s = streams; s && s != stream; s = s->next)
        continue;
    pthread_rwlock_unlock(&lock);
    return s != NULL;
}

int fake_stream_device(cudaStream_t stream)
{
    return stream->device;
}

uint32_t fake_stream_number(cudaStream_t stream)
{
    return stream->number;
}

bool fake_stream_waits(void *stream)
{
    return ((const struct CUstream_st *)stream)->waits;
}

static void wait_until(struct CUstream_st *s, uint64_t number)
{
    pthread_mutex_lock(&s->mutex);
    while (s->done < number)
        pthread_cond_wait(&s->moved, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

static uint64_t queued_now(struct CUstream_st *s)
{
    uint64_t queued;

    pthread_mutex_lock(&s->mutex);
    queued = s->queued;
    pthread_mutex_unlock(&s->mutex);
    return queued;
}

void fake_stream_wait(cudaStream_t stream)
{
    wait_until(stream, queued_now(stream));
}

void fake_device_wait(int device)
{
    struct CUstream_st **found = NULL;
    uint64_t *numbers = NULL;
    size_t count = 0, all = 0;

    pthread_rwlock_rdlock(&lock);
    for (const struct CUstream_st *s = streams; s; s = s->next)
        all++;
    found = calloc(all + 1, sizeof(struct CUstream_st *));
    numbers = calloc(all + 1, sizeof *numbers);
    if (!found || !numbers)
        abort();
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->device == device) {
            pthread_mutex_lock(&s->mutex);
            s->refs++;
            numbers[count] = s->queued;
            pthread_mutex_unlock(&s->mutex);
            found[count++] = s;
        }
    pthread_rwlock_unlock(&lock);
    for (size_t i = 0; i < count; i++) {
        wait_until(found[i], numbers[i]);
        stream_unref(found[i]);
    }
    free(found);
    free(numbers);
}

long fake_streams_and_events(void)
{
    return live;
}

void fake_count_object(int change)
{
    live += change;
}

static struct CUstream_st *stream_new(void)
{
    const char *seed = getenv("FSDP_SIM_SEED"), *room = getenv("FSDP_FAKECUDA_ROOM");
    struct CUstream_st *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->device = fake_current();
    s->number = (uint32_t)atomic_fetch_add(&created, 1) + 1;
    s->queue = fake_hardware_of(s->device, s->number);
    s->seed = (seed ? strtoull(seed, NULL, 10) : 1) << 32 ^ (uint64_t)(s->number - 1) << 20;
    s->room = room ? strtoull(room, NULL, 10) : 0;
    s->refs = 1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->arrived, NULL);
    pthread_cond_init(&s->moved, NULL);
    return s;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    struct CUstream_st *s;
    pthread_t thread;

    FAKE_BEGIN(cudaStreamCreateWithPriority);
    (void)priority; /* one out of range is taken to be the nearest in range */
    if (flags & ~(unsigned)cudaStreamNonBlocking)
        return fake_error(cudaErrorInvalidValue);
    s = stream_new();
    if (!s)
        return fake_error(cudaErrorMemoryAllocation);
    s->refs = 2; /* the caller's and the thread's */
    if (pthread_create(&thread, NULL, run_stream, s) != 0) {
        s->refs = 1;
        stream_unref(s);
        return fake_error(cudaErrorMemoryAllocation);
    }
    (void)pthread_detach(thread);
    pthread_rwlock_wrlock(&lock);
    s->next = streams;
    streams = s;
    pthread_rwlock_unlock(&lock);
    live++;
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    FAKE_BEGIN(cudaDeviceGetStreamPriorityRange);
    *least = 0;
    *greatest = -PRIORITY_MOST;
    return cudaSuccess;
}

/* Returns whether the stream was in the list, from which it is now gone. */
static bool unlist(cudaStream_t stream)
{
    struct CUstream_st **link;
    bool found;

    pthread_rwlock_wrlock(&lock);
    for (link = &streams; *link && *link != stream; link = &(*link)->next)
        continue;
    found = *link != NULL;
    if (found)
        *link = stream->next;
    pthread_rwlock_unlock(&lock);
    return found;
}

/* Ends a stream that is in no list. */
static void stop(cudaStream_t stream)
{
    live--;
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_signal(&stream->arrived);
    pthread_mutex_unlock(&stream->mutex);
    stream_unref(stream);
}

/* Returns at once: what is queued is done all the same. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t begun = fake_begin(FAKE_cudaStreamDestroy);

    if (!unlist(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    stop(stream);
    return begun;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    fake_stream_wait(stream);
    return fake_begin(FAKE_cudaStreamSynchronize);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    bool idle;

    FAKE_BEGIN(cudaStreamQuery);
    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stream->mutex);
    idle = stream->done == stream->queued;
    pthread_mutex_unlock(&stream->mutex);
    return idle ? cudaSuccess : fake_error(cudaErrorNotReady);
}

/* ---- events ---- */

static bool is_event(cudaEvent_t event)
{
    return event && event->lives == EVENT_LIVES;
}

/* Returns the moment of the last record, which the caller gives back; NULL: there was none. */
static moment *last_moment(cudaEvent_t event)
{
    moment *m;

    pthread_mutex_lock(&event->mutex);
    m = moment_ref(event->last);
    pthread_mutex_unlock(&event->mutex);
    return m;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    struct CUevent_st *e;

    FAKE_BEGIN(cudaEventCreateWithFlags);
    e = calloc(1, sizeof *e);
    if (!e)
        return fake_error(cudaErrorMemoryAllocation);
    e->lives = EVENT_LIVES;
    e->device = fake_current();
    e->flags = flags;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_rwlock_wrlock(&lock);
    e->next = events;
    events = e;
    pthread_rwlock_unlock(&lock);
    live++;
    *out = e;
    return cudaSuccess;
}

static void free_event(cudaEvent_t event)
{
    struct CUevent_st **link;

    pthread_rwlock_wrlock(&lock);
    for (link = &events; *link != event; link = &(*link)->next)
        continue;
    *link = event->next;
    pthread_rwlock_unlock(&lock);
    event->lives = 0;
    moment_unref(event->last);
    pthread_mutex_destroy(&event->mutex);
    free(event);
    live--;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t begun = fake_begin(FAKE_cudaEventDestroy);

    if (!is_event(event))
        return fake_error(cudaErrorInvalidResourceHandle);
    free_event(event);
    return begun;
}

void fake_forget_streams(void)
{
    while (streams) {
        cudaStream_t stream = streams;

        fake_stream_wait(stream);
        (void)unlist(stream);
        stop(stream);
    }
    while (events)
        free_event(events);
    live = 0;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    moment *m, *before;

    FAKE_BEGIN(cudaEventRecord);
    if (!is_event(event) || !fake_is_stream(stream) || event->device != stream->device)
        return fake_error(cudaErrorInvalidResourceHandle);
    m = moment_new();
    if (!m)
        return fake_error(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&event->mutex);
    before = event->last;
    event->last = m;
    pthread_mutex_unlock(&event->mutex);
    moment_unref(before);
    return push(stream, &(item){.reaches = moment_ref(m)}, NULL, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    moment *m;

    FAKE_BEGIN(cudaStreamWaitEvent);
    (void)flags;
    if (!is_event(event) || !fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    m = last_moment(event);
    return m ? push(stream, &(item){.awaits = m}, NULL, 0) : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    moment *m;

    if (!is_event(event))
        return fake_error(cudaErrorInvalidResourceHandle);
    m = last_moment(event);
    if (m)
        moment_wait(m);
    moment_unref(m);
    return fake_begin(FAKE_cudaEventSynchronize);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    moment *m;
    int64_t ns;
    bool done;

    FAKE_BEGIN(cudaEventQuery);
    if (!is_event(event))
        return fake_error(cudaErrorInvalidResourceHandle);
    m = last_moment(event);
    done = !m || moment_done(m, &ns);
    moment_unref(m);
    return done ? cudaSuccess : fake_error(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    moment *first, *last;
    int64_t from, to;
    bool recorded, done;

    FAKE_BEGIN(cudaEventElapsedTime);
    if (!is_event(start) || !is_event(end) || (start->flags | end->flags) & cudaEventDisableTiming)
        return fake_error(cudaErrorInvalidResourceHandle);
    first = last_moment(start);
    last = last_moment(end);
    recorded = first && last;
    done = recorded && moment_done(first, &from) && moment_done(last, &to);
    moment_unref(first);
    moment_unref(last);
    if (!done)
        return fake_error(recorded ? cudaErrorNotReady : cudaErrorInvalidResourceHandle);
    *ms = (float)(to - from) / 1e6f;
    return cudaSuccess;
}
