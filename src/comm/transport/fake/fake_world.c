/* fake_world.c - machines that do not exist, and their memory. */
#include "comm/transport/fake/fake_world.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "base/lock.h"
#include "comm/transport/arena/shown.h"
#include "comm/transport/network/meeting.h"
#include "comm/transport/network/network_calls.h"
#include "comm/transport/sharded_buffer.h"

typedef struct fsdp__fake_region {
    struct fsdp__fake_region *next;
    char *start;
    size_t bytes;
} region;

/* ---- what a world on paper does: [Note: a world on paper] ---- */

/* Returns whether one region holds all of the memory. */
static bool would_share(fsdp__fake *fake, const void *memory, size_t bytes)
{
    const char *at = memory;
    bool shares = false;

    FSDP__HELD(&fake->mutex);
    for (const region *r = fake->regions; r && !shares; r = r->next)
        shares = at >= r->start && bytes <= r->bytes && (size_t)(at - r->start) <= r->bytes - bytes;
    return shares;
}

static fsdp_status show(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic, bool *visible)
{
    fsdp__fake *fake = (fsdp__fake *)group->world;

    (void)traffic;
    *visible = fsdp__shown_is_direct(call);
    for (int64_t i = 0; i < call->buffer_count && *visible; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        size_t bytes = (size_t)fsdp__unsharded_numel(b) * fsdp_dtype_size(b->unsharded_dtype);

        *visible = bytes == 0 || !b->unsharded || would_share(fake, b->unsharded, bytes);
    }
    return FSDP_OK;
}

/* Every rank contributes to what this one contributes to. */
static bool adds(const fsdp__network_group *group, const fsdp__call *call, int local, int64_t i)
{
    (void)group, (void)local;
    return call->buffers[i].unsharded;
}

static fsdp_status open_nobody(fsdp__network_group *group, const fsdp__process_group_spec *spec)
{
    (void)group, (void)spec;
    return FSDP_OK;
}

static void *take_none(size_t bytes)
{
    (void)bytes;
    return fsdp__malloc(1);
}

static void copy_nothing(void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
}

/* Every rank says what this one says, which is already there in a meeting; data stays where it is. */
static fsdp_status carry(fsdp__exchange *x, const fsdp__leg *sends, int send_count, const fsdp__leg *receives,
                         int receive_count)
{
    const fsdp__segment *said =
        send_count > 0 && x->tag % FSDP__TAG_KINDS == FSDP__TAG_HEADER ? sends[0].segments : NULL;

    for (int i = 0; said && i < receive_count; i++)
        if (receives[i].segments->data != said->data)
            memcpy(receives[i].segments->data, said->data, said->bytes);
    return FSDP_OK;
}

static fsdp_status compare_nothing(const fsdp__meeting *meeting)
{
    (void)meeting;
    return FSDP_OK;
}

static bool is_alike(const struct fsdp__fake_call *one, const struct fsdp__fake_call *other)
{
    return one->count == other->count && one->run == other->run && one->dtype == other->dtype &&
           one->root == other->root && one->flag_count == other->flag_count && one->lacking == other->lacking;
}

/* Counts a plain call. */
static fsdp_status remember(fsdp__network_group *group, fsdp__collective run, const fsdp__call *call,
                            fsdp__traffic *traffic)
{
    fsdp__fake_calls *calls = group->paper;
    int places = (int)FSDP__COUNT_OF(calls->last), known = FSDP__MIN(calls->count, places), i = 0;
    struct fsdp__fake_call one = {.run = run,
                                  .count = call->count,
                                  .flag_count = call->flag_count,
                                  .dtype = call->dtype,
                                  .root = call->root,
                                  .lacking = call->flags && memchr(call->flags, 0, (size_t)call->flag_count)};

    while (i < known && !is_alike(&calls->last[i], &one))
        i++;
    if (i == known) {
        fsdp__traffic network = {.stream = traffic->stream};

        FSDP_TRY(run(group, call, &network));
        one.sent = network.network_sent;
        one.received = network.network_received;
        one.messages = network.network_messages;
        i = calls->count++ % places;
        calls->last[i] = one;
    }
    traffic->network_sent += calls->last[i].sent;
    traffic->network_received += calls->last[i].received;
    traffic->network_messages += calls->last[i].messages;
    return FSDP_OK;
}

static fsdp_status gather_piece(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return remember(group, fsdp__network_all_gather, call, traffic);
}

static fsdp_status scatter_piece(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return remember(group, fsdp__network_all_to_all, call, traffic);
}

static const fsdp__world_acts acts = {
    .on_paper = true,
    .all_gather = gather_piece,
    .all_to_all = scatter_piece,
    .open_local = open_nobody,
    .take = take_none,
    .copy = copy_nothing,
    .carry = carry,
    .compare = compare_nothing,
    .show = show,
    .adds = adds,
};

fsdp_status fsdp__fake_count(const fsdp__fake_group *group, fsdp__collective run, const fsdp__call *call,
                             fsdp__traffic *traffic)
{
    fsdp__traffic network = {.stream = traffic->stream};
    fsdp__call same = *call;

    if (!group->paper || fsdp__network_is_local(group->paper))
        return FSDP_OK;
    same.contributed = NULL;
    same.lacking = NULL;
    FSDP_TRY(call->buffer_count > 0 ? run(group->paper, &same, &network)
                                    : remember(group->paper, run, &same, &network));
    traffic->network_sent += network.network_sent;
    traffic->network_received += network.network_received;
    traffic->network_messages += network.network_messages;
    return FSDP_OK;
}

/* ---- the world ---- */

fsdp__fake *fsdp__fake_new(int rank, int machines, int machine_ranks, bool one_level)
{
    fsdp__fake *fake = fsdp__calloc(1, sizeof *fake);

    if (!fake)
        return NULL;
    fake->paper.acts = &acts;
    fake->paper.one_level = one_level;
    fake->paper.link.places = (fsdp__places){
        .ranks = machines * machine_ranks, .machines = machines, .machine_ranks = machine_ranks, .rank = rank};
    pthread_mutex_init(&fake->mutex, NULL);
    return fake;
}

/* ---- groups ---- */

fsdp_status fsdp__fake_group_open(void *fake, const fsdp__process_group_spec *spec, void **out)
{
    FSDP__FREED fsdp__fake_group *group = fsdp__calloc(1, sizeof *group);
    void *paper = NULL;

    FSDP__TRY_NEW(group);
    if (fake)
        FSDP_TRY(fsdp__network_group_open(&((fsdp__fake *)fake)->paper, spec, &paper));
    *group = (fsdp__fake_group){.rank = spec->rank, .size = spec->count, .paper = paper};
    if (group->paper)
        group->paper->paper = &group->calls;
    *out = fsdp__take(&group);
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

    FSDP__TRY_NEW(r);
    r->bytes = bytes ? bytes : 1;
    r->start = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->start == MAP_FAILED) {
        fsdp__free(r);
        return FSDP_FAIL(FSDP_NO_MEMORY, "no address range of %zu bytes that ranks would share: %s%s", bytes,
                         strerrordesc_np(errno), fsdp__limit_behind(errno));
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

    FSDP__HELD(&fake->mutex);
    for (region **link = &fake->regions; *link; link = &(*link)->next)
        if ((*link)->start == pointer) {
            drop(link);
            break;
        }
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
