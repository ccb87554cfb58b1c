/* Operations on distributed tensors equal those on whole ones: any operation, placements and meshes, values and
 * gradients. */
#include <math.h>

#include "fsdp/ops.h"
#include "parallel/world_gradient.h"
#include "support/dice.h"
#include "tensor/tensor.h"

typedef fsdp_tensor *const *tensors;

/* An expression of tensors of given shapes; ids are int32 below 6. */
typedef struct op_case {
    const char *name;
    fsdp_tensor *(*expression)(tensors in);
    int count, ids; /* ids: which input they are; 0: none */
    struct {
        int ndim;
        int64_t shape[4];
    } in[3];
} op_case;

#define EXPRESSION(name, ...)                 \
    static fsdp_tensor *do_##name(tensors in) \
    {                                         \
        return __VA_ARGS__;                   \
    }

#define BIG         \
    {               \
        3,          \
        {           \
            5, 4, 6 \
        }           \
    }

EXPRESSION(add, fsdp_add(in[0], in[1]))
EXPRESSION(sub, fsdp_sub(in[0], in[1]))
EXPRESSION(mul, fsdp_mul(in[0], in[1]))
EXPRESSION(same, fsdp_mul(in[0], in[0]))
EXPRESSION(div, fsdp_div(in[0], fsdp_add_scalar(fsdp_square(in[1]), 1)))
EXPRESSION(maximum, fsdp_maximum(in[0], in[1]))
EXPRESSION(swiglu, fsdp_swiglu(in[0], in[1]))
EXPRESSION(exp, fsdp_exp(in[0]))
EXPRESSION(gelu, fsdp_gelu_tanh(fsdp_clamp(in[0], -0.5, 0.5)))
EXPRESSION(scale, fsdp_neg(fsdp_scale(in[0], 3)))
EXPRESSION(scalar, fsdp_sub(fsdp_scalar(in[0], 1), in[0]))
EXPRESSION(cast, fsdp_cast(fsdp_cast(in[0], FSDP_BF16), FSDP_F32))
EXPRESSION(where, fsdp_where(fsdp_gt(in[0], in[1]), in[0], in[1]))
EXPRESSION(fill, fsdp_masked_fill(in[0], fsdp_lt(in[0], fsdp_scalar(in[0], 0)), 2))
EXPRESSION(linear, fsdp_linear(in[0], in[1], in[2]))
EXPRESSION(no_bias, fsdp_linear(in[0], in[1], FSDP_NO_BIAS))
EXPRESSION(conv1d, fsdp_conv1d(in[0], in[1], in[2]))
EXPRESSION(matmul, fsdp_matmul(in[0], in[1]))
EXPRESSION(sum, fsdp_sum(in[0]))
EXPRESSION(sum_dim, fsdp_sum_dim(in[0], -2, false))
EXPRESSION(mean, fsdp_mean(in[0]))
EXPRESSION(mean_dims, fsdp_mean_dims(in[0], FSDP_DIMS(0, 2), true))
EXPRESSION(transpose, fsdp_transpose(in[0], 0, -1))
EXPRESSION(permute, fsdp_permute(in[0], 3, (const int[]){2, 0, 1}))
EXPRESSION(merge, fsdp_flatten(in[0], 0, 1))
EXPRESSION(divide, fsdp_reshape(in[0], FSDP_SHAPE(8, -1, 2, 3)))
EXPRESSION(ones, fsdp_squeeze(fsdp_unsqueeze(fsdp_contiguous(in[0]), 1), 1))
EXPRESSION(slice, fsdp_slice(in[0], 1, 1, 2))
EXPRESSION(slice_back, fsdp_slice(in[0], -2, 1, 2))
EXPRESSION(all, fsdp_slice(in[0], 1, 0, 4))
EXPRESSION(concat, fsdp_concat((fsdp_tensor *[]){in[0], in[1]}, 2, 1))
EXPRESSION(stack, fsdp_stack(in, 2, 1))
EXPRESSION(expand, fsdp_expand(in[0], FSDP_SHAPE(2, 5, 4, 6)))
EXPRESSION(softmax, fsdp_softmax(in[0]))
EXPRESSION(log_softmax, fsdp_log_softmax(fsdp_relu(in[0])))
EXPRESSION(layernorm, fsdp_layernorm(in[0], in[1], in[2], 1e-5f))
EXPRESSION(rmsnorm, fsdp_rmsnorm(in[0], in[1], 1e-5f))
EXPRESSION(embedding, fsdp_embedding(in[0], in[1]))
EXPRESSION(loss, fsdp_cross_entropy(in[0], in[1]))

