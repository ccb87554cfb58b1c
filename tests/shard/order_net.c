/* order_net.c - the network: built, told to fail, fed. */
#include "shard/order_net.h"

static fsdp_status order_fail_when_told(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    const order_block *b = arg;

    (void)tensor;
    (void)grad;
    return b->fail_backward ? FSDP_FAIL(FSDP_INVALID, "this block's backward was told to fail") : FSDP_OK;
}

static fsdp_tensor *order_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    order_block *b = (order_block *)self;
    bool skips = b->skips && fsdp_tensor_requires_grad(inputs[0]);
    fsdp_tensor *up = skips ? NULL : fsdp_call(b->up, inputs[0]), *y;

    (void)count;
    if (b->fail_forward) {
        FSDP_FAIL(FSDP_INVALID, "this block's forward was told to fail");
        return NULL;
    }
    y = skips ? fsdp_scale(inputs[0], 1.0) : fsdp_add(inputs[0], fsdp_call(b->down, fsdp_gelu(up)));
    if (y && fsdp_tensor_requires_grad(y) && fsdp_tensor_add_grad_hook(y, order_fail_when_told, b) != FSDP_OK)
        return NULL;
    return y;
}

/* x (n,5), targets (n) -> loss () */
static fsdp_tensor *order_net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    order_net *n = (order_net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    (void)count;
    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks); i++)
        x = fsdp_call(fsdp_module_child_at(n->blocks, i, NULL), x);
    if (n->form == ORDER_FORM_TWICE)
        x = fsdp_call(fsdp_module_child_at(n->blocks, 0, NULL), x);
    x = fsdp_call(n->norm, x);
    if (n->form == ORDER_FORM_FUSED)
        return fsdp_linear_cross_entropy(x, ((fsdp_layer *)n->head)->weight, inputs[1]);
    return fsdp_cross_entropy(fsdp_call(n->head, x), inputs[1]);
}

static const fsdp_module_type order_block_type = {.name = "OrderBlock", .forward = order_block_forward};

static const fsdp_module_type order_net_type = {.name = "OrderNet", .forward = order_net_forward};

static fsdp_module *order_block_create(fsdp_context *context, fsdp_device *device, int ffn)
{
    order_block *b;

    CHECK_OK(fsdp_module_create(context, &order_block_type, sizeof *b, &b));
    b->up = fsdp_linear_create(context, device, ORDER_DIM, ffn, NULL);
    b->down = fsdp_linear_create(context, device, ffn, ORDER_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&b->base, "up", b->up));
    CHECK_OK(fsdp_module_add_child(&b->base, "down", b->down));
    return &b->base;
}

fsdp_module *order_net_create(fsdp_context *context, fsdp_device *device, int blocks, int ffn, order_form form)
{
    order_net *n;

    CHECK_OK(fsdp_module_create(context, &order_net_type, sizeof *n, &n));
    n->form = form;
    n->input = fsdp_linear_create(context, device, ORDER_IN, ORDER_DIM, NULL);
    n->blocks = fsdp_module_list_create(context);
    n->norm = fsdp_layernorm_create(context, device, ORDER_DIM, 1e-5f);
    n->head = fsdp_linear_create(context, device, ORDER_DIM, ORDER_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "input", n->input));
    CHECK_OK(fsdp_module_add_child(&n->base, "blocks", n->blocks));
    CHECK_OK(fsdp_module_add_child(&n->base, "norm", n->norm));
    CHECK_OK(fsdp_module_add_child(&n->base, "head", n->head));
    for (int i = 0; i < blocks; i++)
        CHECK_OK(fsdp_module_list_append(n->blocks, order_block_create(context, device, ffn)));
    return &n->base;
}

fsdp_tensor *order_inputs(fsdp_context *context, int number, int rank, int rows, int columns)
{
    float values[ORDER_ROWS * (ORDER_DIM + 1)];

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            values[i * columns + j] = (float)(((rank * ORDER_ROWS + i) * 31 + j * 17 + number * 7) % 23) / 11.0f - 1.0f;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(rows, columns), values));
}

fsdp_tensor *order_targets(fsdp_context *context, int number, int rank, int rows)
{
    int32_t classes[ORDER_ROWS];

    for (int i = 0; i < rows; i++)
        classes[i] = ((rank * ORDER_ROWS + i) * 5 + number) % ORDER_OUT;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(rows), classes));
}
