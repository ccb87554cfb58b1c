/* races.c - the race check as a subscriber to the probes of a rank: what is used, by whom, and in what order. */
#include "check/races.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "check/kernel_copy.h"
#include "check/race_state.h"
#include "device/impl.h"

enum {
    WITHIN_BYTES = 192
};

/* Does what a point asks for, under the mutex of the rank's races, as all functions here. */
typedef fsdp_status (*handler)(const fsdp__race_rank *rank, const fsdp__probe_event *e);

/* ---- uses ---- */

static fsdp_status fail(const fsdp__races *races)
{
    return races->report[0] ? FSDP_FAIL(FSDP_STATE, "%s", races->report) : FSDP_OK;
}

static void describe(const fsdp__races *races, const fsdp__use *use, char *text, size_t bytes)
{
    const fsdp__actor *actor = races->actors[use->actor];
    int used = snprintf(text, bytes, "%s of rank %d %s", actor->name, actor->rank,
                        use->frees    ? "gives them back"
                        : use->writes ? "writes them"
                                      : "reads them");

    if (use->field && (size_t)used < bytes)
        used += snprintf(text + used, bytes - (size_t)used, " in kernel '%s' ('%s')", use->what, use->field);
    else if (use->what && (size_t)used < bytes)
        used += snprintf(text + used, bytes - (size_t)used, " in a %s", use->what);
    if (use->within && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " of call %llu, %s", (unsigned long long)use->number, use->within);
}

static void report(fsdp__races *races, const fsdp__use *later, const fsdp__conflict *conflict)
{
    fsdp__owner owner = fsdp__shadow_owner(races->shadow, conflict->start);
    char first[320], second[320];

    describe(races, &conflict->earlier, first, sizeof first);
    describe(races, later, second, sizeof second);
    snprintf(races->report, sizeof races->report,
             "race on bytes %zu to %zu of %s%s%s%s: %s, and %s; nothing orders the two: let one wait for an event "
             "recorded after the other",
             (size_t)(conflict->start - owner.start), (size_t)(conflict->end - owner.start),
             owner.kind ? owner.kind : "shared", owner.name ? " '" : " memory", owner.name ? owner.name : "",
             owner.name ? "'" : "", first, second);
}

/* Enters a use. */
static void enter(fsdp__races *races, const void *memory, size_t bytes, const fsdp__use *one,
                  const fsdp__vector_clock *clock)
{
    fsdp__conflict conflict;

    if (races->lost || races->report[0])
        return;
    switch (fsdp__shadow_use(races->shadow, memory, bytes, one, clock, &conflict)) {
    case FSDP__SHADOW_ORDERED:
        break;
    case FSDP__SHADOW_CONFLICT:
        report(races, one, &conflict);
        break;
    case FSDP__SHADOW_NO_MEMORY:
        races->lost = true;
        break;
    }
}

static void use(fsdp__races *races, fsdp__actor *actor, const void *memory, size_t bytes, fsdp__access access,
                const char *what, const char *field)
{
    if (!fsdp__shadow_watches(races->shadow, memory))
        return;
    enter(races, memory, bytes,
          &(fsdp__use){.step = fsdp__actor_step(actor),
                       .actor = actor->id,
                       .writes = access & FSDP__WRITES,
                       .what = what,
                       .field = field,
                       .within = actor->within,
                       .number = actor->number},
          &actor->clock);
}

/* Gives memory back: see [Note: memory given back]. `clock` is that of the place where the device's stream is. */
static void give_back(fsdp__races *races, const fsdp__actor *host, const fsdp__order *order,
                      const fsdp__vector_clock *clock)
{
    enter(races, order->memory, order->bytes, &(fsdp__use){.step = order->step, .actor = host->id, .frees = true},
          clock);
}

static fsdp_status use_memory(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    use(rank->all, e->stream->watcher, e->memory, e->bytes, (fsdp__access)e->kind, e->name, NULL);
    return fail(rank->all);
}

static fsdp_status run_copy(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    use(rank->all, e->stream->watcher, e->from, e->bytes, FSDP__READS, e->name, NULL);
    use(rank->all, e->stream->watcher, e->memory, e->bytes, FSDP__WRITES, e->name, NULL);
    return fail(rank->all);
}

/* ---- kernels ---- */

/* Holds the state of a walk over the buffers of a kernel. */
typedef struct kernel_uses {
    fsdp__races *races;
    fsdp__actor *actor;
    const char *kernel;
} kernel_uses;

