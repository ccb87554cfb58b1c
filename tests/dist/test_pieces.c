/* Strided shards, segments, and the boxes of a part: drawn on meshes of one to three dimensions, and held against the
 * definition (support/layouts.h). */
#include "dist/dist.h"
#include "support/dice.h"
#include "support/layouts.h"
#include "support/ranks.h"

enum {
    MAX_NUMEL = 1024
};

static const char *const names[] = {"rep", "dp", "tp"};

typedef struct mesh_case {
    int world, ndim;
    int64_t shape[3];
} mesh_case;

static const mesh_case cases[] = {
    {1, 1, {1}},    {2, 1, {2}},    {3, 1, {3}},    {4, 2, {2, 2}},    {6, 2, {2, 3}},    {6, 2, {3, 2}},
    {8, 2, {2, 4}}, {5, 2, {5, 1}}, {4, 2, {1, 4}}, {8, 3, {2, 2, 2}}, {6, 3, {1, 3, 2}}, {8, 3, {2, 1, 4}},
};

static fsdp_distribution distribution_of(fsdp_mesh *mesh, const drawn_layout *l)
{
    fsdp_distribution d = {.mesh = mesh, .placement_count = l->mesh_ndim, .ndim = l->ndim};

    memcpy(d.placements, l->placements, sizeof d.placements);
    memcpy(d.global_shape, l->shape, sizeof d.global_shape);
    return d;
}

static void draw_shape(uint64_t *dice, int *ndim, int64_t *shape)
{
    *ndim = dice_below(dice, 4);
    for (int d = 0; d < *ndim; d++)
        shape[d] = dice_below(dice, *ndim == 3 ? 9 : 20);
}

/* ---- boxes ---- */

/* The pieces, element by element, are the part; local offsets are where they lie in it. */
static void check_pieces(const fsdp_distribution *d, const drawn_layout *l, const int *at)
{
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    int64_t elements[MAX_NUMEL], shape[FSDP_MAX_DIMS], seen = 0, offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    int64_t count = layout_elements(l, at, elements, shape);
    int pieces_count = fsdp_distribution_pieces(d, at, pieces);

    fsdp_distribution_box(d, at, offset, size);
    CHECK_BYTES(size, shape, (size_t)l->ndim * sizeof *size);
    CHECK((pieces_count == 0) == (count == 0));
    for (int p = 0; p < pieces_count; p++)
        for (int64_t i = 0; i < fsdp__shape_numel(l->ndim, pieces[p].size); i++, seen++) {
            int64_t rest = i, global = 0, local = 0, stride = 1, local_stride = 1;

            for (int n = l->ndim - 1; n >= 0; n--) {
                global += (pieces[p].offset[n] + rest % pieces[p].size[n]) * stride;
                local += (pieces[p].local_offset[n] + rest % pieces[p].size[n]) * local_stride;
                rest /= pieces[p].size[n];
                stride *= l->shape[n];
                local_stride *= shape[n];
            }
            CHECK(local < count);
            CHECK_EQ(elements[local], global);
        }
    CHECK_EQ(seen, count);
    if (pieces_count > 0)
        CHECK_BYTES(offset, pieces[0].offset, (size_t)l->ndim * sizeof *offset);
}

static void check_boxes(fsdp_context *context, void *arg)
{
    const mesh_case *c = arg;
    uint64_t dice = 7;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int round = 0; round < 300; round++) {
        int64_t shape[3], held = 0;
        int ndim, at[FSDP_MAX_MESH_DIMS];
        drawn_layout l;
        fsdp_distribution d;

        draw_shape(&dice, &ndim, shape);
        layout_draw(&dice, c->ndim, c->shape, ndim, shape, &l);
        d = distribution_of(mesh, &l);
        CHECK_OK(fsdp__placements_check(mesh, d.placements, d.ndim, d.global_shape));
        for (int rank = 0; rank < c->world; rank++) {
            int64_t elements[MAX_NUMEL], part[FSDP_MAX_DIMS];

            fsdp__mesh_coordinates(mesh, rank, at);
            check_pieces(&d, &l, at);
            held += layout_elements(&l, at, elements, part);
        }
        CHECK_EQ(held, fsdp__shape_numel(ndim, shape) * layout_copies(&l));
    }
    fsdp_mesh_unref(mesh);
}

TEST(pieces_are_what_the_order_of_cuts_and_the_segments_give)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(cases[i].world, check_boxes, (void *)&cases[i]);
}

