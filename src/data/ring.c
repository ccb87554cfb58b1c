/* ring.c - makes batches ahead in worker threads, or in the caller's thread. */
#include "data/ring.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "base/probe.h"
#include "base/text.h"

/* Holds a batch in its place. */
typedef struct slot {
    bool full;
    fsdp_status status;
    char message[512];
} slot;

typedef struct worker {
    fsdp__ring *ring;
    int number;
    pthread_t thread;
} worker;

struct fsdp__ring {
    const fsdp_context *context;
    fsdp__ring_maker *make;
    void *arg;
    slot *slots;
    int slot_count;
    worker *workers;
    int worker_count; /* started */

    pthread_mutex_t lock; /* guards what follows, and the slots' `full`; only the caller's thread changes `next` */
    pthread_cond_t filled, freed, idle;
    int64_t next;  /* batch that the next call returns */
    int64_t begun; /* batch that the next idle worker takes */
    int64_t limit; /* batches that may be begun */
    int busy;      /* batches that are being made */
    bool lent;     /* the caller holds slot (next - 1) modulo slots */
    bool stop;
};

int fsdp__ring_slots(int workers)
{
    /* One slot is lent to the caller, each worker fills one, and one more for each worker lets it run ahead. */
    return 1 + 2 * workers;
}

static slot *slot_of(const fsdp__ring *ring, int64_t number)
{
    return &ring->slots[number % ring->slot_count];
}

/* ---- making batches, with the lock held ---- */

/* Returns whether a batch may be begun: its slot is neither lent nor waiting to be fetched. */
static bool may_begin(const fsdp__ring *ring)
{
    return ring->begun < FSDP__MIN(ring->next - (ring->lent ? 1 : 0) + ring->slot_count, ring->limit);
}

static void make_one(fsdp__ring *ring, int thread)
{
    int64_t number = ring->begun++;
    slot *mine = slot_of(ring, number);

    ring->busy++;
    /* This runs without the lock: nobody else looks at the slot until it is full. */
    pthread_mutex_unlock(&ring->lock);
    FSDP__TELL(BATCH_BEGUN, .context = ring->context, .object = ring, .number = (uint64_t)number,
               .ns = fsdp__clock_ns());
    mine->status = ring->make(ring->arg, number, (int)(number % ring->slot_count), thread);
    FSDP__TELL(BATCH_DONE, .context = ring->context, .object = ring, .number = (uint64_t)number,
               .ns = fsdp__clock_ns());
    if (mine->status != FSDP_OK) /* the last error belongs to one thread */
        fsdp__shown(fsdp_last_error(), mine->message, sizeof mine->message);
    pthread_mutex_lock(&ring->lock);
    mine->full = true;
    if (mine->status != FSDP_OK) /* no later batch will be asked for */
        ring->limit = FSDP__MIN(ring->limit, number + 1);
    ring->busy--;
    pthread_cond_signal(&ring->filled);
    pthread_cond_signal(&ring->idle);
}

static void *work(void *arg)
{
    worker *self = arg;
    fsdp__ring *ring = self->ring;

    pthread_mutex_lock(&ring->lock);
    while (!ring->stop)
        if (may_begin(ring))
            make_one(ring, self->number);
        else
            pthread_cond_wait(&ring->freed, &ring->lock);
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* ---- life ---- */

static fsdp_status start_workers(fsdp__ring *ring, int count, const char *owner)
{
    while (ring->worker_count < count) {
        worker *next = &ring->workers[ring->worker_count];
        int code;

        *next = (worker){.ring = ring, .number = ring->worker_count};
        code = pthread_create(&next->thread, NULL, work, next);
        if (code != 0)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start worker %d of %d of the %s: %s%s", next->number, count, owner,
                             strerrordesc_np(code), fsdp__limit_behind(code));
        ring->worker_count++;
    }
    return FSDP_OK;
}

fsdp_status fsdp__ring_create(const fsdp_context *context, const char *owner, int workers, fsdp__ring_maker *make,
                              void *arg, fsdp__ring **out)
{
    int slots = fsdp__ring_slots(workers);
    fsdp__ring *ring = fsdp__calloc(1, sizeof *ring + (size_t)slots * sizeof *ring->slots);
    fsdp_status status = FSDP_NO_MEMORY;

    FSDP__TRY_NEW(ring);
    ring->context = context;
    ring->make = make;
    ring->arg = arg;
    ring->slots = (slot *)(void *)(ring + 1);
    ring->slot_count = slots;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->filled, NULL);
    pthread_cond_init(&ring->freed, NULL);
    pthread_cond_init(&ring->idle, NULL);
    ring->workers = fsdp__calloc((size_t)workers, sizeof *ring->workers);
    if (ring->workers)
        status = start_workers(ring, workers, owner);
    if (status == FSDP_OK)
        *out = ring;
    else
        fsdp__ring_free(ring);
    return status;
}

void fsdp__ring_free(fsdp__ring *ring)
{
    if (!ring)
        return;
    pthread_mutex_lock(&ring->lock);
    ring->stop = true;
    pthread_cond_broadcast(&ring->freed);
    pthread_mutex_unlock(&ring->lock);
    for (int i = 0; i < ring->worker_count; i++)
        pthread_join(ring->workers[i].thread, NULL);
    pthread_cond_destroy(&ring->idle);
    pthread_cond_destroy(&ring->freed);
    pthread_cond_destroy(&ring->filled);
    pthread_mutex_destroy(&ring->lock);
    FSDP__FREE_ALL(ring->workers, ring);
}

/* ---- the caller's side ---- */

void fsdp__ring_begin(fsdp__ring *ring, int64_t limit)
{
    pthread_mutex_lock(&ring->lock);
    ring->next = ring->begun = 0;
    ring->limit = limit;
    pthread_cond_broadcast(&ring->freed);
    pthread_mutex_unlock(&ring->lock);
}

void fsdp__ring_end(fsdp__ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->limit = 0;
    while (ring->busy > 0)
        pthread_cond_wait(&ring->idle, &ring->lock);
    for (int i = 0; i < ring->slot_count; i++)
        ring->slots[i].full = false;
    ring->lent = false;
    pthread_mutex_unlock(&ring->lock);
}

fsdp_status fsdp__ring_next(fsdp__ring *ring, int *out_slot)
{
    slot *mine = slot_of(ring, ring->next);

    pthread_mutex_lock(&ring->lock);
    if (ring->lent) {
        slot_of(ring, ring->next - 1)->full = false;
        ring->lent = false;
        /* Only one slot is free, so one worker has something to do. */
        pthread_cond_signal(&ring->freed);
    }
    if (ring->worker_count == 0 && !mine->full)
        make_one(ring, 0);
    while (!mine->full)
        pthread_cond_wait(&ring->filled, &ring->lock);
    /* A batch that failed stays in its slot. */
    if (mine->status == FSDP_OK) {
        ring->next++;
        ring->lent = true;
    }
    pthread_mutex_unlock(&ring->lock);
    if (mine->status != FSDP_OK)
        return FSDP_FAIL(mine->status, "%s", mine->message);
    *out_slot = (int)(mine - ring->slots);
    return FSDP_OK;
}

int64_t fsdp__ring_taken(const fsdp__ring *ring)
{
    return ring->next;
}
