/* Ways into operations on distributed tensors and out of them, changes of placements with their gradients, what that
 * costs, and what is refused. */
#include <math.h>

#include "device/device.h"
#include "dist/dist.h"
#include "fsdp/ops.h"
#include "fsdp/parallelize.h"
#include "parallel/world_gradient.h"
#include "support/dice.h"
#include "support/layouts.h"
#include "tensor/tensor.h"

enum {
    MAX_NUMEL = 4096
};

static const fsdp_placement replicate = {.kind = FSDP_REPLICATE}, rows = {.kind = FSDP_SHARD},
                            columns = {.kind = FSDP_SHARD, .dim = 1}, sum = {.kind = FSDP_PARTIAL};

static fsdp_mesh *mesh_of_all(fsdp_context *context)
{
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){fsdp_context_world_size(context)}, NULL, &mesh));
    return mesh;
}

static bool is_global(fsdp_tensor *tensor)
{
    CHECK_PTR(tensor);
    return tensor->global;
}

static fsdp_tensor *parameter(fsdp_context *context, fsdp_mesh *mesh, fsdp_placement placement, int64_t n, int64_t m,
                              uint64_t seed)
{
    fsdp_tensor *whole = world_leaf(context, FSDP_F32, FSDP_SHAPE(n, m), seed), *part = NULL;

    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &placement, &part));
    CHECK_OK(fsdp_tensor_set_requires_grad(part, true));
    return part;
}

/* ---- any placements to any others ---- */

static const int64_t meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 2}};

/* From layout to layout and back to the whole; the gradient of the parts is that of the whole. */
static void check_change(fsdp_context *context, fsdp_mesh *mesh, const drawn_layout *from, const drawn_layout *to)
{
    const fsdp_placement all[2] = {{.kind = FSDP_REPLICATE}, {.kind = FSDP_REPLICATE}};
    float expected[MAX_NUMEL], actual[MAX_NUMEL];
    fsdp_tensor *whole, *leaf = NULL, *y, *weights, *grad = NULL, *full = NULL;

    CHECK_OK(fsdp_scope_begin(context));
    whole = world_leaf(context, FSDP_F32, from->ndim, from->shape, 1);
    weights = world_leaf(context, FSDP_F32, from->ndim, from->shape, 2);
    CHECK_OK(fsdp_tensor_set_requires_grad(weights, false));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, from->placements, &leaf));
    CHECK_OK(fsdp_tensor_set_requires_grad(leaf, true));
    y = fsdp_parallel_redistribute(fsdp_parallel_redistribute(leaf, from->placements), to->placements);
    y = CHECK_PTR(fsdp_to_local(fsdp_parallel_redistribute(y, all)));
    y = CHECK_PTR(fsdp_scale(y, 2));
    CHECK_OK(fsdp_tensor_read(y, FSDP_F32, actual));
    CHECK_OK(fsdp_tensor_read(fsdp_scale(whole, 2), FSDP_F32, expected));
    CHECK_CLOSE(actual, expected, fsdp_tensor_numel(whole), 1e-6, 1e-6);
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_mul(y, weights))));
    CHECK_OK(fsdp__tensor_alias(CHECK_PTR(fsdp_tensor_grad(leaf)), &grad));
    CHECK_OK(fsdp_tensor_set_distribution(grad, fsdp_tensor_distribution(leaf)));
    CHECK_OK(fsdp_full_tensor(grad, &full));
    CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
    CHECK_OK(fsdp_tensor_read(fsdp_scale(weights, 2), FSDP_F32, expected));
    CHECK_CLOSE(actual, expected, fsdp_tensor_numel(whole), 1e-6, 1e-6);
    fsdp_tensor_unref(full);
    fsdp_tensor_unref(grad);
    fsdp_tensor_unref(leaf);
    fsdp_scope_end(context, NULL);
}