static void *visit(void *arg, const fsdp__buffer *buffer)
{
    const kernel_uses *k = arg;

    use(k->races, k->actor, buffer->pointer, buffer->bytes, buffer->access, k->kernel, buffer->name);
    return (void *)(uintptr_t)buffer->pointer;
}

static fsdp_status run_kernel(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    kernel_uses k = {rank->all, e->stream->watcher, e->name};
    fsdp__kernel kernel = (fsdp__kernel)e->kind;

    if (kernel == FSDP__KERNELS) /* a caller's function: what it uses is told by itself */
        return FSDP_OK;
    /* The walk writes to what it is given, so it gets a copy: the caller's arguments and table must not change. */
    rank->all->lost = fsdp__kernel_copied(kernel, e->object, visit, NULL, &k) != FSDP_OK || rank->all->lost;
    return fail(rank->all);
}

/* ---- memory ---- */

static fsdp_status map(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__races *races = rank->all;

    races->lost = !fsdp__shadow_watch(races->shadow, e->memory, e->bytes, rank->host->id) || races->lost;
    return FSDP_OK;
}

static fsdp_status unmap(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__shadow_forget(rank->all->shadow, e->memory);
    return FSDP_OK;
}

static fsdp_status own(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__races *races = rank->all;
    const char *kind = fsdp_memory_kind_name((fsdp_memory_kind)e->kind);
    const char *name = e->name ? fsdp__races_text(races, e->name) : NULL;

    races->lost = !fsdp__shadow_own(races->shadow, e->memory, e->bytes, kind, name) || races->lost;
    return FSDP_OK;
}

/* Puts an order in front of the next item of a stream with a thread. */
static void expect(fsdp__races *races, fsdp__actor *host, fsdp__actor *actor, fsdp__order order)
{
    order.after = fsdp__actor_now(host);
    races->lost = !order.after || !fsdp__actor_expect(actor, &order) || races->lost;
    fsdp__instant_unref(order.after);
}

static fsdp_status take_back(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *host = rank->host, *actor = e->stream ? e->stream->watcher : host;
    fsdp__order order = {.memory = e->memory, .bytes = e->bytes, .step = fsdp__actor_step(host)};

    if (actor->has_thread)
        expect(rank->all, host, actor, order);
    else
        give_back(rank->all, host, &order, &host->clock);
    return FSDP_OK;
}

/* ---- streams and their items ---- */

static fsdp_status open_stream(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    e->stream->watcher =
        fsdp__stream_is_inline(e->stream) ? rank->host : fsdp__races_add_actor(rank->all, rank->rank, true);
    return e->stream->watcher ? FSDP_OK : FSDP_NO_MEMORY;
}

/* Carries out what the actor has in front of its next item. */
static void follow(fsdp__races *races, const fsdp__actor *host, fsdp__actor *actor, fsdp__order *orders)
{
    for (const fsdp__order *o = orders; o; o = o->next) {
        races->lost = !fsdp__actor_join(actor, o->after) || races->lost;
        if (o->memory)
            give_back(races, host, o, &actor->clock);
    }
    fsdp__orders_free(orders);
}

static void join_whole(const fsdp__race_rank *rank, fsdp__actor *actor)
{
    fsdp__order *orders = actor->first;
    fsdp__instant *now;

    actor->first = actor->last = NULL;
    follow(rank->all, rank->host, actor, orders);
    now = fsdp__actor_now(actor);
    rank->all->lost = !now || !fsdp__actor_join(rank->host, now) || rank->all->lost;
    fsdp__instant_unref(now);
}

static fsdp_status await_stream(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *actor = e->stream->watcher;

    if (actor->has_thread)
        join_whole(rank, actor);
    return FSDP_OK;
}

static fsdp_status close_stream(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *actor = (fsdp__actor *)(uintptr_t)e->object;

    if (actor->has_thread) {
        join_whole(rank, actor);
        actor->live = false;
    }
    return FSDP_OK;
}

