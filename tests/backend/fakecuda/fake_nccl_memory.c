/* fake_nccl_memory.c - memory that communicators register, in the fake NCCL.
 *
 * A window is made when all members have asked for theirs, in one order and of one size; all other registrations are a
 * member's own. Whoever frees what a communicator has registered, lets one end in peace that still has windows, or
 * takes registered memory back that calls under way may use is stopped here, where the real one goes wrong later. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake_nccl.h"

/* What ncclMemAlloc has given. */
typedef struct allocation {
    struct allocation *next;
    char *at;
    size_t bytes;
    int shown; /* to so many communicators */
} allocation;

/* What a communicator has registered. */
typedef struct fake_shown {
    struct fake_shown *next;
    char *at;
    size_t bytes;
    bool window;
    fsdp__nccl_window **out; /* of a window that is being made */
} fake_shown;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and those of communicators */
static allocation *allocations;

static void stop(const char *why)
{
    fprintf(stderr, "fakenccl: %s\n", why);
    abort();
}

/* ---- allocations ---- */

int ncclMemAlloc(void **out, size_t bytes)
{
    allocation *a;

    FAKE_NCCL_USE(ncclMemAlloc);
    a = calloc(1, sizeof *a);
    if (!a || cudaMalloc(out, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        free(a);
        return fake_nccl_fail(FSDP__NCCL_UnhandledCudaError, "out of memory");
    }
    *a = (allocation){.at = *out, .bytes = bytes};
    pthread_mutex_lock(&mutex);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&mutex);
    return FSDP__NCCL_Success;
}

/* Returns the link to the allocation in which bytes lie. */
static allocation **find(const char *at, size_t bytes)
{
    allocation **link = &allocations;

    while (*link && (at < (*link)->at || at + bytes > (*link)->at + (*link)->bytes))
        link = &(*link)->next;
    return link;
}

int ncclMemFree(void *memory)
{
    int result = fake_use(FAKE_ncclMemFree);
    allocation **link, *a;

    pthread_mutex_lock(&mutex);
    link = find(memory, 1);
    a = *link;
    if (a)
        *link = a->next;
    pthread_mutex_unlock(&mutex);
    if (!a || a->at != memory)
        stop("ncclMemFree of what ncclMemAlloc has not given");
    else if (a->shown > 0)
        stop("ncclMemFree of memory that a communicator has registered");
    free(a);
    (void)cudaFree(memory);
    return result;
}

/* ---- registrations ---- */

static fake_shown *add(struct ncclComm *c, const fake_shown *what)
{
    fake_shown *s = malloc(sizeof *s);
    allocation *a;

    if (!s)
        abort();
    *s = *what;
    pthread_mutex_lock(&mutex);
    s->next = c->shown;
    c->shown = s;
    a = *find(s->at, s->bytes);
    if (a)
        a->shown++;
    pthread_mutex_unlock(&mutex);
    return s;
}

/* Removes a registration; false: there is no such one. */
static bool take(struct ncclComm *c, const void *handle, bool window)
{
    fake_shown **link = &c->shown, *found;
    allocation *a;

    pthread_mutex_lock(&mutex);
    while (*link && (*link != handle || (*link)->window != window))
        link = &(*link)->next;
    found = *link;
    a = found ? *find(found->at, found->bytes) : NULL;
    if (found)
        *link = found->next;
    if (a)
        a->shown--;
    pthread_mutex_unlock(&mutex);
    free(found);
    return found != NULL;
}

/* Returns whether it takes memory of so many bytes. */
static bool takes(size_t bytes)
{
    int mib = fake_nccl_setting("FSDP_FAKENCCL_TAKES", 0);

    return mib == 0 || bytes == (size_t)mib << 20;
}

static bool is_ready(const struct ncclComm *c)
{
    return c->state == FSDP__NCCL_Success && !c->finalized;
}

int ncclCommRegister(fsdp__nccl_comm *c, void *memory, size_t bytes, void **handle)
{
    FAKE_NCCL_USE(ncclCommRegister);
    if (!is_ready(c) || !fake_find(memory, bytes).whole)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "ncclCommRegister");
    if (fake_nccl_setting("NCCL_LOCAL_REGISTER", 1) && takes(bytes))
        *handle = add(c, &(fake_shown){.at = memory, .bytes = bytes});
    return FSDP__NCCL_Success;
}

static int deregister(struct ncclComm *c, const void *handle, bool window)
{
    if (!is_ready(c))
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "the communicator is not ready");
    if (c->under_way > 0)
        stop("memory is deregistered that calls under way may use");
    return take(c, handle, window) ? FSDP__NCCL_Success
                                   : fake_nccl_fail(FSDP__NCCL_InvalidUsage, "Could not find handle");
}

