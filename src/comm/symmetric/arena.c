/* arena.c - laying the shared memory out, mapping it, finding things in it. */
#include "comm/symmetric/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/cores.h"

#define MAGIC 0x324d59534344u /* changes with the layout */
#define PAGE ((size_t)4096)
#define HEAP_STEP ((size_t)1 << 30)

/* Offsets of the parts. The parts with a page to themselves come last, so that small worlds touch few pages. */
typedef struct layout {
    size_t groups, slots, payloads, staging, heaps, end;
} layout;

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static layout lay_out(int world, size_t heap_bytes)
{
    size_t ranks = (size_t)world, pairs = FSDP__ARENA_GROUPS * ranks;
    layout l;

    l.groups = round_up(sizeof(fsdp__control) + ranks * sizeof(fsdp__arena_rank), 64);
    l.slots = round_up(l.groups + FSDP__ARENA_GROUPS * sizeof(fsdp__arena_group), 64);
    l.payloads = round_up(l.slots + pairs * FSDP__SLOT_BYTES, PAGE);
    l.staging = round_up(l.payloads + pairs * 2 * FSDP__PAYLOAD_BYTES, PAGE);
    l.heaps = round_up(l.staging + pairs * 2 * FSDP__STAGING_BYTES, HEAP_STEP);
    l.end = l.heaps + ranks * heap_bytes;
    return l;
}

static layout layout_of(const fsdp__arena *arena)
{
    return lay_out(arena->control->world, arena->control->heap_bytes);
}

/* No rank can ever fill more than the machine has. */
static size_t physical_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    return pages > 0 && page > 0 ? round_up((size_t)pages * (size_t)page, HEAP_STEP) : 16 * HEAP_STEP;
}

/* ---- making and mapping ---- */

static fsdp_status arena_new(fsdp__arena **out)
{
    fsdp__arena *arena = fsdp__calloc(1, sizeof *arena);

    if (!arena)
        return FSDP_NO_MEMORY;
    arena->fd = -1;
    atomic_store(&arena->refs, 1);
    *out = arena;
    return FSDP_OK;
}

static fsdp_status map(fsdp__arena *arena, int fd, size_t bytes)
{
    /* Each rank has room for as much as the machine has, so nearly all of it is never touched: reserve nothing. */
    int flags = MAP_NORESERVE | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (base == MAP_FAILED)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot map %zu bytes of address space for shared memory: %s", bytes,
                         strerror(errno));
    arena->base = base;
    arena->bytes = bytes;
    arena->control = base;
    return FSDP_OK;
}

static void use_huge_pages(const fsdp__arena *arena)
{
#ifdef MADV_HUGEPAGE
    layout l = layout_of(arena);

    (void)madvise(arena->base + l.heaps, l.end - l.heaps, MADV_HUGEPAGE); /* refused by some systems: no harm */
#else
    (void)arena;
#endif
}

