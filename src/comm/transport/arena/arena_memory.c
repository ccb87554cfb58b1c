/* arena_memory.c - memory that peers see: what a rank takes from the arena's heap, and regions that a group shares.
 *
 * Blocks come from the same allocator as a device's (device/allocator.h); only its segments come from the heap. A
 * shared region lies in a segment of the group's first rank and begins with a header (health/region.h). The owner takes
 * back regions that were freed when the group allocates the next one, between two meetings, where no rank can be
 * freeing one at the same time: so every run frees at the same points, but for regions on a device that is late.
 * Regions of a group that has ended are taken back when any of the owner's groups allocates. */
#include "comm/transport/arena/arena_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/probe.h"
#include "base/text.h"
#include "comm/transport/arena/arena_readers.h"
#include "comm/transport/arena/device_region.h"
#include "comm/transport/arena/rendezvous.h"

enum {
    MAX_HOLES = 64,
    WORTH_A_CALL = 1 << 20
};

typedef struct range {
    size_t start, bytes;
} range;

/* Says where a rank's segments come from. All ranks take segments from one heap, in address order; those that a rank
 * returns leave holes, which belong to it and are filled first. */
typedef struct fsdp__heap_source {
    const fsdp_context *context;
    unsigned char *start;
    uint64_t bytes;
    _Atomic uint64_t *used; /* by all ranks */
    bool file;              /* the pages belong to a memory file */
    bool closing;           /* peers may still read: keep the pages */
    int hole_count;
    range holes[MAX_HOLES]; /* of more holes than this the rest is lost as address space, not as memory */
} heap_source;

/* ---- segments ---- */

static fsdp_status heap_take(void *arg, size_t bytes, void **out)
{
    heap_source *heap = arg;
    uint64_t used = atomic_load(heap->used);

    for (int i = 0; i < heap->hole_count; i++) {
        range *hole = &heap->holes[i];
        if (hole->bytes < bytes)
            continue;
        *out = heap->start + hole->start;
        hole->start += bytes;
        hole->bytes -= bytes;
        if (hole->bytes == 0)
            *hole = heap->holes[--heap->hole_count];
        FSDP__TELL(MEMORY_MAPPED, .context = heap->context, .memory = *out, .bytes = bytes);
        return FSDP_OK;
    }
    do {
        if (bytes > heap->bytes - used)
            return FSDP_FAIL(FSDP_NO_MEMORY, "the ranks' shared memory has %llu of %llu bytes left",
                             (unsigned long long)(heap->bytes - used), (unsigned long long)heap->bytes);
    } while (!atomic_compare_exchange_weak(heap->used, &used, used + bytes));
    *out = heap->start + used;
    FSDP__TELL(MEMORY_MAPPED, .context = heap->context, .memory = *out, .bytes = bytes);
    return FSDP_OK;
}

static void heap_give(void *arg, void *segment, size_t bytes)
{
    heap_source *heap = arg;
    size_t start = (size_t)((unsigned char *)segment - heap->start);
    uint64_t end = start + bytes;

    if (heap->closing)
        return;
    FSDP__TELL(MEMORY_UNMAPPED, .context = heap->context, .memory = segment);
    /* For a file, MADV_DONTNEED only unmaps the pages and keeps their bytes: MADV_REMOVE gives them up. */
    (void)madvise(segment, bytes, heap->file ? MADV_REMOVE : MADV_DONTNEED);
    /* The last segment of the heap becomes free for every rank again. */
    if (atomic_compare_exchange_strong(heap->used, &end, start))
        return;
    if (heap->hole_count < MAX_HOLES)
        heap->holes[heap->hole_count++] = (range){start, bytes};
}

fsdp_status fsdp__arena_memory_open(fsdp__arena_view *view)
{
    heap_source *heap = fsdp__calloc(1, sizeof *heap);
    fsdp__segment_source source = {
        .name = "shared memory", .has_bytes = true, .alloc = heap_take, .free = heap_give, .arg = heap};

    FSDP__TRY_NEW(heap);
    view->source = heap;
    heap->context = view->context;
    heap->start = fsdp__arena_heap(view->arena);
    heap->bytes = view->arena->control->heap_bytes;
    heap->used = &view->arena->control->heap_used;
    heap->file = view->arena->of_file;
    return fsdp__allocator_create(&source, &view->heap);
}

