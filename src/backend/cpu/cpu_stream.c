/* cpu_stream.c - streams of the CPU, run by the caller or by a thread of the stream's own.
 *
 * [Note: marks]
 * The items of a worker stream are numbered from 1. A mark is (line, number): the stream's line of done items, and the
 * number of the item after which the mark is reached. An event holds its last mark; a wait copies it when it is asked
 * for, so a later record cannot move it. Recording needs no queue entry and no memory, and cannot fail. The line
 * outlives its stream as long as an event or a queued wait refers to it. What runs inline is done at once: its marks
 * have no line. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu_device.h"
#include "base/alloc.h"
#include "base/probe.h"

enum {
    MESSAGE_BYTES = 1024
};

/* How far a worker stream has got. */
typedef struct line {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t done;
    int64_t refs;        /* guarded by the mutex, as everything here is */
    fsdp_status failure; /* the first one since the stream was last asked */
    uint64_t failed;     /* the item that failed */
    char message[MESSAGE_BYTES];
} line;

typedef struct mark {
    line *line; /* NULL: reached */
    uint64_t number;
} mark;

/* One entry of the queue: a wait if `until` has a line, else work. */
typedef struct item {
    struct item *next;
    mark until;
    fsdp__stream_work work;
    _Alignas(16) unsigned char argument[];
} item;

typedef struct cpu_stream {
    fsdp_stream base;
    /* The fields from here on are for worker streams only. */
    line *line;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    item *first, *last;
    uint64_t queued; /* items ever queued */
    bool stop;
} cpu_stream;

typedef struct cpu_event {
    fsdp_event base;
    mark mark;
} cpu_event;

/* ---- lines and marks ---- */

static line *line_create(void)
{
    line *l = fsdp__calloc(1, sizeof *l);

    if (!l)
        return NULL;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->moved, NULL);
    l->refs = 1;
    return l;
}

static line *line_ref(line *l)
{
    if (l) {
        pthread_mutex_lock(&l->mutex);
        l->refs++;
        pthread_mutex_unlock(&l->mutex);
    }
    return l;
}

static void line_unref(line *l)
{
    bool last;

    if (!l)
        return;
    pthread_mutex_lock(&l->mutex);
    last = --l->refs == 0;
    pthread_mutex_unlock(&l->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->mutex);
    fsdp__free(l);
}

static void line_step(line *l)
{
    pthread_mutex_lock(&l->mutex);
    l->done++;
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->mutex);
}

/* Returns the failure of what was done up to the mark. Call it under the line's mutex. */
static fsdp_status failure_before(mark m, char message[MESSAGE_BYTES])
{
    if (m.line->failure == FSDP_OK || m.line->failed > m.number)
        return FSDP_OK;
    memcpy(message, m.line->message, MESSAGE_BYTES);
    return m.line->failure;
}

/* Waits, and fails if what it waits for has failed. */
static fsdp_status mark_wait(mark m)
{
    char message[MESSAGE_BYTES];
    fsdp_status status;

    if (!m.line)
        return FSDP_OK;
    pthread_mutex_lock(&m.line->mutex);
    while (m.line->done < m.number)
        pthread_cond_wait(&m.line->moved, &m.line->mutex);
    status = failure_before(m, message);
    pthread_mutex_unlock(&m.line->mutex);
    return status == FSDP_OK ? FSDP_OK : FSDP_FAIL(status, "%s", message);
}

/* ---- the worker ---- */

static void keep_failure(line *l, fsdp_status status)
{
    pthread_mutex_lock(&l->mutex);
    if (l->failure == FSDP_OK) {
        l->failure = status;
        l->failed = l->done + 1;
        /* Work that failed without a message leaves an older one behind: do not borrow that. */
        snprintf(l->message, sizeof l->message, "%s",
                 fsdp_last_status() == status ? fsdp_last_error() : fsdp_status_text(status));
    }
    pthread_mutex_unlock(&l->mutex);
}

