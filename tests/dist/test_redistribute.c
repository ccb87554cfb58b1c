/* Random shapes, meshes and placements: what a rank holds must be its box of the whole. Element i of the whole is i. */
#include "fsdp/dist.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    MAX_NUMEL = 1024
};

static const char *const names[] = {"x", "y", "z"};

typedef struct mesh_case {
    int world, ndim;
    int64_t shape[3];
} mesh_case;

static const mesh_case cases[] = {
    {1, 1, {1}},    {2, 1, {2}},    {3, 1, {3}},    {4, 1, {4}},    {7, 1, {7}},    {8, 1, {8}},
    {4, 2, {2, 2}}, {3, 2, {1, 3}}, {6, 2, {2, 3}}, {8, 2, {4, 2}}, {7, 2, {7, 1}}, {8, 3, {2, 2, 2}},
};

static unsigned draw(unsigned *random, unsigned below)
{
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 12) % below;
}

/* A flat vector of all ranks along one dimension of the mesh, with the tensor somewhere in it. */
static void draw_flat(unsigned *random, const mesh_case *c, int64_t numel, fsdp_placement *out)
{
    int dim = (int)draw(random, (unsigned)c->ndim);
    int64_t first = draw(random, 20), ranks = c->shape[dim];

    for (int i = 0; i < c->ndim; i++)
        out[i] = (fsdp_placement){.kind = FSDP_REPLICATE};
    out[dim] = (fsdp_placement){
        .kind = FSDP_FLAT, .first = first, .chunk = (first + numel + ranks - 1) / ranks + draw(random, 4)};
}

static void draw_placements(unsigned *random, const mesh_case *c, int ndim, int64_t numel, bool partial,
                            fsdp_placement *out)
{
    if (draw(random, 5) == 0) {
        draw_flat(random, c, numel, out);
        return;
    }
    for (int i = 0; i < c->ndim; i++) {
        unsigned kind = draw(random, partial ? 5 : 4);

        out[i] = (fsdp_placement){.kind = FSDP_REPLICATE};
        if (kind == 4)
            out[i] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = (fsdp_reduce_op)draw(random, 4)};
        else if (kind > 0 && ndim > 0)
            out[i] = (fsdp_placement){.kind = FSDP_SHARD, .dim = (int)draw(random, (unsigned)ndim)};
    }
}

/* Elements of the box in row-major order of the whole's numbering; returns how many. */
static int64_t box_elements(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, float *out)
{
    int64_t count = 1, index[FSDP_MAX_DIMS] = {0};

    for (int d = 0; d < ndim; d++)
        count *= size[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;

        for (int d = 0; d < ndim; d++)
            at = at * shape[d] + offset[d] + index[d];
        out[i] = (float)at;
        for (int d = ndim - 1; d >= 0 && ++index[d] == size[d]; d--)
            index[d] = 0;
    }
    return count;
}

/* `tensor` is distributed so and holds its box, each element times `factor`. */
static void check_holds_box(const fsdp_tensor *tensor, const int64_t *shape, const fsdp_placement *placements,
                            float factor, double tolerance)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    float expected[MAX_NUMEL], actual[MAX_NUMEL];
    int64_t count;

    CHECK(d != NULL);
    CHECK_BYTES(d->global_shape, shape, (size_t)d->ndim * sizeof *shape);
    for (int i = 0; i < d->placement_count; i++) {
        CHECK_EQ(d->placements[i].kind, placements[i].kind);
        if (placements[i].kind == FSDP_SHARD)
            CHECK_EQ(d->placements[i].dim, placements[i].dim);
    }
    fsdp_tensor_box(tensor, offset, size);
    if (fsdp_distribution_is_flat(d)) {
        CHECK_EQ(fsdp_tensor_ndim(tensor), 1);
        CHECK_EQ(fsdp_tensor_size(tensor, 0), size[0]);
        count = size[0];
        for (int64_t i = 0; i < count; i++)
            expected[i] = (float)(offset[0] + i);
    } else {
        CHECK_BYTES(fsdp_tensor_shape(tensor), size, (size_t)d->ndim * sizeof *size);
        count = box_elements(d->ndim, shape, offset, size, expected);
    }
    for (int64_t i = 0; i < count; i++)
        expected[i] *= factor;
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, actual));
    CHECK_CLOSE(actual, expected, count, tolerance, 0);
}

