/* probe.c - the subscribers. */
#include "base/probe.h"
#include "base/lock.h"

#include <pthread.h>
#include <stddef.h>

_Atomic uint64_t fsdp__probed;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int listeners[FSDP__POINTS]; /* how many listen to each; guarded by the mutex */
static fsdp__subscriber everywhere; /* the first subscriber to the whole process */

void fsdp__listen(fsdp__subscriber *subscriber, uint64_t points)
{
    uint64_t before, probed = 0;

    FSDP__HELD(&mutex);
    before = atomic_exchange(&subscriber->points, points);
    for (int point = 0; point < FSDP__POINTS; point++) {
        listeners[point] += (int)(points >> point & 1) - (int)(before >> point & 1);
        if (listeners[point] > 0)
            probed |= FSDP__POINT_BIT(point);
    }
    atomic_store_explicit(&fsdp__probed, probed, memory_order_relaxed);
}

void fsdp__subscribe(fsdp__subscriber *subscriber)
{
    uint64_t points = atomic_exchange(&subscriber->points, 0);
    fsdp__subscriber *last = &everywhere;

    pthread_mutex_lock(&mutex);
    while (last->next)
        last = last->next;
    last->next = subscriber;
    pthread_mutex_unlock(&mutex);
    fsdp__listen(subscriber, points);
}

void fsdp__unsubscribe(fsdp__subscriber *subscriber)
{
    if (!subscriber)
        return;
    fsdp__listen(subscriber, 0);
    subscriber->see = NULL;
}

/* ---- at a point ---- */

static fsdp_status tell(fsdp__subscriber *list, fsdp__probe_event *event)
{
    for (fsdp__subscriber *s = list; s; s = s->next) {
        fsdp_status status = s->points & FSDP__POINT_BIT(event->point) ? s->see(s->arg, event) : FSDP_OK;

        if (status != FSDP_OK)
            return status;
    }
    return FSDP_OK;
}

fsdp_status fsdp__probe(fsdp__probe_event *event)
{
    fsdp_status status = tell(&everywhere, event);

    if (status == FSDP_OK && event->context)
        status = tell((fsdp__subscriber *)(uintptr_t)event->context, event);
    return status;
}
