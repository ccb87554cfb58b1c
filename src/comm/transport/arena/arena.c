/* arena.c - lays out the shared memory, maps it, and finds things in it. */
#include "comm/transport/arena/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"

#define MAGIC 0x384d59534344u /* changes with the layout */
#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define HEAP_STEP ((size_t)1 << 30)
#define HEAP_LEAST ((size_t)64 << 20)

/* Holds the offsets of the parts. Parts whose entries have pages to themselves come last, so that small worlds touch
 * few pages. */
typedef struct layout {
    size_t slots, words, payloads, staging, heap, end;
} layout;

static layout lay_out(int world, int ranks, size_t heap_bytes)
{
    size_t pairs = FSDP__BOARD_GROUPS * (size_t)world;
    layout l;

    l.slots = sizeof(fsdp__control) + fsdp__board_bytes(world, ranks);
    l.words = FSDP__ROUND_UP(l.slots + pairs * FSDP__SLOT_BYTES, PAGE);
    l.payloads = FSDP__ROUND_UP(l.words + pairs * sizeof(fsdp__words), PAGE);
    l.staging = FSDP__ROUND_UP(l.payloads + pairs * 2 * FSDP__PAYLOAD_BYTES, PAGE);
    l.heap = FSDP__ROUND_UP(l.staging + pairs * 2 * FSDP__STAGING_BYTES, HUGE_PAGE);
    l.end = l.heap + heap_bytes;
    return l;
}

static layout layout_of(const fsdp__arena *arena)
{
    return lay_out(arena->board->world, arena->board->ranks, arena->control->heap_bytes);
}

/* Chooses twice the machine's memory: ranks cannot fill more, and may leave holes. Where address space is limited
 * (ulimit -v) it takes half of what is left, as the ranks need some for themselves; where the size of files is limited
 * (ulimit -f, which applies to memory files), it takes that. */
static fsdp_status choose_heap(int world, int ranks, bool file, size_t *out)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t control = lay_out(world, ranks, 0).end;
    uint64_t most = 2 * (pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 16 * (uint64_t)HEAP_STEP);
    uint64_t space = fsdp__address_space_left() / 2, size = file ? fsdp__file_size_limit() : FSDP__NO_LIMIT;
    uint64_t limit = FSDP__MIN(space, size);

    *out = FSDP__ROUND_UP(most, HEAP_STEP);
    if (limit < control + HEAP_LEAST)
        return FSDP_FAIL(FSDP_NO_MEMORY,
                         "shared memory for %d ranks needs at least %llu MiB, and twice as much address space: '%s' "
                         "leaves %llu MiB; raise it, or start fewer ranks",
                         world, (unsigned long long)((control + HEAP_LEAST) >> 20),
                         size < space ? "ulimit -f" : "ulimit -v",
                         (unsigned long long)((size < space ? size : 2 * space) >> 20));
    if (limit - control < *out)
        *out = (size_t)(limit - control) / HUGE_PAGE * HUGE_PAGE;
    return FSDP_OK;
}

/* ---- making and mapping ---- */

static fsdp_status arena_new(fsdp__arena **out)
{
    fsdp__arena *arena = fsdp__calloc(1, sizeof *arena);

    FSDP__TRY_NEW(arena);
    arena->fd = -1;
    atomic_store(&arena->refs, 1);
    *out = arena;
    return FSDP_OK;
}

static fsdp_status map(fsdp__arena *arena, int fd, size_t bytes)
{
    /* The heap is larger than the machine's memory, so most of it is never touched: reserve nothing. */
    int flags = MAP_NORESERVE | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (base == MAP_FAILED)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot map %zu bytes of address space for shared memory: %s%s", bytes,
                         strerror(errno), fsdp__limit_behind(errno));
    arena->base = base;
    arena->bytes = bytes;
    arena->of_file = fd >= 0;
    arena->control = base;
    arena->board = (fsdp__board *)(arena->control + 1);
    return FSDP_OK;
}

static void use_huge_pages(const fsdp__arena *arena)
{
#ifdef MADV_HUGEPAGE
    layout l = layout_of(arena);

    (void)madvise(arena->base + l.heap, l.end - l.heap, MADV_HUGEPAGE); /* some systems refuse: no harm */
#else
    (void)arena;
#endif
}