static void check_whole(const fsdp_tensor *tensor, int ndim, const int64_t *shape, double tolerance)
{
    fsdp_tensor *full = NULL;
    float actual[MAX_NUMEL];

    CHECK_OK(fsdp_full_tensor(tensor, &full));
    CHECK_NULL(fsdp_tensor_distribution(full));
    CHECK_EQ(fsdp_tensor_ndim(full), ndim);
    CHECK_BYTES(fsdp_tensor_shape(full), shape, (size_t)ndim * sizeof *shape);
    CHECK(full->storage != tensor->storage);
    CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
    for (int64_t i = 0; i < fsdp_tensor_numel(full); i++)
        CHECK_NEAR(actual[i], i, tolerance * (double)i);
    fsdp_tensor_unref(full);
}

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

static bool has_partial(int count, const fsdp_placement *placements)
{
    for (int i = 0; i < count; i++)
        if (placements[i].kind == FSDP_PARTIAL)
            return true;
    return false;
}

static bool has_mean(int count, const fsdp_placement *placements)
{
    for (int i = 0; i < count; i++)
        if (placements[i].kind == FSDP_PARTIAL && placements[i].op == FSDP_AVG)
            return true;
    return false;
}

static void check_random(fsdp_context *context, void *arg)
{
    const mesh_case *c = arg;
    unsigned random = (unsigned)(c->world * 10 + c->ndim);
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int round = 0; round < 60; round++) {
        /* Exact in all of them: below 256 for bf16. */
        static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_I64, FSDP_I32, FSDP_F32, FSDP_BF16};
        fsdp_dtype dtype = dtypes[draw(&random, 5)];
        int ndim = (int)draw(&random, 4);
        int64_t shape[3], numel;
        fsdp_placement from[3], to[3], back[3];
        double tolerance;
        fsdp_tensor *whole, *piece = NULL, *moved = NULL, *returned = NULL;

        for (int d = 0; d < ndim; d++)
            shape[d] = draw(&random, dtype == FSDP_BF16 ? 6 : 10);
        numel = fsdp__shape_numel(ndim, shape);
        draw_placements(&random, c, ndim, numel, false, from);
        draw_placements(&random, c, ndim, numel, dtype == FSDP_F32, to);
        draw_placements(&random, c, ndim, numel, dtype == FSDP_F32, back);
        tolerance = has_mean(c->ndim, to) || has_mean(c->ndim, back) ? 1e-6 : 0; /* 1 / W rounds */
        whole = counting(context, dtype, ndim, shape);
        CHECK_OK(fsdp_distribute_tensor(whole, mesh, from, &piece));
        check_holds_box(piece, shape, from, 1, 0);
        check_whole(piece, ndim, shape, 0);
        CHECK_OK(fsdp_redistribute(piece, to, &moved));
        CHECK(moved->storage != piece->storage);
        if (!has_partial(c->ndim, to))
            check_holds_box(moved, shape, to, 1, 0);
        check_whole(moved, ndim, shape, tolerance);
        CHECK_OK(fsdp_redistribute(moved, back, &returned));
        if (!has_partial(c->ndim, back))
            check_holds_box(returned, shape, back, 1, tolerance);
        check_whole(returned, ndim, shape, tolerance);
        check_whole(whole, ndim, shape, 0); /* a plain tensor too */
        fsdp_tensor_unref(whole);
        fsdp_tensor_unref(piece);
        fsdp_tensor_unref(moved);
        fsdp_tensor_unref(returned);
    }
    fsdp_mesh_unref(mesh);
}

