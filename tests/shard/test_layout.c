/* The table of parts: over all ranks every element of every parameter lies in one place, whatever is sharded. */
#include "base/rng.h"
#include "shard/group/layout.h"
#include "support/test.h"

enum {
    PARAMETERS = 6,
    RANKS = 8
};

typedef struct drawn {
    fsdp__extent extents[PARAMETERS];
    int64_t count;
    fsdp__layout_options options;
} drawn;

static int64_t draw(uint64_t seed, uint64_t index, int64_t below)
{
    const uint32_t counter[4] = {(uint32_t)index, 0, 0, 0}, key[2] = {(uint32_t)seed, 7};
    uint32_t words[4];

    fsdp__philox4x32(counter, key, words);
    return words[0] % (uint32_t)below;
}

static drawn draw_case(uint64_t seed)
{
    drawn d = {.count = 1 + draw(seed, 0, PARAMETERS)};

    d.options = (fsdp__layout_options){.kind = draw(seed, 1, 2) ? FSDP__LAYOUT_FLAT : FSDP__LAYOUT_PER_PARAMETER,
                                       .ranks = 1 + draw(seed, 2, RANKS),
                                       .unsharded_align = (int64_t)1 << draw(seed, 4, 5)};
    for (int64_t i = 0; i < d.count; i++)
        d.extents[i] = (fsdp__extent){1 + draw(seed, 10 + 3 * (uint64_t)i, 3), draw(seed, 11 + 3 * (uint64_t)i, 12),
                                      1 + draw(seed, 12 + 3 * (uint64_t)i, 5)};
    return d;
}

/* Counts what `part` covers: in its parameter, and in the rank's shard. */
static void cover(const fsdp__layout_part *part, unsigned char *parameter, int64_t numel, unsigned char *shard,
                  int64_t shard_numel)
{
    for (int64_t o = 0; o < part->outer; o++)
        for (int64_t i = 0; i < part->inner; i++) {
            int64_t element = part->at + o * part->stride + i, place = part->in_shard + o * part->inner + i;

            CHECK(element >= 0 && element < numel);
            CHECK(place >= 0 && place < shard_numel);
            parameter[element]++;
            CHECK_EQ(shard[place]++, 0);
        }
}

static void check_places(const drawn *d, const fsdp__layout *layout)
{
    int64_t end = 0;

    for (int64_t i = 0; i < d->count; i++) {
        const struct fsdp__layout_entry *e = &layout->entries[i];

        CHECK_EQ(e->part.parameter, i);
        CHECK(e->in_unsharded >= end);
        CHECK_EQ(e->in_unsharded % d->options.unsharded_align, 0);
        end = e->in_unsharded + fsdp__extent_numel(&d->extents[i]);
        if (d->options.kind == FSDP__LAYOUT_FLAT)
            continue;
        CHECK(fsdp__layout_part_numel(&e->part) <= e->chunk_numel);
        CHECK(e->chunk_numel * d->options.ranks >= fsdp__extent_numel(&d->extents[i]));
    }
    CHECK(end <= layout->unsharded_numel);
}

static void check_case(drawn d)
{
    unsigned char *parameters[PARAMETERS], *shard;

    for (int64_t i = 0; i < d.count; i++)
        parameters[i] = calloc((size_t)fsdp__extent_numel(&d.extents[i]) + 1, 1);
    for (d.options.rank = 0; d.options.rank < d.options.ranks; d.options.rank++) {
        fsdp__layout layout;

        CHECK_OK(fsdp__layout_make(d.extents, d.count, &d.options, &layout));
        check_places(&d, &layout);
        shard = calloc((size_t)layout.shard_numel + 1, 1);
        for (int64_t i = 0; i < d.count; i++)
            cover(&layout.entries[i].part, parameters[i], fsdp__extent_numel(&d.extents[i]), shard, layout.shard_numel);
        free(shard);
        fsdp__layout_release(&layout);
    }
    for (int64_t i = 0; i < d.count; i++) {
        for (int64_t n = 0; n < fsdp__extent_numel(&d.extents[i]); n++)
            CHECK_EQ(parameters[i][n], 1);
        free(parameters[i]);
    }
}

TEST(every_element_lies_in_one_place)
{
    uint64_t seeds = test_long() ? 100000 : 2000;

    for (uint64_t seed = 0; seed < seeds; seed++)
        check_case(draw_case(seed));
}

/* 5 rows over 3 ranks: 2, 2, 1; with 4 ranks: 2, 2, 1, 0. */
TEST(per_parameter_follows_the_chunk_rule)
{
    const int64_t rows[2][4] = {{2, 2, 1}, {2, 2, 1, 0}};
    const fsdp__extent extent = {2, 5, 3};

    for (int64_t ranks = 3; ranks <= 4; ranks++)
        for (int64_t rank = 0; rank < ranks; rank++) {
            const fsdp__layout_options options = {.ranks = ranks, .rank = rank, .unsharded_align = 1};
            fsdp__layout layout;

            CHECK_OK(fsdp__layout_make(&extent, 1, &options, &layout));
            CHECK_EQ(layout.entries[0].part.inner, rows[ranks - 3][rank] * 3);
            CHECK_EQ(layout.entries[0].part.outer, 2);
            CHECK_EQ(layout.entries[0].part.stride, 15);
            CHECK_EQ(layout.entries[0].chunk_numel, 2 * 2 * 3);
            fsdp__layout_release(&layout);
        }
}

/* 7 + 5 elements over 2 ranks: the cut at 6 goes through the first parameter. */
TEST(flat_cuts_through_parameters)
{
    const fsdp__extent extents[] = {{1, 7, 1}, {1, 5, 1}};
    const fsdp__layout_options options = {.kind = FSDP__LAYOUT_FLAT, .ranks = 2, .rank = 1, .unsharded_align = 1};
    fsdp__layout layout;

    CHECK_OK(fsdp__layout_make(extents, 2, &options, &layout));
    CHECK_EQ(layout.shard_numel, 6);
    CHECK_EQ(layout.entries[0].part.at, 6);
    CHECK_EQ(layout.entries[0].part.inner, 1);
    CHECK_EQ(layout.entries[0].part.in_shard, 0);
    CHECK_EQ(layout.entries[1].part.at, 0);
    CHECK_EQ(layout.entries[1].part.inner, 5);
    CHECK_EQ(layout.entries[1].part.in_shard, 1);
    fsdp__layout_release(&layout);
}

TEST(a_table_without_memory_is_refused)
{
    const fsdp__extent extent = {1, 3, 1};
    const fsdp__layout_options options = {.ranks = 2, .unsharded_align = 1};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__layout layout;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__layout_make(&extent, 1, &options, &layout));
        fsdp__layout_release(&layout);
    }
}
