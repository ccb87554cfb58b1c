/* fake_machines.c - machines that do not exist, and their memory. */
#include "comm/transport/fake/fake_machines.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "comm/transport/network/shape.h"

typedef struct fsdp__fake_region {
    struct fsdp__fake_region *next;
    char *start;
    size_t bytes;
} region;

fsdp__fake *fsdp__fake_new(int machine_ranks, bool one_level)
{
    fsdp__fake *fake = fsdp__calloc(1, sizeof *fake);

    if (!fake)
        return NULL;
    fake->machine_ranks = machine_ranks;
    fake->one_level = one_level;
    pthread_mutex_init(&fake->mutex, NULL);
    return fake;
}

fsdp__fake *fsdp__fake_of(const fsdp_process_group *group)
{
    /* The fake transport serves groups of one rank in any world. */
    return group->size > 1 ? group->comm->transport : NULL;
}

int fsdp__fake_machines(const void *g)
{
    const fsdp_process_group *group = g;
    const fsdp__fake *fake = fsdp__fake_of(group);

    return fake ? fsdp__group_shape_of(group->ranks, group->size, group->rank, fake->machine_ranks, fake->one_level)
                      .machines
                : 1;
}

bool fsdp__fake_can_share(const void *g)
{
    const fsdp_process_group *group = g;
    const fsdp__fake *fake = fsdp__fake_of(group);

    return fake &&
           !fsdp__group_shape_of(group->ranks, group->size, group->rank, fake->machine_ranks, fake->one_level).flat;
}

/* ---- memory ---- */

static void drop(region **link)
{
    region *r = *link;

    *link = r->next;
    (void)munmap(r->start, r->bytes);
    fsdp__free(r);
}

void fsdp__fake_close(void *f)
{
    fsdp__fake *fake = f;

    while (fake->regions)
        drop(&fake->regions);
    pthread_mutex_destroy(&fake->mutex);
    fsdp__free(fake);
}

bool fsdp__fake_shares(fsdp__fake *fake, const void *pointer, size_t bytes)
{
    const char *at = pointer;
    bool shares = false;

    pthread_mutex_lock(&fake->mutex);
    for (const region *r = fake->regions; r && !shares; r = r->next)
        shares = at >= r->start && bytes <= r->bytes && (size_t)(at - r->start) <= r->bytes - bytes;
    pthread_mutex_unlock(&fake->mutex);
    return shares;
}

fsdp_status fsdp__fake_alloc(void *f, size_t bytes, void **out)
{
    fsdp__fake *fake = f;
    region *r = fsdp__malloc(sizeof *r);

    if (!r)
        return FSDP_NO_MEMORY;
    r->bytes = bytes ? bytes : 1;
    r->start = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->start == MAP_FAILED) {
        fsdp__free(r);
        return FSDP_FAIL(FSDP_NO_MEMORY, "no address range of %zu bytes that ranks would share: %s", bytes,
                         strerrordesc_np(errno));
    }
    pthread_mutex_lock(&fake->mutex);
    r->next = fake->regions;
    fake->regions = r;
    pthread_mutex_unlock(&fake->mutex);
    *out = r->start;
    return FSDP_OK;
}

void fsdp__fake_free(void *f, void *pointer)
{
    fsdp__fake *fake = f;

    pthread_mutex_lock(&fake->mutex);
    for (region **link = &fake->regions; *link; link = &(*link)->next)
        if ((*link)->start == pointer) {
            drop(link);
            break;
        }
    pthread_mutex_unlock(&fake->mutex);
}

fsdp_status fsdp__fake_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out)
{
    (void)traffic;
    if (call->own_status != FSDP_OK)
        return FSDP_FAIL(call->own_status, "cannot allocate %zu bytes that ranks would share", call->bytes);
    return fsdp__fake_alloc(fsdp__fake_of(group), call->bytes, out);
}

void fsdp__fake_free_shared(void *group, void *pointer)
{
    fsdp__fake_free(fsdp__fake_of(group), pointer);
}
