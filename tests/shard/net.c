/* net.c - the network: built, sharded, fed and looked at. */
#include "shard/net.h"

#include "comm/group_calls.h"
#include "device/device.h"
#include "nn/module.h"
#include "shard/doors/fully_shard.h"

fsdp_tensor *net_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;

    (void)count;
    return fsdp_add(inputs[0], fsdp_call(b->down, fsdp_gelu(fsdp_call(b->up, inputs[0]))));
}

fsdp_tensor *net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks); i++)
        x = fsdp_call(fsdp_module_child_at(n->blocks, i, NULL), x);
    x = fsdp_call(n->head, fsdp_call(n->norm, x));
    return count > 1 ? fsdp_cross_entropy(x, inputs[1]) : x;
}

const fsdp_module_type net_block_type = {.name = "Block", .forward = net_block_forward};

const fsdp_module_type net_type = {.name = "Net", .forward = net_forward};

fsdp_module *net_block_create(fsdp_context *context, fsdp_device *device)
{
    net_block *b;

    CHECK_OK(fsdp_module_create(context, &net_block_type, sizeof *b, &b));
    b->up = fsdp_linear_create(context, device, NET_DIM, NET_FFN, NULL);
    b->down = fsdp_linear_create(context, device, NET_FFN, NET_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&b->base, "up", b->up));
    CHECK_OK(fsdp_module_add_child(&b->base, "down", b->down));
    return &b->base;
}

fsdp_module *net_create(fsdp_context *context, fsdp_device *device, int blocks)
{
    net *n;

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof *n, &n));
    n->input = fsdp_linear_create(context, device, NET_IN, NET_DIM, NULL);
    n->blocks = fsdp_module_list_create(context);
    n->norm = fsdp_layernorm_create(context, device, NET_DIM, 1e-5f);
    n->head = fsdp_linear_create(context, device, NET_DIM, NET_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "input", n->input));
    CHECK_OK(fsdp_module_add_child(&n->base, "blocks", n->blocks));
    CHECK_OK(fsdp_module_add_child(&n->base, "norm", n->norm));
    CHECK_OK(fsdp_module_add_child(&n->base, "head", n->head));
    for (int i = 0; i < blocks; i++)
        CHECK_OK(fsdp_module_list_append(n->blocks, net_block_create(context, device)));
    return &n->base;
}

fsdp_module *net_block_at(fsdp_module *module, int64_t index)
{
    return fsdp_module_child_at(((net *)module)->blocks, index, NULL);
}

void net_renew(fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        parameters.items[i].tensor->storage->renewed_by = parameters.items;
    fsdp_parameters_release(&parameters);
}

static fsdp_tensor *pass_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)self;
    (void)count;
    return fsdp_scale(inputs[0], 1);
}

void net_without_norm(fsdp_module *module)
{
    static const fsdp_module_type pass = {.name = "Pass", .forward = pass_forward};

    if (fsdp__device_makes_again(test_device(module->context)))
        ((net *)module)->norm->type = &pass;
}

bool net_ranks_share(fsdp_context *context)
{
    fsdp_device *device = test_device(context);
    int world = fsdp_context_world_size(context);
    bool common = false;

    if (world > 1 && fsdp__device_carries(device))
        CHECK_OK(fsdp__process_group_find_common(fsdp_world(context), device, &common));
    return common || (world > 1 && fsdp__device_shared_memory(device));
}

void net_shard(fsdp_module *module, const fsdp_shard_options *options)
{
    for (int64_t i = 0; i < fsdp_module_child_count(((net *)module)->blocks); i++)
        CHECK_OK(fsdp_fully_shard(net_block_at(module, i), options));
    CHECK_OK(fsdp_fully_shard(module, options));
}

fsdp_mesh *net_hybrid_mesh(fsdp_context *context, int replicas)
{
    const int64_t shape[] = {replicas, fsdp_context_world_size(context) / replicas};
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 2, shape, (const char *const[]){"replicate", "shard"}, &mesh));
    return mesh;
}

fsdp_status net_try_shard(fsdp_module *module, const fsdp_shard_options *options)
{
    const net *n = (const net *)module;

    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks); i++)
        FSDP_TRY(fsdp_fully_shard(net_block_at(module, i), options));
    FSDP_TRY(fsdp_fully_shard(module, options));
    FSDP_TRY(fsdp_module_materialize(module, test_device(module->context)));
    return fsdp_module_initialize(module, 1);
}

fsdp_sharded_state net_state(fsdp_module *module)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    return info.state;
}

fsdp_status net_last_dimension(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    (void)arg, (void)name, (void)parameter;
    out->dim = -1;
    return FSDP_OK;
}

fsdp_module *net_sharded(fsdp_context *context, int blocks, const fsdp_shard_options *options)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), blocks);

    CHECK_OK(net_try_shard(module, options));
    return module;
}

fsdp_module *net_flat(fsdp_context *context, int blocks, const fsdp_shard_options *options, size_t align, bool as_one)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), blocks);
    const fsdp__flat flat = {.align = align, .as_one = as_one};

    for (int64_t i = 0; i < blocks; i++) {
        fsdp_module *block = net_block_at(module, i);

        CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, &block, 1, options, &flat));
    }
    CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, &module, 1, options, &flat));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

void net_batch_of(fsdp_context *context, int cols, int step, int first, int rows, fsdp_tensor **x,
                  fsdp_tensor **targets)
{
    float values[NET_ROWS * (NET_IN + 1)];
    int32_t classes[NET_ROWS];

    CHECK(rows <= NET_ROWS && cols <= NET_IN + 1);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++)
            values[i * cols + j] = (float)(((first + i) * 31 + j * 17 + step * 7) % 23) / 11.0f - 1.0f;
        classes[i] = ((first + i) * 5 + step) % NET_OUT;
    }
    *x = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(rows, cols), values));
    *targets = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(rows), classes));
}

