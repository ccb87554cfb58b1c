/* worker.h - work that a thread of the host does in order, and marks in that order: what streams are made of.
 *
 * [Note: marks]
 * The items of a worker are numbered from 1. A mark is (line, number, moment): the worker's line of done items, the
 * number of the item after which the mark is passed, and, where the items only issue work to a device that runs behind
 * the host, the moment at which the device has done it. An event holds its last mark; a wait copies it when it is asked
 * for, so a later record cannot move it. The line outlives its worker as long as a mark refers to it. What runs inline
 * is done at once: its marks have no line. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"
#include "device/moment.h"

typedef struct fsdp__line fsdp__line;

typedef struct fsdp__mark {
    fsdp__line *line; /* NULL: reached */
    uint64_t number;
    fsdp__device_moment *moment; /* NULL: reached when the line has passed the number */
} fsdp__mark;

/* Takes a reference to what the mark refers to; returns the mark. */
fsdp__mark fsdp__mark_ref(fsdp__mark mark);
void fsdp__mark_unref(fsdp__mark mark);
/* Returns whether the line has passed the mark. */
bool fsdp__mark_is_passed(fsdp__mark mark);
/* Returns whether the caller is an item of the line at or before the mark, which it would wait for without end. */
bool fsdp__mark_awaits_caller(fsdp__mark mark);
/* Waits until the line has passed the mark, and fails with the work before it. [blocks] */
fsdp_status fsdp__mark_pass(fsdp__mark mark);
/* Does the same, and waits for its moment as well. [blocks] */
fsdp_status fsdp__mark_wait(fsdp__mark mark);

/* The queue of a stream and its thread. */
typedef struct fsdp__worker {
    fsdp_stream *stream;
    void (*prepare)(const fsdp_device *device); /* what the thread does first */
    fsdp__line *line;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    struct fsdp__work_item *first, *last; /* this and what follows are guarded by the mutex */
    _Atomic uint64_t queued;              /* items ever queued; set under the mutex */
    pthread_t thread;
    bool started, stop;
} fsdp__worker;

/* Opens a worker, which has no thread before it is started. */
fsdp_status fsdp__worker_open(fsdp__worker *worker, fsdp_stream *stream, void (*prepare)(const fsdp_device *device));
/* Starts the thread, unless it was started. */
fsdp_status fsdp__worker_start(fsdp__worker *worker);
/* Closes a worker after its queued work has finished; does nothing for one that was not opened. */
void fsdp__worker_close(fsdp__worker *worker);

/* Queues work; the thread must have been started, or is started now. `told`: it was announced as an item of the stream
 * (base/probe.h), as it is where fsdp__stream_enqueue comes from. */
fsdp_status fsdp__worker_push(fsdp__worker *worker, bool told, fsdp__stream_work work, const void *argument,
                              size_t bytes);
/* Queues a wait for a mark; on failure nothing keeps it. */
fsdp_status fsdp__worker_await(fsdp__worker *worker, fsdp__mark mark);
/* Returns the mark behind everything queued so far. It borrows the line. */
fsdp__mark fsdp__worker_mark(fsdp__worker *worker);
/* Return how many items were queued, and how many are done. They may be called while the worker is entered. */
uint64_t fsdp__worker_queued(const fsdp__worker *worker);
uint64_t fsdp__worker_done(const fsdp__worker *worker);
/* Returns whether the caller is an item of the worker. */
bool fsdp__worker_is_this_thread(fsdp__worker *worker);
/* Returns the first failure of the work done so far, and clears it. */
fsdp_status fsdp__worker_check(fsdp__worker *worker);

/* Returns whether nothing is queued and nothing runs. Then the caller may do the stream's work in its own thread, which
 * comes before everything that others queue, until it leaves. */
bool fsdp__worker_enter(fsdp__worker *worker);
void fsdp__worker_leave(fsdp__worker *worker);