void fsdp__arena_memory_close(fsdp__arena_view *view)
{
    if (view->source)
        view->source->closing = true;
    fsdp__allocator_free(view->heap);
    fsdp__free(view->source);
}

/* ---- one rank's own ---- */

fsdp_status fsdp__arena_alloc(void *transport, size_t bytes, void **out)
{
    fsdp__arena_view *view = transport;

    return fsdp__allocator_take(view->heap, bytes, FSDP_MEMORY_WORKSPACE, out);
}

void fsdp__arena_free(void *transport, void *pointer)
{
    fsdp__arena_view *view = transport;

    (void)fsdp__allocator_give(view->heap, pointer);
}

/* ---- shared by a group ---- */

static void take_back(fsdp__arena_view *world, fsdp__shared_header **list)
{
    for (fsdp__shared_header **link = list; *link;) {
        fsdp__shared_header *header = *link;
        if (atomic_load(&header->given_back) < header->ranks) {
            link = &header->next;
            continue;
        }
        *link = header->next;
        FSDP__TELL(ORDER_ACQUIRED, .context = world->context, .object = header);
        fsdp__device_region_free(world, header);
        fsdp__arena_free(world, header);
    }
}

/* Returns the bytes of the whole pages inside the memory; the first page is `*first`. */
static size_t whole_pages(unsigned char *memory, size_t bytes, unsigned char **first)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (size_t)(-(uintptr_t)memory % page);

    *first = memory + before;
    return bytes > before ? (bytes - before) / page * page : 0;
}

void fsdp__arena_give_pages(const fsdp__arena_view *world, void *memory, size_t bytes)
{
    unsigned char *first;

    bytes = whole_pages(memory, bytes, &first);
    if (bytes > 0)
        (void)madvise(first, bytes, world->source->file ? MADV_REMOVE : MADV_DONTNEED);
}

/* Zeroes the memory. Whole pages are given up and come back empty. Each then belongs to the rank that first writes to
 * it, so that the shared memory is charged to all ranks and not to this one alone. */
static void clear(const fsdp__arena_view *world, unsigned char *memory, size_t bytes)
{
    unsigned char *first;
    size_t inside = whole_pages(memory, bytes, &first), before = (size_t)(first - memory);

    if (bytes < WORTH_A_CALL || !world->source->file || madvise(first, inside, MADV_REMOVE) != 0) {
        memset(memory, 0, bytes);
        return;
    }
    memset(memory, 0, before);
    memset(first + inside, 0, bytes - before - inside);
}

/* Holds what the first rank answers, in its payload. */
typedef struct answer {
    int32_t status;
    uint64_t offset;
    fsdp__export memory; /* of a device */
    char message[512];
} answer;

