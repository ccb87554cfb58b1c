/* An operation of a user's own, with a parameter of its own, behind every front door: what composed operations give.
 * And a user's own optimizer: a kernel that writes to shards, but not to gathered parameters. */
#include "device/device.h"
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "ops/swish.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

typedef struct descent {
    int64_t numel;
    float lr;
} descent;

/* ---- the model: x -> swish(up(x), slope) slope, blocks of it, a head ---- */

typedef struct own_block {
    fsdp_module base;
    fsdp_module *up;
    fsdp_tensor *slope;
    bool composed, writes;
} own_block;

typedef struct own_net {
    fsdp_module base;
    fsdp_module *blocks[BLOCKS], *head;
} own_net;

static fsdp_status descend(const void *arg, void *const *data)
{
    const descent *d = arg;
    const float *gradient = data[0];
    float *parameter = data[2];

    for (int64_t i = 0; i < d->numel; i++)
        parameter[i] -= d->lr * gradient[i];
    return FSDP_OK;
}

/* parameter -= lr gradient, a shard of a parameter or all of it. */
static fsdp_status launch_descent(fsdp_tensor *parameter, fsdp_tensor *gradient, float lr)
{
    const descent d = {fsdp_tensor_numel(parameter), lr};
    fsdp_tensor *reads[] = {gradient, parameter};

    return fsdp_launch_kernel("descend", descend, &d, sizeof d, reads, 2, &parameter, 1);
}

/* The slope in reverse, so that its gradient is scattered. */
static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    own_block *b = (own_block *)self;
    fsdp_tensor *x = fsdp_call(b->up, inputs[0]);
    fsdp_tensor *reverse = fsdp_arange(fsdp_tensor_device(x), FSDP_I64, NET_DIM - 1, -1, -1);
    fsdp_tensor *slope = fsdp_index_select(b->slope, 0, reverse);

    (void)count;
    if (b->writes) /* what is gathered is not to be written to */
        CHECK_ERROR(launch_descent(b->slope, b->slope, 0), FSDP_STATE, "slope");
    return b->composed ? fsdp_silu(fsdp_mul(x, slope)) : fsdp_mul(swish(x, slope), slope);
}

static fsdp_tensor *own_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    own_net *n = (own_net *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    for (int i = 0; i < BLOCKS; i++)
        x = fsdp_call(n->blocks[i], x);
    return fsdp_cross_entropy(fsdp_call(n->head, x), inputs[1]);
}

static const fsdp_module_type block_type = {.name = "OwnBlock", .forward = block_forward};
static const fsdp_module_type own_type = {.name = "OwnNet", .forward = own_forward};

static fsdp_module *block_create(fsdp_context *context, int64_t in, bool composed)
{
    own_block *b;

    CHECK_OK(fsdp_module_create(context, &block_type, sizeof *b, &b));
    b->composed = composed;
    b->up = fsdp_linear_create(context, test_device(context), in, NET_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&b->base, "up", b->up));
    CHECK_OK(fsdp_module_add_parameter(&b->base, "slope", &b->slope, test_device(context), FSDP_F32,
                                       FSDP_SHAPE(NET_DIM), (fsdp_init){FSDP_INIT_UNIFORM, 0.5f, 1.5f}));
    return &b->base;
}

static own_net *own_create(fsdp_context *context, bool composed)
{
    static const char *const names[] = {"first", "second"};
    own_net *n;

    CHECK_OK(fsdp_module_create(context, &own_type, sizeof *n, &n));
    for (int i = 0; i < BLOCKS; i++) {
        n->blocks[i] = block_create(context, i == 0 ? NET_IN : NET_DIM, composed);
        CHECK_OK(fsdp_module_add_child(&n->base, names[i], n->blocks[i]));
    }
    n->head = fsdp_linear_create(context, test_device(context), NET_DIM, NET_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "head", n->head));
    CHECK_OK(fsdp_module_initialize(&n->base, 1));
    return n;
}

/* ---- the doors ---- */

typedef struct door {
    const char *name;
    enum {
        PLAIN,
        SHARDED,
        FSDP1,
        DDP
    } kind;
    bool bf16, recompute;
    fsdp_shard_options sharded;
    fsdp_fsdp1_options fsdp1;
    fsdp_replicate_options ddp;
} door;

