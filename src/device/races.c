/* races.c - the race check as the devices of a rank see it: what is used, by whom, and in what order. */
#include "device/races.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/fault.h"
#include "device/impl.h"
#include "device/race_state.h"

enum {
    TABLE_BYTES = 4096 /* of a table on the stack */
};

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

/* Enters a use. Called under the mutex, as are all functions below. */
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

fsdp_status fsdp__races_use(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access,
                            const char *what)
{
    fsdp__races *races;
    fsdp_status status;

    if (!stream->actor)
        return FSDP_OK;
    races = fsdp__races_lock(stream->device->races);
    use(races, stream->actor, memory, bytes, access, what, NULL);
    status = fail(races);
    fsdp__races_unlock(races);
    return status;
}

/* ---- kernels ---- */

static void *visit(void *arg, const fsdp__buffer *buffer)
{
    const fsdp_stream *stream = ((void **)arg)[0];
    const char *kernel = ((void **)arg)[1];

    use(stream->device->races->all, stream->actor, buffer->pointer, buffer->bytes, buffer->access, kernel,
        buffer->name);
    return (void *)(uintptr_t)buffer->pointer;
}

fsdp_status fsdp__races_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    /* The walk writes to what it is given, so it gets copies: the caller's arguments and table must not change. */
    _Alignas(16) unsigned char on_stack[TABLE_BYTES];
    void *table = on_stack, *on_heap = NULL;
    void *arg[2] = {stream, (void *)(uintptr_t)fsdp__kernel_infos[kernel].name};
    fsdp__races *races = fsdp__races_lock(stream->device->races);
    fsdp__kernel_args own;
    const void *theirs;
    size_t table_bytes = fsdp__kernel_table(kernel, args, &theirs);
    fsdp_status status;

    memcpy(&own, args, fsdp__kernel_infos[kernel].args_bytes);
    if (table_bytes > TABLE_BYTES)
        table = on_heap = fsdp__malloc(table_bytes);
    races->lost = races->lost || !table;
    if (table_bytes > 0 && table) {
        memcpy(table, theirs, table_bytes);
        fsdp__kernel_set_table(kernel, &own, table);
    }
    if (table)
        fsdp__kernel_buffers(kernel, &own, visit, arg);
    status = fail(races);
    fsdp__free(on_heap);
    fsdp__races_unlock(races);
    return status;
}

/* ---- memory ---- */

void fsdp__races_watch(const fsdp_context *context, const void *memory, size_t bytes)
{
    const fsdp__race_rank *rank = fsdp__context_get(context, FSDP__SLOT_RACES);
    fsdp__races *races;

    if (!rank)
        return;
    races = fsdp__races_lock(rank);
    races->lost = !fsdp__shadow_watch(races->shadow, memory, bytes, rank->host->id) || races->lost;
    fsdp__races_unlock(races);
}

void fsdp__races_unwatch(const fsdp_context *context, const void *memory)
{
    const fsdp__race_rank *rank = fsdp__context_get(context, FSDP__SLOT_RACES);
    fsdp__races *races;

    if (!rank)
        return;
    races = fsdp__races_lock(rank);
    fsdp__shadow_forget(races->shadow, memory);
    fsdp__races_unlock(races);
}

static void own(const fsdp_device *device, const void *memory, size_t bytes, const char *kind, const char *name)
{
    fsdp__races *races = fsdp__races_lock(device->races);

    name = name ? fsdp__races_text(races, name) : NULL;
    races->lost = !fsdp__shadow_own(races->shadow, memory, bytes, kind, name) || races->lost;
    fsdp__races_unlock(races);
}

void fsdp__races_hand_out(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind)
{
    own(device, memory, bytes, fsdp_memory_kind_name(kind), NULL);
}

void fsdp__races_name(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind,
                      const char *name)
{
    if (device->races && name)
        own(device, memory, bytes, fsdp_memory_kind_name(kind), name);
}

/* Puts an order in front of the next item of a stream with a thread. */
static void expect(fsdp__races *races, fsdp__actor *host, fsdp__actor *actor, fsdp__order order)
{
    order.after = fsdp__actor_now(host);
    races->lost = !order.after || !fsdp__actor_expect(actor, &order) || races->lost;
    fsdp__instant_unref(order.after);
}

