/* Where parameters lie: over all ranks every element of every parameter lies in one place, whatever is sharded. */
#include "base/rng.h"
#include "shard/group/param_group.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    PARAMETERS = 6,
    RANKS = 8,
    ELEMENT = sizeof(float)
};

/* A group that is laid out and has no memory. */
typedef struct drawn {
    fsdp__param params[PARAMETERS];
    fsdp__param_group group;
} drawn;

static int64_t draw(uint64_t seed, uint64_t index, int64_t below)
{
    const uint32_t counter[4] = {(uint32_t)index, 0, 0, 0}, key[2] = {(uint32_t)seed, 7};
    uint32_t words[4];

    fsdp__philox4x32(counter, key, words);
    return words[0] % (uint32_t)below;
}

static drawn make_case(const fsdp__cut *cut, int ranks, const fsdp__extent *extents, int64_t count)
{
    drawn d = {.group = {.cut = cut, .param_count = count, .residence.mesh.ranks = ranks}};

    for (int64_t i = 0; i < count; i++)
        d.params[i] = (fsdp__param){
            .extent = extents[i], .orig_dtype = FSDP_F32, .param_dtype = FSDP_F32, .reduce_dtype = FSDP_F32};
    return d;
}

static void lay_out(drawn *d, int rank)
{
    d->group.params = d->params;
    d->group.residence.mesh.rank = rank;
    fsdp__param_group_lay_out(&d->group);
}

static drawn draw_case(uint64_t seed)
{
    fsdp__extent extents[PARAMETERS];
    int64_t count = 1 + draw(seed, 0, PARAMETERS);
    drawn d;

    for (int64_t i = 0; i < count; i++)
        extents[i] = (fsdp__extent){1 + draw(seed, 10 + 3 * (uint64_t)i, 3), draw(seed, 11 + 3 * (uint64_t)i, 12),
                                    1 + draw(seed, 12 + 3 * (uint64_t)i, 5)};
    d = make_case(draw(seed, 1, 2) ? &fsdp__cut_flat : &fsdp__cut_by_parameter, 1 + (int)draw(seed, 2, RANKS), extents,
                  count);
    d.group.flat.align = ELEMENT << draw(seed, 4, 5);
    return d;
}

/* Counts what this rank's part covers: in its parameter, and in the rank's shard. */
static void cover(const fsdp__param *p, unsigned char *parameter, unsigned char *shard, int64_t shard_numel)
{
    for (int64_t o = 0; o < p->part.outer; o++)
        for (int64_t i = 0; i < p->part.inner; i++) {
            int64_t element = p->part.at + o * p->part.stride + i;
            int64_t place = (int64_t)(p->shard_offset / ELEMENT) + o * p->part.inner + i;

            CHECK(element >= 0 && element < fsdp__param_numel(p));
            CHECK(place >= 0 && place < shard_numel);
            parameter[element]++;
            CHECK_EQ(shard[place]++, 0);
        }
}

/* Whole parameters do not overlap: in a vector they lie in their order, elsewhere vectors may lie behind matrices. */
static void check_apart(const drawn *d, int64_t number)
{
    const fsdp__param *p = &d->params[number];
    size_t begin = p->unsharded_offset, end = begin + (size_t)fsdp__param_numel(p) * ELEMENT;

    CHECK(end <= d->group.residence.unsharded_bytes);
    for (int64_t i = 0; i < number; i++) {
        const fsdp__param *before = &d->params[i];
        size_t before_end = before->unsharded_offset + (size_t)fsdp__param_numel(before) * ELEMENT;

        CHECK(begin >= before_end || (d->group.cut != &fsdp__cut_flat && end <= before->unsharded_offset));
    }
}

static void check_places(const drawn *d)
{
    bool flat = d->group.cut == &fsdp__cut_flat;

    for (int64_t i = 0; i < d->group.param_count; i++) {
        const fsdp__param *p = &d->params[i];

        check_apart(d, i);
        CHECK_EQ(p->unsharded_offset % d->group.flat.align, 0);
        CHECK_EQ(p->placement.kind, flat ? FSDP_FLAT : FSDP_SHARD);
        CHECK_EQ(p->placement.first, flat ? p->unsharded_offset / ELEMENT : 0);
        if (flat)
            continue;
        CHECK(fsdp__param_shard_numel(p) <= p->chunk_numel);
        CHECK(p->chunk_numel * d->group.residence.mesh.ranks >= fsdp__param_numel(p));
    }
}

