/* Parameters, gradients and buffers in another dtype. */
#include "nn/module.h"

#include "autograd/tools.h"

typedef struct net {
    fsdp_module base;
    fsdp_module *linear;
    fsdp_tensor *tied, *filled, *numbers, *counts;
} net;

static const fsdp_module_type net_type = {.name = "Net"};

static fsdp_status fill(fsdp_module *module, fsdp_tensor *buffer)
{
    (void)module;
    return fsdp_tensor_fill_(buffer, 9);
}

static void add_tensor(fsdp_device *device, fsdp_dtype dtype, fsdp_tensor **out)
{
    CHECK_OK(fsdp_tensor_create(device, dtype, FSDP_SHAPE(2), FSDP_MEMORY_WORKSPACE, out));
    if (!fsdp_device_is_meta(device))
        CHECK_OK(fsdp_tensor_fill_(*out, 1.001));
}

static net *create(fsdp_context *context, fsdp_device *device)
{
    net *n;

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof *n, &n));
    n->linear = fsdp_linear_create(context, device, 3, 5, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "linear", n->linear));
    CHECK_OK(fsdp_module_tie_parameter(&n->base, "tied", &n->tied, ((fsdp_layer *)n->linear)->weight));
    add_tensor(device, FSDP_F32, &n->filled);
    CHECK_OK(fsdp__module_add_filled_buffer(&n->base, "filled", &n->filled, fill));
    add_tensor(device, FSDP_F32, &n->numbers);
    CHECK_OK(fsdp_module_add_buffer(&n->base, "numbers", &n->numbers, true));
    add_tensor(device, FSDP_I32, &n->counts);
    CHECK_OK(fsdp_module_add_buffer(&n->base, "counts", &n->counts, true));
    CHECK_OK(fsdp_module_initialize(&n->base, 3));
    return n;
}

static fsdp_tensor *loss_of(const net *n)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(n->tied);
    fsdp_tensor *x = CHECK_PTR(fsdp_full(test_device(n->base.context), dtype, FSDP_SHAPE(2, 3), 0.7));
    fsdp_tensor *y = fsdp_call(n->linear, x);

    return CHECK_PTR(fsdp_mean(fsdp_mul(y, y)));
}

static void backward(const net *n)
{
    CHECK_OK(fsdp_scope_begin(n->base.context));
    CHECK_OK(fsdp_backward(loss_of(n)));
    fsdp_scope_end(n->base.context, NULL);
}

/* The numbers of `tensor` as `dtype` has them. */
static void read_rounded(const fsdp_tensor *tensor, fsdp_dtype dtype, float *values)
{
    fsdp_tensor *rounded;

    CHECK_OK(fsdp__tensor_convert(tensor, dtype, &rounded));
    CHECK_OK(fsdp_tensor_read(rounded, FSDP_F32, values));
    fsdp_tensor_unref(rounded);
}

CONTEXT_TEST(numbers_are_rounded_once_and_tensors_stay_the_same)
{
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16, FSDP_F32};
    net *n = create(context, test_device(context));
    fsdp_tensor *weight = n->tied, *grad, *numbers = n->numbers;
    float want[15], grad_want[15], got[15];

    backward(n);
    grad = fsdp_tensor_grad(weight);
    for (int i = 0; i < 3; i++) {
        read_rounded(weight, dtypes[i], want);
        read_rounded(grad, dtypes[i], grad_want);
        CHECK_OK(fsdp_module_to(&n->base, dtypes[i]));
        CHECK(((fsdp_layer *)n->linear)->weight == weight && n->tied == weight && n->numbers == numbers);
        CHECK(fsdp_tensor_grad(weight) == grad && fsdp_tensor_requires_grad(weight));
        CHECK_EQ(fsdp_tensor_dtype(weight), dtypes[i]);
        CHECK_EQ(fsdp_tensor_dtype(grad), dtypes[i]);
        CHECK_EQ(fsdp_tensor_dtype(((fsdp_layer *)n->linear)->bias), dtypes[i]);
        CHECK_EQ(fsdp_tensor_dtype(n->numbers), dtypes[i]);
        CHECK_EQ(fsdp_tensor_dtype(n->filled), FSDP_F32); /* a table of the layer's */
        CHECK_EQ(fsdp_tensor_dtype(n->counts), FSDP_I32);
        CHECK_OK(fsdp_tensor_read(weight, FSDP_F32, got));
        CHECK_BYTES(got, want, sizeof got);
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, got));
        CHECK_BYTES(got, grad_want, sizeof got);
    }
    CHECK_OK(fsdp_module_to(&n->base, FSDP_BF16));
    backward(n);
    fsdp_module_unref(&n->base);
}

CONTEXT_TEST(a_meta_module_changes_before_it_has_bytes)
{
    net *late = create(context, fsdp_meta(context)), *early = create(context, test_device(context));
    float left[15], right[15];

    CHECK_OK(fsdp_module_to(&late->base, FSDP_BF16));
    CHECK_OK(fsdp_module_materialize(&late->base, test_device(context)));
    CHECK_OK(fsdp_module_to(&late->base, FSDP_F32)); /* still without values */
    CHECK_OK(fsdp_module_to(&late->base, FSDP_BF16));
    CHECK_OK(fsdp_module_initialize(&late->base, 3));
    CHECK_OK(fsdp_module_to(&early->base, FSDP_BF16));
    CHECK_EQ(fsdp_tensor_dtype(late->tied), FSDP_BF16);
    CHECK_OK(fsdp_tensor_read(late->tied, FSDP_F32, left));
    CHECK_OK(fsdp_tensor_read(early->tied, FSDP_F32, right));
    CHECK_BYTES(left, right, sizeof left);
    fsdp_module_unref(&late->base);
    fsdp_module_unref(&early->base);
}