static void check_changes(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"dp", "tp"};
    const int64_t *shape = arg;
    uint64_t dice = (uint64_t)(shape[0] * 10 + shape[1]);
    int ndim = shape[1] > 1 ? 2 : 1;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, ndim, shape, names, &mesh));
    for (int round = 0; round < (test_brief() ? 20 : 80); round++) {
        int64_t whole[3];
        int dims = 1 + dice_below(&dice, 3);
        drawn_layout from, to;

        for (int d = 0; d < dims; d++)
            whole[d] = dice_below(&dice, 10);
        layout_draw(&dice, ndim, shape, dims, whole, &from);
        layout_draw(&dice, ndim, shape, dims, whole, &to);
        if (dice_chance(&dice, 20))
            to.placements[dice_below(&dice, ndim)] = sum;
        if (dice_chance(&dice, 10))
            to.placements[dice_below(&dice, ndim)] = (fsdp_placement){.kind = FSDP_PARTIAL, .op = FSDP_AVG};
        fsdp_clear_error();
        if (fsdp__placements_check(mesh, to.placements, dims, whole) == FSDP_OK && from.mesh_ndim == ndim)
            check_change(context, mesh, &from, &to);
    }
    fsdp_mesh_unref(mesh);
}

TEST(any_change_of_placements_has_its_gradient)
{
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++)
        test_run_ranks((int)(meshes[i][0] * meshes[i][1]), check_changes, (void *)meshes[i]);
}

/* ---- a partial average, by its own parts ---- */

typedef struct average {
    fsdp_mesh *mesh;
    fsdp_reduce_op op;
} average;

static fsdp_tensor *averaged(void *arg, fsdp_tensor *x)
{
    const average *a = arg;
    const fsdp_placement partial = {.kind = FSDP_PARTIAL, .op = a->op};

    x = fsdp_from_local(fsdp_square(x), a->mesh, &partial, NULL);
    return fsdp_square(fsdp_to_local(fsdp_parallel_redistribute(x, &replicate)));
}

RANKS_TEST(contributions_get_the_gradient_of_their_sum_or_average, 3)
{
    fsdp_mesh *mesh = mesh_of_all(context);

    for (int op = FSDP_SUM; op <= FSDP_AVG; op++) {
        average a = {mesh, (fsdp_reduce_op)op};
        const world_gradient g = {averaged, &a, false, true};

        CHECK_OK(fsdp_scope_begin(context));
        check_world_gradient(context, &g,
                             world_leaf(context, FSDP_F32, FSDP_SHAPE(2, 3), (uint64_t)fsdp_context_rank(context)));
        fsdp_scope_end(context, NULL);
    }
    fsdp_mesh_unref(mesh);
}

/* ---- two products, cut by columns and by rows ---- */

typedef struct mlp {
    fsdp_mesh *mesh;
    fsdp_tensor *up, *down;
} mlp;

static fsdp_tensor *run(void *arg, fsdp_tensor *const *in, int count)
{
    const mlp *m = arg;
    fsdp_tensor *y = fsdp_silu(fsdp_linear(in[0], m->up, FSDP_NO_BIAS));

    (void)count;
    return fsdp_parallel_redistribute(fsdp_linear(y, m->down, FSDP_NO_BIAS), &replicate);
}

static void step(fsdp_context *context, const mlp *m, bool recompute, float *grad, fsdp_comm_stats *stats)
{
    fsdp_tensor *x, *y;

    CHECK_OK(fsdp_scope_begin(context));
    x = fsdp_from_local(world_leaf(context, FSDP_F32, FSDP_SHAPE(3, 4), 5), m->mesh, &replicate, NULL);
    fsdp_context_reset_comm_stats(context);
    y = recompute ? fsdp_recompute(context, run, (void *)m, &x, 1, NULL) : run((void *)m, &x, 1);
    CHECK(is_global(y));
    CHECK_OK(fsdp_backward(fsdp_mean(fsdp_square(y))));
    fsdp_context_comm_stats(context, stats);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(m->up)), FSDP_F32, grad));
    CHECK_OK(fsdp_tensor_set_grad(m->up, NULL));
    CHECK_OK(fsdp_tensor_set_grad(m->down, NULL));
    fsdp_scope_end(context, NULL);
}