TEST(any_placements_to_any_others)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(cases[i].world, check_random, (void *)&cases[i]);
}

/* Rank r of the first mesh dimension contributes (r + 1) times the numbering. */
static void check_partial(fsdp_context *context, void *arg)
{
    const mesh_case *c = arg;
    float w = (float)c->shape[0];
    const float factors[] = {[FSDP_SUM] = w * (w + 1) / 2, [FSDP_AVG] = (w + 1) / 2, [FSDP_MAX] = w, [FSDP_MIN] = 1};
    static const int64_t shape[] = {5, 3, 2};
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, c->ndim, c->shape, names, &mesh));
    for (int op = FSDP_SUM; op <= FSDP_MIN; op++)
        for (int dim = -1; dim < 3; dim++) {
            fsdp_placement to[3] = {{.kind = FSDP_REPLICATE}}, other[3] = {{.kind = FSDP_REPLICATE}};
            fsdp_distribution d = {.mesh = mesh, .placement_count = c->ndim, .ndim = 3, .global_shape = {5, 3, 2}};
            fsdp_tensor *partial = counting(context, FSDP_F32, 3, shape), *scaled = NULL, *reduced = NULL;
            float values[30];

            for (int i = 0; i < 30; i++)
                values[i] = (float)(i * (fsdp_mesh_coordinate(mesh, 0) + 1));
            CHECK_OK(fsdp_tensor_write(partial, FSDP_F32, values));
            d.placements[0] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = (fsdp_reduce_op)op};
            CHECK_OK(fsdp_tensor_set_distribution(partial, &d));
            if (dim >= 0)
                to[0] = (fsdp_placement){.kind = FSDP_SHARD, .dim = dim};
            if (dim >= 0 && c->ndim > 1) /* nested in the same dimension, or not */
                to[1] = (fsdp_placement){.kind = FSDP_SHARD, .dim = dim == 2 ? 0 : dim};
            CHECK_OK(fsdp_redistribute(partial, to, &reduced));
            check_holds_box(reduced, shape, to, factors[op], op == FSDP_AVG ? 1e-6 : 0);
            /* A sum kept on one rank stays a sum; the others stay on all. */
            other[0] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = FSDP_SUM};
            CHECK_OK(fsdp_redistribute(reduced, other, &scaled));
            CHECK_OK(fsdp_tensor_read(scaled, FSDP_F32, values));
            for (int i = 0; i < 30; i++)
                CHECK_NEAR(values[i], fsdp_mesh_coordinate(mesh, 0) == 0 ? (float)i * factors[op] : 0, 1e-4);
            fsdp_tensor_unref(partial);
            fsdp_tensor_unref(reduced);
            fsdp_tensor_unref(scaled);
        }
    fsdp_mesh_unref(mesh);
}

TEST(partial_values_are_reduced_by_their_operation)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_run_ranks(cases[i].world, check_partial, (void *)&cases[i]);
}

/* Calls of one redistribution, by kind. */
static void count_calls(fsdp_context *context, fsdp_tensor *tensor, const fsdp_placement *to, int64_t *calls)
{
    fsdp_comm_stats stats;
    fsdp_tensor *moved = NULL;

    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_redistribute(tensor, to, &moved));
    fsdp_context_comm_stats(context, &stats);
    memcpy(calls, stats.calls, sizeof stats.calls);
    fsdp_tensor_unref(moved);
}