/* Takes all items that are queued, in order, so that one lock serves many; NULL if there will be no more. */
static item *take_items(cpu_stream *stream)
{
    item *first;

    pthread_mutex_lock(&stream->mutex);
    /* What was queued before the stream was freed still runs: the end comes when nothing is left. */
    while (!stream->first && !stream->stop)
        pthread_cond_wait(&stream->arrived, &stream->mutex);
    first = stream->first;
    stream->first = stream->last = NULL;
    pthread_mutex_unlock(&stream->mutex);
    return first;
}

static fsdp_status do_work(fsdp_stream *stream, const item *it)
{
    fsdp_status status;

    FSDP__TELL(ITEM_BEGUN, .stream = stream);
    status = it->work(stream, it->argument);
    FSDP__TELL(ITEM_DONE, .stream = stream);
    return status;
}

static void run_item(cpu_stream *stream, item *it)
{
    fsdp_status status;

    /* A message that an earlier item left must not pass for that of this one: see keep_failure. */
    fsdp_clear_error();
    if (it->until.line) /* a wait for what failed fails too: there is nothing good to work on */
        status = mark_wait(it->until);
    else
        status = do_work(&stream->base, it);
    if (status != FSDP_OK)
        keep_failure(stream->line, status);
    line_unref(it->until.line);
    fsdp__free(it);
    /* Do this last: whoever waits for this step asks for the failure right after it. */
    line_step(stream->line);
}

static void *worker(void *arg)
{
    cpu_stream *stream = arg;
    item *it;

    fsdp__cpu_prepare_thread(stream->base.device);
    while ((it = take_items(stream)) != NULL)
        for (item *next; it; it = next) {
            next = it->next;
            run_item(stream, it);
        }
    return NULL;
}

/* Queues work, or a wait if `until` has a line; takes that line's reference only on success. */
static fsdp_status push(cpu_stream *stream, mark until, fsdp__stream_work work, const void *argument, size_t bytes)
{
    item *it = fsdp__malloc(sizeof *it + bytes);

    if (!it)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot queue work");
    it->next = NULL;
    it->until = until;
    it->work = work;
    if (bytes)
        memcpy(it->argument, argument, bytes);
    pthread_mutex_lock(&stream->mutex);
    if (stream->last)
        stream->last->next = it;
    else
        stream->first = it;
    stream->last = it;
    stream->queued++;
    pthread_mutex_unlock(&stream->mutex);
    pthread_cond_signal(&stream->arrived); /* after unlocking: the worker must not wake up only to wait for the mutex */
    return FSDP_OK;
}

/* ---- streams ---- */

/* Returns the mark that everything queued so far is done. Borrows the line. */
static mark mark_of(cpu_stream *stream)
{
    mark m = {.line = stream->line};

    if (m.line) {
        pthread_mutex_lock(&stream->mutex);
        m.number = stream->queued;
        pthread_mutex_unlock(&stream->mutex);
    }
    return m;
}

static cpu_stream *stream_new(fsdp_device *device, fsdp_stream_mode mode)
{
    cpu_stream *stream = fsdp__calloc(1, sizeof *stream);

    if (stream) {
        stream->base.device = device;
        stream->base.mode = mode;
    }
    return stream;
}

static fsdp_status worker_create(fsdp_device *device, fsdp_stream **out)
{
    cpu_stream *stream = stream_new(device, FSDP_STREAM_WORKER);
    int error;

    if (!stream)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->arrived, NULL);
    stream->line = line_create();
    if (!stream->line) {
        fsdp__cpu_stream_free(&stream->base);
        return FSDP_NO_MEMORY;
    }
    error = pthread_create(&stream->thread, NULL, worker, stream);
    if (error != 0) {
        fsdp__cpu_stream_free(&stream->base);
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start the thread of a stream: %s", strerror(error));
    }
    stream->started = true;
    *out = &stream->base;
    return FSDP_OK;
}

fsdp_status fsdp__cpu_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    cpu_stream *stream;

    if (mode == FSDP_STREAM_WORKER)
        return worker_create(device, out);
    stream = stream_new(device, mode);
    if (!stream)
        return FSDP_NO_MEMORY;
    *out = &stream->base;
    return FSDP_OK;
}

