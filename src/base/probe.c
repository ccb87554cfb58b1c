/* probe.c - the subscribers. */
#include "base/probe.h"

_Atomic uint64_t fsdp__probed;
static fsdp__subscriber *first, **end = &first;

void fsdp__subscribe(fsdp__subscriber *subscriber)
{
    *end = subscriber;
    end = &subscriber->next;
    atomic_fetch_or_explicit(&fsdp__probed, subscriber->points, memory_order_relaxed);
}

fsdp_status fsdp__probe(fsdp__probe_event *event)
{
    for (const fsdp__subscriber *s = first; s; s = s->next) {
        fsdp_status status = s->points & FSDP__POINT_BIT(event->point) ? s->see(event) : FSDP_OK;

        if (status != FSDP_OK)
            return status;
    }
    return FSDP_OK;
}