static const door doors[] = {
    {.name = "plain, recomputed", .recompute = true},
    {.name = "fully_shard", .kind = SHARDED},
    {.name = "recomputed", .kind = SHARDED, .recompute = true},
    {.name = "behind the host", .kind = SHARDED, .sharded.overlap = FSDP_OVERLAP_WORKER},
    {.name = "copies, behind the host",
     .kind = SHARDED,
     .recompute = true,
     .sharded = {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true}},
    {.name = "FSDP1", .kind = FSDP1},
    {.name = "FSDP1, original parameters, copies",
     .kind = FSDP1,
     .recompute = true,
     .fsdp1 = {.use_orig_params = true, .no_shared_memory = true}},
    {.name = "DDP", .kind = DDP},
    {.name = "DDP, gradients in buckets", .kind = DDP, .ddp.gradient_as_bucket_view = true},
    /* In bf16, which is cast or copied. */
    {.name = "bf16", .kind = SHARDED, .bf16 = true, .sharded.mp_policy.param_dtype = FSDP_BF16},
    {.name = "bf16, copies",
     .kind = SHARDED,
     .bf16 = true,
     .recompute = true,
     .sharded = {.mp_policy.param_dtype = FSDP_BF16, .no_shared_memory = true}},
};

enum {
    DOORS = sizeof doors / sizeof doors[0]
};

static void wrap(own_net *n, const door *d)
{
    fsdp_module *units[] = {n->blocks[0], n->blocks[1], &n->base};

    if (d->kind == DDP)
        CHECK_OK(fsdp_replicate(&n->base, &d->ddp));
    for (int i = 0; i < 3; i++) {
        if (d->recompute && i < BLOCKS)
            CHECK_OK(fsdp_module_set_recompute(units[i], FSDP_RECOMPUTE_FULL));
        if (d->kind == SHARDED)
            CHECK_OK(fsdp_fully_shard(units[i], &d->sharded));
        if (d->kind == FSDP1)
            CHECK_OK(fsdp_fsdp1_wrap(units[i], &d->fsdp1));
    }
}

/* SGD by a kernel of one's own. */
static void own_step(fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *gradient = fsdp_tensor_grad(parameters.items[i].tensor);

        if (gradient)
            CHECK_OK(launch_descent(parameters.items[i].tensor, gradient, 0.1f));
    }
    fsdp_parameters_release(&parameters);
    fsdp_module_zero_grad(module);
}

/* Of all rows, or of this rank's. free() it. */
static float *train(fsdp_context *context, const door *d, bool composed, int64_t *count)
{
    int world = fsdp_context_world_size(context), rows = d->kind == PLAIN ? NET_ROWS : NET_ROWS / world;
    own_net *n = own_create(context, composed);
    float *values;

    wrap(n, d);
    ((own_block *)n->blocks[1])->writes = d->kind == SHARDED || d->kind == FSDP1;
    for (int step = 0; step < STEPS; step++) {
        fsdp_tensor *x, *targets;

        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, d->kind == PLAIN ? 0 : fsdp_context_rank(context) * rows, rows, &x, &targets);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(&n->base, x, targets))));
        fsdp_scope_end(context, NULL);
        if (composed)
            net_sgd(&n->base, 0.1f);
        else
            own_step(&n->base);
    }
    values = net_values(&n->base, count);
    fsdp_module_unref(&n->base);
    return values;
}

static void through_every_door(fsdp_context *context, void *arg)
{
    static const door plain = {.name = "plain"};
    int64_t count;
    float *composed, *first[2] = {NULL, NULL};

    if (*(const bool *)arg && test_on_cpu())
        test_run_behind(test_device(context));
    composed = train(context, &plain, true, &count);
    for (int i = 0; i < DOORS; i++) {
        const door *d = &doors[i];
        float *values = train(context, d, false, &count), **same = &first[d->bf16];
        double tolerance = d->bf16 ? 3e-2 : 1e-5;

        CHECK_CLOSE(values, composed, count, tolerance, tolerance);
        /* Whichever way, the sums are made in one order. */
        if (*same)
            CHECK_BYTES(values, *same, (size_t)count * sizeof *values);
        if (*same || d->kind == PLAIN)
            free(values);
        else
            *same = values;
    }
    free(first[0]);
    free(first[1]);
    free(composed);
    test_drop_workspace(context);
}

