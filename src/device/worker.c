/* worker.c - the queue of a stream, the thread that empties it, and how far that has got. */
#include "device/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/limits.h"
#include "base/lock.h"
#include "base/probe.h"
#include "device/impl.h"

enum {
    MESSAGE_BYTES = 1024
};

/* Says how far a worker has got. */
struct fsdp__line {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t done;
    pthread_t thread; /* that does the items, once it has begun */
    bool begun;
    int64_t refs;        /* guarded by the mutex, as everything here is */
    fsdp_status failure; /* the first one since the stream was last asked */
    uint64_t failed;     /* the item that failed */
    char message[MESSAGE_BYTES];
};

/* One entry of the queue. */
typedef struct fsdp__work_item {
    struct fsdp__work_item *next;
    bool told;
    fsdp__stream_work work;
    _Alignas(16) unsigned char argument[];
} item;

/* ---- lines ---- */

static fsdp__line *line_create(void)
{
    fsdp__line *l = fsdp__calloc(1, sizeof *l);

    if (!l)
        return NULL;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->moved, NULL);
    l->refs = 1;
    return l;
}

static void line_ref(fsdp__line *l)
{
    FSDP__HELD(&l->mutex);
    l->refs++;
}

static void line_unref(fsdp__line *l)
{
    bool last;

    pthread_mutex_lock(&l->mutex);
    last = --l->refs == 0;
    pthread_mutex_unlock(&l->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->mutex);
    fsdp__free(l);
}

/* Makes the line that of the calling thread. */
static void line_begin(fsdp__line *l)
{
    FSDP__HELD(&l->mutex);
    l->thread = pthread_self();
    l->begun = true;
}

static void line_step(fsdp__line *l)
{
    FSDP__HELD(&l->mutex);
    l->done++;
    pthread_cond_broadcast(&l->moved);
}

static void keep_failure(fsdp__line *l, fsdp_status status)
{
    FSDP__HELD(&l->mutex);
    if (l->failure == FSDP_OK) {
        l->failure = status;
        l->failed = l->done + 1;
        /* Work that failed without a message leaves an older one behind: do not borrow that. */
        snprintf(l->message, sizeof l->message, "%s",
                 fsdp_last_status() == status ? fsdp_last_error() : fsdp_status_text(status));
    }
}

/* Returns the failure of what was done up to the mark. Call it under the line's mutex. */
static fsdp_status failure_before(fsdp__mark m, char message[MESSAGE_BYTES])
{
    if (m.line->failure == FSDP_OK || m.line->failed > m.number)
        return FSDP_OK;
    memcpy(message, m.line->message, MESSAGE_BYTES);
    return m.line->failure;
}

/* ---- marks ---- */

fsdp__mark fsdp__mark_ref(fsdp__mark mark)
{
    if (mark.line)
        line_ref(mark.line);
    if (mark.moment)
        atomic_fetch_add(&mark.moment->refs, 1);
    return mark;
}

void fsdp__mark_unref(fsdp__mark mark)
{
    fsdp__moment_unref(mark.moment);
    if (mark.line)
        line_unref(mark.line);
}

bool fsdp__mark_is_passed(fsdp__mark mark)
{
    if (!mark.line)
        return true;
    FSDP__HELD(&mark.line->mutex);
    return mark.line->done >= mark.number;
}

bool fsdp__mark_awaits_caller(fsdp__mark mark)
{
    if (!mark.line)
        return false;
    FSDP__HELD(&mark.line->mutex);
    return mark.line->done < mark.number && mark.line->begun && pthread_equal(mark.line->thread, pthread_self());
}

fsdp_status fsdp__mark_pass(fsdp__mark mark)
{
    char message[MESSAGE_BYTES];
    fsdp_status status;

    if (!mark.line)
        return FSDP_OK;
    FSDP__HELD(&mark.line->mutex);
    while (mark.line->done < mark.number)
        pthread_cond_wait(&mark.line->moved, &mark.line->mutex);
    status = failure_before(mark, message);
    return status == FSDP_OK ? FSDP_OK : FSDP_FAIL(status, "%s", message);
}

fsdp_status fsdp__mark_wait(fsdp__mark mark)
{
    fsdp_status status = fsdp__mark_pass(mark);

    if (mark.moment) /* also after a failure: what was issued may still run */
        FSDP_KEEP_FIRST(status, mark.moment->wait(mark.moment));
    return status;
}

/* ---- the thread ---- */

/* Takes all items that are queued, in order, so that one lock serves many; NULL if there will be no more. */
static item *take_items(fsdp__worker *worker)
{
    item *first;

    FSDP__HELD(&worker->mutex);
    /* What was queued before the stream was freed still runs: the end comes when nothing is left. */
    while (!worker->first && !worker->stop)
        pthread_cond_wait(&worker->arrived, &worker->mutex);
    first = worker->first;
    worker->first = worker->last = NULL;
    return first;
}

static void run_item(fsdp__worker *worker, item *it)
{
    fsdp_stream *stream = worker->stream;
    fsdp_status status;

    /* A message that an earlier item left must not pass for that of this one: see keep_failure. */
    fsdp_clear_error();
    if (it->told)
        fsdp__stream_begin_item(stream);
    status = it->work(stream, it->argument);
    if (it->told)
        FSDP__TELL(ITEM_DONE, .context = stream->device->context, .stream = stream, .number = stream->items_begun);
    if (status != FSDP_OK)
        keep_failure(worker->line, status);
    fsdp__free(it);
    /* Do this last: whoever waits for this step asks for the failure right after it. */
    line_step(worker->line);
}

