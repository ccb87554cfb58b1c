/* device_region.c - makes, counts and ends regions of a GPU. */
#include "comm/transport/arena/device_region.h"

#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/probe.h"
#include "comm/health/region.h"
#include "device/kernels.h"
#include "device/moment.h"

enum {
    ALIGN = 64,
    LOOK_NS = 1000000,
    LAST_LOOKS = 100, /* when the world has ended */
    TOLD_NS = 1000000000
};

/* Counts the reads of one rank. The words of all ranks of the machine lie behind the header. */
typedef struct words {
    uint32_t over;           /* how many of its reads are over: its stream counts them */
    _Atomic uint32_t awaits; /* its streams wait until this many reads of every rank are over */
} words;

/* Describes a region as this rank has it open. */
typedef struct fsdp__device_region {
    struct fsdp__device_region *next; /* in the view, guarded by its mutex */
    fsdp_device *device;
    fsdp__export theirs;
    void *memory;
    bool opened;               /* another rank has made the memory */
    int group;                 /* its index */
    bool left;                 /* the program has given it back; it is closed when the device has nothing to do */
    fsdp__device_moment *last; /* the device is not asked again before it gets there; NULL: it is at the next look */
    fsdp__shared_header *header;
    words *words;              /* by rank of the arena */
    const fsdp_stream *waited; /* the last one that was made to wait, */
    uint64_t number;           /* and for what */
} region;

/* Describes memory that this rank has made. */
typedef struct fsdp__device_memory {
    struct fsdp__device_memory *next; /* of those that this rank has given back and others may still have open */
    fsdp__shared_header *header;
    fsdp_device *device;
    fsdp__export memory;
    int64_t rest; /* bytes that it takes beyond those that were asked for */
} made;

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

/* ---- life ---- */

size_t fsdp__device_region_words(const fsdp__arena_view *view)
{
    return FSDP__ROUND_UP((size_t)view->arena->board->world * sizeof(words), ALIGN);
}

static words *words_behind(const fsdp__arena_view *view, fsdp__shared_header *header)
{
    return (words *)&header->readers[view->arena->board->world];
}

/* Counts, or no longer counts, what the memory takes beyond what its ranks count as their parts. */
static void count_rest(const made *m, int64_t sign)
{
    if (m->rest > 0)
        fsdp__device_account(m->device, NULL, FSDP_MEMORY_WORKSPACE, sign * m->rest, false);
}

/* Writes zeros, and waits until they are there. */
static fsdp_status clear(fsdp_device *device, void *memory, size_t bytes)
{
    FSDP_TRY(fsdp__launch_fill_run(fsdp_device_stream(device), memory, FSDP_U8, (int64_t)bytes, 0));
    return fsdp_stream_synchronize(fsdp_device_stream(device));
}