static fsdp_status queue_item(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    return fsdp__actor_queue(e->stream->watcher, rank->host) ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status unqueue_item(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    (void)rank;
    fsdp__actor_unqueue(e->stream->watcher);
    return FSDP_OK;
}

static fsdp_status begin_item(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *actor = e->stream->watcher;
    fsdp__item *item = fsdp__actor_begin(actor);

    follow(rank->all, rank->host, actor, item->orders);
    rank->all->lost = !fsdp__actor_join(actor, item->queued) || rank->all->lost;
    fsdp__instant_unref(item->queued);
    fsdp__free(item);
    return FSDP_OK;
}

static fsdp_status finish_item(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    rank->all->lost = !fsdp__actor_finish(e->stream->watcher) || rank->all->lost;
    return FSDP_OK;
}

/* Notes what the stream's uses are a part of. */
static fsdp_status begin_collective(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *actor = e->stream ? e->stream->watcher : NULL;
    char text[WITHIN_BYTES];

    if (!actor)
        return FSDP_OK;
    snprintf(text, sizeof text, "%s%s%s%s in group '%s'", e->name, e->label[0] ? " for '" : "", e->label,
             e->label[0] ? "'" : "", e->group);
    actor->within = fsdp__races_text(rank->all, text);
    actor->number = e->number;
    return FSDP_OK;
}

static fsdp_status finish_collective(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__actor *actor = e->stream ? e->stream->watcher : NULL;

    (void)rank;
    if (actor) {
        actor->within = NULL;
        actor->number = 0;
    }
    return FSDP_OK;
}

/* ---- events: their watcher is the instant at which they were recorded ---- */

static fsdp_status forget_event(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    (void)rank;
    fsdp__instant_unref(fsdp__take(&e->event->watcher));
    return FSDP_OK;
}

static fsdp_status record(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__instant *mark = fsdp__actor_mark(e->stream->watcher);

    rank->all->lost = rank->all->lost || !mark;
    (void)forget_event(rank, e);
    e->event->watcher = mark;
    return FSDP_OK;
}

static fsdp_status await_event(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    if (e->event->watcher)
        rank->all->lost = !fsdp__actor_await(e->stream->watcher, e->event->watcher) || rank->all->lost;
    return FSDP_OK;
}

static fsdp_status reach_event(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    if (e->event->watcher)
        rank->all->lost = !fsdp__actor_join(rank->host, e->event->watcher) || rank->all->lost;
    return FSDP_OK;
}

/* ---- orders between ranks ---- */

static fsdp__actor *actor_of(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    return e->stream ? e->stream->watcher : rank->host;
}

static fsdp_status publish(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__races_post(rank->all, actor_of(rank, e), e->object, e->number);
    return FSDP_OK;
}

static fsdp_status acquire(const fsdp__race_rank *rank, const fsdp__probe_event *e)
{
    fsdp__races_collect(rank->all, actor_of(rank, e), e->object, e->number);
    return FSDP_OK;
}

/* ---- the subscriber ---- */

static const handler handlers[FSDP__POINTS] = {
    [FSDP__POINT_MEMORY_MAPPED] = map,
    [FSDP__POINT_MEMORY_UNMAPPED] = unmap,
    [FSDP__POINT_MEMORY_TAKEN] = own,
    [FSDP__POINT_MEMORY_NAMED] = own,
    [FSDP__POINT_MEMORY_GIVEN_BACK] = take_back,
    [FSDP__POINT_MEMORY_USED] = use_memory,
    [FSDP__POINT_STREAM_OPENED] = open_stream,
    [FSDP__POINT_STREAM_REACHED] = await_stream,
    [FSDP__POINT_STREAM_CLOSED] = close_stream,
    [FSDP__POINT_ITEM_QUEUED] = queue_item,
    [FSDP__POINT_ITEM_REFUSED] = unqueue_item,
    [FSDP__POINT_ITEM_BEGUN] = begin_item,
    [FSDP__POINT_ITEM_DONE] = finish_item,
    [FSDP__POINT_EVENT_RECORDED] = record,
    [FSDP__POINT_EVENT_AWAITED] = await_event,
    [FSDP__POINT_EVENT_REACHED] = reach_event,
    [FSDP__POINT_EVENT_CLOSED] = forget_event,
    [FSDP__POINT_KERNEL_BEGUN] = run_kernel,
    [FSDP__POINT_COPY_BEGUN] = run_copy,
    [FSDP__POINT_COLLECTIVE_BEGUN] = begin_collective,
    [FSDP__POINT_COLLECTIVE_DONE] = finish_collective,
    [FSDP__POINT_ORDER_PUBLISHED] = publish,
    [FSDP__POINT_ORDER_ACQUIRED] = acquire,
};

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    const fsdp__race_rank *rank = fsdp__context_get(e->context, FSDP__SLOT_WATCHER);
    fsdp_status status;

    (void)arg;
    if (!rank)
        return FSDP_OK;
    fsdp__races_lock(rank);
    status = handlers[e->point](rank, e);
    fsdp__races_unlock(rank->all);
    return status;
}

__attribute__((constructor)) static void subscribe(void)
{
    static fsdp__subscriber races = {.see = see};

    for (int point = 0; point < FSDP__POINTS; point++)
        if (handlers[point])
            races.points |= FSDP__POINT_BIT(point);
    fsdp__subscribe(&races);
}