/* Does the first rank's part, while the others wait for the second meeting. */
static fsdp_status make_shared(fsdp__arena_group *group, const fsdp__call *call, answer *out)
{
    size_t header_bytes = fsdp__shared_header_bytes(group);
    size_t behind = call->device ? fsdp__device_region_words(group->world) : call->bytes;
    void *memory = NULL;
    fsdp__shared_header *header;
    fsdp_status status = FSDP_OK;

    take_back(group->world, &group->freed);
    take_back(group->world, &group->world->freed);
    if (behind > SIZE_MAX - header_bytes)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%zu bytes are more than there are addresses", behind);
    FSDP_TRY(fsdp__arena_alloc(group->world, behind + header_bytes, &memory));
    /* Memory from this heap has its old contents; readers must count from zero. */
    clear(group->world, memory, behind + header_bytes);
    header = memory;
    header->ranks = group->size;
    for (int r = 0; r < group->size; r++)
        header->readers[group->ranks[r]].member = true;
    if (call->device)
        status = fsdp__device_region_make(header, call->device, call->bytes, &out->memory);
    if (status != FSDP_OK) {
        fsdp__device_region_free(group->world, header);
        fsdp__arena_free(group->world, memory);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    out->offset = fsdp__to_offset(group, memory);
    return FSDP_OK;
}

/* Tells the others whether this rank can take part, or has got its part, and `why` it has not, and learns of them. All
 * see the same entries, so all give up together. */
static fsdp_status agree(fsdp__arena_group *group, const fsdp__call *call, fsdp_status mine, const char *why,
                         fsdp__traffic *traffic)
{
    fsdp__entry entry = {.own_status = (int32_t)mine};
    answer *said = (answer *)fsdp__payload_to_show(group);

    fsdp__shown(why, said->message, sizeof said->message);
    FSDP_TRY(fsdp__show(group, call, &entry, traffic));
    for (int r = 0; r < group->size; r++) {
        int32_t status = fsdp__entry_of(group, r)->own_status;

        said = (answer *)fsdp__payload_of(group, r);
        if (status != FSDP_OK)
            return FSDP_FAIL((fsdp_status)status, "rank %d: cannot allocate %zu bytes shared by group '%s'%s%s",
                             fsdp__board_global(group->world->arena->board, group->ranks[r]), call->bytes, group->name,
                             said->message[0] ? ": " : "", said->message);
    }
    return FSDP_OK;
}

/* Gives a region back: from the last rank's count on the owner may take it. `counts`: this rank is counted out here. */
static void give_back(fsdp__arena_group *group, fsdp__shared_header *header, bool counts)
{
    /* Keep the region before counting this rank out. */
    if (group->rank == 0) {
        header->next = group->freed;
        group->freed = header;
        fsdp__device_region_keep(group->world, header);
    }
    if (counts)
        fsdp__region_count_out(group->world, header);
    fsdp__device_regions_look(group->world);
}

/* Opens the memory of a device on all ranks, or on none. */
static fsdp_status open_on_all(fsdp__arena_group *group, const fsdp__call *call, const answer *theirs,
                               fsdp__traffic *traffic, void **out)
{
    fsdp__shared_header *header = fsdp__from_offset(group, theirs->offset);
    fsdp_status mine = fsdp__device_region_open(group, header, call->device, &theirs->memory, out), all;
    bool held = fsdp_hold_error(mine != FSDP_OK);

    all = agree(group, call, mine, mine == FSDP_OK ? "" : fsdp_last_error(), traffic);
    fsdp_release_error(held);
    if (mine == FSDP_OK && all == FSDP_OK)
        return FSDP_OK;
    if (mine == FSDP_OK)
        (void)fsdp__device_region_leave(group->world, *out);
    give_back(group, header, mine != FSDP_OK);
    *out = NULL;
    return mine == FSDP_OK ? all : mine;
}

fsdp_status fsdp__arena_alloc_shared(void *g, const fsdp__call *call, fsdp__traffic *traffic, void **out)
{
    fsdp__arena_group *group = g;
    answer *theirs;
    fsdp_status met;

    fsdp__device_regions_look(group->world);
    FSDP_TRY(agree(group, call, call->own_status, "", traffic));
    /* This is the payload of the meeting that has just ended: peers read it only after the next meeting. */
    theirs = (answer *)fsdp__payload_of(group, 0);
    if (group->rank == 0) {
        memset(theirs, 0, sizeof *theirs);
        theirs->status = make_shared(group, call, theirs);
        if (theirs->status != FSDP_OK)
            fsdp__shown(fsdp_last_error(), theirs->message, sizeof theirs->message);
    }
    met = fsdp__rendezvous(group, traffic);
    if (met != FSDP_OK && group->rank == 0 && theirs->status == FSDP_OK) /* the world has ended meanwhile */
        give_back(group, fsdp__from_offset(group, theirs->offset), true);
    FSDP_TRY(met);
    if (theirs->status != FSDP_OK)
        return FSDP_FAIL((fsdp_status)theirs->status, "rank %d: %s",
                         fsdp__board_global(group->world->arena->board, group->ranks[0]), theirs->message);
    if (call->device)
        return open_on_all(group, call, theirs, traffic, out);
    *out = (char *)fsdp__from_offset(group, theirs->offset) + fsdp__shared_header_bytes(group);
    return FSDP_OK;
}

void fsdp__arena_free_shared(void *g, void *pointer)
{
    fsdp__arena_group *group = g;
    fsdp__shared_header *header = fsdp__device_region_leave(group->world, pointer);

    give_back(group, header ? header : fsdp__shared_header_of(group, pointer), !header);
}