fsdp_status fsdp__device_region_make(fsdp__shared_header *header, fsdp_device *device, size_t bytes, fsdp__export *out)
{
    made *m = fsdp__calloc(1, sizeof *m);
    fsdp_status status;

    FSDP__TRY_NEW(m);
    m->header = header;
    m->device = device;
    status = fsdp__device_export(device, bytes > 0 ? bytes : 1, false, &m->memory);
    if (status != FSDP_OK) {
        fsdp__free(m);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    header->made = m;
    m->rest = (int64_t)(m->memory.bytes - bytes);
    count_rest(m, 1);
    *out = m->memory;
    return clear(device, m->memory.memory, bytes);
}

static fsdp_status open_memory(region *r, bool own)
{
    if (own) {
        r->memory = r->theirs.memory;
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__device_import(r->device, &r->theirs, &r->memory));
    r->opened = true;
    return FSDP_OK;
}

static void close_memory(region *r)
{
    if (r->opened)
        fsdp__device_unimport(r->device, &r->theirs, r->memory);
    fsdp__moment_unref(r->last);
    fsdp__free(r);
}

fsdp_status fsdp__device_region_open(fsdp__arena_group *group, fsdp__shared_header *header, fsdp_device *device,
                                     const fsdp__export *theirs, void **out)
{
    fsdp__arena_view *view = group->world;
    region *r = fsdp__calloc(1, sizeof *r);
    fsdp_status status;

    FSDP__TRY_NEW(r);
    *r = (region){.device = device, .theirs = *theirs, .group = group->index, .header = header};
    r->words = words_behind(view, header);
    status = open_memory(r, group->rank == 0);
    if (status == FSDP_OK)
        status = fsdp__device_register_host(device, r->words, fsdp__device_region_words(view));
    if (status != FSDP_OK) {
        close_memory(r);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = r->memory;
    FSDP__HELD(&view->mutex);
    r->next = view->regions;
    view->regions = r;
    return FSDP_OK;
}

/* Returns the region that begins there; NULL: there is none. */
static region *region_at(fsdp__arena_view *view, const void *memory)
{
    region *r;

    FSDP__HELD(&view->mutex);
    r = view->regions;
    while (r && r->memory != memory)
        r = r->next;
    return r;
}

/* Asks when the device has done all that it has been given. Where it cannot tell, as one that is lost, or where the
 * host has no memory, it is asked again at the next look. */
static fsdp_status ask(region *r)
{
    bool held = fsdp_hold_error(true);
    fsdp_status status;

    fsdp__moment_unref(r->last);
    r->last = NULL;
    status = fsdp__device_mark_all(r->device, &r->last);
    fsdp_release_error(held);
    return status;
}

fsdp__shared_header *fsdp__device_region_leave(fsdp__arena_view *view, void *memory)
{
    region *r = region_at(view, memory);

    if (!r)
        return NULL;
    r->left = true;
    return r->header;
}

void fsdp__region_count_out(const fsdp__arena_view *view, fsdp__shared_header *header)
{
    FSDP__TELL(ORDER_PUBLISHED, .context = view->context, .object = header);
    atomic_store(&header->readers[view->rank].gave_back, true);
    atomic_fetch_add(&header->given_back, 1);
}

/* Returns whether a region was given back, and closing it waits for nothing. */
static bool may_close(region *r)
{
    return r->left && (!r->last || r->last->reached(r->last)) && ask(r) == FSDP_OK && !r->last;
}

/* Waits until the device has nothing to do, or is lost: then whoever closes the region waits for it. If the host has no
 * memory to note when that is, it looks again: to see that a device has nothing to do takes none. */
static void await_device(region *r)
{
    for (fsdp_status status; (status = ask(r)) == FSDP_NO_MEMORY || r->last;)
        if (r->last)
            (void)r->last->wait(r->last);
        else
            nap();
}

static void unlist(fsdp__arena_view *view, region **link)
{
    FSDP__HELD(&view->mutex);
    *link = (*link)->next;
}

/* Closes a region that is on no list, and counts this rank out: from the last one's count on the owner may free it. */
static void close_region(const fsdp__arena_view *view, region *r)
{
    fsdp__shared_header *header = r->header;

    fsdp__device_unregister_host(r->device, r->words, fsdp__device_region_words(view));
    close_memory(r);
    fsdp__region_count_out(view, header);
}

/* Closes what the program has given back, where that waits for nothing; with `all`, all that it has given back. */
static void close_left(fsdp__arena_view *view, bool all)
{
    for (region **link = &view->regions, *r; (r = *link) != NULL;) { /* only the program's thread changes the list */
        if (!may_close(r) && !(all && r->left)) {
            link = &r->next;
            continue;
        }
        if (all)
            await_device(r);
        unlist(view, link);
        close_region(view, r);
    }
}

/* Takes the memory off the list of those that are kept; does nothing where it is not there. */
static void forget(fsdp__arena_view *view, const made *m)
{
    made **link = &view->kept;

    while (*link && *link != m)
        link = &(*link)->next;
    if (*link)
        *link = m->next;
}

/* Ends what the rank has of memory that it made: with `all`, the memory as well. */
static void drop(fsdp__arena_view *view, made *m, bool all)
{
    forget(view, m);
    count_rest(m, -1);
    m->header->made = NULL;
    if (all)
        fsdp__device_unexport(m->device, &m->memory);
    else
        fsdp__device_leave_export(m->device, &m->memory);
    fsdp__free(m);
}

void fsdp__device_region_free(fsdp__arena_view *view, fsdp__shared_header *header)
{
    if (header->made)
        drop(view, header->made, true);
}

fsdp__shared_header *fsdp__device_region_header(fsdp__arena_view *view, const void *memory)
{
    const region *r = region_at(view, memory);

    return r ? r->header : NULL;
}

/* ---- when nobody has it open ---- */

void fsdp__device_region_keep(fsdp__arena_view *view, const fsdp__shared_header *header)
{
    made *m = header->made;

    if (!m)
        return;
    /* The ledger counts what calls have given back as given back, whatever the others do. */
    count_rest(m, -1);
    m->rest = 0;
    m->next = view->kept;
    view->kept = m;
}

void fsdp__device_regions_look(fsdp__arena_view *view)
{
    made *next;

    close_left(view, false);
    for (made *m = view->all_readable ? NULL : view->kept; m; m = next) {
        next = m->next;
        if (atomic_load(&m->header->given_back) < m->header->ranks)
            continue;
        FSDP__TELL(ORDER_ACQUIRED, .context = view->context, .object = m->header);
        drop(view, m, true);
    }
}

/* ---- as the rank leaves ---- */

/* Returns whether another rank has the memory open and may still give it back. */
static bool is_open(const fsdp__arena_view *view, const fsdp__shared_header *header)
{
    const fsdp__board *board = view->arena->board;
    bool open = false;

    if (atomic_load(&header->given_back) == header->ranks)
        return false;
    for (int r = 0; r < board->world && !open; r++)
        open = r != view->rank && header->readers[r].member && !atomic_load(&header->readers[r].gave_back) &&
               !fsdp__board_is_gone(board, r);
    return open;
}

/* Waits until no other rank has the memory open; returns whether that came. */
static bool await_others(const fsdp__arena_view *view, const fsdp__shared_header *header)
{
    int64_t start = fsdp__clock_ns(), timeout = atomic_load(&view->health.timeout_ms) * INT64_C(1000000);
    bool told = false;

    for (int i = 0; is_open(view, header); i++) {
        int64_t waited = fsdp__clock_ns() - start;

        if ((fsdp__board_aborted(view->arena->board) && i >= LAST_LOOKS) || (timeout > 0 && waited > timeout))
            return false;
        if (!told && waited > TOLD_NS) {
            fsdp_log(view->context, FSDP_LOG_INFO,
                     "this rank leaves when the others have freed parameters in the memory of its GPU");
            told = true;
        }
        nap();
    }
    return true;
}

void fsdp__device_regions_end(fsdp__arena_view *view)
{
    close_left(view, true);
    while (view->kept)
        drop(view, view->kept, await_others(view, view->kept->header));
}

/* ---- readers ---- */

fsdp_status fsdp__device_region_done(void *g, void *memory, uint64_t number, fsdp_stream *stream)
{
    const fsdp__arena_group *group = g;
    const region *r = region_at(group->world, memory);

    return fsdp__stream_write_word(stream, &r->words[group->world->rank].over, (uint32_t)number);
}

fsdp_status fsdp__device_region_await(void *g, void *memory, uint64_t number, fsdp_stream *stream)
{
    const fsdp__arena_group *group = g;
    region *r = region_at(group->world, memory);

    if (number == 0 || (r->waited == stream && r->number == number)) /* what comes later on the stream waits as well */
        return FSDP_OK;
    /* Say what this rank awaits before its stream waits: whoever looks after devices that wait looks at this number. */
    atomic_store(&r->words[group->world->rank].awaits, (uint32_t)number);
    for (int p = 0; p < group->size; p++)
        if (p != group->rank)
            FSDP_TRY(fsdp__stream_await_word(stream, &r->words[group->ranks[p]].over, (uint32_t)number));
    r->waited = stream;
    r->number = number;
    return FSDP_OK;
}

/* ---- from outside ---- */

static bool waits(const region *r, int rank, int other)
{
    return r->header->readers[other].member &&
           fsdp__word_is_behind(fsdp__word_at(&r->words[other].over), atomic_load(&r->words[rank].awaits));
}

bool fsdp__device_regions_wait(const fsdp__arena_group *group, int rank, int other)
{
    bool any = false;

    FSDP__HELD(&group->world->mutex);
    for (const region *r = group->world->regions; r && !any; r = r->next)
        any = r->group == group->index && waits(r, group->ranks[rank], group->ranks[other]);
    return any;
}

uint64_t fsdp__device_regions_reads(const fsdp__arena_group *group)
{
    uint64_t sum = 0;

    FSDP__HELD(&group->world->mutex);
    for (const region *r = group->world->regions; r; r = r->next)
        for (int p = 0; p < group->size && r->group == group->index; p++)
            sum += fsdp__word_at(&r->words[group->ranks[p]].over);
    return sum;
}

/* A peer that lives may overwrite a word with less, so this is done again. */
void fsdp__device_regions_release(const fsdp__arena_group *group)
{
    FSDP__HELD(&group->world->mutex);
    for (const region *r = group->world->regions; r; r = r->next)
        for (int p = 0; p < group->size && r->group == group->index; p++)
            if (p != group->rank && waits(r, group->ranks[group->rank], group->ranks[p]))
                __atomic_store_n(&r->words[group->ranks[p]].over,
                                 atomic_load(&r->words[group->ranks[group->rank]].awaits), __ATOMIC_RELEASE);
}
