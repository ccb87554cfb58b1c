/* fake_world.c - machines that do not exist, and their memory. */
#include "comm/transport/fake/fake_world.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"

typedef struct fsdp__fake_region {
    struct fsdp__fake_region *next;
    char *start;
    size_t bytes;
} region;

/* Returns whether one region holds all of the memory. */
static bool would_share(const fsdp__network_view *paper, const void *memory, size_t bytes)
{
    fsdp__fake *fake = (fsdp__fake *)(uintptr_t)paper;
    const char *at = memory;
    bool shares = false;

    pthread_mutex_lock(&fake->mutex);
    for (const region *r = fake->regions; r && !shares; r = r->next)
        shares = at >= r->start && bytes <= r->bytes && (size_t)(at - r->start) <= r->bytes - bytes;
    pthread_mutex_unlock(&fake->mutex);
    return shares;
}

fsdp__fake *fsdp__fake_new(int rank, int machines, int machine_ranks, bool one_level)
{
    fsdp__fake *fake = fsdp__calloc(1, sizeof *fake);

    if (!fake)
        return NULL;
    fake->paper.would_share = would_share;
    fake->paper.one_level = one_level;
    fake->paper.link.places = (fsdp__places){
        .ranks = machines * machine_ranks, .machines = machines, .machine_ranks = machine_ranks, .rank = rank};
    pthread_mutex_init(&fake->mutex, NULL);
    return fake;
}

/* ---- groups ---- */

fsdp_status fsdp__fake_group_open(void *fake, const fsdp__process_group_spec *spec, void **out)
{
    fsdp__fake_group *group = fsdp__calloc(1, sizeof *group);
    void *paper = NULL;
    fsdp_status status = group ? FSDP_OK : FSDP_NO_MEMORY;

    if (status == FSDP_OK && fake)
        status = fsdp__network_group_open(&((fsdp__fake *)fake)->paper, spec, &paper);
    if (status != FSDP_OK) {
        fsdp__free(group);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *group = (fsdp__fake_group){spec->rank, spec->count, paper};
    *out = group;
    return FSDP_OK;
}

void fsdp__fake_group_free(void *g)
{
    fsdp__fake_group *group = g;

    if (group->paper)
        fsdp__network_group_free(group->paper);
    fsdp__free(group);
}

int fsdp__fake_machines(const void *group)
{
    const fsdp__network_group *paper = ((const fsdp__fake_group *)group)->paper;

    return paper ? paper->machines : 1;
}

bool fsdp__fake_can_share(const void *group)
{
    const fsdp__network_group *paper = ((const fsdp__fake_group *)group)->paper;

    return paper && !paper->flat;
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
    return fsdp__fake_alloc(((fsdp__fake_group *)group)->paper->world, call->bytes, out);
}

void fsdp__fake_free_shared(void *group, void *pointer)
{
    fsdp__fake_free(((fsdp__fake_group *)group)->paper->world, pointer);
}
