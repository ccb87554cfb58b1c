/* fault.c - "fail the n-th", one switch per kind and thread. */
#include "check/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"

typedef struct fault_switch {
    long left, armed; /* `left`: uses until the fault, 0: off; `armed`: how many there were at first */
    bool hit, all;    /* `all`: each use is a fault */
} fault_switch;

typedef struct switches {
    fault_switch kinds[FSDP__FAULT_KINDS];
    fsdp__fault_act act;
    int error;
    bool killing; /* the process dies at its next use of a file or folder */
} switches;

static _Thread_local switches faults = {.error = ENOSPC};
static _Thread_local int resting;

void fsdp__fault_arm(fsdp__fault_kind kind, long nth)
{
    faults.kinds[kind] = (fault_switch){.left = nth, .armed = nth};
}

void fsdp__fault_arm_all(fsdp__fault_kind kind)
{
    faults.kinds[kind] = (fault_switch){.all = true};
}

bool fsdp__fault_hit(fsdp__fault_kind kind)
{
    return faults.kinds[kind].hit;
}

long fsdp__fault_uses(fsdp__fault_kind kind)
{
    return faults.kinds[kind].armed - faults.kinds[kind].left;
}

void fsdp__fault_set_act(fsdp__fault_act act, int error)
{
    faults.act = act;
    faults.error = error;
}

void fsdp__fault_rest(bool on)
{
    resting += on ? 1 : -1;
}

/* ---- a use ---- */

/* Counts a use. Returns whether it is an armed one. */
static bool fires(fsdp__fault_kind kind)
{
    fault_switch *own = &faults.kinds[kind];

    if (resting || (!own->all && (own->left == 0 || --own->left > 0)))
        return false;
    own->hit = true;
    return true;
}

/* Kills the process at once: nothing of it runs any more, not even its exit handlers. */
static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static fsdp_status use_file(fsdp__fault_kind kind, size_t *bytes)
{
    if (faults.killing)
        die();
    if (!fires(kind))
        return FSDP_OK;
    switch (faults.act) {
    case FSDP__FAULT_FAILS:
        errno = faults.error;
        return FSDP_IO;
    case FSDP__FAULT_KILLS:
        die();
        break;
    case FSDP__FAULT_KILLS_HALF:
        faults.killing = true;
        break;
    case FSDP__FAULT_SHORTENS:
        break;
    case FSDP__FAULT_DELAYS:
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        return FSDP_OK;
    }
    if (*bytes > 2)
        *bytes = *bytes / 2 - 1;
    return FSDP_OK;
}

/* ---- work that is lent ---- */

typedef struct loan {
    struct loan *next;
    const void *object;
    switches faults;
} loan;

static pthread_mutex_t loans_mutex = PTHREAD_MUTEX_INITIALIZER;
static loan *loans; /* guarded by the mutex */

/* Moves this thread's switches, except those of collectives, to the loan. */
static void lend(const void *object)
{
    loan *l;

    fsdp__fault_rest(true);
    l = fsdp__malloc(sizeof *l);
    fsdp__fault_rest(false);
    if (!l)
        return;
    *l = (loan){.object = object, .faults = faults};
    for (int kind = 0; kind < FSDP__FAULT_KINDS; kind++)
        if (kind != FSDP__FAULT_COLLECTIVE)
            faults.kinds[kind] = (fault_switch){.left = 0};
    pthread_mutex_lock(&loans_mutex);
    l->next = loans;
    loans = l;
    pthread_mutex_unlock(&loans_mutex);
}

static void borrow(const void *object)
{
    fault_switch collectives = faults.kinds[FSDP__FAULT_COLLECTIVE];
    loan **link, *found;

    pthread_mutex_lock(&loans_mutex);
    for (link = &loans; *link && (*link)->object != object; link = &(*link)->next)
        continue;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&loans_mutex);
    if (!found)
        return;
    faults = found->faults;
    faults.kinds[FSDP__FAULT_COLLECTIVE] = collectives;
    fsdp__free(found);
}

/* ---- the subscriber ---- */

static fsdp_status see(void *arg, fsdp__probe_event *event)
{
    (void)arg;
    switch (event->point) {
    case FSDP__POINT_ALLOCATION:
        return fires(FSDP__FAULT_ALLOCATION) ? FSDP_FAIL(FSDP_NO_MEMORY, "fault injected") : FSDP_OK;
    case FSDP__POINT_COLLECTIVE_CALLED:
        return fires(FSDP__FAULT_COLLECTIVE) ? FSDP_FAIL(FSDP_COMM, "fault injected") : FSDP_OK;
    case FSDP__POINT_WRITE:
        return use_file(FSDP__FAULT_WRITE, &event->bytes);
    case FSDP__POINT_FOLDER:
        return use_file(FSDP__FAULT_FOLDER, &event->bytes);
    case FSDP__POINT_WORK_LENT:
        lend(event->object);
        return FSDP_OK;
    case FSDP__POINT_WORK_BORROWED:
        borrow(event->object);
        return FSDP_OK;
    default:
        return FSDP_OK;
    }
}

__attribute__((constructor)) static void subscribe(void)
{
    static fsdp__subscriber faults_of_tests = {
        .points = FSDP__POINT_BIT(FSDP__POINT_ALLOCATION) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_CALLED) |
                  FSDP__POINT_BIT(FSDP__POINT_WRITE) | FSDP__POINT_BIT(FSDP__POINT_FOLDER) |
                  FSDP__POINT_BIT(FSDP__POINT_WORK_LENT) | FSDP__POINT_BIT(FSDP__POINT_WORK_BORROWED),
        .see = see,
    };

    fsdp__subscribe(&faults_of_tests);
}