static fsdp_tensor *do_loss_sum(tensors in)
{
    const fsdp_cross_entropy_options options = {.reduction = FSDP_LOSS_SUM, .scale = 0.5};

    return fsdp_cross_entropy_with(in[0], in[1], &options);
}

static fsdp_tensor *do_add_norm(tensors in)
{
    fsdp_tensor *sum = NULL, *y = fsdp_add_rmsnorm(in[0], in[1], in[2], 1e-5f, &sum);

    return fsdp_mul(y, sum);
}

static fsdp_tensor *do_split(tensors in)
{
    fsdp_tensor *parts[2];

    return fsdp_split(in[0], 2, 2, NULL, parts) == FSDP_OK ? fsdp_mul(parts[0], parts[1]) : NULL;
}

#define CASE(name, count, ...)      \
    {                               \
#name, do_##name, count, 0, \
        {                           \
            __VA_ARGS__             \
        }                           \
    }

static const op_case cases[] = {
    CASE(add, 2, BIG, BIG),
    CASE(add, 2, BIG, {2, {4, 1}}),
    CASE(sub, 2, {1, {6}}, BIG),
    CASE(mul, 2, BIG, {1, {6}}),
    CASE(mul, 2, BIG, BIG),
    CASE(same, 1, BIG),
    CASE(div, 2, BIG, {2, {4, 6}}),
    CASE(maximum, 2, BIG, BIG),
    CASE(swiglu, 2, BIG, BIG),
    CASE(exp, 1, BIG),
    CASE(gelu, 1, BIG),
    CASE(scale, 1, BIG),
    CASE(scalar, 1, BIG),
    CASE(cast, 1, BIG),
    CASE(where, 2, BIG, BIG),
    CASE(fill, 1, BIG),
    CASE(linear, 3, BIG, {2, {7, 6}}, {1, {7}}),
    CASE(no_bias, 2, BIG, {2, {7, 6}}),
    CASE(conv1d, 3, BIG, {2, {6, 7}}, {1, {7}}),
    CASE(matmul, 2, {2, {5, 6}}, {2, {6, 4}}),
    CASE(matmul, 2, {3, {3, 5, 6}}, {3, {3, 6, 4}}),
    CASE(matmul, 2, {3, {3, 5, 6}}, {2, {6, 4}}),
    CASE(matmul, 2, {1, {6}}, {3, {3, 6, 4}}),
    CASE(matmul, 2, {3, {3, 5, 6}}, {1, {6}}),
    CASE(sum, 1, BIG),
    CASE(sum_dim, 1, BIG),
    CASE(mean, 1, BIG),
    CASE(mean_dims, 1, BIG),
    CASE(transpose, 1, BIG),
    CASE(permute, 1, BIG),
    CASE(merge, 1, {3, {8, 3, 2}}),
    CASE(divide, 1, {2, {16, 6}}),
    CASE(ones, 1, BIG),
    CASE(slice, 1, BIG),
    CASE(slice_back, 1, BIG),
    CASE(all, 1, BIG),
    CASE(concat, 2, BIG, {3, {5, 3, 6}}),
    CASE(stack, 2, BIG, BIG),
    CASE(expand, 1, {3, {5, 1, 6}}),
    CASE(softmax, 1, BIG),
    CASE(log_softmax, 1, BIG),
    CASE(layernorm, 3, BIG, {1, {6}}, {1, {6}}),
    CASE(rmsnorm, 2, BIG, {1, {6}}),
    CASE(add_norm, 3, BIG, BIG, {1, {6}}),
    CASE(split, 1, BIG),
    {"embedding", do_embedding, 2, 1, {{2, {6, 5}}, {2, {4, 3}}}},
    {"loss", do_loss, 2, 1, {BIG, {2, {5, 4}}}},
    {"loss_sum", do_loss_sum, 2, 1, {BIG, {2, {5, 4}}}},
};

enum {
    CASES = sizeof cases / sizeof cases[0],
    MAX_NUMEL = 1024
};

typedef struct mesh_case {
    int world, ndim;
    int64_t shape[2];
} mesh_case;