TEST(a_users_operation_trains_behind_every_door)
{
    for (int world = 1; world <= (test_brief() ? 3 : 4); world++) {
        bool behind = world % 2 == 0;

        test_run_ranks(world, through_every_door, &behind);
    }
}

/* ---- between a gather and the wait for it ---- */

/* On the device's memory: data[1] += data[0]. */
static fsdp_status add_there(fsdp_stream *stream, const void *arg, void *const *data)
{
    const int64_t *numel = arg;
    const fsdp__scale_args args = {
        .x = data[0], .y = data[1], .alpha = 1, .numel = *numel, .dtype = FSDP_F32, .accumulate = true};

    return *numel ? fsdp__run_kernel(stream, FSDP__KERNEL_SCALE, &args) : FSDP_OK;
}

/* On the device's memory: doubles. */
static fsdp_status double_there(fsdp_stream *stream, const void *arg, void *const *data)
{
    const int64_t *numel = arg;
    const fsdp__scale_args args = {.x = data[0], .y = data[0], .alpha = 2, .numel = *numel, .dtype = FSDP_F32};

    return *numel ? fsdp__run_kernel(stream, FSDP__KERNEL_SCALE, &args) : FSDP_OK;
}

static int64_t read_whole(fsdp_tensor *parameter, float *values)
{
    fsdp_tensor *whole = NULL;
    int64_t numel;

    CHECK_OK(fsdp_full_tensor(CHECK_PTR(parameter), &whole));
    numel = fsdp_tensor_numel(whole);
    CHECK(numel <= NET_DIM * NET_DIM);
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    fsdp_tensor_unref(whole);
    return numel;
}

/* Reads the shards of a weight while it is being gathered, and then writes to them, which makes what was gathered
 * stale. */
static void launch_between(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    own_net *n = own_create(context, false);
    fsdp_module *block = n->blocks[0];
    float before[NET_DIM * NET_DIM], after[NET_DIM * NET_DIM], own[NET_DIM * NET_DIM], sum[NET_DIM * NET_DIM];
    fsdp_tensor *shard, *total;
    int64_t numel, whole;

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fully_shard(n->blocks[i], options));
    CHECK_OK(fsdp_fully_shard(&n->base, options));
    whole = read_whole(fsdp_module_parameter(block, "up.weight"), before);
    shard = fsdp_tensor_ref(fsdp_module_parameter(block, "up.weight"));
    numel = fsdp_tensor_numel(shard);
    CHECK_OK(fsdp_tensor_read(shard, FSDP_F32, own));
    CHECK_OK(fsdp_scope_begin(context));
    total = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(numel));
    for (int i = 0; i < 2; i++) {
        fsdp_tensor *reads[] = {shard, total};

        CHECK_OK(fsdp_module_unshard_async(block));
        CHECK_OK(fsdp_launch_device_kernel("add", add_there, &numel, sizeof numel, reads, 2, &total, 1));
        CHECK_OK(fsdp_module_wait_unshard(block));
        CHECK_EQ(fsdp_tensor_numel(fsdp_module_parameter(block, "up.weight")), whole);
        CHECK_OK(fsdp_module_reshard(block));
    }
    CHECK_OK(fsdp_tensor_read(total, FSDP_F32, sum));
    for (int64_t i = 0; i < numel; i++)
        CHECK_NEAR(sum[i], 2 * own[i], 0);
    CHECK_OK(fsdp_module_unshard_async(block));
    CHECK_OK(fsdp_launch_device_kernel("double", double_there, &numel, sizeof numel, &shard, 1, &shard, 1));
    CHECK_OK(fsdp_module_wait_unshard(block));
    CHECK(fsdp_module_parameter(block, "up.weight") == shard); /* the gather was dropped */
    CHECK_EQ(read_whole(shard, after), whole);
    for (int64_t i = 0; i < whole; i++)
        CHECK_NEAR(after[i], 2 * before[i], 0);
    fsdp_tensor_unref(shard);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(&n->base);
    test_drop_workspace(context);
}

TEST(a_users_kernel_on_shards_that_are_being_gathered_reads_and_writes_them)
{
    fsdp_shard_options ways[] = {{.overlap = FSDP_OVERLAP_AUTO},
                                 {.no_shared_memory = true},
                                 {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true},
                                 {.mp_policy.param_dtype = FSDP_BF16}};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        test_run_worlds(1, 3, launch_between, &ways[i]);
}
