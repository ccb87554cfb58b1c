/* gradcheck.c - compares gradients with central differences. */
#include "autograd/node.h"
#include "base/alloc.h"
#include "base/rng.h"

#include <math.h>

typedef struct check {
    fsdp_gradcheck_function function;
    void *arg;
    fsdp_tensor *const *inputs;
    int count;
    float *weights, *output; /* of the function's output */
    int64_t output_numel;
    double eps, atol, rtol;
    double worst; /* error over tolerance */
    int worst_input;
    int64_t worst_element;
    double worst_analytic, worst_numeric;
} check;

/* Computes sum(weights * function(inputs)) in double. */
static fsdp_status evaluate(check *c, double *out)
{
    fsdp_context *context = fsdp__tensor_context(c->inputs[0]);
    fsdp_status status;
    fsdp_tensor *y;
    double sum = 0;

    FSDP_TRY(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    y = c->function(c->arg, c->inputs, c->count);
    fsdp_no_grad_end(context);
    if (!y || fsdp_tensor_numel(y) != c->output_numel) {
        status = y ? FSDP_FAIL(FSDP_INVALID, "gradcheck: the function's output changed its size") : fsdp_last_status();
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp_tensor_read(y, FSDP_F32, c->output), out);
    for (int64_t i = 0; i < c->output_numel; i++)
        sum += (double)c->weights[i] * (double)c->output[i];
    *out = sum;
out:
    fsdp_scope_end(context, NULL);
    return status;
}

/* Runs a backward, which leaves the gradients on the inputs. */
static fsdp_status differentiate(check *c)
{
    fsdp_context *context = fsdp__tensor_context(c->inputs[0]);
    fsdp_tensor *y, *weights;
    fsdp_status status;

    for (int i = 0; i < c->count; i++)
        FSDP_TRY(fsdp_tensor_set_grad(c->inputs[i], NULL));
    FSDP_TRY(fsdp_scope_begin(context));
    y = c->function(c->arg, c->inputs, c->count);
    FSDP_TRY_GOTO(status, y ? FSDP_OK : fsdp_last_status(), out);
    c->output_numel = fsdp_tensor_numel(y);
    c->weights = fsdp__malloc(2 * (size_t)c->output_numel * sizeof(float));
    FSDP_TRY_GOTO(status, c->weights ? FSDP_OK : FSDP_NO_MEMORY, out);
    c->output = c->weights + c->output_numel;
    for (int64_t i = 0; i < c->output_numel; i++)
        c->weights[i] = 2.0f * fsdp__rng_uniform(fsdp__rng_key(0, "gradcheck"), (uint64_t)i) - 1.0f;
    weights = fsdp_from_data(y->storage->device, y->dtype, y->ndim, y->shape, c->weights);
    status = weights ? fsdp_backward_from(&y, &weights, 1, false) : fsdp_last_status();
out:
    fsdp_scope_end(context, NULL);
    return status;
}

static fsdp_status compare_element(check *c, int input, float *values, const float *grad, int64_t i)
{
    const volatile float before = values[i];
    const volatile float above = before + (float)c->eps, below = before - (float)c->eps;
    double high, low, numeric, analytic = grad ? (double)grad[i] : 0.0, error;

    values[i] = above;
    FSDP_TRY(fsdp_tensor_write(c->inputs[input], FSDP_F32, values));
    FSDP_TRY(evaluate(c, &high));
    values[i] = below;
    FSDP_TRY(fsdp_tensor_write(c->inputs[input], FSDP_F32, values));
    FSDP_TRY(evaluate(c, &low));
    values[i] = before;
    numeric = (high - low) / ((double)above - (double)below);
    error = fabs(analytic - numeric) / (c->atol + c->rtol * fabs(numeric));
    if (error > c->worst || !isfinite(error)) {
        c->worst = isfinite(error) ? error : INFINITY;
        c->worst_input = input;
        c->worst_element = i;
        c->worst_analytic = analytic;
        c->worst_numeric = numeric;
    }
    return FSDP_OK;
}

static fsdp_status compare_input(check *c, int input)
{
    fsdp_tensor *tensor = c->inputs[input], *grad = fsdp_tensor_grad(tensor);
    int64_t numel = fsdp_tensor_numel(tensor);
    FSDP__FREED float *values = fsdp__malloc(2 * (size_t)numel * sizeof(float));
    float *grads = values + numel;

    FSDP__TRY_NEW(values);
    FSDP_TRY(fsdp_tensor_read(tensor, FSDP_F32, values));
    if (grad)
        FSDP_TRY(fsdp_tensor_read(grad, FSDP_F32, grads));
    for (int64_t i = 0; i < numel; i++)
        FSDP_TRY(compare_element(c, input, values, grad ? grads : NULL, i));
    return fsdp_tensor_write(tensor, FSDP_F32, values);
}

fsdp_status fsdp_gradcheck(fsdp_gradcheck_function function, void *arg, fsdp_tensor *const *inputs, int count,
                           double eps, double atol, double rtol)
{
    check c = {
        .function = function, .arg = arg, .inputs = inputs, .count = count, .eps = eps, .atol = atol, .rtol = rtol};
    fsdp_status status;

    if (!function || !inputs || count < 1 || eps <= 0)
        return FSDP_FAIL(FSDP_INVALID, "gradcheck needs a function, inputs and a step above zero");
    for (int i = 0; i < count; i++)
        if (!inputs[i] || inputs[i]->dtype != FSDP_F32 || !fsdp_tensor_is_leaf(inputs[i]) ||
            !fsdp_tensor_requires_grad(inputs[i]))
            return FSDP_FAIL(FSDP_INVALID, "gradcheck: input %d must be a float32 leaf that requires a gradient", i);
    FSDP_TRY_GOTO(status, differentiate(&c), out);
    for (int i = 0; i < count; i++)
        FSDP_TRY_GOTO(status, compare_input(&c, i), out);
    if (c.worst > 1)
        status = FSDP_FAIL(FSDP_MISMATCH, "gradcheck: input %d element %lld: gradient %.6g, difference quotient %.6g",
                           c.worst_input, (long long)c.worst_element, c.worst_analytic, c.worst_numeric);
out:
    for (int i = 0; i < count; i++)
        (void)fsdp_tensor_set_grad(inputs[i], NULL);
    fsdp__free(c.weights);
    return status;
}
