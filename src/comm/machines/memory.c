/* memory.c - a region on each machine, or none on any. */
#include "comm/machines/memory.h"

#include "base/alloc.h"
#include "comm/symmetric/memory.h"

/* What was given out and not given back. */
typedef struct fsdp__machine_region {
    struct fsdp__machine_region *next;
    const char *start;
    size_t bytes;
} region;

bool fsdp__machines_shares(fsdp__machines *machines, const void *pointer, size_t bytes)
{
    const char *at = pointer;
    bool shares = false;

    pthread_mutex_lock(&machines->mutex);
    for (const region *r = machines->regions; r && !shares; r = r->next)
        shares = at >= r->start && bytes <= r->bytes && (size_t)(at - r->start) <= r->bytes - bytes;
    pthread_mutex_unlock(&machines->mutex);
    return shares;
}

static void remember(fsdp__machines *machines, region *r, const void *start, size_t bytes)
{
    pthread_mutex_lock(&machines->mutex);
    *r = (region){machines->regions, start, bytes};
    machines->regions = r;
    pthread_mutex_unlock(&machines->mutex);
}

static void forget(fsdp__machines *machines, const void *start)
{
    region *found = NULL;

    pthread_mutex_lock(&machines->mutex);
    for (region **link = &machines->regions; *link && !found; link = &(*link)->next)
        if ((*link)->start == start) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_mutex_unlock(&machines->mutex);
    fsdp__free(found);
}

fsdp_status fsdp__machines_alloc(void *transport, size_t bytes, void **out)
{
    return fsdp__symmetric_alloc(((fsdp__machines *)transport)->local, bytes, out);
}

void fsdp__machines_free(void *transport, void *pointer)
{
    fsdp__symmetric_free(((fsdp__machines *)transport)->local, pointer);
}

/* What became of it here, and learns what became of it elsewhere. */
static fsdp_status compare_results(fsdp__machines_group *group, const fsdp__call *call, fsdp_status mine,
                                   fsdp__traffic *traffic)
{
    fsdp__header own = {.own_status = (int32_t)mine};
    fsdp__meeting meeting;
    fsdp_status status = fsdp__meeting_begin(&meeting, group, call, &own, NULL);

    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, traffic);
    for (int p = 0; status == FSDP_OK && mine == FSDP_OK && p < group->columns; p++)
        if (fsdp__meeting_header(&meeting, p)->own_status != FSDP_OK)
            status = FSDP_FAIL((fsdp_status)fsdp__meeting_header(&meeting, p)->own_status,
                               "rank %d: cannot allocate %zu bytes shared by group '%s'", group->column[p], call->bytes,
                               group->name);
    fsdp__meeting_release(&meeting);
    return status;
}

fsdp_status fsdp__machines_alloc_shared(void *g, const fsdp__call *call, fsdp__traffic *traffic, void **out)
{
    fsdp__machines_group *group = g;
    region *r = fsdp__malloc(sizeof *r);
    fsdp__call with_own = *call;
    fsdp_status mine, status;
    bool held;

    /* Told to the others in the call, as whoever cannot take part does. */
    if (!r)
        with_own.own_status = FSDP_NO_MEMORY;
    mine = fsdp__symmetric_alloc_shared(group->local, &with_own, traffic, out);
    if (mine == FSDP_OK)
        remember(group->world, r, *out, call->bytes);
    else
        fsdp__free(r);
    if (fsdp__machines_is_local(group))
        return mine;
    held = fsdp_hold_error(mine != FSDP_OK);
    status = compare_results(group, call, mine, traffic);
    fsdp_release_error(held);
    if (mine != FSDP_OK)
        return mine;
    if (status != FSDP_OK) {
        fsdp__machines_free_shared(group, *out);
        *out = NULL;
    }
    return status;
}

void fsdp__machines_free_shared(void *g, void *pointer)
{
    fsdp__machines_group *group = g;

    forget(group->world, pointer);
    fsdp__symmetric_free_shared(group->local, pointer);
}
