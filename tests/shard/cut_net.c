/* cut_net.c - the network, its cuts, and the two collectives that it needs beside the engine's. */
#include "shard/cut_net.h"

#include "device/device.h"
#include "nn/module.h"
#include "shard/net.h"

typedef struct cut_block {
    fsdp_module base;
    fsdp_tensor *norm, *fused, *fused_bias, *down, *bias;
    fsdp_mesh *mesh; /* NULL: it is whole */
    bool partial;
} cut_block;

typedef struct cut_net {
    fsdp_module base;
    fsdp_tensor *table, *tied;
    fsdp_module *blocks;
    fsdp_mesh *mesh;
    bool skips;
} cut_net;

/* ---- meshes ---- */

cut_meshes cut_meshes_create(fsdp_context *context, cut_layout layout)
{
    static const char *const names[] = {"replicate", "shard", "tp"};
    const int64_t shape[] = {layout.replicas, layout.shards, layout.parts};
    bool hybrid = layout.replicas > 1;
    cut_meshes m = {.batches = layout.replicas * layout.shards};

    CHECK_OK(fsdp_mesh_create(context, 2 + hybrid, shape + !hybrid, names + !hybrid, &m.root));
    CHECK_OK(fsdp_mesh_slice(m.root, 1 + hybrid, names + !hybrid, &m.data));
    CHECK_OK(fsdp_mesh_slice(m.root, 1, &names[2], &m.parts));
    m.batch = fsdp_context_rank(context) / layout.parts;
    return m;
}

void cut_meshes_free(cut_meshes *meshes)
{
    fsdp_mesh_unref(meshes->parts);
    fsdp_mesh_unref(meshes->data);
    fsdp_mesh_unref(meshes->root);
}

/* ---- collectives with gradients ---- */

static fsdp_tensor *sum_over(fsdp_tensor *x, fsdp_process_group *group)
{
    fsdp_device *device = fsdp_tensor_device(x);
    fsdp_tensor *sum = fsdp_contiguous(x), *out = NULL;

    if (!sum || fsdp_tensor_create(device, fsdp_tensor_dtype(x), fsdp_tensor_ndim(x), fsdp_tensor_shape(x),
                                   FSDP_MEMORY_ACTIVATION, &out) != FSDP_OK)
        return NULL;
    if (fsdp_all_reduce(group, fsdp_tensor_data(sum), fsdp_tensor_data(out), fsdp_tensor_numel(x), fsdp_tensor_dtype(x),
                        FSDP_SUM, fsdp_device_stream(device)) != FSDP_OK) {
        fsdp_tensor_unref(out);
        return NULL;
    }
    return fsdp__scope_adopt(out);
}

static fsdp_status copy_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    return fsdp_node_give(node, 0, sum_over(grads[0], *(fsdp_process_group **)fsdp_node_state(node)));
}

static fsdp_status reduce_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    return fsdp_node_give(node, 0, grads[0]);
}

static const fsdp_operation copy_operation = {.name = "copy to parts", .backward = copy_backward};
static const fsdp_operation reduce_operation = {.name = "reduce parts", .backward = reduce_backward};

static fsdp_tensor *apply(const fsdp_operation *operation, fsdp_tensor *x, fsdp_mesh *mesh)
{
    fsdp_process_group *group = mesh ? fsdp_mesh_process_group(mesh, 0) : NULL;
    fsdp_tensor *y;

    if (!group || !x)
        return x;
    fsdp_no_grad_begin(fsdp_device_context(fsdp_tensor_device(x)));
    y = operation == &copy_operation ? fsdp_scale(x, 1) : sum_over(x, group);
    fsdp_no_grad_end(fsdp_device_context(fsdp_tensor_device(x)));
    return y && fsdp_record(operation, &x, 1, &y, 1, NULL, 0, &group, sizeof group) == FSDP_OK ? y : NULL;
}

/* What differs from rank to rank is computed from it: nothing, and all ranks' gradients are added up. */
static fsdp_tensor *copy(fsdp_tensor *x, fsdp_mesh *mesh)
{
    return apply(&copy_operation, x, mesh);
}

/* All ranks' results are added up, and their gradient is the same. */
static fsdp_tensor *reduce(fsdp_tensor *x, fsdp_mesh *mesh)
{
    return apply(&reduce_operation, x, mesh);
}

/* ---- forwards ---- */

