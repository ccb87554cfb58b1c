/* What must not be done to replicated modules, as a table: the same error on all ranks, which says what, where and what
 * to do. */
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

typedef struct misuse {
    const char *name;
    fsdp_status (*make)(fsdp_module *module); /* of a plain net on the test's device */
    fsdp_status status;
    const char *parts[3]; /* of the message, on all ranks */
} misuse;

static fsdp_status run_once(fsdp_module *module)
{
    fsdp_tensor *x, *targets, *loss;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, 3, &x, &targets);
    loss = fsdp_call(module, x, targets);
    status = loss ? FSDP_OK : fsdp_last_status();
    fsdp_scope_end(module->context, NULL);
    return status;
}

static fsdp_status train_once(fsdp_module *module)
{
    fsdp_tensor *x, *targets, *loss;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, 3, &x, &targets);
    loss = fsdp_call(module, x, targets);
    status = loss ? fsdp_backward(loss) : fsdp_last_status();
    if (status == FSDP_OK) /* a device behind the host tells of its failures then */
        status = fsdp_stream_synchronize(fsdp_device_stream(test_device(module->context)));
    fsdp_scope_end(module->context, NULL);
    return status;
}

static fsdp_status replicate_twice(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK(fsdp_module_is_replicated(module));
    return fsdp_replicate(module, NULL);
}

static fsdp_status replicate_over_sharded(fsdp_module *module)
{
    CHECK_OK(fsdp_fully_shard(net_block_at(module, 1), NULL));
    CHECK(!fsdp_module_is_replicated(net_block_at(module, 1)));
    return fsdp_replicate(module, NULL);
}

static fsdp_status shard_over_replicated(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(net_block_at(module, 1), NULL));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    return run_once(module);
}

static fsdp_status shard_replicated(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(module, NULL));
    return fsdp_fully_shard(module, NULL);
}

static fsdp_status shard_below_replicated(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(module, NULL));
    return fsdp_fully_shard(net_block_at(module, 0), NULL);
}

static fsdp_status replicate_container(fsdp_module *module)
{
    return fsdp_replicate(fsdp_module_child(module, "blocks"), NULL);
}

static fsdp_status replicate_nothing(fsdp_module *module)
{
    (void)module;
    return fsdp_replicate(NULL, NULL);
}

static fsdp_status replicate_with_gradient(fsdp_module *module)
{
    net_forward_backward(module, 0, 0, 1);
    return fsdp_replicate(module, NULL);
}

static fsdp_status replicate_on_two_dimensions(fsdp_module *module)
{
    fsdp_replicate_options options = {.mesh = net_hybrid_mesh(module->context, 1)};
    fsdp_status status = fsdp_replicate(module, &options);

    fsdp_mesh_unref(options.mesh);
    return status;
}

static fsdp_status cap_below_nothing(fsdp_module *module)
{
    return fsdp_replicate(module, &(fsdp_replicate_options){.bucket_cap_mb = -1});
}

static fsdp_status compress_to_more(fsdp_module *module)
{
    return fsdp_replicate(module, &(fsdp_replicate_options){.compress = FSDP_F32});
}

static fsdp_status fail_in_hook(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream)
{
    (void)arg, (void)stream;
    return FSDP_FAIL(FSDP_UNSUPPORTED, "this hook has no bucket %lld", (long long)bucket->index);
}

static fsdp_status hook_of_sharded(fsdp_module *module)
{
    CHECK_OK(fsdp_fully_shard(module, NULL));
    return fsdp_module_set_bucket_hook(module, fail_in_hook, NULL);
}

static fsdp_status run_with_failing_hook(fsdp_module *module)
{
    fsdp_tensor *x, *targets;
    fsdp_status status;

    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK_OK(fsdp_module_set_bucket_hook(module, fail_in_hook, NULL));
    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, 3, &x, &targets);
    status = fsdp_backward(fsdp_call(module, x, targets));
    fsdp_scope_end(module->context, NULL);
    CHECK_OK(fsdp_module_set_bucket_hook(module, NULL, NULL)); /* it may go on */
    return status;
}

static fsdp_status find_in_static_graph(fsdp_module *module)
{
    return fsdp_replicate(module, &(fsdp_replicate_options){.find_unused_parameters = true, .static_graph = true});
}

static fsdp_status replicate_on_one(fsdp_module *module, const fsdp_replicate_options *options)
{
    static const fsdp_replicate_options defaults;

    return fsdp_replicate(module, fsdp_context_rank(module->context) == 1 ? options : &defaults);
}

static fsdp_status cap_on_one(fsdp_module *module)
{
    return replicate_on_one(module, &(fsdp_replicate_options){.bucket_cap_mb = -3});
}

static fsdp_status overlap_on_one(fsdp_module *module)
{
    return replicate_on_one(module, &(fsdp_replicate_options){.overlap = -1});
}

static fsdp_status compress_on_one(fsdp_module *module)
{
    return replicate_on_one(module, &(fsdp_replicate_options){.compress = FSDP_I32});
}