static void *run(void *arg)
{
    fsdp__worker *worker = arg;
    item *it;

    line_begin(worker->line);
    worker->prepare(worker->stream->device);
    while ((it = take_items(worker)) != NULL)
        for (item *next; it; it = next) {
            next = it->next;
            run_item(worker, it);
        }
    return NULL;
}

/* ---- the worker ---- */

fsdp_status fsdp__worker_open(fsdp__worker *worker, fsdp_stream *stream, void (*prepare)(const fsdp_device *device))
{
    fsdp__line *line = line_create();

    FSDP__TRY_NEW(line);
    *worker = (fsdp__worker){.stream = stream, .prepare = prepare, .line = line};
    pthread_mutex_init(&worker->mutex, NULL);
    pthread_cond_init(&worker->arrived, NULL);
    return FSDP_OK;
}

/* Call it under the mutex, or before anybody else knows of the worker. */
static fsdp_status start(fsdp__worker *worker)
{
    int error = worker->started ? 0 : pthread_create(&worker->thread, NULL, run, worker);

    if (error != 0)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start the thread of a stream: %s%s", strerror(error),
                         fsdp__limit_behind(error));
    worker->started = true;
    return FSDP_OK;
}

fsdp_status fsdp__worker_start(fsdp__worker *worker)
{
    FSDP__HELD(&worker->mutex);
    return start(worker);
}

void fsdp__worker_close(fsdp__worker *worker)
{
    if (!worker->line)
        return;
    if (worker->started) {
        pthread_mutex_lock(&worker->mutex);
        worker->stop = true;
        pthread_cond_signal(&worker->arrived);
        pthread_mutex_unlock(&worker->mutex);
        pthread_join(worker->thread, NULL);
    }
    if (worker->line->failure != FSDP_OK && !fsdp__context_has_ended(worker->stream->device->context))
        fsdp_log(worker->stream->device->context, FSDP_LOG_ERROR,
                 "a stream was freed with a failure that nobody had asked for: %s", worker->line->message);
    line_unref(worker->line);
    worker->line = NULL;
    pthread_cond_destroy(&worker->arrived);
    pthread_mutex_destroy(&worker->mutex);
}

fsdp_status fsdp__worker_push(fsdp__worker *worker, bool told, fsdp__stream_work work, const void *argument,
                              size_t bytes)
{
    item *it = fsdp__malloc(sizeof *it + bytes);
    fsdp_status status;

    if (!it)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot queue work");
    *it = (item){.told = told, .work = work};
    if (bytes)
        memcpy(it->argument, argument, bytes);
    pthread_mutex_lock(&worker->mutex);
    status = start(worker);
    if (status != FSDP_OK) {
        pthread_mutex_unlock(&worker->mutex);
        fsdp__free(it);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    if (worker->last)
        worker->last->next = it;
    else
        worker->first = it;
    worker->last = it;
    worker->queued++;
    pthread_mutex_unlock(&worker->mutex);
    pthread_cond_signal(&worker->arrived); /* after unlocking: the thread must not wake up only to wait for the mutex */
    return FSDP_OK;
}

/* A wait for what failed fails too: there is nothing good to work on. */
static fsdp_status await(fsdp_stream *stream, const void *argument)
{
    const fsdp__mark *mark = argument;
    fsdp_status status = fsdp__mark_wait(*mark);

    (void)stream;
    fsdp__mark_unref(*mark);
    return status;
}

fsdp_status fsdp__worker_await(fsdp__worker *worker, fsdp__mark mark)
{
    fsdp_status status;

    (void)fsdp__mark_ref(mark);
    status = fsdp__worker_push(worker, false, await, &mark, sizeof mark);
    if (status != FSDP_OK)
        fsdp__mark_unref(mark);
    return status;
}

fsdp__mark fsdp__worker_mark(fsdp__worker *worker)
{
    fsdp__mark m = {.line = worker->line};

    FSDP__HELD(&worker->mutex);
    m.number = worker->queued;
    return m;
}

uint64_t fsdp__worker_queued(const fsdp__worker *worker)
{
    return worker->queued;
}

uint64_t fsdp__worker_done(const fsdp__worker *worker)
{
    uint64_t done;

    FSDP__HELD(&worker->line->mutex);
    done = worker->line->done;
    return done;
}

bool fsdp__worker_is_this_thread(fsdp__worker *worker)
{
    return fsdp__mark_awaits_caller(fsdp__worker_mark(worker));
}

fsdp_status fsdp__worker_check(fsdp__worker *worker)
{
    fsdp__line *l = worker->line;
    char message[MESSAGE_BYTES];
    fsdp_status status;

    FSDP__HELD(&l->mutex);
    status = l->failure;
    memcpy(message, l->message, sizeof message);
    l->failure = FSDP_OK;
    return status == FSDP_OK ? FSDP_OK : FSDP_FAIL(status, "%s", message);
}

/* ---- work of the caller's own thread ---- */

bool fsdp__worker_enter(fsdp__worker *worker)
{
    pthread_mutex_lock(&worker->mutex);
    if (fsdp__mark_is_passed((fsdp__mark){.line = worker->line, .number = worker->queued}))
        return true;
    pthread_mutex_unlock(&worker->mutex);
    return false;
}

void fsdp__worker_leave(fsdp__worker *worker)
{
    pthread_mutex_unlock(&worker->mutex);
}