/* Leaves the values as they are, but gradients of this rank's rows alone pass. */
static fsdp_tensor *own_rows(fsdp_tensor *x, fsdp_mesh *mesh)
{
    int64_t rows = x ? fsdp_tensor_size(x, 0) : 0, start;
    int64_t own = fsdp_shard_range(rows, fsdp_mesh_size(mesh, 0), fsdp_mesh_coordinate(mesh, 0), &start);
    fsdp_tensor *parts[3];

    if (!x)
        return NULL;
    parts[0] = fsdp_zeros(fsdp_tensor_device(x), fsdp_tensor_dtype(x), FSDP_SHAPE(start, CUT_DIM));
    parts[1] = fsdp_slice(x, 0, start, own);
    parts[2] = fsdp_zeros(fsdp_tensor_device(x), fsdp_tensor_dtype(x), FSDP_SHAPE(rows - start - own, CUT_DIM));
    return reduce(fsdp_concat(parts, 3, 0), mesh);
}

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const cut_block *b = (cut_block *)self;
    fsdp_tensor *x = inputs[0], *h, *u;
    int64_t ffn = fsdp_tensor_size(b->fused, 0) / 2;

    (void)count;
    if (b->mesh && b->partial)
        h = own_rows(fsdp_rmsnorm(copy(x, b->mesh), b->norm, 1e-5f), b->mesh);
    else
        h = fsdp_rmsnorm(x, b->norm, 1e-5f);
    u = fsdp_linear(copy(h, b->mesh), b->fused, b->fused_bias);
    u = fsdp_mul(fsdp_silu(fsdp_slice(u, 1, 0, ffn)), fsdp_slice(u, 1, ffn, ffn));
    return fsdp_add(x, fsdp_add(reduce(fsdp_linear(u, b->down, FSDP_NO_BIAS), b->mesh), b->bias));
}

/* The rows of the table that this rank has: columns of the input, and of the logits. */
static fsdp_tensor *cut_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const cut_net *n = (cut_net *)self;
    fsdp_device *device = fsdp_tensor_device(n->table);
    int64_t rows = fsdp_tensor_size(inputs[0], 0), start = 0, own = CUT_OUT;
    fsdp_tensor *x = NULL, *parts[3];

    (void)count;
    if (n->mesh)
        own = fsdp_shard_range(CUT_OUT, fsdp_mesh_size(n->mesh, 0), fsdp_mesh_coordinate(n->mesh, 0), &start);
    x = reduce(fsdp_matmul(fsdp_cast(fsdp_slice(inputs[0], 1, start, own), fsdp_tensor_dtype(n->table)), n->table),
               n->mesh);
    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks) - n->skips; i++)
        x = fsdp_call(fsdp_module_child_at(n->blocks, i, NULL), x);
    parts[0] = fsdp_zeros(device, fsdp_tensor_dtype(n->tied), FSDP_SHAPE(rows, start));
    parts[1] = fsdp_linear(copy(x, n->mesh), n->tied, FSDP_NO_BIAS);
    parts[2] = fsdp_zeros(device, fsdp_tensor_dtype(n->tied), FSDP_SHAPE(rows, CUT_OUT - start - own));
    return fsdp_cross_entropy(reduce(fsdp_concat(parts, 3, 1), n->mesh), inputs[1]);
}

static const fsdp_module_type block_type = {.name = "CutBlock", .forward = block_forward};
static const fsdp_module_type cut_type = {.name = "CutNet", .forward = cut_forward};

/* ---- building ---- */

static void add(fsdp_module *module, const char *name, fsdp_tensor **slot, fsdp_device *device, int64_t rows,
                int64_t cols)
{
    const int64_t shape[] = {rows, cols};
    const fsdp_init uniform = {.kind = FSDP_INIT_UNIFORM, .a = -0.5f, .b = 0.7f};

    CHECK_OK(fsdp_module_add_parameter(module, name, slot, device, FSDP_F32, cols > 0 ? 2 : 1, shape, uniform));
}

static fsdp_module *block_create(fsdp_context *context, fsdp_device *device)
{
    cut_block *b;

    CHECK_OK(fsdp_module_create(context, &block_type, sizeof *b, &b));
    add(&b->base, "norm", &b->norm, device, CUT_DIM, 0);
    add(&b->base, "fused", &b->fused, device, 2 * (int64_t)CUT_FFN, CUT_DIM);
    add(&b->base, "fused_bias", &b->fused_bias, device, 2 * (int64_t)CUT_FFN, 0);
    add(&b->base, "down", &b->down, device, CUT_DIM, CUT_FFN);
    add(&b->base, "bias", &b->bias, device, CUT_DIM, 0);
    return &b->base;
}

fsdp_module *cut_net_create(fsdp_context *context, fsdp_device *device)
{
    cut_net *n;

    CHECK_OK(fsdp_module_create(context, &cut_type, sizeof *n, &n));
    add(&n->base, "table", &n->table, device, CUT_OUT, CUT_DIM);
    CHECK_OK(fsdp_module_tie_parameter(&n->base, "tied", &n->tied, n->table));
    n->blocks = fsdp_module_list_create(context);
    CHECK_OK(fsdp_module_add_child(&n->base, "blocks", n->blocks));
    for (int i = 0; i < CUT_BLOCKS; i++)
        CHECK_OK(fsdp_module_list_append(n->blocks, block_create(context, device)));
    return &n->base;
}