RANKS_TEST(a_strided_shard_cuts_what_the_right_dimension_left_over, 4)
{
    const fsdp_placement strided[] = {{.kind = FSDP_SHARD, .split_factor = 2}, {.kind = FSDP_SHARD}};
    const fsdp_placement nested[] = {{.kind = FSDP_SHARD}, {.kind = FSDP_SHARD}};
    const fsdp_placement fused[] = {{.kind = FSDP_SHARD, .split_factor = 2},
                                    {.kind = FSDP_SHARD, .segment_count = 3, .segments = {8, 2, 2}}};
    fsdp_distribution d = {.placement_count = 2, .ndim = 1, .global_shape = {12}};
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, names + 1, &mesh));
    d.mesh = mesh;
    /* "tp" cuts 12 rows first, "dp" its half: the second of tp's first half. */
    memcpy(d.placements, strided, sizeof strided);
    CHECK_EQ(fsdp_distribution_pieces(&d, (const int[]){1, 0}, pieces), 1);
    CHECK_EQ(pieces[0].offset[0], 3);
    memcpy(d.placements, nested, sizeof nested);
    CHECK_EQ(fsdp_distribution_pieces(&d, (const int[]){1, 0}, pieces), 1);
    CHECK_EQ(pieces[0].offset[0], 6);
    /* tp 1 has rows 4-7, 9 and 11; of these 6 dp 1 has the last 3. */
    memcpy(d.placements, fused, sizeof fused);
    CHECK_EQ(fsdp_distribution_pieces(&d, (const int[]){1, 1}, pieces), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(pieces[i].offset[0], ((const int64_t[]){7, 9, 11})[i]);
        CHECK_EQ(pieces[i].local_offset[0], i);
        CHECK_EQ(pieces[i].size[0], 1);
    }
    fsdp_mesh_unref(mesh);
}

/* ---- values ---- */

static fsdp_tensor *counting(fsdp_context *context, fsdp_dtype dtype, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = NULL;
    float data[MAX_NUMEL];

    CHECK_OK(fsdp_tensor_create(test_device(context), dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor));
    for (int i = 0; i < MAX_NUMEL; i++)
        data[i] = (float)i;
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, data));
    return tensor;
}

static void check_holds(const fsdp_tensor *tensor, const drawn_layout *l)
{
    const fsdp_mesh *mesh = fsdp_tensor_distribution(tensor)->mesh;
    int64_t elements[MAX_NUMEL], shape[FSDP_MAX_DIMS], count = layout_elements(l, mesh->coordinate, elements, shape);
    float values[MAX_NUMEL];

    CHECK_EQ(fsdp_tensor_ndim(tensor), l->ndim);
    CHECK_BYTES(fsdp_tensor_shape(tensor), shape, (size_t)l->ndim * sizeof *shape);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    for (int64_t i = 0; i < count; i++)
        CHECK_EQ(values[i], elements[i]);
}

static void check_whole(const fsdp_tensor *tensor, const drawn_layout *l)
{
    fsdp_tensor *full = NULL;
    float values[MAX_NUMEL];

    CHECK_OK(fsdp_full_tensor(tensor, &full));
    CHECK_BYTES(fsdp_tensor_shape(full), l->shape, (size_t)l->ndim * sizeof *l->shape);
    CHECK_OK(fsdp_tensor_read(full, FSDP_F32, values));
    for (int64_t i = 0; i < fsdp_tensor_numel(full); i++)
        CHECK_EQ(values[i], i);
    fsdp_tensor_unref(full);
}

/* Now and then a sum, of which one rank has all. */
static void make_partial(uint64_t *dice, drawn_layout *l)
{
    int i = dice_below(dice, l->mesh_ndim);

    if (l->placements[i].kind == FSDP_REPLICATE && dice_chance(dice, 30))
        l->placements[i] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = FSDP_SUM};
}

static void check_moves(fsdp_context *context, void *arg)
{
    const mesh_case *c = arg;
    uint64_t dice = 11;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int round = 0; round < 30; round++) {
        int64_t shape[3];
        int ndim;
        drawn_layout from, to, back;
        fsdp_tensor *whole, *piece = NULL, *moved = NULL, *returned = NULL;

        draw_shape(&dice, &ndim, shape);
        layout_draw(&dice, c->ndim, c->shape, ndim, shape, &from);
        layout_draw(&dice, c->ndim, c->shape, ndim, shape, &to);
        layout_draw(&dice, c->ndim, c->shape, ndim, shape, &back);
        make_partial(&dice, &to);
        whole = counting(context, dice_chance(&dice, 50) ? FSDP_F32 : FSDP_I64, ndim, shape);
        CHECK_OK(fsdp_distribute_tensor(whole, mesh, from.placements, &piece));
        check_holds(piece, &from);
        check_whole(piece, &from);
        CHECK_OK(fsdp_redistribute(piece, to.placements, &moved));
        check_whole(moved, &to);
        CHECK_OK(fsdp_redistribute(moved, back.placements, &returned));
        check_holds(returned, &back);
        check_whole(returned, &back);
        fsdp_tensor_unref(whole);
        fsdp_tensor_unref(piece);
        fsdp_tensor_unref(moved);
        fsdp_tensor_unref(returned);
    }
    fsdp_mesh_unref(mesh);
}