WORLDS_TEST(two_products_cost_one_all_reduce_each_way_and_can_be_recomputed, 2, 3)
{
    float plain[64] = {0}, again[64] = {0};
    fsdp_comm_stats stats;
    mlp m = {.mesh = mesh_of_all(context)};

    CHECK_OK(fsdp_scope_begin(context));
    m.up = parameter(context, m.mesh, rows, 6, 4, 1);
    m.down = parameter(context, m.mesh, columns, 4, 6, 2);
    step(context, &m, false, plain, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], 2); /* of the result, and of the gradient of x */
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER] + stats.calls[FSDP_REDUCE_SCATTER] + stats.calls[FSDP_ALL_TO_ALL], 0);
    step(context, &m, true, again, &stats);
    CHECK_BYTES(plain, again, sizeof plain);
    fsdp_tensor_unref(m.up);
    fsdp_tensor_unref(m.down);
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(m.mesh);
}

/* ---- dropout ---- */

RANKS_TEST(dropout_of_a_part_draws_as_that_of_the_whole, 3)
{
    fsdp_mesh *mesh = mesh_of_all(context);
    float expected[40], actual[40];
    fsdp_tensor *whole, *part = NULL, *y, *full = NULL;

    CHECK_OK(fsdp_scope_begin(context));
    whole = world_leaf(context, FSDP_F32, FSDP_SHAPE(5, 8), 3);
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &rows, &part));
    y = CHECK_PTR(fsdp_dropout(fsdp_parallel_redistribute(part, &rows), 0.5f, 17));
    CHECK_OK(fsdp_full_tensor(y, &full));
    CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_dropout(whole, 0.5f, 17)), FSDP_F32, expected));
    CHECK_BYTES(actual, expected, sizeof actual);
    fsdp_tensor_unref(full);
    y = fsdp_parallel_redistribute(fsdp_parallel_redistribute(part, &rows), &columns);
    CHECK_OK(fsdp_full_tensor(CHECK_PTR(fsdp_dropout(y, 0.5f, 17)), &full));
    CHECK_OK(fsdp_tensor_read(full, FSDP_F32, actual));
    CHECK_BYTES(actual, expected, sizeof actual);
    fsdp_tensor_unref(full);
    fsdp_tensor_unref(part);
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(mesh);
}

/* ---- a mean of nothing ---- */

/* The loss is NaN and its gradient zero, as of plain rows, and the rules for options are theirs. */
WORLDS_TEST(a_mean_without_targets_has_no_gradient, 1, 4)
{
    fsdp_mesh *mesh = mesh_of_all(context);
    const fsdp_cross_entropy_options scaled = {.scale = 0.5};
    fsdp_tensor *whole, *ids, *part = NULL, *own = NULL, *x, *targets, *loss;
    float grad[15], value;

    CHECK_OK(fsdp_scope_begin(context));
    whole = world_leaf(context, FSDP_F32, FSDP_SHAPE(5, 3), 3);
    ids = CHECK_PTR(fsdp_full(test_device(context), FSDP_I32, FSDP_SHAPE(5), FSDP_IGNORE_TARGET));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &rows, &part));
    CHECK_OK(fsdp_distribute_tensor(ids, mesh, &rows, &own));
    CHECK_OK(fsdp_tensor_set_requires_grad(part, true));
    x = CHECK_PTR(fsdp_parallel_redistribute(part, &rows));
    targets = CHECK_PTR(fsdp_parallel_redistribute(own, &rows));
    CHECK_INVALID(fsdp_cross_entropy_with(x, targets, &scaled), "cross_entropy: a mean has no scale, but 0.5 is given");
    loss = fsdp_to_local(CHECK_PTR(fsdp_parallel_redistribute(fsdp_cross_entropy(x, targets), &replicate)));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(loss), FSDP_F32, &value));
    CHECK(isnan(value));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(part)), FSDP_F32, grad));
    for (int64_t i = 0; i < fsdp_tensor_numel(part); i++)
        CHECK(grad[i] == 0);
    fsdp_tensor_unref(part);
    fsdp_tensor_unref(own);
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(mesh);
}

/* ---- what is refused ---- */