static fsdp_status make_file(fsdp__arena *arena, size_t bytes)
{
    arena->fd = memfd_create("fsdp", MFD_CLOEXEC);
    if (arena->fd < 0)
        return FSDP_FAIL(FSDP_IO, "cannot make shared memory: %s%s", strerror(errno), fsdp__limit_behind(errno));
    if (ftruncate(arena->fd, (off_t)bytes) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot make shared memory of %zu bytes: %s%s", bytes, strerror(errno),
                         fsdp__limit_behind(errno));
    return FSDP_OK;
}

fsdp_status fsdp__arena_create(int world, int ranks, bool file, fsdp__arena **out)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    size_t heap_bytes = 0, bytes;

    if (world < 1 || world > FSDP__BOARD_RANKS)
        return FSDP_FAIL(FSDP_INVALID, "cannot share memory between %d ranks: 1 to %d on one machine", world,
                         FSDP__BOARD_RANKS);
    FSDP_TRY(arena_new(&arena));
    FSDP_TRY(choose_heap(world, ranks, file, &heap_bytes));
    bytes = lay_out(world, ranks, heap_bytes).end;
    if (file)
        FSDP_TRY(make_file(arena, bytes));
    FSDP_TRY(map(arena, arena->fd, bytes));
    arena->control->magic = MAGIC;
    fsdp__board_begin(arena->board, world, ranks);
    arena->control->heap_bytes = heap_bytes;
    arena->control->crowded = world > fsdp__allowed_cores();
    use_huge_pages(arena);
    *out = fsdp__take(&arena);
    return FSDP_OK;
}

static fsdp_status size_of(int fd, size_t *out)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot use file descriptor %d as shared memory: %s", fd, strerror(errno));
    if ((size_t)info.st_size < sizeof(fsdp__control) + fsdp__board_least_bytes())
        return FSDP_FAIL(FSDP_FORMAT, "file descriptor %d is not the shared memory of a world", fd);
    *out = (size_t)info.st_size;
    return FSDP_OK;
}

/* Maps all of it, or only what any board has. */
static fsdp_status map_part(int fd, bool all, fsdp__arena **out)
{
    FSDP__SCOPED(fsdp__arena_unref_at) fsdp__arena *arena = NULL;
    size_t bytes = 0;

    FSDP_TRY(size_of(fd, &bytes));
    FSDP_TRY(arena_new(&arena));
    if (!all)
        bytes = sizeof(fsdp__control) + fsdp__board_least_bytes();
    FSDP_TRY(map(arena, fd, bytes));
    if (arena->control->magic != MAGIC || (all && layout_of(arena).end != arena->bytes))
        return FSDP_FAIL(FSDP_FORMAT, "file descriptor %d is not the shared memory of a world of this version", fd);
    *out = fsdp__take(&arena);
    return FSDP_OK;
}

fsdp_status fsdp__arena_map_control(int fd, fsdp__arena **out)
{
    return map_part(fd, false, out);
}

fsdp_status fsdp__arena_map(int fd, fsdp__arena **out)
{
    FSDP_TRY(map_part(fd, true, out));
    use_huge_pages(*out);
    return FSDP_OK;
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
    return (size_t)group * (size_t)arena->board->world + (size_t)rank;
}

void *fsdp__arena_slot(const fsdp__arena *arena, int group, int rank)
{
    return arena->base + layout_of(arena).slots + pair(arena, group, rank) * FSDP__SLOT_BYTES;
}

fsdp__words *fsdp__arena_words_of(const fsdp__arena *arena, int group, int rank)
{
    return (fsdp__words *)(arena->base + layout_of(arena).words) + pair(arena, group, rank);
}

void *fsdp__arena_words(const fsdp__arena *arena, size_t *bytes)
{
    layout l = layout_of(arena);

    *bytes = l.payloads - l.words;
    return arena->base + l.words;
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

    *bytes = l.heap - l.payloads;
    return arena->base + l.payloads;
}

unsigned char *fsdp__arena_heap(const fsdp__arena *arena)
{
    return arena->base + layout_of(arena).heap;
}

bool fsdp__arena_holds(const fsdp__arena *arena, const void *pointer, size_t bytes)
{
    uintptr_t at = (uintptr_t)pointer, first = (uintptr_t)fsdp__arena_heap(arena);
    uintptr_t end = (uintptr_t)(arena->base + arena->bytes);

    return at >= first && at <= end && bytes <= end - at;
}