static fsdp_status make_file(fsdp__arena *arena, size_t bytes)
{
    arena->fd = memfd_create("fsdp", MFD_CLOEXEC);
    if (arena->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot make shared memory: %s", strerror(errno));
    if (ftruncate(arena->fd, (off_t)bytes) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot make shared memory of %zu bytes: %s", bytes, strerror(errno));
    return FSDP_OK;
}

/* Address space may be limited (ulimit -v, strict overcommit): smaller heaps are better than none. */
static fsdp_status map_largest(fsdp__arena *arena, int world, bool file, size_t *heap_bytes)
{
    fsdp_status status = FSDP_OK;

    for (size_t heap = physical_bytes(); heap >= HEAP_STEP; heap = round_up(heap / 2, HEAP_STEP)) {
        size_t bytes = lay_out(world, heap).end;

        if (file && arena->fd < 0)
            status = make_file(arena, bytes);
        else if (file && ftruncate(arena->fd, (off_t)bytes) != 0)
            status = FSDP_FAIL(FSDP_IO, "cannot resize shared memory: %s", strerror(errno));
        if (status != FSDP_OK)
            return status;
        status = map(arena, arena->fd, bytes);
        *heap_bytes = heap;
        if (status == FSDP_OK || heap == HEAP_STEP)
            return status;
    }
    return status;
}

fsdp_status fsdp__arena_create(int world, bool file, fsdp__arena **out)
{
    fsdp__arena *arena = NULL;
    size_t heap_bytes = 0;
    fsdp_status status = FSDP_OK;

    if (world < 1 || world > FSDP__ARENA_RANKS)
        return FSDP_FAIL(FSDP_INVALID, "cannot share memory between %d ranks: 1 to %d on one machine", world,
                         FSDP__ARENA_RANKS);
    FSDP_TRY(arena_new(&arena));
    FSDP_TRY_GOTO(status, map_largest(arena, world, file, &heap_bytes), out);
    arena->control->magic = MAGIC;
    arena->control->world = world;
    arena->control->heap_bytes = heap_bytes;
    arena->control->crowded = world > fsdp__allowed_cores();
    arena->control->abort_rank = -1;
    use_huge_pages(arena);
    *out = arena;
    arena = NULL;
out:
    fsdp__arena_unref(arena);
    return status;
}

fsdp_status fsdp__arena_map(int fd, fsdp__arena **out)
{
    fsdp__arena *arena = NULL;
    struct stat info;
    fsdp_status status = FSDP_OK;

    if (fstat(fd, &info) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot use file descriptor %d as shared memory: %s", fd, strerror(errno));
    if ((size_t)info.st_size < sizeof(fsdp__control))
        return FSDP_FAIL(FSDP_FORMAT, "file descriptor %d is not the shared memory of a world", fd);
    FSDP_TRY(arena_new(&arena));
    FSDP_TRY_GOTO(status, map(arena, fd, (size_t)info.st_size), out);
    if (arena->control->magic != MAGIC || layout_of(arena).end != arena->bytes) {
        status = FSDP_FAIL(FSDP_FORMAT, "file descriptor %d is not the shared memory of a world of this version", fd);
        goto out;
    }
    use_huge_pages(arena);
    *out = arena;
    arena = NULL;
out:
    fsdp__arena_unref(arena);
    return status;
}

fsdp__arena *fsdp__arena_ref(fsdp__arena *arena)
{
    atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);
    return arena;
}

void fsdp__arena_unref(fsdp__arena *arena)
{
    if (!arena || atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) > 1)
        return;
    if (arena->base)
        (void)munmap(arena->base, arena->bytes);
    if (arena->fd >= 0)
        (void)close(arena->fd);
    fsdp__free(arena);
}

/* ---- where things are ---- */

static size_t pair(const fsdp__arena *arena, int group, int rank)
{
    return (size_t)group * (size_t)arena->control->world + (size_t)rank;
}

fsdp__arena_group *fsdp__arena_group_at(const fsdp__arena *arena, int group)
{
    return (fsdp__arena_group *)(arena->base + layout_of(arena).groups) + group;
}

void *fsdp__arena_slot(const fsdp__arena *arena, int group, int rank)
{
    return arena->base + layout_of(arena).slots + pair(arena, group, rank) * FSDP__SLOT_BYTES;
}

unsigned char *fsdp__arena_payload(const fsdp__arena *arena, int group, int rank, int half)
{
    return arena->base + layout_of(arena).payloads +
           (2 * pair(arena, group, rank) + (size_t)half) * FSDP__PAYLOAD_BYTES;
}

unsigned char *fsdp__arena_staging(const fsdp__arena *arena, int group, int rank, int half)
{
    return arena->base + layout_of(arena).staging + (2 * pair(arena, group, rank) + (size_t)half) * FSDP__STAGING_BYTES;
}

unsigned char *fsdp__arena_passage(const fsdp__arena *arena, size_t *bytes)
{
    layout l = layout_of(arena);

    *bytes = l.heaps - l.payloads;
    return arena->base + l.payloads;
}

unsigned char *fsdp__arena_heap(const fsdp__arena *arena, int rank)
{
    return arena->base + layout_of(arena).heaps + (size_t)rank * arena->control->heap_bytes;
}

bool fsdp__arena_holds(const fsdp__arena *arena, const void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer, first = (uintptr_t)fsdp__arena_heap(arena, 0);
    uintptr_t end = (uintptr_t)(arena->base + arena->bytes);

    return at >= first && at <= end && bytes <= end - at;
}