/* A dimension of segments stays one, and may have others beside it. */
RANKS_TEST(a_dimension_in_segments_is_not_reshaped, 2)
{
    const fsdp_placement segments = {.kind = FSDP_SHARD, .segment_count = 2, .segments = {8, 4}};
    fsdp_mesh *mesh = mesh_of_all(context);
    fsdp_tensor *x, *y;

    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(
        fsdp_from_local(world_leaf(context, FSDP_F32, FSDP_SHAPE(6, 4), 1), mesh, &segments, (const int64_t[]){12, 4}));
    CHECK_FAILS(fsdp_reshape(x, FSDP_SHAPE(4, 3, 4)), FSDP_UNSUPPORTED,
                "reshape: input 0 is a (12, 4) tensor with placements");
    CHECK_FAILS(fsdp_flatten(x, 0, 1), FSDP_UNSUPPORTED, "needs all of the dimension that is cut");
    y = CHECK_PTR(fsdp_reshape(x, FSDP_SHAPE(12, 2, 2)));
    CHECK(fsdp__placement_equal(fsdp_tensor_distribution(y)->placements[0], segments));
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(what_has_no_rule_is_refused_with_its_name_and_placements, 2)
{
    fsdp_mesh *mesh = mesh_of_all(context), *other = NULL;
    const fsdp_placement flat = {.kind = FSDP_FLAT, .chunk = 8}, most = {.kind = FSDP_PARTIAL, .op = FSDP_MAX};
    const char *const name = "other";
    fsdp_tensor *x, *cut, *partial, *plain, *elsewhere;

    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){2}, &name, &other));
    CHECK_OK(fsdp_scope_begin(context));
    plain = world_leaf(context, FSDP_F32, FSDP_SHAPE(4, 6), 1);
    x = CHECK_PTR(fsdp_from_local(plain, mesh, &replicate, NULL));
    cut = CHECK_PTR(fsdp_parallel_redistribute(x, &columns));
    partial = CHECK_PTR(fsdp_parallel_redistribute(x, &sum));
    elsewhere = CHECK_PTR(fsdp_from_local(plain, other, &replicate, NULL));
    CHECK_FAILS(
        fsdp_softmax(cut), FSDP_UNSUPPORTED,
        "softmax: input 0 is a (4, 6) tensor with placements (Shard(dim=1),), and the operation needs all of the "
        "dimension that is cut (mesh dimension 'dp'): redistribute it first");
    CHECK_FAILS(fsdp_exp(partial), FSDP_UNSUPPORTED, "exp: input 0 is a (4, 6) tensor with placements (Partial(sum),)");
    CHECK_FAILS(fsdp_cast(fsdp_detach(partial), FSDP_I32), FSDP_UNSUPPORTED, "cast: input 0 is a (4, 6) tensor with");
    CHECK_FAILS(fsdp_cast(fsdp_detach(partial), FSDP_BOOL), FSDP_UNSUPPORTED, "not linear");
    CHECK(fsdp_tensor_dtype(CHECK_PTR(fsdp_cast(fsdp_detach(cut), FSDP_I32))) == FSDP_I32);
    CHECK_FAILS(fsdp_mul(partial, partial), FSDP_UNSUPPORTED, "another input is to be added up, too");
    CHECK_FAILS(fsdp_add(partial, cut), FSDP_UNSUPPORTED, "another input is cut");
    CHECK_FAILS(fsdp_add_scalar(partial, 1), FSDP_UNSUPPORTED, "not linear");
    CHECK_FAILS(fsdp_add(cut, fsdp_parallel_redistribute(x, &rows)), FSDP_UNSUPPORTED, "cut in another way");
    CHECK_FAILS(fsdp_flatten(cut, 0, 1), FSDP_UNSUPPORTED, "reshape: input 0");
    CHECK_FAILS(fsdp_slice(cut, 1, 0, 3), FSDP_UNSUPPORTED, "slice: input 0");
    CHECK_FAILS(fsdp_amax(cut, FSDP_DIMS(0), false), FSDP_UNSUPPORTED,
                "amax: there is no rule for distributed tensors");
    CHECK_FAILS(fsdp_mul(cut, plain), FSDP_INVALID, "mul: input 1 (4, 6) is a plain tensor beside a distributed one");
    CHECK_FAILS(fsdp_add(x, elsewhere), FSDP_INVALID, "distributed over mesh (other=2), and the others over (dp=2)");
    CHECK_FAILS(fsdp_matmul(cut, x), FSDP_INVALID, "matmul: distributed tensors (4, 6) and (4, 6) do not fit");
    CHECK_FAILS(fsdp_slice(cut, 0, 3, 2), FSDP_INVALID, "are not in a distributed tensor (4, 6)");
    CHECK_FAILS(fsdp_reshape(cut, FSDP_SHAPE(5, -1)), FSDP_INVALID, "a distributed tensor (4, 6) cannot become");
    CHECK_FAILS(fsdp_from_local(x, mesh, &replicate, NULL), FSDP_INVALID, "distributed already");
    CHECK_FAILS(fsdp_from_local(plain, mesh, &rows, NULL), FSDP_INVALID, "shape of the whole tensor is required");
    CHECK_INVALID(fsdp_from_local(plain, mesh, &rows, (const int64_t[]){4, 6}), "this rank's piece has shape (2, 6)");
    CHECK_FAILS(fsdp_from_local(plain, mesh, &flat, NULL), FSDP_UNSUPPORTED, "flat placements");
    CHECK_INVALID(fsdp_to_local(plain), "to_local: the tensor is plain already");
    CHECK_INVALID(fsdp_parallel_redistribute(plain, &rows), "the tensor is plain: distribute it");
    CHECK_FAILS(fsdp_parallel_redistribute(fsdp_parallel_redistribute(x, &most), &replicate), FSDP_UNSUPPORTED,
                "has no gradient");
    /* after a refusal they are as they were */
    CHECK(cut->global && partial->global);
    CHECK(!is_global(fsdp_to_local(cut)));
    CHECK(is_global(fsdp_detach(cut)));
    fsdp_scope_end(context, NULL);
    fsdp_mesh_unref(other);
    fsdp_mesh_unref(mesh);
}