TEST(any_parts_become_any_others)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(cases[i].world, check_moves, (void *)&cases[i]);
}

/* ---- misuse ---- */

static void expect_refused(fsdp_mesh *mesh, const fsdp_tensor *tensor, fsdp_placement first, fsdp_placement second,
                           const char *message)
{
    fsdp_tensor *out = NULL;

    CHECK_ERROR(fsdp_distribute_tensor(tensor, mesh, (const fsdp_placement[]){first, second}, &out), FSDP_INVALID,
                message);
    CHECK_NULL(out);
}

static void check_partial_bits(fsdp_mesh *mesh, fsdp_tensor *tensor)
{
    fsdp_distribution d = {.mesh = mesh, .placement_count = 2, .ndim = 1, .global_shape = {12}, .partial_gradients = 1};
    const fsdp_placement rows[] = {{.kind = FSDP_SHARD}, {.kind = FSDP_REPLICATE}};
    fsdp_tensor *moved = NULL;

    CHECK_OK(fsdp_tensor_set_distribution(tensor, &d));
    d.partial_gradients = 4;
    CHECK_ERROR(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID, "partial gradients 0x4");
    d.partial_gradients = 3;
    CHECK_OK(fsdp_tensor_set_distribution(tensor, &d));
    CHECK_OK(fsdp_redistribute(tensor, rows, &moved));
    CHECK_EQ(fsdp_tensor_distribution(moved)->partial_gradients, 2);
    d.placements[1] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = FSDP_SUM};
    CHECK_ERROR(fsdp_tensor_set_distribution(tensor, &d), FSDP_INVALID,
                "gradients cannot be partial over mesh dimension 'tp' with placements (Replicate(), Partial(sum))");
    fsdp_tensor_unref(moved);
}

RANKS_TEST(placements_that_contradict_each_other_are_named, 4)
{
    const fsdp_placement rows = {.kind = FSDP_SHARD}, strided = {.kind = FSDP_SHARD, .split_factor = 3};
    const fsdp_placement fused = {.kind = FSDP_SHARD, .segment_count = 2, .segments = {8, 4}};
    fsdp_placement wrong = fused;
    fsdp_mesh *mesh = NULL;
    fsdp_tensor *tensor = counting(context, FSDP_F32, 1, (const int64_t[]){12});

    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, names + 1, &mesh));
    expect_refused(mesh, tensor, strided, rows,
                   "placements (_StridedShard(dim=0, sf=3), Shard(dim=0)) do not fit mesh (dp=2, tp=2): mesh dimension "
                   "'dp' has split factor 3");
    expect_refused(mesh, tensor, rows, strided, "mesh dimension 'tp' has split factor 3");
    expect_refused(mesh, tensor, rows, (fsdp_placement){.kind = FSDP_SHARD, .split_factor = -1}, "split factor -1");
    expect_refused(mesh, tensor, rows, fused,
                   "placements (Shard(dim=0), Shard(dim=0, segments=(8, 4))): mesh dimension 'tp' cuts by segments "
                   "what 'dp' has cut before");
    expect_refused(mesh, tensor, fused, fused, "both 'dp' and 'tp' have segments");
    wrong.segments[1] = 5;
    expect_refused(mesh, tensor, (fsdp_placement){.kind = FSDP_REPLICATE}, wrong,
                   "(Shard(dim=0, segments=(8, 5)),) on mesh dimension 'tp': the segments are 13 long together, and "
                   "dimension 0 of the tensor is 12");
    wrong.segment_count = 5;
    expect_refused(mesh, tensor, rows, wrong, "has 5 segments: 0 to 4");
    wrong = (fsdp_placement){.kind = FSDP_SHARD, .segment_count = 2, .segments = {-1, 13}};
    expect_refused(mesh, tensor, rows, wrong, "0 to 4 of 0 or more elements");
    check_partial_bits(mesh, tensor);
    fsdp_tensor_unref(tensor);
    fsdp_mesh_unref(mesh);
}

TEST(long_placements_are_cut_off)
{
    char text[FSDP__PLACEMENTS_TEXT];
    fsdp_placement p[FSDP_MAX_MESH_DIMS];

    for (int i = 0; i < FSDP_MAX_MESH_DIMS; i++)
        p[i] = (fsdp_placement){.kind = FSDP_SHARD,
                                .split_factor = INT64_MAX,
                                .dim = INT32_MAX,
                                .segment_count = 4,
                                .segments = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
    CHECK(strlen(fsdp__placements_text(p, FSDP_MAX_MESH_DIMS, text)) < sizeof text);
    CHECK_STRING(fsdp__placements_text(&(fsdp_placement){.kind = FSDP_PARTIAL, .op = FSDP_AVG}, 1, text),
                 "(Partial(avg),)");
}
