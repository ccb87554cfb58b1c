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
    g->used += more;
    g->ends[i].mapped += more;
    g->ends[i].end = FSDP__MAX(g->ends[i].end, bytes + more);
    return FSDP_OK;
}

static void give_back(void *arg, void *segment, size_t bytes)
{
    growing *g = arg;
    int i = number_of(g, segment);

    (void)bytes;
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

    *from = (*from + 4 * MIB - 1) / (4 * MIB) * (4 * MIB);
    if (*end != g->ends[number_of(g, segment)].end)
        *end = *end / (4 * MIB) * (4 * MIB);
}

static void cut(void *arg, void *segment, size_t from, size_t end)
{
    growing *g = arg;
    size_t *last = &g->ends[number_of(g, segment)].end;

    CHECK(from < end && end <= *last);
    *last = end == *last ? from : *last;
    g->ends[number_of(g, segment)].mapped -= end - from;
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