int ncclCommDeregister(fsdp__nccl_comm *c, void *handle)
{
    FAKE_NCCL_USE(ncclCommDeregister);
    return deregister(c, handle, false);
}

int ncclCommWindowDeregister(fsdp__nccl_comm *c, fsdp__nccl_window *window)
{
    FAKE_NCCL_USE(ncclCommWindowDeregister);
    return deregister(c, window, true);
}

/* ---- windows ---- */

/* Waits until all members have asked for as many windows. */
static int make_window(struct ncclComm *c, fake_shown *s)
{
    fake_hall *hall = c->hall;
    int number = atomic_fetch_add(&hall->windows[c->rank], 1) + 1, come = 0;

    fake_hall_moved(hall);
    while (come < c->ranks && !c->aborted) {
        uint32_t moves = hall->moves;

        come = 0;
        while (come < c->ranks && hall->windows[come] >= number)
            come++;
        if (come < c->ranks)
            fake_hall_sleep(hall, moves);
    }
    for (int r = 0; r < c->ranks && !c->aborted; r++)
        if (hall->window_bytes[r] != s->bytes)
            return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "members make windows of other sizes");
    if (!c->aborted)
        *s->out = (fsdp__nccl_window *)s;
    return FSDP__NCCL_Success;
}

static void *make_behind(void *argument)
{
    struct ncclComm *c = argument;

    atomic_store(&c->state, make_window(c, c->shown));
    return NULL;
}

int ncclCommWindowRegister(fsdp__nccl_comm *c, void *memory, size_t bytes, fsdp__nccl_window **window, int flags)
{
    FAKE_NCCL_USE(ncclCommWindowRegister);
    if (fake_nccl_version() < FSDP__NCCL_WINDOWS)
        stop("there is no ncclCommWindowRegister in this version");
    if (fake_nccl_setting("RANK", 0) == fake_nccl_setting("FSDP_FAKENCCL_DIES", -1))
        (void)raise(SIGKILL);
    *window = NULL;
    if (!is_ready(c) || flags != FSDP__NCCL_SYMMETRIC || c->blocking)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "ncclCommWindowRegister");
    if (!fake_nccl_setting("NCCL_WIN_ENABLE", 1) || !takes(bytes))
        return FSDP__NCCL_Success;
    pthread_mutex_lock(&mutex);
    if (!*find(memory, bytes))
        bytes = 0;
    pthread_mutex_unlock(&mutex);
    if (bytes == 0)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "a window's memory is not mapped as it should be");
    c->hall->window_bytes[c->rank] = bytes;
    (void)add(c, &(fake_shown){.at = memory, .bytes = bytes, .window = true, .out = window});
    return fake_nccl_behind(c, make_behind);
}

/* ---- calls, and the end ---- */

/* Returns the registration in which bytes lie; NULL: there is none. */
static const fake_shown *shown_at(const struct ncclComm *c, const char *at, size_t bytes)
{
    const fake_shown *s = c->shown;

    while (s && (!at || at < s->at || at + bytes > s->at + s->bytes))
        s = s->next;
    return s;
}

static int64_t place_in(const fake_shown *s, const char *at)
{
    return s ? at - s->at + 1 : 0;
}

bool fake_nccl_places(const struct ncclComm *c, fake_heading *h, const void *send, const void *recv, size_t bytes)
{
    bool gathers = strcmp(h->name, "AllGather") == 0, swaps = strcmp(h->name, "AlltoAll") == 0,
         scatters = strcmp(h->name, "ReduceScatter") == 0, one_machine = true;
    size_t all = bytes * (size_t)c->ranks, own = bytes * (size_t)c->rank;
    const fake_shown *from, *to;

    if (strcmp(h->name, "Send") == 0 || strcmp(h->name, "Recv") == 0)
        return false; /* each is for one other member */
    from = shown_at(c, send, swaps || scatters ? all : bytes);
    to = shown_at(c, recv, swaps || gathers ? all : bytes);
    h->from = gathers && from && send == (const char *)recv + own ? -1 : place_in(from, send);
    h->to = scatters && to && recv == (const char *)send + own ? -1 : place_in(to, recv);
    for (int r = 0; r < c->ranks; r++)
        one_machine = one_machine && c->hall->machine[r] == c->hall->machine[0];
    return c->by_copies && (gathers || swaps) && from && from->window && to && to->window && one_machine;
}

void fake_nccl_forget(struct ncclComm *c, bool aborted)
{
    if (c->shown && !aborted)
        stop("a communicator is destroyed that has memory registered");
    while (c->shown)
        (void)take(c, c->shown, c->shown->window);
}
