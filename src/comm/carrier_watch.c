/* carrier_watch.c - looks after ranks for devices that wait for them, and releases those when the world has ended. */
#include "comm/carrier_watch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/limits.h"
#include "base/lock.h"
#include "comm/health/failure.h"
#include "device/moment.h"

enum {
    SETTLE_NS = 200000
};

typedef struct fsdp__carrier_watch {
    fsdp__comm *comm;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t stopped;
    bool stop; /* under the mutex */
} watch;

/* Sleeps for a tick; returns whether to go on. */
static bool sleep_a_tick(watch *w)
{
    long tick_ms = (long)atomic_load(&w->comm->tick_ms);
    struct timespec end;
    bool go_on;

    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += tick_ms / 1000;
    end.tv_nsec += tick_ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->mutex);
    while (!w->stop && pthread_cond_timedwait(&w->stopped, &w->mutex, &end) != ETIMEDOUT)
        continue;
    go_on = !w->stop;
    pthread_mutex_unlock(&w->mutex);
    return go_on;
}

/* Looks after one group; a failure says why the world has ended. Called under comm->mutex. */
static fsdp_status look_after(const fsdp_process_group *group)
{
    if (fsdp__comm_is_broken(group))
        return FSDP_FAIL(group->comm->broken_status, "%s", group->comm->broken_text);
    return group->ops->health ? group->ops->health->look_after(group->transport_group, group->carriage.ticks) : FSDP_OK;
}

/* Returns a number that grows as the device does the calls of the group; 0: it has done all. */
static uint64_t progress_of(const fsdp_process_group *group)
{
    return group->carriage.ops ? group->carriage.ops->busy(group->carriage.state) : 0;
}

static fsdp_status look(fsdp__comm *comm)
{
    FSDP__HELD(&comm->mutex);
    for (fsdp_process_group *g = comm->groups; g; g = g->next) {
        fsdp__carriage *c = &g->carriage;
        uint64_t busy = progress_of(g);

        c->ticks = busy && busy == c->seen ? c->ticks + 1 : 0;
        c->seen = busy;
        if (busy)
            FSDP_TRY(look_after(g));
    }
    return FSDP_OK;
}

/* Condemns the devices that wait, and lets them go on. */
static void release(fsdp__comm *comm, fsdp_status status, const char *text)
{
    FSDP__HELD(&comm->mutex);
    for (fsdp_process_group *g = comm->groups; g; g = g->next) {
        const fsdp__carriage *c = &g->carriage;

        if (!progress_of(g))
            continue;
        fsdp__device_condemn(c->device, status, text);
        c->ops->release(c->state);
    }
}

static void *run(void *argument)
{
    watch *w = argument;

    while (sleep_a_tick(w)) {
        char text[sizeof w->comm->broken_text];
        fsdp_status status = look(w->comm);

        if (status == FSDP_OK)
            continue;
        snprintf(text, sizeof text, "%s", fsdp_last_error());
        fsdp__comm_break(w->comm, status, text);
        release(w->comm, status, text);
    }
    return NULL;
}

static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void free_watch(watch *w)
{
    pthread_cond_destroy(&w->stopped);
    pthread_mutex_destroy(&w->mutex);
    fsdp__free(w);
}

fsdp_status fsdp__carrier_watch_start(fsdp__comm *comm)
{
    watch *w;
    int error;

    if (comm->watch)
        return FSDP_OK;
    FSDP__TRY_NEW(w = fsdp__calloc(1, sizeof *w));
    w->comm = comm;
    pthread_mutex_init(&w->mutex, NULL);
    init_condition(&w->stopped);
    error = pthread_create(&w->thread, NULL, run, w);
    if (error) {
        free_watch(w);
        return FSDP_FAIL(FSDP_IO, "cannot start the thread that looks after a device's peers: %s%s", strerror(error),
                         fsdp__limit_behind(error));
    }
    comm->watch = w;
    return FSDP_OK;
}

/* Ends the world where the device of a group that is busy is lost: it does not do what the others wait for, and this
 * rank is released when the world has ended. */
static void end_if_lost(const fsdp_process_group *group)
{
    char text[256];

    if (fsdp__comm_is_broken(group) || !fsdp__device_has_ended(group->carriage.device))
        return;
    snprintf(text, sizeof text, "device '%s' is lost, and does not do the calls of group '%s' any more",
             fsdp_device_name(group->carriage.device), group->name);
    fsdp__comm_break(group->comm, FSDP_STATE, text);
}

void fsdp__carrier_watch_settle(fsdp_process_group *group)
{
    while (progress_of(group)) {
        end_if_lost(group);
        (void)nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
    }
}

void fsdp__carrier_watch_stop(fsdp__comm *comm)
{
    watch *w = comm->watch;

    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->stopped);
    pthread_mutex_unlock(&w->mutex);
    (void)pthread_join(w->thread, NULL);
    free_watch(w);
    comm->watch = NULL;
}