static const mesh_case meshes[] = {{1, 1, {1}}, {2, 1, {2}},    {3, 1, {3}},    {4, 1, {4}},
                                   {8, 1, {8}}, {4, 2, {2, 2}}, {6, 2, {2, 3}}, {8, 2, {4, 2}}};

/* ---- the same on whole tensors ---- */

static fsdp_tensor *make_whole(fsdp_context *context, const op_case *c, int i)
{
    int32_t ids[MAX_NUMEL];
    fsdp_tensor *whole;

    if (c->ids == 0 || i != c->ids)
        return world_leaf(context, FSDP_F32, c->in[i].ndim, c->in[i].shape, 100 + (uint64_t)i);
    whole = CHECK_PTR(fsdp_empty(test_device(context), FSDP_I32, c->in[i].ndim, c->in[i].shape));
    for (int j = 0; j < fsdp_tensor_numel(whole); j++)
        ids[j] = c->expression != do_embedding && j % 5 == 0 ? FSDP_IGNORE_TARGET : j * 7 % 6;
    CHECK_OK(fsdp_tensor_write(whole, FSDP_I32, ids));
    return whole;
}

static fsdp_tensor *weighted(fsdp_context *context, fsdp_tensor *y)
{
    fsdp_tensor *weights = world_leaf(context, FSDP_F32, y->ndim, y->shape, 7);

    CHECK_OK(fsdp_tensor_set_requires_grad(weights, false));
    return fsdp_sum(fsdp_mul(y, weights));
}

/* ---- distributed ---- */

static void draw_placements(uint64_t *dice, const mesh_case *m, int ndim, bool partial, fsdp_placement *out)
{
    for (int i = 0; i < m->ndim; i++) {
        int kind = dice_below(dice, partial ? 20 : 17);

        out[i] = (fsdp_placement){.kind = FSDP_REPLICATE};
        if (kind >= 17)
            out[i].kind = FSDP_PARTIAL;
        else if (kind >= 9 && ndim > 0)
            out[i] = (fsdp_placement){.kind = FSDP_SHARD, .dim = dice_below(dice, ndim)};
    }
}

/* Makes a leaf like a parameter, cut unless it is to be partial, and the distributed tensor. */
static fsdp_tensor *distribute(fsdp_tensor *whole, fsdp_mesh *mesh, const fsdp_placement *placements,
                               fsdp_tensor **leaf)
{
    fsdp_placement at[FSDP_MAX_MESH_DIMS];
    int ndim = fsdp_mesh_ndim(mesh);

    for (int i = 0; i < ndim; i++)
        at[i] = placements[i].kind == FSDP_PARTIAL ? (fsdp_placement){.kind = FSDP_REPLICATE} : placements[i];
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, at, leaf));
    if (fsdp_tensor_requires_grad(whole))
        CHECK_OK(fsdp_tensor_set_requires_grad(*leaf, true));
    return CHECK_PTR(fsdp_parallel_redistribute(*leaf, placements));
}

static void compare(const fsdp_tensor *actual, const fsdp_tensor *expected, double tolerance, const char *what)
{
    float a[MAX_NUMEL], b[MAX_NUMEL];
    int64_t numel = fsdp_tensor_numel(expected);

    CHECK_EQ(actual->ndim, expected->ndim);
    CHECK_BYTES(actual->shape, expected->shape, (size_t)actual->ndim * sizeof *actual->shape);
    CHECK_OK(fsdp_tensor_read(actual, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(expected, FSDP_F32, b));
    for (int64_t i = 0; i < numel; i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance * (1 + fabsf(b[i]))))
            TEST_FAIL("%s: element %lld is %g, expected %g", what, (long long)i, (double)a[i], (double)b[i]);
}

/* Puts the parts of a leaf's gradient together: what is replicated must be the whole gradient everywhere. */
static void check_leaf(fsdp_tensor *leaf, const fsdp_tensor *whole, double tolerance, const char *what)
{
    fsdp_tensor *grad = fsdp_tensor_grad(leaf), *full = NULL, *alias = NULL;

    if (!grad)
        grad = fsdp_zeros(leaf->storage->device, leaf->dtype, leaf->ndim, leaf->shape);
    CHECK_OK(fsdp__tensor_alias(grad, &alias));
    CHECK_OK(fsdp_tensor_set_distribution(alias, fsdp_tensor_distribution(leaf)));
    CHECK_OK(fsdp_full_tensor(alias, &full));
    compare(full, fsdp_tensor_grad(whole), tolerance, what);
    fsdp_tensor_unref(alias);
    fsdp_tensor_unref(full);
}