/* A second time, as of a tied parameter, must be as the first. */
WORLDS_TEST(a_parameter_is_placed_again_only_as_before, 1, 3)
{
    const fsdp_placement whole = {.kind = FSDP_REPLICATE};
    bool alone = fsdp_context_world_size(context) == 1;
    char text[80];

    for (int partial = 0; partial < 2; partial++) {
        fsdp_module *norm = CHECK_PTR(fsdp_layernorm_create(context, test_device(context), 4, 1e-5f));
        fsdp_mesh *mesh = mesh_of_all(context);

        CHECK_OK(fsdp_parallel_place(norm, "weight", mesh, whole, partial));
        CHECK_OK(fsdp_parallel_place(norm, "weight", mesh, whole, partial));
        CHECK_STATUS(fsdp_parallel_place(norm, "weight", mesh, whole, !partial), alone ? FSDP_OK : FSDP_STATE);
        snprintf(text, sizeof text, "'LayerNorm.weight' was placed with %s gradients", partial ? "partial" : "whole");
        CHECK_CONTAINS(alone ? text : fsdp_last_error(), text);
        fsdp_clear_error();
        fsdp_module_unref(norm);
        fsdp_mesh_unref(mesh);
    }
}

RANKS_TEST(a_failing_allocation_is_an_error, 1)
{
    fsdp_mesh *mesh = mesh_of_all(context);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_scope_begin(context);
        fsdp_tensor *x, *y = NULL;

        if (status == FSDP_OK) {
            x = fsdp_from_local(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(3, 5)), mesh, &rows,
                                (const int64_t[]){3, 5});
            y = fsdp_parallel_redistribute(fsdp_sum_dim(fsdp_scale(fsdp_detach(x), 2), 0, false), &replicate);
            status = y ? FSDP_OK : fsdp_last_status();
            fsdp_scope_end(context, NULL);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    fsdp_mesh_unref(mesh);
}