void fsdp__races_expect(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access, const char *what)
{
    fsdp__actor *host = stream->device->races->host;
    fsdp__races *races = fsdp__races_lock(stream->device->races);

    if (stream->actor->has_thread)
        expect(races, host, stream->actor,
               (fsdp__order){.memory = memory, .bytes = bytes, .writes = access & FSDP__WRITES, .what = what});
    else
        use(races, host, memory, bytes, access, what, NULL);
    fsdp__races_unlock(races);
}

void fsdp__races_expect_no_use(fsdp_stream *stream)
{
    fsdp__races *races = fsdp__races_lock(stream->device->races);

    fsdp__actor_forget_uses(stream->actor);
    fsdp__races_unlock(races);
}

void fsdp__races_give_back(fsdp_device *device, const void *memory, size_t bytes)
{
    fsdp__actor *host = device->races->host, *actor = device->stream->actor;
    fsdp__races *races = fsdp__races_lock(device->races);
    fsdp__order order = {.memory = memory, .bytes = bytes, .frees = true, .step = fsdp__actor_step(host)};

    if (actor->has_thread)
        expect(races, host, actor, order);
    else
        give_back(races, host, &order, &host->clock);
    fsdp__races_unlock(races);
}

/* ---- streams and events ---- */

void fsdp__races_open_device(fsdp_device *device)
{
    device->races = fsdp__context_get(device->context, FSDP__SLOT_RACES);
}

fsdp_status fsdp__races_open_stream(fsdp_stream *stream)
{
    fsdp__races *races = fsdp__races_lock(stream->device->races);

    stream->actor = fsdp__stream_is_inline(stream) ? stream->device->races->host
                                                   : fsdp__races_add_actor(races, stream->device->races->rank, true);
    fsdp__races_unlock(races);
    return stream->actor ? FSDP_OK : FSDP_NO_MEMORY;
}

/* Carries out what the actor has in front of its next item. */
static void follow(fsdp__races *races, const fsdp__actor *host, fsdp__actor *actor, fsdp__order *orders)
{
    for (const fsdp__order *o = orders; o; o = o->next) {
        races->lost = !fsdp__actor_join(actor, o->after) || races->lost;
        if (o->frees)
            give_back(races, host, o, &actor->clock);
        else if (o->memory)
            use(races, actor, o->memory, o->bytes, o->writes ? FSDP__WRITES : FSDP__READS, o->what, NULL);
    }
    fsdp__orders_free(orders);
}

static void join_whole(fsdp__races *races, fsdp__actor *host, fsdp__actor *actor)
{
    fsdp__order *orders = actor->first;
    fsdp__instant *now;

    actor->first = actor->last = NULL;
    follow(races, host, actor, orders);
    now = fsdp__actor_now(actor);
    races->lost = !now || !fsdp__actor_join(host, now) || races->lost;
    fsdp__instant_unref(now);
}

void fsdp__races_close_stream(fsdp_device *device, fsdp__actor *actor)
{
    fsdp__races *races = fsdp__races_lock(device->races);

    join_whole(races, device->races->host, actor);
    actor->live = false;
    fsdp__races_unlock(races);
}

/* What travels through a queue in front of the argument. */
typedef struct item {
    _Alignas(16) fsdp__stream_work work;
    fsdp__order *orders;
    fsdp__instant *queued; /* where the host was when it queued the item */
} item;

static fsdp_status run_item(fsdp_stream *stream, const void *argument)
{
    const item *it = argument;
    fsdp__races *races = fsdp__races_lock(stream->device->races);
    fsdp__actor *actor = stream->actor;
    fsdp_status status;

    follow(races, stream->device->races->host, actor, it->orders);
    races->lost = !fsdp__actor_join(actor, it->queued) || races->lost;
    fsdp__instant_unref(it->queued);
    fsdp__races_unlock(races);
    status = it->work(stream, it + 1);
    races = fsdp__races_lock(stream->device->races);
    races->lost = !fsdp__actor_finish(actor) || races->lost;
    fsdp__races_unlock(races);
    return status;
}