typedef struct drawn {
    fsdp_tensor *whole[3], *leaf[3], *in[3];
    char text[512];
} drawn;

static void draw_inputs(fsdp_context *context, uint64_t *dice, const op_case *c, const mesh_case *m, fsdp_mesh *mesh,
                        drawn *d)
{
    size_t used = (size_t)snprintf(d->text, sizeof d->text, "%s", c->name);

    for (int i = 0; i < c->count; i++) {
        fsdp_placement placements[2] = {0};
        bool ids = c->ids > 0 && i == c->ids;

        d->whole[i] = make_whole(context, c, i);
        draw_placements(dice, m, c->in[i].ndim, !ids, placements);
        d->in[i] = distribute(d->whole[i], mesh, placements, &d->leaf[i]);
        if (i > 0 && dice_chance(dice, 30) && placements[0].kind != FSDP_PARTIAL &&
            placements[1].kind != FSDP_PARTIAL && c->expression != do_div && c->expression != do_stack)
            d->in[i] = d->leaf[i]; /* a parameter as it is */
        for (int k = 0; k < m->ndim; k++)
            used += (size_t)snprintf(d->text + used, sizeof d->text - used, "%s%c%d", k == 0 ? " | " : ",",
                                     "RSP"[placements[k].kind], placements[k].dim);
    }
}

/* Runs one draw; returns whether there is a rule for it. */
static bool check_draw(fsdp_context *context, const op_case *c, drawn *d)
{
    const fsdp_placement all[2] = {{.kind = FSDP_REPLICATE}, {.kind = FSDP_REPLICATE}};
    double tolerance = c->expression == do_cast ? 1e-2 : 2e-5;
    fsdp_tensor *y, *z, *full = NULL;

    y = c->expression(d->in);
    if (!y) {
        if (fsdp_last_status() != FSDP_UNSUPPORTED)
            TEST_FAIL("%s: %s", d->text, fsdp_last_error());
        CHECK_CONTAINS(fsdp_last_error(), "redistribute it first");
        fsdp_clear_error();
        return false;
    }
    z = c->expression(d->whole);
    CHECK_OK(fsdp_full_tensor(y, &full));
    compare(full, z, tolerance, d->text);
    fsdp_tensor_unref(full);
    y = weighted(context, fsdp_to_local(fsdp_parallel_redistribute(y, all)));
    CHECK_OK(fsdp_backward(CHECK_PTR(y)));
    CHECK_OK(fsdp_backward(CHECK_PTR(weighted(context, z))));
    for (int i = 0; i < c->count; i++)
        if (fsdp_tensor_requires_grad(d->whole[i]))
            check_leaf(d->leaf[i], d->whole[i], tolerance, d->text);
    return true;
}

static void check_case(fsdp_context *context, const op_case *c, const mesh_case *m, fsdp_mesh *mesh, uint64_t *dice)
{
    int done = 0;

    for (int round = 0; round < (test_brief() ? 4 : 25); round++) {
        drawn d = {0};

        CHECK_OK(fsdp_scope_begin(context));
        draw_inputs(context, dice, c, m, mesh, &d);
        done += check_draw(context, c, &d);
        for (int i = 0; i < c->count; i++) {
            (void)fsdp_tensor_set_grad(d.whole[i], NULL);
            fsdp_tensor_unref(d.leaf[i]);
        }
        fsdp_scope_end(context, NULL);
    }
    if (done < 1 && !test_brief() && m->ndim == 1)
        TEST_FAIL("%s: no draw has a rule", c->name);
}

static void check_all(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"dp", "tp"};
    const mesh_case *m = arg;
    fsdp_mesh *mesh = NULL;
    uint64_t dice = (uint64_t)(m->world * 10 + m->ndim);

    CHECK_OK(fsdp_mesh_create(context, m->ndim, m->shape, names, &mesh));
    for (int i = 0; i < CASES; i++)
        check_case(context, &cases[i], m, mesh, &dice);
    fsdp_mesh_unref(mesh);
}

TEST(any_operation_of_any_placements_is_that_of_whole_tensors)
{
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++)
        if (test_takes((int)i + 1, 1, 3)) /* 3 ranks, and 2 x 2 */
            test_run_ranks(meshes[i].world, check_all, (void *)&meshes[i]);
}
