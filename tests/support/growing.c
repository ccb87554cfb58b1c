#include "support/growing.h"

#include <sys/mman.h>

enum {
    RANGE_MIB = 1 << 13
};

/* Returns the number of a segment; NULL: a free number. */
static int number_of(const growing *g, const void *segment)
{
    int i = 0;

    while (i < GROWING_SEGMENTS && g->ends[i].segment != segment)
        i++;
    CHECK(i < GROWING_SEGMENTS);
    return i;
}

/* ---- pieces ---- */

static bool lies_in(const growing_piece *p, int segment, size_t from, size_t end)
{
    return p->segment == segment && p->offset >= from && p->offset + p->bytes <= end;
}

static void note_pieces(growing *g, int segment, size_t from, size_t end)
{
    while (g->piece_most > 0 && from < end) {
        size_t bytes = FSDP__MIN(end - from, g->piece_most);

        CHECK(g->piece_count < GROWING_PIECES);
        g->pieces[g->piece_count++] = (growing_piece){segment, from, bytes};
        from += bytes;
    }
}

static void drop_pieces(growing *g, int segment, size_t from, size_t end)
{
    for (int i = 0; i < g->piece_count;)
        if (lies_in(&g->pieces[i], segment, from, end))
            g->pieces[i] = g->pieces[--g->piece_count];
        else
            i++;
}

static void fit_pieces(const growing *g, int segment, size_t *from, size_t *end)
{
    size_t low = *end, high = *from;

    for (int i = 0; i < g->piece_count; i++)
        if (lies_in(&g->pieces[i], segment, *from, *end)) {
            low = FSDP__MIN(low, g->pieces[i].offset);
            high = FSDP__MAX(high, g->pieces[i].offset + g->pieces[i].bytes);
        }
    *from = low;
    *end = FSDP__MAX(low, high);
}

/* ---- segments ---- */

static void tell_leaving(const growing *g, const void *memory, size_t bytes)
{
    if (g->leaves)
        g->leaves(g->leaves_arg, memory, bytes);
}

static fsdp_status grow(void *arg, void *segment, size_t bytes, size_t more)
{
    growing *g = arg;
    int i = number_of(g, segment);

    if (bytes + more > (g->range ? g->range : RANGE_MIB * MIB))
        return FSDP_NOT_FOUND;
    if (more > g->limit - g->used)
        return FSDP_FAIL(FSDP_NO_MEMORY, "the test system has no %zu bytes", more);
    if (!g->dry)
        CHECK_EQ(mprotect((char *)segment + bytes, more, PROT_READ | PROT_WRITE), 0);
    note_pieces(g, i, bytes, bytes + more);
    g->used += more;
    g->ends[i].mapped += more;
    g->ends[i].end = FSDP__MAX(g->ends[i].end, bytes + more);
    return FSDP_OK;
}

static void give_back(void *arg, void *segment, size_t bytes)
{
    growing *g = arg;
    int i = number_of(g, segment);

    tell_leaving(g, segment, bytes);
    drop_pieces(g, i, 0, SIZE_MAX);
    CHECK_EQ(munmap(segment, RANGE_MIB * MIB), 0);
    g->used -= g->ends[i].mapped;
    g->ends[i].segment = NULL;
    g->ends[i].end = g->ends[i].mapped = 0;
}

static fsdp_status alloc(void *arg, size_t bytes, void **out)
{
    void *data = mmap(NULL, RANGE_MIB * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    growing *g = arg;
    fsdp_status status;

    CHECK(data != MAP_FAILED);
    g->ends[number_of(g, NULL)].segment = data;
    status = grow(arg, data, 0, bytes);
    if (status == FSDP_OK)
        *out = data;
    else
        give_back(arg, data, 0);
    return status;
}

static void fit(void *arg, void *segment, size_t *from, size_t *end)
{
    const growing *g = arg;

    if (g->piece_most > 0) {
        fit_pieces(g, number_of(g, segment), from, end);
        return;
    }
    *from = (*from + 4 * MIB - 1) / (4 * MIB) * (4 * MIB);
    if (*end != g->ends[number_of(g, segment)].end)
        *end = *end / (4 * MIB) * (4 * MIB);
}

static void cut(void *arg, void *segment, size_t from, size_t end)
{
    growing *g = arg;
    int i = number_of(g, segment);
    size_t *last = &g->ends[i].end;

    CHECK(from < end && end <= *last);
    tell_leaving(g, (char *)segment + from, end - from);
    drop_pieces(g, i, from, end);
    *last = end == *last ? from : *last;
    g->ends[i].mapped -= end - from;
    CHECK(mmap((char *)segment + from, end - from, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
          MAP_FAILED);
    g->used -= end - from;
}

static uint64_t queued(void *arg)
{
    return ((growing *)arg)->queued;
}

static uint64_t done(void *arg)
{
    const growing *g = arg;

    return g->behind ? g->done : UINT64_MAX;
}

static void settle(void *arg)
{
    growing *g = arg;
    fsdp_memory_stats stats;

    fsdp__allocator_stats(g->allocator, &stats); /* it can be used meanwhile */
    CHECK_EQ(stats.reserved_bytes, g->used);
    g->done = g->queued;
    g->settled++;
}

fsdp__allocator *growing_allocator(growing *g)
{
    const fsdp__segment_source source = {.name = "test",
                                         .has_bytes = !g->dry,
                                         .alloc = alloc,
                                         .free = give_back,
                                         .arg = g,
                                         .grow = grow,
                                         .fit = fit,
                                         .cut = cut,
                                         .queued = queued,
                                         .done = done,
                                         .settle = settle};

    return fsdp__allocator_create(&source, &g->allocator) == FSDP_OK ? g->allocator : NULL;
}
