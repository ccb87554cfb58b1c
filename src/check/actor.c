/* actor.c - instants and orders: see [Note: what orders actors]. */
#include "check/actor.h"

#include "base/alloc.h"

fsdp__actor *fsdp__actor_create(int id, int rank, bool has_thread)
{
    fsdp__actor *actor = fsdp__calloc(1, sizeof *actor);

    if (!actor)
        return NULL;
    actor->id = id;
    actor->rank = rank;
    actor->has_thread = has_thread;
    actor->live = true;
    /* Step 0 stands for something that never happened, so steps begin with 1. */
    if (fsdp__vector_clock_set(&actor->clock, id, 1))
        return actor;
    fsdp__actor_free(actor);
    return NULL;
}

void fsdp__actor_free(fsdp__actor *actor)
{
    if (!actor)
        return;
    while (actor->awaited) {
        fsdp__instant *instant = actor->awaited;

        actor->awaited = instant->next;
        fsdp__instant_unref(instant);
    }
    fsdp__orders_free(actor->first);
    fsdp__instant_unref(actor->now);
    fsdp__vector_clock_release(&actor->clock);
    fsdp__free(actor);
}

/* ---- instants ---- */

static fsdp__instant *instant_ref(fsdp__instant *instant)
{
    instant->refs++;
    return instant;
}

void fsdp__instant_unref(fsdp__instant *instant)
{
    if (!instant || --instant->refs > 0)
        return;
    fsdp__orders_free(instant->after);
    fsdp__vector_clock_release(&instant->clock);
    fsdp__free(instant);
}

/* Drops the current instant: one that was taken before does not contain what happens from here on. */
static void move_on(fsdp__actor *actor)
{
    fsdp__instant_unref(fsdp__take(&actor->now));
}

uint64_t fsdp__actor_step(fsdp__actor *actor)
{
    move_on(actor);
    return fsdp__vector_clock_at(&actor->clock, actor->id);
}

bool fsdp__actor_join(fsdp__actor *actor, const fsdp__instant *instant)
{
    if (!fsdp__vector_clock_covers(&actor->clock, &instant->clock)) {
        move_on(actor);
        if (!fsdp__vector_clock_join(&actor->clock, &instant->clock))
            return false;
    }
    for (const fsdp__order *o = instant->after; o; o = o->next)
        if (!fsdp__actor_join(actor, o->after))
            return false;
    return true;
}

fsdp__instant *fsdp__actor_now(fsdp__actor *actor)
{
    fsdp__instant *now = actor->now;

    if (now)
        return instant_ref(now);
    now = fsdp__calloc(1, sizeof *now);
    if (!now)
        return NULL;
    now->refs = 1;
    if (!fsdp__vector_clock_join(&now->clock, &actor->clock)) {
        fsdp__instant_unref(now);
        return NULL;
    }
    actor->clock.at[actor->id]++;
    actor->now = instant_ref(now);
    return now;
}

/* Completes `instant`, which somebody already has: the actor has got there. */
static bool reach(fsdp__actor *actor, fsdp__instant *instant)
{
    fsdp__instant *now = fsdp__actor_now(actor);
    bool ok = now && fsdp__vector_clock_join(&instant->clock, &now->clock);

    fsdp__instant_unref(now);
    return ok;
}

/* ---- orders ---- */

void fsdp__orders_free(fsdp__order *orders)
{
    while (orders) {
        fsdp__order *next = orders->next;

        fsdp__instant_unref(orders->after);
        fsdp__free(orders);
        orders = next;
    }
}

bool fsdp__actor_expect(fsdp__actor *actor, const fsdp__order *before)
{
    fsdp__order *order = fsdp__malloc(sizeof *order);

    if (!order)
        return false;
    *order = *before;
    order->next = NULL;
    (void)instant_ref(order->after);
    if (actor->last)
        actor->last->next = order;
    else
        actor->first = order;
    actor->last = order;
    return true;
}

bool fsdp__actor_await(fsdp__actor *actor, fsdp__instant *instant)
{
    return actor->has_thread ? fsdp__actor_expect(actor, &(fsdp__order){.after = instant})
                             : fsdp__actor_join(actor, instant);
}

static bool copy_orders(const fsdp__order *orders, fsdp__order **out)
{
    for (; orders; orders = orders->next) {
        fsdp__order *copy = fsdp__malloc(sizeof *copy);

        if (!copy)
            return false;
        *copy = (fsdp__order){.next = *out, .after = instant_ref(orders->after)};
        *out = copy;
    }
    return true;
}

fsdp__instant *fsdp__actor_mark(fsdp__actor *actor)
{
    fsdp__instant *mark;

    if (!actor->has_thread)
        return fsdp__actor_now(actor);
    mark = fsdp__calloc(1, sizeof *mark);
    if (!mark)
        return NULL;
    mark->refs = 1;
    mark->number = actor->queued;
    if (!copy_orders(actor->first, &mark->after) || (actor->done == mark->number && !reach(actor, mark))) {
        fsdp__instant_unref(mark);
        return NULL;
    }
    if (actor->done != mark->number) {
        mark->next = actor->awaited;
        actor->awaited = instant_ref(mark);
    }
    return mark;
}

bool fsdp__actor_queue(fsdp__actor *actor, fsdp__actor *host)
{
    fsdp__item *item = fsdp__calloc(1, sizeof *item);

    if (!item)
        return false;
    item->queued = fsdp__actor_now(host);
    if (!item->queued) {
        fsdp__free(item);
        return false;
    }
    item->orders = actor->first;
    actor->first = actor->last = NULL;
    actor->queued++;
    if (actor->items)
        actor->newest->next = item;
    else
        actor->items = item;
    actor->newest = item;
    return true;
}

void fsdp__actor_unqueue(fsdp__actor *actor)
{
    fsdp__item *item = actor->newest, *before = actor->items;

    if (before == item)
        actor->items = before = NULL;
    while (before && before->next != item)
        before = before->next;
    if (before)
        before->next = NULL;
    actor->newest = before;
    actor->queued--;
    actor->first = actor->last = item->orders;
    while (actor->last && actor->last->next)
        actor->last = actor->last->next;
    fsdp__instant_unref(item->queued);
    fsdp__free(item);
}

fsdp__item *fsdp__actor_begin(fsdp__actor *actor)
{
    fsdp__item *item = actor->items;

    actor->items = item->next;
    return item;
}

bool fsdp__actor_finish(fsdp__actor *actor)
{
    bool ok = true;

    actor->done++;
    for (fsdp__instant **link = &actor->awaited; *link;) {
        fsdp__instant *instant = *link;

        if (instant->number > actor->done) {
            link = &instant->next;
            continue;
        }
        *link = instant->next;
        ok = reach(actor, instant) && ok;
        fsdp__instant_unref(instant);
    }
    return ok;
}