fsdp_status fsdp__races_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes)
{
    fsdp__race_rank *rank = stream->device->races;
    fsdp__races *races = fsdp__races_lock(rank);
    item *it = fsdp__malloc(sizeof *it + bytes);
    fsdp_status status = FSDP_NO_MEMORY;

    if (it) {
        *it = (item){work, NULL, fsdp__actor_now(rank->host)};
        if (it->queued)
            it->orders = fsdp__actor_queue(stream->actor);
        status = it->queued ? FSDP_OK : FSDP_NO_MEMORY;
        if (bytes > 0)
            memcpy(it + 1, argument, bytes);
    }
    fsdp__races_unlock(races);
    if (status == FSDP_OK) {
        status = stream->device->backend->stream_enqueue(stream, run_item, it, sizeof *it + bytes);
        if (status != FSDP_OK) {
            races = fsdp__races_lock(rank);
            fsdp__actor_unqueue(stream->actor, it->orders);
            fsdp__instant_unref(it->queued);
            fsdp__races_unlock(races);
        }
    }
    fsdp__free(it);
    return status;
}

void fsdp__races_record(fsdp_event *event, fsdp_stream *stream)
{
    fsdp__races *races = fsdp__races_lock(stream->device->races);
    fsdp__instant *mark = fsdp__actor_mark(stream->actor);

    races->lost = races->lost || !mark;
    fsdp__instant_unref(event->mark);
    event->mark = mark;
    fsdp__races_unlock(races);
}

void fsdp__races_forget_event(fsdp_event *event)
{
    fsdp__races *races = fsdp__races_lock(event->device->races);

    fsdp__instant_unref(event->mark);
    event->mark = NULL;
    fsdp__races_unlock(races);
}

void fsdp__races_wait(fsdp_stream *stream, fsdp_event *event)
{
    fsdp__races *races = fsdp__races_lock(stream->device->races);

    if (event->mark)
        races->lost = !fsdp__actor_await(stream->actor, event->mark) || races->lost;
    fsdp__races_unlock(races);
}

void fsdp__races_host_waited(fsdp_event *event)
{
    fsdp__races *races = fsdp__races_lock(event->device->races);

    if (event->mark)
        races->lost = !fsdp__actor_join(event->device->races->host, event->mark) || races->lost;
    fsdp__races_unlock(races);
}

void fsdp__races_host_waited_for(fsdp_stream *stream)
{
    fsdp__races *races = fsdp__races_lock(stream->device->races);

    if (stream->actor->has_thread)
        join_whole(races, stream->device->races->host, stream->actor);
    fsdp__races_unlock(races);
}

/* ---- orders of other layers ---- */

static fsdp__actor *actor_of(const fsdp__race_rank *rank, const fsdp_stream *stream)
{
    return stream && stream->actor ? stream->actor : rank->host;
}

bool fsdp__races_are_checked(const fsdp_stream *stream)
{
    return stream->actor != NULL;
}

void fsdp__races_within(fsdp_stream *stream, const char *what, uint64_t number)
{
    fsdp__races *races;

    if (!stream->actor)
        return;
    races = fsdp__races_lock(stream->device->races);
    stream->actor->within = what ? fsdp__races_text(races, what) : NULL;
    stream->actor->number = number;
    fsdp__races_unlock(races);
}

void fsdp__races_publish(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number)
{
    const fsdp__race_rank *rank = fsdp__context_get(context, FSDP__SLOT_RACES);
    fsdp__races *races;

    if (!rank)
        return;
    races = fsdp__races_lock(rank);
    fsdp__races_post(races, actor_of(rank, stream), key, number);
    fsdp__races_unlock(races);
}

void fsdp__races_acquire(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number)
{
    const fsdp__race_rank *rank = fsdp__context_get(context, FSDP__SLOT_RACES);
    fsdp__races *races;

    if (!rank)
        return;
    races = fsdp__races_lock(rank);
    fsdp__races_collect(races, actor_of(rank, stream), key, number);
    fsdp__races_unlock(races);
}