static fsdp_status find_on_one(fsdp_module *module)
{
    return replicate_on_one(module, &(fsdp_replicate_options){.find_unused_parameters = true, .static_graph = true});
}

static fsdp_status replicate_container_on_one(fsdp_module *module)
{
    return fsdp_replicate(fsdp_context_rank(module->context) == 1 ? fsdp_module_child(module, "blocks") : module, NULL);
}

static fsdp_status ignore_itself(fsdp_module *module)
{
    return fsdp_replicate(module, &(fsdp_replicate_options){.ignored_modules = &module, .ignored_module_count = 1});
}

static fsdp_status ignore_a_stranger(fsdp_module *module)
{
    fsdp_module *other = CHECK_PTR(fsdp_relu_create(module->context));
    fsdp_status status =
        fsdp_replicate(module, &(fsdp_replicate_options){.ignored_modules = &other, .ignored_module_count = 1});

    fsdp_module_unref(other);
    return status;
}

static fsdp_status ignore_no_list(fsdp_module *module)
{
    return fsdp_replicate(module, &(fsdp_replicate_options){.ignored_param_count = 1});
}

static fsdp_status ignore_no_parameter(fsdp_module *module)
{
    fsdp_tensor *none = NULL;

    return fsdp_replicate(module, &(fsdp_replicate_options){.ignored_params = &none, .ignored_param_count = 1});
}

static fsdp_status differ_in_what_is_ignored(fsdp_module *module)
{
    fsdp_tensor *bias = fsdp_module_parameter(module, "head.bias");

    return fsdp_replicate(module,
                          &(fsdp_replicate_options){.ignored_params = &bias,
                                                    .ignored_param_count = fsdp_context_rank(module->context) == 1});
}

static fsdp_status differ_in_shape(fsdp_module *module)
{
    fsdp_context *context = module->context;
    int blocks = fsdp_context_rank(context) == 1 ? BLOCKS + 1 : BLOCKS;
    fsdp_module *other = net_create(context, test_device(context), blocks);
    fsdp_status status = fsdp_replicate(other, NULL);

    fsdp_module_unref(other);
    return status;
}

static fsdp_status differ_in_order(fsdp_module *module)
{
    fsdp_context *context = module->context;
    const char *const names[] = {"q", "k"};
    int second = fsdp_context_rank(context) == 1;

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_module_add_child(module, names[i ^ second],
                                       fsdp_linear_create(context, test_device(context), NET_DIM, NET_DIM, NULL)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return fsdp_replicate(module, NULL);
}

static fsdp_status differ_in_what_is_frozen(fsdp_module *module)
{
    if (fsdp_context_rank(module->context) == 1)
        CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "blocks.0.up.bias"), false));
    return fsdp_replicate(module, NULL);
}

static fsdp_status differ_in_buckets(fsdp_module *module)
{
    return fsdp_replicate(module,
                          &(fsdp_replicate_options){.bucket_cap_mb = 1 + fsdp_context_rank(module->context) % 2});
}

static fsdp_status differ_in_having_any(fsdp_module *module)
{
    fsdp_context *context = module->context;
    fsdp_module *other =
        fsdp_context_rank(context) == 1 ? CHECK_PTR(fsdp_gelu_create(context, false)) : fsdp_module_ref(module);
    fsdp_status status = fsdp_replicate(other, NULL);

    fsdp_module_unref(other);
    return status;
}

static fsdp_status differ_in_having_bytes(fsdp_module *module)
{
    fsdp_context *context = module->context;
    fsdp_module *other =
        fsdp_context_rank(context) == 1 ? net_create(context, fsdp_meta(context), BLOCKS) : fsdp_module_ref(module);
    fsdp_status status = fsdp_replicate(other, NULL);

    fsdp_module_unref(other);
    return status;
}

static fsdp_status fail_on_one_rank(fsdp_module *module)
{
    if (fsdp_context_rank(module->context) == 1)
        net_forward_backward(module, 0, 0, 1);
    return fsdp_replicate(module, NULL);
}

static fsdp_status forward_twice(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(module, &(fsdp_replicate_options){.static_graph = true}));
    fsdp_no_grad_begin(module->context); /* an evaluation has no backward */
    CHECK_OK(run_once(module));
    fsdp_no_grad_end(module->context);
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(run_once(module));
    return run_once(module);
}

static fsdp_status ask_for_buckets(fsdp_module *module)
{
    int64_t count;

    CHECK_OK(fsdp_fully_shard(module, NULL));
    return fsdp_module_bucket_count(module, &count);
}

static fsdp_status ask_for_bucket(fsdp_module *module)
{
    fsdp_bucket_info info;
    fsdp_parameter parameter;

    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK_OK(fsdp_module_bucket_info(module, 0, &info));
    CHECK_EQ(fsdp_module_bucket_parameter(module, 0, info.parameter_count, &parameter), FSDP_INVALID);
    return fsdp_module_bucket_info(module, 1, &info);
}