void fsdp__cpu_stream_free(fsdp_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;

    if (stream->started) {
        pthread_mutex_lock(&stream->mutex);
        stream->stop = true;
        pthread_cond_signal(&stream->arrived);
        pthread_mutex_unlock(&stream->mutex);
        pthread_join(stream->thread, NULL);
        if (stream->line->failure != FSDP_OK)
            fsdp_log(fsdp_device_context(base->device), FSDP_LOG_ERROR,
                     "stream freed with a failure that nobody asked for: %s", stream->line->message);
    }
    if (base->mode == FSDP_STREAM_WORKER) {
        line_unref(stream->line);
        pthread_cond_destroy(&stream->arrived);
        pthread_mutex_destroy(&stream->mutex);
    }
    fsdp__stream_drop_workspace(base);
    fsdp__free(stream);
}

fsdp_status fsdp__cpu_stream_enqueue(fsdp_stream *base, fsdp_status (*work)(fsdp_stream *, const void *),
                                     const void *argument, size_t bytes)
{
    if (base->mode == FSDP_STREAM_INLINE)
        return work(base, argument);
    return push((cpu_stream *)base, (mark){0}, work, argument, bytes);
}

fsdp_status fsdp__cpu_stream_check(fsdp_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    char message[MESSAGE_BYTES];
    fsdp_status status;

    if (base->mode == FSDP_STREAM_INLINE)
        return FSDP_OK;
    pthread_mutex_lock(&stream->line->mutex);
    status = stream->line->failure;
    memcpy(message, stream->line->message, sizeof message);
    stream->line->failure = FSDP_OK;
    pthread_mutex_unlock(&stream->line->mutex);
    return status == FSDP_OK ? FSDP_OK : FSDP_FAIL(status, "%s", message);
}

fsdp_status fsdp__cpu_stream_synchronize(fsdp_stream *base)
{
    if (base->mode == FSDP_STREAM_INLINE)
        return FSDP_OK;
    (void)mark_wait(mark_of((cpu_stream *)base));
    return fsdp__cpu_stream_check(base);
}

/* ---- events: see [Note: marks] ---- */

fsdp_status fsdp__cpu_event_create(fsdp_device *device, fsdp_event **out)
{
    cpu_event *event = fsdp__calloc(1, sizeof *event);

    if (!event)
        return FSDP_NO_MEMORY;
    event->base.device = device;
    *out = &event->base;
    return FSDP_OK;
}

void fsdp__cpu_event_free(fsdp_event *base)
{
    cpu_event *event = (cpu_event *)base;

    line_unref(event->mark.line);
    fsdp__free(event);
}

fsdp_status fsdp__cpu_event_record(fsdp_event *base, fsdp_stream *stream)
{
    cpu_event *event = (cpu_event *)base;
    mark m = mark_of((cpu_stream *)stream);

    /* Keep this order, as both may be the same line. */
    line_ref(m.line);
    line_unref(event->mark.line);
    event->mark = m;
    return FSDP_OK;
}

fsdp_status fsdp__cpu_stream_wait_event(fsdp_stream *base, fsdp_event *event)
{
    cpu_stream *stream = (cpu_stream *)base;
    mark m = ((cpu_event *)event)->mark;
    fsdp_status status;

    if (!m.line || m.line == stream->line) /* reached, or in order anyway */
        return FSDP_OK;
    if (base->mode == FSDP_STREAM_INLINE) {
        (void)mark_wait(m); /* the host has waited, and asks the stream that it waited for: fsdp__stream_check */
        return FSDP_OK;
    }
    line_ref(m.line);
    status = push(stream, m, NULL, NULL, 0);
    if (status != FSDP_OK)
        line_unref(m.line);
    return status;
}

fsdp_status fsdp__cpu_event_synchronize(fsdp_event *event)
{
    (void)mark_wait(((cpu_event *)event)->mark);
    return FSDP_OK;
}