RANKS_TEST(each_change_takes_the_one_collective_it_needs, 3)
{
    static const int64_t shape[] = {6, 5};
    const fsdp_placement s0 = {.kind = FSDP_SHARD, .dim = 0}, s1 = {.kind = FSDP_SHARD, .dim = 1};
    const fsdp_placement r = {.kind = FSDP_REPLICATE}, p = {.kind = FSDP_PARTIAL, .op = FSDP_SUM};
    const struct {
        fsdp_placement from, to;
        int64_t gather, scatter, reduce, exchange;
    } steps[] = {
        {s0, r, 1, 0, 0, 0},  {r, s0, 0, 0, 0, 0}, {p, r, 0, 0, 1, 0},  {p, s1, 0, 1, 0, 0},
        {s0, s1, 0, 0, 0, 1}, {r, p, 0, 0, 0, 0},  {s0, p, 1, 0, 0, 0}, {s0, s0, 0, 0, 0, 0},
    };
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){3}, NULL, &mesh));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        fsdp_tensor *whole = counting(context, FSDP_F32, 2, shape), *piece = NULL, *start = NULL;
        int64_t calls[FSDP_COLLECTIVES];

        CHECK_OK(fsdp_distribute_tensor(whole, mesh, &r, &piece));
        CHECK_OK(fsdp_redistribute(piece, &steps[i].from, &start));
        count_calls(context, start, &steps[i].to, calls);
        CHECK_EQ(calls[FSDP_ALL_GATHER], steps[i].gather);
        CHECK_EQ(calls[FSDP_REDUCE_SCATTER], steps[i].scatter);
        CHECK_EQ(calls[FSDP_ALL_REDUCE], steps[i].reduce);
        CHECK_EQ(calls[FSDP_ALL_TO_ALL], steps[i].exchange);
        fsdp_tensor_unref(whole);
        fsdp_tensor_unref(piece);
        fsdp_tensor_unref(start);
    }
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(strided_tensors_and_shapes_without_bytes, 2)
{
    static const int64_t shape[] = {5, 4};
    const fsdp_placement s1 = {.kind = FSDP_SHARD, .dim = 1}, s0 = {.kind = FSDP_SHARD, .dim = 0};
    fsdp_tensor *whole, *turned = NULL, *piece = NULL, *moved = NULL, *meta = NULL;
    float values[20];
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, NULL, &mesh));
    whole = counting(context, FSDP_F32, 2, (const int64_t[]){4, 5});
    CHECK_OK(fsdp__view_transpose(whole, 0, 1, &turned));
    CHECK_OK(fsdp_distribute_tensor(turned, mesh, &s1, &piece));
    CHECK(fsdp_tensor_is_contiguous(piece));
    CHECK_OK(fsdp_tensor_read(piece, FSDP_F32, values));
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 2; j++)
            CHECK_EQ(values[i * 2 + j], (fsdp_context_rank(context) * 2 + j) * 5 + i);
    CHECK_STATUS(fsdp_distribute_tensor(piece, mesh, &s1, &moved), FSDP_INVALID);
    CHECK_ERROR(fsdp_redistribute(whole, &s1, &moved), FSDP_INVALID, "plain tensor");
    CHECK_ERROR(fsdp_distribute_tensor(whole, mesh, &(fsdp_placement){.kind = FSDP_PARTIAL}, &moved), FSDP_INVALID,
                "partial");
    CHECK_STATUS(fsdp_redistribute(piece, &(fsdp_placement){.kind = FSDP_SHARD, .dim = 2}, &moved), FSDP_INVALID);
    CHECK_NULL(moved);
    CHECK_ERROR(fsdp_redistribute(piece, &(fsdp_placement){.kind = FSDP_FLAT, .chunk = -1}, &moved), FSDP_INVALID,
                "flat placement");
    CHECK_ERROR(fsdp_redistribute(piece, &(fsdp_placement){.kind = FSDP_FLAT, .chunk = 9}, &moved), FSDP_INVALID,
                "the tensor's 20 elements from 0 on are not all in the vector, which has 18");
    CHECK_ERROR(fsdp_redistribute(piece, &(fsdp_placement){.kind = FSDP_FLAT, .first = 1, .chunk = 10}, &moved),
                FSDP_INVALID, "the tensor's 20 elements from 1 on are not all in the vector, which has 20");
    CHECK_NULL(moved);
    fsdp_tensor_unref(turned);
    fsdp_tensor_unref(piece);
    fsdp_tensor_unref(whole);

    CHECK_OK(fsdp_tensor_create(fsdp_meta(context), FSDP_F32, 2, shape, FSDP_MEMORY_ACTIVATION, &meta));
    CHECK_OK(fsdp_distribute_tensor(meta, mesh, &s0, &piece));
    CHECK_EQ(fsdp_tensor_size(piece, 0), fsdp_context_rank(context) == 0 ? 3 : 2);
    CHECK_OK(fsdp_redistribute(piece, &s1, &moved));
    CHECK_EQ(fsdp_tensor_size(moved, 0), 5);
    CHECK_EQ(fsdp_tensor_size(moved, 1), 2);
    CHECK(fsdp_device_is_meta(fsdp_tensor_device(moved)));
    fsdp_tensor_unref(meta);
    fsdp_tensor_unref(piece);
    fsdp_tensor_unref(moved);
    fsdp_mesh_unref(mesh);
}