/* What decides how ranks hold a group must be the same on all of them, also on one that has no rows. */
static void check_runs(drawn d)
{
    for (int64_t i = 0; i < d.group.param_count; i++) {
        bool runs = true;

        for (int rank = 0; rank < d.group.residence.mesh.ranks; rank++) {
            const fsdp__part *part = &d.params[i].part;

            lay_out(&d, rank);
            runs = runs && (part->outer <= 1 || part->inner == 0 || part->inner == part->stride);
        }
        for (int rank = 0; rank < d.group.residence.mesh.ranks; rank++) {
            lay_out(&d, rank);
            CHECK_EQ(fsdp__param_is_one_run(&d.params[i]), runs);
        }
    }
}

static void check_case(drawn d)
{
    unsigned char *parameters[PARAMETERS], *shard;

    for (int64_t i = 0; i < d.group.param_count; i++)
        parameters[i] = calloc((size_t)fsdp__param_numel(&d.params[i]) + 1, 1);
    for (int rank = 0; rank < d.group.residence.mesh.ranks; rank++) {
        int64_t numel;

        lay_out(&d, rank);
        check_places(&d);
        numel = (int64_t)(d.group.residence.shard_bytes / ELEMENT);
        shard = calloc((size_t)numel + 1, 1);
        for (int64_t i = 0; i < d.group.param_count; i++)
            cover(&d.params[i], parameters[i], shard, numel);
        free(shard);
    }
    for (int64_t i = 0; i < d.group.param_count; i++) {
        for (int64_t n = 0; n < fsdp__param_numel(&d.params[i]); n++)
            CHECK_EQ(parameters[i][n], 1);
        free(parameters[i]);
    }
}

TEST(every_element_lies_in_one_place)
{
    const dice_seeds seeds = dice_seeds_of("LAYOUT", test_long() ? 100000 : 2000);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        check_case(draw_case(seed));
}

TEST(every_rank_says_whether_rows_of_all_lie_together)
{
    const dice_seeds seeds = dice_seeds_of("LAYOUT", 2000);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        check_runs(draw_case(seed));
}

/* 5 rows over 3 ranks: 2, 2, 1; with 4 ranks: 2, 2, 1, 0. */
TEST(per_parameter_follows_the_chunk_rule)
{
    const int64_t rows[2][4] = {{2, 2, 1}, {2, 2, 1, 0}};
    const fsdp__extent extent = {2, 5, 3};

    for (int ranks = 3; ranks <= 4; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            drawn d = make_case(&fsdp__cut_by_parameter, ranks, &extent, 1);

            lay_out(&d, rank);
            CHECK_EQ(d.params[0].part.inner, rows[ranks - 3][rank] * 3);
            CHECK_EQ(d.params[0].part.outer, 2);
            CHECK_EQ(d.params[0].part.stride, 15);
            CHECK_EQ(d.params[0].chunk_numel, 2 * 2 * 3);
        }
}

/* 7 + 5 elements over 2 ranks: the cut at 6 goes through the first parameter. */
TEST(flat_cuts_through_parameters)
{
    const fsdp__extent extents[] = {{1, 7, 1}, {1, 5, 1}};
    drawn d = make_case(&fsdp__cut_flat, 2, extents, 2);

    lay_out(&d, 1);
    CHECK_EQ(d.group.vector.chunk_numel, 6);
    CHECK_EQ(d.params[0].part.at, 6);
    CHECK_EQ(d.params[0].part.inner, 1);
    CHECK_EQ(d.params[0].part.in_shard, 0);
    CHECK_EQ(d.params[1].part.at, 0);
    CHECK_EQ(d.params[1].part.inner, 5);
    CHECK_EQ(d.params[1].part.in_shard, 1);
}
