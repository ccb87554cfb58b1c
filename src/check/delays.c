/* delays.c - draws a delay before each copy and collective. */
#include "check/delays.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "check/fault.h"
#include "device/kernels.h"

typedef struct delayed {
    struct delayed *next;
    const fsdp_device *device;
    fsdp__delays delays;
    uint64_t draws;
} delayed;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static delayed *all;      /* devices that have had delays; guarded by the mutex */
static _Atomic int count; /* of them: mostly 0 */

/* The functions below need the mutex. */

static delayed **place_of(const fsdp_device *device)
{
    delayed **link = &all;

    while (*link && (*link)->device != device)
        link = &(*link)->next;
    return link;
}

void fsdp__device_delay(const fsdp_device *device, const fsdp__delays *delays)
{
    delayed **link;

    pthread_mutex_lock(&mutex);
    link = place_of(device);
    if (!*link) {
        fsdp__fault_rest(true);
        *link = fsdp__calloc(1, sizeof **link);
        fsdp__fault_rest(false);
        atomic_fetch_add(&count, *link != NULL);
    }
    if (*link) {
        (*link)->device = device;
        (*link)->delays = delays ? *delays : (fsdp__delays){0};
    }
    pthread_mutex_unlock(&mutex);
}

uint64_t fsdp__device_delay_draws(const fsdp_device *device)
{
    const delayed *d;
    uint64_t draws;

    pthread_mutex_lock(&mutex);
    d = *place_of(device);
    draws = d ? d->draws : 0;
    pthread_mutex_unlock(&mutex);
    return draws;
}

/* ---- the subscriber ---- */

static bool may_be_delayed(const fsdp__delays *delays, const fsdp__probe_event *e)
{
    bool copies = e->kind < FSDP__KERNELS && fsdp__kernel_infos[e->kind].class == FSDP__KERNEL_CLASS_MEMORY;

    return delays->seed && (e->point == FSDP__POINT_COLLECTIVE_BEGUN || copies || e->stream == delays->stream);
}

static void delay(const fsdp__probe_event *e)
{
    const fsdp_device *device = fsdp__stream_device(e->stream);
    uint32_t draw[4] = {1};
    int64_t ns = 0;
    delayed *d;

    pthread_mutex_lock(&mutex);
    d = *place_of(device);
    if (d && may_be_delayed(&d->delays, e)) {
        fsdp__philox(d->delays.seed, d->draws++, draw);
        ns = (int64_t)(draw[1] % 1000) * d->delays.most_us;
    }
    pthread_mutex_unlock(&mutex);
    if (draw[0] % 4 != 0)
        return;
    if (draw[2] % 2 == 0)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static void forget(const void *device)
{
    delayed **link, *d;

    pthread_mutex_lock(&mutex);
    link = place_of(device);
    d = *link;
    if (d) {
        *link = d->next;
        atomic_fetch_sub(&count, 1);
    }
    pthread_mutex_unlock(&mutex);
    fsdp__free(d);
}

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    (void)arg;
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return FSDP_OK;
    if (e->point == FSDP__POINT_DEVICE_CLOSED)
        forget(e->object);
    else if (e->stream)
        delay(e);
    return FSDP_OK;
}

__attribute__((constructor)) static void subscribe(void)
{
    static fsdp__subscriber delays = {
        .points = FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_DEVICE_CLOSED),
        .see = see,
    };

    fsdp__subscribe(&delays);
}