/* Rank 1 believes that the others join. */
static fsdp_status join_alone(fsdp_module *module)
{
    CHECK_OK(fsdp_replicate(module, NULL));
    if (fsdp_context_rank(module->context) != 1)
        return train_once(module);
    CHECK_OK(fsdp_module_join_begin(module, NULL));
    return fsdp_module_join_end(module);
}

static const misuse misuses[] = {
    {"twice", replicate_twice, FSDP_STATE, {"cannot replicate the Net: it is replicated already"}},
    {"over sharded", replicate_over_sharded, FSDP_STATE, {"'blocks.1' is sharded already"}},
    {"under sharded", shard_over_replicated, FSDP_UNSUPPORTED, {"'blocks.1' is replicated", "one tree"}},
    {"sharded later", shard_replicated, FSDP_STATE, {"fsdp_replicate has already been applied"}},
    {"below sharded later", shard_below_replicated, FSDP_INVALID, {"fsdp_replicate", "mesh of two dimensions"}},
    {"container", replicate_container, FSDP_INVALID, {"cannot replicate a ModuleList"}},
    {"nothing", replicate_nothing, FSDP_INVALID, {"needs a module"}},
    {"gradient", replicate_with_gradient, FSDP_STATE, {"cannot replicate 'input.weight'", "zero_grad"}},
    {"two dimensions", replicate_on_two_dimensions, FSDP_INVALID, {"one dimension, and this one has 2"}},
    {"cap", cap_below_nothing, FSDP_INVALID, {"bucket_cap_mb -1"}},
    {"find in static", find_in_static_graph, FSDP_INVALID, {"static_graph", "find_unused_parameters"}},
    {"overlap on one", overlap_on_one, FSDP_INVALID, {"rank 1: overlap -1"}},
    {"cap on one", cap_on_one, FSDP_INVALID, {"rank 1: bucket_cap_mb -3"}},
    {"compress on one", compress_on_one, FSDP_INVALID, {"rank 1: ", "int32"}},
    {"find on one", find_on_one, FSDP_INVALID, {"rank 1: static_graph"}},
    {"container on one", replicate_container_on_one, FSDP_INVALID, {"rank 1: cannot replicate a ModuleList"}},
    {"compress", compress_to_more, FSDP_INVALID, {"not to float32"}},
    {"hook of sharded", hook_of_sharded, FSDP_STATE, {"not replicated"}},
    {"failing hook", run_with_failing_hook, FSDP_UNSUPPORTED, {"this hook has no bucket 0"}},
    {"shapes", differ_in_shape, FSDP_MISMATCH, {"rank 0 has parameter 'norm.weight'", "rank 1 has"}},
    {"order", differ_in_order, FSDP_MISMATCH, {"rank 0 has parameter 'q.weight'", "rank 1 has parameter 'k.weight'"}},
    {"ignored root", ignore_itself, FSDP_INVALID, {"ignored_modules[0] is the module that is to be replicated"}},
    {"ignored stranger", ignore_a_stranger, FSDP_INVALID, {"ignored_modules[0], a ReLU, is not below the Net"}},
    {"ignored list", ignore_no_list, FSDP_INVALID, {"ignored_params: 1, but no list"}},
    {"ignored nothing", ignore_no_parameter, FSDP_INVALID, {"ignored_params[0] is NULL"}},
    {"ignored by one", differ_in_what_is_ignored, FSDP_MISMATCH, {"rank 0 has parameter 'head.bias'", "no more"}},
    {"frozen", differ_in_what_is_frozen, FSDP_MISMATCH, {"rank 1 has", "frozen"}},
    {"buckets", differ_in_buckets, FSDP_MISMATCH, {"rank 0 has options: bucket_cap_mb 1", "bucket_cap_mb 2"}},
    {"any", differ_in_having_any, FSDP_MISMATCH, {"rank 0 has parameter", "rank 1 has no more"}},
    {"bytes", differ_in_having_bytes, FSDP_MISMATCH, {"rank 0 has parameter", "rank 1 has", "on meta"}},
    {"one rank", fail_on_one_rank, FSDP_STATE, {"rank 1: cannot replicate 'input.weight'"}},
    {"forward twice", forward_twice, FSDP_STATE, {"a second forward", "static_graph"}},
    {"joins alone", join_alone, FSDP_MISMATCH, {"float32 for 'bucket 0' on rank 0", "int32 on rank 1"}},
    {"buckets of sharded", ask_for_buckets, FSDP_STATE, {"not replicated"}},
    {"no such bucket", ask_for_bucket, FSDP_INVALID, {"there is no bucket 1: there are 1"}},
};

static void commit(fsdp_context *context, void *arg)
{
    const misuse *m = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_status status;

    CHECK_OK(fsdp_module_initialize(module, 1));
    status = m->make(module);
    net_check_refused(m->name, status, m->status, m->parts, 3);
    fsdp_module_unref(module);
}

TEST(every_misuse_has_its_error_on_all_ranks)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(misuses); i++)
        test_run_ranks(2, commit, (void *)(uintptr_t)&misuses[i]);
}