/* A graph saved the values, and the gradient comes in the dtype that the parameter has by then: made, or added. */
CONTEXT_TEST(a_graph_from_before_gives_the_gradients_of_the_old_values)
{
    net *n = create(context, test_device(context));
    float want[15], got[15];

    backward(n);
    read_rounded(fsdp_tensor_grad(n->tied), FSDP_BF16, want);
    for (int there = 0; there < 2; there++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_module_to(&n->base, FSDP_F32));
        fsdp_module_zero_grad(&n->base);
        CHECK_OK(fsdp_module_initialize(&n->base, 3));
        CHECK_OK(fsdp_scope_begin(context));
        loss = loss_of(n);
        CHECK_OK(fsdp_module_to(&n->base, FSDP_BF16));
        if (there) {
            fsdp_tensor *zero;

            CHECK_OK(
                fsdp_tensor_create(test_device(context), FSDP_BF16, FSDP_SHAPE(5, 3), FSDP_MEMORY_GRADIENT, &zero));
            CHECK_OK(fsdp_tensor_fill_(zero, 0));
            CHECK_OK(fsdp_tensor_set_grad(n->tied, zero));
            fsdp_tensor_unref(zero);
        }
        CHECK_OK(fsdp_backward(loss));
        fsdp_scope_end(context, NULL);
        CHECK_EQ(fsdp_tensor_dtype(fsdp_tensor_grad(n->tied)), FSDP_BF16);
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(n->tied), FSDP_F32, got));
        CHECK_BYTES(got, want, sizeof got);
    }
    fsdp_module_unref(&n->base);
}

/* Gives the gradient of a Linear behind a norm, rounded. With `between` the model changes its dtype between forward and
 * backward. */
static void norm_gradient(fsdp_context *context, bool between, float *out)
{
    fsdp_device *device = test_device(context);
    fsdp_module *layers[] = {fsdp_layernorm_create(context, device, 3, 1e-5f),
                             fsdp_rmsnorm_create(context, device, 3, 1e-5f),
                             fsdp_linear_create(context, device, 3, 5, NULL)};
    fsdp_module *model = CHECK_PTR(fsdp_sequential_create(context, layers, 3));
    fsdp_tensor *y;

    CHECK_OK(fsdp_module_initialize(model, 3));
    CHECK_OK(fsdp_scope_begin(context));
    y = CHECK_PTR(fsdp_call(
        model, fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(2, 3), (const float[]){0.25f, 2, 1.5f, -3, 0.5f, 0.125f})));
    if (between)
        CHECK_OK(fsdp_module_to(model, FSDP_BF16));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_mean(fsdp_mul(y, y)))));
    fsdp_scope_end(context, NULL);
    if (!between)
        CHECK_OK(fsdp_module_to(model, FSDP_BF16));
    for (int i = 0; i < 3; i++) {
        fsdp_tensor *grad = CHECK_PTR(fsdp_tensor_grad(CHECK_PTR(fsdp_module_parameter(layers[i], "weight"))));

        CHECK_EQ(fsdp_tensor_dtype(grad), FSDP_BF16);
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, out + 3 * i));
    }
    fsdp_module_unref(model);
}

/* On a GPU the backward makes the results of the norms again, of the weights that were. */
CONTEXT_TEST(a_norm_from_before_is_made_again_of_the_old_values)
{
    float want[21], got[21];

    norm_gradient(context, false, want);
    norm_gradient(context, true, got);
    CHECK_BYTES(got, want, sizeof got);
}

static fsdp_status change_in_hook(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor, (void)grad;
    return fsdp_module_to(arg, FSDP_BF16);
}

CONTEXT_TEST(what_it_refuses)
{
    net *n = create(context, test_device(context));

    fsdp_clear_error();
    CHECK_ERROR(fsdp_module_to(NULL, FSDP_BF16), FSDP_INVALID, "needs a module");
    CHECK_ERROR(fsdp_module_to(&n->base, FSDP_I32), FSDP_INVALID, "int32: not a floating dtype");
    CHECK_OK(fsdp_tensor_add_grad_hook(n->tied, change_in_hook, &n->base));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_ERROR(fsdp_backward(loss_of(n)), FSDP_STATE, "a backward is running");
    fsdp_scope_end(context, NULL);
    CHECK_EQ(fsdp_tensor_dtype(n->tied), FSDP_F32);
    fsdp_module_unref(&n->base);
}

CONTEXT_TEST(a_failing_allocation_changes_nothing)
{
    net *n = create(context, test_device(context));

    backward(n);
    for (long i = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &i);) {
        fsdp_status status = fsdp_module_to(&n->base, FSDP_BF16);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK_EQ(fsdp_tensor_dtype(n->tied), status == FSDP_OK ? FSDP_BF16 : FSDP_F32);
        CHECK_EQ(fsdp_tensor_dtype(n->numbers), fsdp_tensor_dtype(n->tied));
        CHECK_EQ(fsdp_tensor_dtype(fsdp_tensor_grad(n->tied)), fsdp_tensor_dtype(n->tied));
        if (status == FSDP_OK)
            break;
    }
    fsdp_module_unref(&n->base);
}
