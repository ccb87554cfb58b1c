/* world_gradient.c - one rank after the other changes one element after the other, and all compute. */
#include "parallel/world_gradient.h"

#include <math.h>

#include "base/rng.h"
#include "tensor/tensor.h"

static double number(uint64_t seed, int64_t i)
{
    return 2.0 * (double)fsdp__rng_uniform(fsdp__rng_key(seed, "world"), (uint64_t)i) - 1.0;
}

static fsdp_tensor *numbers(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, uint64_t seed)
{
    fsdp_tensor *made = CHECK_PTR(fsdp_empty(device, dtype, ndim, shape));
    int64_t numel = fsdp_tensor_numel(made);
    float *values = malloc((size_t)(numel + 1) * sizeof *values);

    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)number(seed, i);
    CHECK_OK(fsdp_tensor_write(made, FSDP_F32, values));
    free(values);
    return made;
}

fsdp_tensor *world_leaf(fsdp_context *context, fsdp_dtype dtype, int ndim, const int64_t *shape, uint64_t seed)
{
    fsdp_tensor *leaf = numbers(test_device(context), dtype, ndim, shape, seed);

    CHECK_OK(fsdp_tensor_set_requires_grad(leaf, true));
    return leaf;
}

/* The sum of a number over all ranks, the same on all of them. */
static double sum_of(fsdp_context *context, double mine)
{
    fsdp_process_group *world = fsdp_world(context);
    void **all = NULL;
    size_t *bytes = NULL;
    double sum = 0;

    CHECK_OK(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    for (int r = 0; r < fsdp_process_group_size(world); r++)
        sum += *(double *)all[r];
    fsdp_objects_free(world, all, bytes);
    return sum;
}

static uint64_t weight_seed(fsdp_context *context, const world_gradient *g)
{
    return g->output_alike ? 1000 : 1000 + (uint64_t)fsdp_context_rank(context);
}

static double evaluate(fsdp_context *context, const world_gradient *g, fsdp_tensor *x)
{
    double sum = 0;
    fsdp_tensor *y;
    float *values;

    CHECK_OK(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    y = CHECK_PTR(g->function(g->arg, x));
    fsdp_no_grad_end(context);
    values = malloc((size_t)(fsdp_tensor_numel(y) + 1) * sizeof *values);
    CHECK_OK(fsdp_tensor_read(y, FSDP_F32, values));
    for (int64_t i = 0; i < fsdp_tensor_numel(y); i++)
        sum += number(weight_seed(context, g), i) * (double)values[i];
    free(values);
    fsdp_scope_end(context, NULL);
    return g->output_alike ? sum : sum_of(context, sum);
}

/* Runs the backward and reads the gradient: zeros if none has come. */
static void differentiate(fsdp_context *context, const world_gradient *g, fsdp_tensor *x, float *grad)
{
    fsdp_tensor *y, *weights;

    CHECK_OK(fsdp_scope_begin(context));
    y = CHECK_PTR(g->function(g->arg, x));
    weights = numbers(y->storage->device, y->dtype, y->ndim, y->shape, weight_seed(context, g));
    CHECK_OK(fsdp_backward_from(&y, &weights, 1, false));
    memset(grad, 0, (size_t)fsdp_tensor_numel(x) * sizeof *grad);
    if (fsdp_tensor_grad(x))
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, grad));
    CHECK_OK(fsdp_tensor_set_grad(x, NULL));
    fsdp_scope_end(context, NULL);
}

/* The quotient for element i of rank `who` (-1: of all ranks). */
static double quotient(fsdp_context *context, const world_gradient *g, fsdp_tensor *x, float *values, int who,
                       int64_t i)
{
    const float eps = 0.0078125f;
    bool mine = who < 0 || who == fsdp_context_rank(context);
    float before = mine ? values[i] : 0;
    double sides[2];

    for (int side = 0; side < 2; side++) {
        if (mine)
            values[i] = before + (side ? eps : -eps);
        CHECK_OK(fsdp_tensor_write(x, FSDP_F32, values));
        sides[side] = evaluate(context, g, x);
    }
    if (mine)
        values[i] = before;
    CHECK_OK(fsdp_tensor_write(x, FSDP_F32, values));
    return (sides[1] - sides[0]) / (2.0 * (double)eps);
}

void check_world_gradient(fsdp_context *context, const world_gradient *g, fsdp_tensor *x)
{
    int64_t numel = fsdp_tensor_numel(x);
    int ranks = g->input_alike ? 1 : fsdp_context_world_size(context);
    float *values = malloc((size_t)(numel + 1) * sizeof *values), *grad = malloc((size_t)(numel + 1) * sizeof *grad);

    CHECK_OK(fsdp_tensor_read(x, FSDP_F32, values));
    differentiate(context, g, x, grad);
    for (int r = 0; r < ranks; r++) {
        bool mine = g->input_alike || r == fsdp_context_rank(context);
        int64_t count = g->input_alike ? numel : (int64_t)sum_of(context, mine ? (double)numel : 0);

        for (int64_t i = 0; i < count; i++) {
            double numeric = quotient(context, g, x, values, g->input_alike ? -1 : r, i);

            if (mine)
                CHECK_NEAR(grad[i], numeric, 2e-3 * (1 + fabs(numeric)));
        }
    }
    free(values);
    free(grad);
}