static void check_faults(fsdp_tensor *whole, fsdp_mesh *mesh, const fsdp_placement *from, const fsdp_placement *to)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tensor *piece = NULL, *moved = NULL, *full = NULL;
        fsdp_status status = fsdp_distribute_tensor(whole, mesh, from, &piece);

        if (status == FSDP_OK)
            status = fsdp_redistribute(piece, to, &moved);
        if (status == FSDP_OK)
            status = fsdp_full_tensor(moved, &full);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK((full != NULL) == (status == FSDP_OK));
        fsdp_tensor_unref(piece);
        fsdp_tensor_unref(moved);
        fsdp_tensor_unref(full);
    }
}

CONTEXT_TEST(distributing_survives_every_failed_allocation)
{
    static const fsdp_placement fused = {.kind = FSDP_SHARD, .dim = 1, .segment_count = 3, .segments = {2, 1, 1}};
    static const fsdp_placement s0 = {.kind = FSDP_SHARD, .dim = 0}, s1 = {.kind = FSDP_SHARD, .dim = 1};
    fsdp_mesh *mesh = NULL;
    fsdp_tensor *whole = counting(context, FSDP_F32, 2, (const int64_t[]){3, 4});

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){1}, NULL, &mesh));
    check_faults(whole, mesh, &s0, &s1);
    check_faults(whole, mesh, &fused, &s0);
    fsdp_tensor_unref(whole);
    fsdp_mesh_unref(mesh);
}

/* One rank fails at its n-th allocation and says so; nobody hangs, nothing leaks. */
static void check_fault_on_one_rank(fsdp_context *context, void *arg)
{
    long nth = *(const long *)arg;
    const fsdp_placement s0 = {.kind = FSDP_SHARD, .dim = 0}, s1 = {.kind = FSDP_SHARD, .dim = 1};
    fsdp_tensor *whole = counting(context, FSDP_F32, 2, (const int64_t[]){4, 5}), *piece = NULL, *moved = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){3}, NULL, &mesh));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &s0, &piece));
    test_meet();
    if (fsdp_context_rank(context) == 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, nth);
    status = fsdp_redistribute(piece, &s1, &moved);
    if (fsdp_context_rank(context) == 1)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    if (status != FSDP_OK)
        fsdp_abort(context, fsdp_last_error());
    CHECK((moved != NULL) == (status == FSDP_OK));
    fsdp_tensor_unref(whole);
    fsdp_tensor_unref(piece);
    fsdp_tensor_unref(moved);
    fsdp_mesh_unref(mesh);
}

TEST(a_failure_on_one_rank_hangs_nobody)
{
    for (long nth = 1; nth < 42; nth += nth < 12 ? 1 : 10)
        test_run_ranks(3, check_fault_on_one_rank, &nth);
}
