/* memory_course.c - records the changes of a ledger. */
#include "watch/memory_course.h"

#include "base/alloc.h"
#include "device/device.h"

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    fsdp__memory_course *c = arg;

    if (fsdp__stream_device(e->stream) != c->device || e->kind == FSDP_MEMORY_WORKSPACE || c->status != FSDP_OK)
        return FSDP_OK;
    if (fsdp__grow(&c->changes, c->count, &c->capacity, sizeof *c->changes))
        c->status = FSDP_NO_MEMORY;
    else
        c->changes[c->count++] = (fsdp__memory_change){(int64_t)e->number, (fsdp_memory_kind)e->kind};
    return FSDP_OK;
}

fsdp_status fsdp__memory_course_begin(fsdp__memory_course *c, fsdp_device *device)
{
    fsdp_memory_stats stats;

    *c = (fsdp__memory_course){.device = device};
    fsdp_device_memory(device, &stats);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        c->live[kind] = kind == FSDP_MEMORY_WORKSPACE ? 0 : stats.live_bytes[kind];
    c->subscriber =
        fsdp__context_subscribe(fsdp_device_context(device), FSDP__POINT_BIT(FSDP__POINT_MEMORY_COUNTED), see, c);
    return c->subscriber ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__memory_course_end(fsdp__memory_course *c)
{
    fsdp__unsubscribe(c->subscriber);
    c->subscriber = NULL;
    return c->status;
}

int64_t fsdp__memory_course_peak(const fsdp__memory_course *c, size_t *bytes)
{
    int64_t live = 0, most, at = 0;

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        live += (int64_t)c->live[kind];
    most = live;
    for (int64_t i = 0; i < c->count; i++) {
        live += c->changes[i].bytes;
        if (live > most) {
            most = live;
            at = i + 1;
        }
    }
    *bytes = (size_t)most;
    return at;
}

void fsdp__memory_course_release(fsdp__memory_course *c)
{
    fsdp__free(c->changes);
    *c = (fsdp__memory_course){.changes = NULL};
}