fsdp_module *cut_net_block(fsdp_module *module, int64_t index)
{
    return fsdp_module_child_at(((cut_net *)module)->blocks, index, NULL);
}

/* ---- cutting ---- */

void cut_parameter(fsdp_module *module, const char *name, fsdp_mesh *mesh, fsdp_placement placement, bool contributed)
{
    fsdp_tensor *whole = fsdp_tensor_ref(fsdp_module_parameter(module, name)), *part = NULL;
    fsdp_distribution d;

    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &placement, &part));
    d = *fsdp_tensor_distribution(part);
    d.partial_gradients = contributed;
    CHECK_OK(fsdp_tensor_set_distribution(part, &d));
    CHECK_OK(fsdp_tensor_set_requires_grad(part, fsdp_tensor_requires_grad(whole)));
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        fsdp_tensor **slot = module->parts->parameters[i].slot;

        if (*slot != whole)
            continue;
        fsdp_tensor_unref(*slot);
        *slot = fsdp_tensor_ref(part);
    }
    fsdp_tensor_unref(part);
    fsdp_tensor_unref(whole);
}

void cut_net_cut(fsdp_module *module, fsdp_mesh *mesh, bool partial)
{
    static const fsdp_placement rows = {.kind = FSDP_SHARD}, columns = {.kind = FSDP_SHARD, .dim = 1},
                                fused = {.kind = FSDP_SHARD, .segment_count = 2, .segments = {CUT_FFN, CUT_FFN}},
                                same = {.kind = FSDP_REPLICATE};

    cut_parameter(module, "table", mesh, rows, false);
    ((cut_net *)module)->mesh = mesh;
    for (int64_t i = 0; i < CUT_BLOCKS; i++) {
        fsdp_module *block = cut_net_block(module, i);

        cut_parameter(block, "fused", mesh, fused, false);
        cut_parameter(block, "fused_bias", mesh, fused, false);
        cut_parameter(block, "down", mesh, columns, false);
        if (partial)
            cut_parameter(block, "norm", mesh, same, true);
        ((cut_block *)block)->mesh = mesh;
        ((cut_block *)block)->partial = partial;
    }
}

void cut_net_shard(fsdp_module *module, const fsdp_shard_options *options)
{
    for (int64_t i = 0; i < CUT_BLOCKS; i++)
        CHECK_OK(fsdp_fully_shard(cut_net_block(module, i), options));
    CHECK_OK(fsdp_fully_shard(module, options));
}

fsdp_module *cut_net_sharded(fsdp_context *context, const cut_meshes *meshes, const fsdp_shard_options *options)
{
    fsdp_module *module = cut_net_create(context, fsdp_meta(context));
    fsdp_shard_options own = *options;

    own.mesh = meshes->data;
    cut_net_cut(module, meshes->parts, true);
    cut_net_shard(module, &own);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

/* ---- running ---- */

void cut_net_skip(fsdp_module *module, bool skips)
{
    ((cut_net *)module)->skips = skips;
}

float cut_net_backward(fsdp_module *module, int batch, int batches, int step, int micro, int micros)
{
    int rows = CUT_ROWS / batches / micros;

    CHECK_EQ(rows * batches * micros, CUT_ROWS);
    return net_backward_of(module, CUT_OUT, step, (micro * batches + batch) * rows, rows, micros);
}

static fsdp_status create_muon(const fsdp_parameters *all, fsdp_optimizer **out)
{
    const fsdp_muon_options muon = {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true};
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    fsdp_parameter items[2][64];
    fsdp_parameters lists[2] = {{0, items[0]}, {0, items[1]}};

    for (int64_t i = 0; i < all->count; i++) {
        int vector = fsdp_tensor_ndim(all->items[i].tensor) < 2;

        items[vector][lists[vector].count++] = all->items[i];
    }
    CHECK_OK(fsdp_muon_create(&lists[0], &muon, out));
    return fsdp_adam_add_group(*out, &lists[1], &adam);
}

fsdp_optimizer *cut_net_optimizer(fsdp_module *module, int kind)
{
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const fsdp_lion_options lion = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    const fsdp_adafactor_options adafactor = {.lr = 1e-2, .beta2_decay = -0.8, .eps2 = 1e-3, .d = 1};
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters all;
    fsdp_status status;

    CHECK_OK(fsdp_module_parameters(module, &all));
    status = kind == 0          ? fsdp_sgd_create(&all, &sgd, &optimizer)
             : kind == 1        ? fsdp_adamw_create(&all, &adam, &optimizer)
             : kind == 2        ? fsdp_adam_create(&all, &adam, &optimizer)
             : kind == 3        ? fsdp_lion_create(&all, &lion, &optimizer)
             : kind == CUT_MUON ? create_muon(&all, &optimizer)
                                : fsdp_adafactor_create(&all, &adafactor, &optimizer);
    CHECK_OK(status);
    fsdp_parameters_release(&all);
    return optimizer;
}