void net_batch(fsdp_context *context, int step, int first, int rows, fsdp_tensor **x, fsdp_tensor **targets)
{
    net_batch_of(context, NET_IN, step, first, rows, x, targets);
}

void net_sgd(fsdp_module *module, float lr)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *p = parameters.items[i].tensor, *g = fsdp_tensor_grad(p);

        if (g)
            CHECK_OK(fsdp_tensor_begin_write(p));
        if (g && fsdp_tensor_numel(p) > 0)
            CHECK_OK(fsdp__launch_scale(fsdp_device_stream(fsdp_tensor_device(p)),
                                        &(fsdp__scale_args){.x = fsdp_tensor_data(g),
                                                            .y = fsdp_tensor_data(p),
                                                            .alpha = -lr,
                                                            .numel = fsdp_tensor_numel(p),
                                                            .dtype = FSDP_F32,
                                                            .accumulate = true}));
    }
    fsdp_parameters_release(&parameters);
    fsdp_module_zero_grad(module);
}

float net_backward_of(fsdp_module *module, int cols, int step, int first, int rows, int micros)
{
    fsdp_tensor *x, *targets, *loss;
    double value;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch_of(module->context, cols, step, first, rows, &x, &targets);
    loss = CHECK_PTR(fsdp_call(module, x, targets));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(fsdp_scale(loss, 1.0 / micros)));
    fsdp_scope_end(module->context, NULL);
    return (float)value;
}

float net_forward_backward(fsdp_module *module, int step, int micro, int micros)
{
    int world = fsdp_context_world_size(module->context), rank = fsdp_context_rank(module->context);
    int rows = NET_ROWS / world / micros;

    return net_backward_of(module, NET_IN, step, (micro * world + rank) * rows, rows, micros);
}

fsdp_status net_try_of(fsdp_module *module, int cols)
{
    fsdp_context *context = module->context;
    float values[6 * (NET_IN + 1)] = {0.5f, -1.0f};
    int32_t classes[6] = {0, 1, 2, 3, 4, 5};
    fsdp_status status = fsdp_scope_begin(context);
    fsdp_tensor *x, *loss;

    if (status != FSDP_OK)
        return status;
    x = fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(6, cols), values);
    loss = fsdp_call(module, x, fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(6), classes));
    status = loss ? fsdp_backward(loss) : fsdp_last_status();
    if (status == FSDP_OK) /* a device behind the host tells of its failures then */
        status = fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
    fsdp_scope_end(context, NULL);
    return status;
}

fsdp_status net_try(fsdp_module *module)
{
    return net_try_of(module, NET_IN);
}

void net_check_refused(const char *name, fsdp_status status, fsdp_status expected, const char *const *parts, int most)
{
    if (status != expected)
        TEST_FAIL("%s: %s (%s), expected %s", name, fsdp_status_text(status), fsdp_last_error(),
                  fsdp_status_text(expected));
    for (int i = 0; i < most && parts[i]; i++)
        if (!strstr(fsdp_last_error(), parts[i]))
            TEST_FAIL("%s: '%s' is not in '%s'", name, parts[i], fsdp_last_error());
}

void net_evaluate(fsdp_module *module, int step, int rows)
{
    fsdp_tensor *x, *targets;

    fsdp_no_grad_begin(module->context);
    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, step, 0, rows, &x, &targets);
    CHECK_PTR(fsdp_call(module, x, targets));
    fsdp_scope_end(module->context, NULL);
    fsdp_no_grad_end(module->context);
}

void net_train(fsdp_module *module, int steps)
{
    for (int step = 0; step < steps; step++) {
        net_forward_backward(module, step, 0, 1);
        net_sgd(module, 0.1f);
    }
}

typedef struct collected {
    float *values;
    int64_t count;
    const fsdp_tensor *seen[256];
    int seen_count;
} collected;

static bool is_seen(collected *c, const fsdp_tensor *tensor)
{
    for (int i = 0; i < c->seen_count; i++)
        if (c->seen[i] == tensor)
            return true;
    CHECK(c->seen_count < 256);
    c->seen[c->seen_count++] = tensor;
    return false;
}

/* In order of the module tree, which has the parts of flat parameters. */
static void collect_values(fsdp_module *module, collected *c)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        fsdp_tensor *whole;

        if (is_seen(c, *module->parts->parameters[i].slot))
            continue;
        CHECK_OK(fsdp_full_tensor(*module->parts->parameters[i].slot, &whole));
        c->values = realloc(c->values, (size_t)(c->count + fsdp_tensor_numel(whole)) * sizeof(float));
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, c->values + c->count));
        c->count += fsdp_tensor_numel(whole);
        fsdp_tensor_unref(whole);
    }
    for (int64_t i = 0; i < module->parts->child_count; i++)
        collect_values(module->parts->children[i].module, c);
}

float *net_values(fsdp_module *module, int64_t *count)
{
    collected c = {.count = 0};

    collect_values(module, &c);
    *count = c.count;
    return c.values;
}

void net_check_same(float *values, float *expected, int64_t count)
{
    CHECK_BYTES(values, expected, (size_t)count * sizeof *values);
    free(values);
    free(expected);
}

float *net_expected(int blocks, int steps, int64_t *count)
{
    fsdp_context *context = test_context();
    fsdp_module *module = net_create(context, test_device(context), blocks);
    float *values;

    CHECK_OK(fsdp_module_initialize(module, 1));
    net_train(module, steps);
    values = net_values(module, count);
    fsdp_module_unref(module);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
    return values;
}
