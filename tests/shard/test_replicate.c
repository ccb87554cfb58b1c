/* Replicated modules: whole parameters on every rank, gradients averaged in buckets.
 * Links: optim state */
#include "fsdp/optim.h"
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 4,
    WORLDS = 4
};

/* ---- it trains as the plain and the sharded model do ---- */

typedef struct variant {
    bool fully_shard; /* for comparison */
    bool bare;        /* built on the meta device, values later */
    fsdp_replicate_options options;
    int micros; /* all but the last without synchronisation */
    bool hook;  /* averages */
    float *values[WORLDS];
    int64_t count;
} variant;

/* As the library does it, in two pieces. */
static fsdp_status average(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream)
{
    void *data = fsdp_tensor_data(bucket->gradients);
    int64_t numel = fsdp_tensor_numel(bucket->gradients), half = numel / 2;
    float *rest = (float *)data + half;

    CHECK(!arg && bucket->index >= 0);
    CHECK_OK(fsdp_all_reduce(bucket->group, data, data, half, FSDP_F32, FSDP_AVG, stream));
    return fsdp_all_reduce(bucket->group, rest, rest, numel - half, FSDP_F32, FSDP_AVG, stream);
}

static fsdp_module *replicated(fsdp_context *context, const variant *v)
{
    fsdp_module *module = net_create(context, v->bare ? fsdp_meta(context) : test_device(context), BLOCKS);

    if (!v->bare) /* rank 0's values are everybody's */
        CHECK_OK(fsdp_module_initialize(module, 1 + (uint64_t)fsdp_context_rank(context)));
    CHECK_OK(fsdp_replicate(module, &v->options));
    if (v->hook)
        CHECK_OK(fsdp_module_set_bucket_hook(module, average, NULL));
    if (v->bare) {
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
        CHECK_OK(fsdp_module_initialize(module, 1));
    }
    return module;
}

static void train(fsdp_context *context, void *arg)
{
    variant *v = arg;
    fsdp_shard_options shard = {.no_shared_memory = v->options.no_shared_memory, .overlap = v->options.overlap};
    fsdp_module *module = v->fully_shard ? net_sharded(context, BLOCKS, &shard) : replicated(context, v);
    int64_t count;

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < v->micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, micro == v->micros - 1, true));
            net_forward_backward(module, step, micro, v->micros);
        }
        net_sgd(module, 0.1f);
    }
    v->values[fsdp_context_rank(context)] = net_values(module, &count);
    if (fsdp_context_rank(context) == 0)
        v->count = count;
    fsdp_module_unref(module);
}

/* All ranks have the same bits; `*first`, if it is NULL, becomes those. */
static void run_variant(variant *v, int world, test_rank_body body, float **first)
{
    test_run_ranks(world, body, v);
    for (int r = 0; r < world; r++) {
        if (!*first) {
            *first = v->values[r];
            continue;
        }
        CHECK_BYTES(v->values[r], *first, (size_t)v->count * sizeof(float));
        free(v->values[r]);
    }
}

static variant variant_of(int bits)
{
    static const double caps[] = {0, 1e-4, 5e-4};
    variant v = {.micros = 1};

    v.options.gradient_as_bucket_view = bits & 1;
    v.options.no_shared_memory = bits >> 1 & 1;
    v.options.overlap = bits >> 2 & 1 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
    v.bare = bits >> 3 & 1;
    v.hook = bits % 5 == 3;
    v.options.bucket_cap_mb = caps[(bits >> 4) % 3];
    v.options.find_unused_parameters = (bits >> 4) / 3 == 1;
    v.options.static_graph = (bits >> 4) / 3 == 2;
    return v;
}

static void every_variant_equals_plain_and_fully_shard(void **state)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    (void)state;
    for (int world = 1; world <= WORLDS - test_brief(); world++)
        for (int micros = 1; micros <= 2; micros++) {
            variant sharded = {.fully_shard = true, .micros = micros};
            float *first = NULL;

            run_variant(&sharded, world, train, &first);
            CHECK_CLOSE(first, expected, count, 1e-5, 1e-6);
            for (int bits = world + micros; bits < 9 << 4; bits += test_long() ? 1 : test_brief() ? 47 : 5) {
                variant v = variant_of(bits);

                v.micros = micros;
                run_variant(&v, world, train, &first);
            }
            free(first);
        }
    free(expected);
}

/* The others have memory, and nothing in it, as before a checkpoint that rank 0 has read. */
static void take_values(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    float *values, *expected = arg;
    int64_t count;

    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    if (fsdp_context_rank(context) == 0)
        CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_replicate(module, NULL));
    values = net_values(module, &count);
    CHECK_BYTES(values, expected, (size_t)count * sizeof *values);
    net_forward_backward(module, 0, 0, 1);
    free(values);
    fsdp_module_unref(module);
}

static void values_of_rank_0_are_all_that_is_needed(void **state)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 0, &count);

    (void)state;
    for (int world = 1; world <= 3; world++)
        test_run_ranks(world, take_values, expected);
    free(expected);
}

/* Of two rows of each rank. */
static void backward_in(fsdp_module *module, fsdp_dtype dtype, int step)
{
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, step, fsdp_context_rank(module->context) * 2, 2, &x, &targets);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, fsdp_cast(x, dtype), targets))));
    fsdp_scope_end(module->context, NULL);
}

/* In the dtype that they have. */
static void step_by(fsdp_module *module)
{
    fsdp_parameters parameters;
    fsdp_optimizer *sgd;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.1}, &sgd));
    CHECK_OK(fsdp_optimizer_step(sgd));
    fsdp_optimizer_free(sgd);
    fsdp_parameters_release(&parameters);
    fsdp_module_zero_grad(module);
}

/* Parameters in another dtype, a part of them frozen for a while: as when they are sharded. */
static void change(fsdp_context *context, void *arg)
{
    variant *v = arg;
    fsdp_shard_options shard = {.no_shared_memory = v->options.no_shared_memory, .overlap = v->options.overlap};
    fsdp_module *module = v->fully_shard ? net_sharded(context, BLOCKS, &shard) : replicated(context, v);
    fsdp_tensor *frozen = fsdp_module_parameter(module, "blocks.0.up.weight");
    int64_t count;

    for (int step = 0; step < 6; step++) {
        if (step == 2)
            CHECK_OK(fsdp_module_to(module, FSDP_BF16));
        if (step == 4)
            CHECK_OK(fsdp_module_to(module, FSDP_F32));
        CHECK_OK(fsdp_tensor_set_requires_grad(frozen, step % 3 != 1));
        for (int micro = 0; micro < v->micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, micro == v->micros - 1, true));
            backward_in(module, step == 2 || step == 3 ? FSDP_BF16 : FSDP_F32, 2 * step + micro);
        }
        step_by(module);
    }
    v->values[fsdp_context_rank(context)] = net_values(module, &count);
    if (fsdp_context_rank(context) == 0)
        v->count = count;
    fsdp_module_unref(module);
}

static void dtypes_and_what_is_frozen_may_change(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLDS - test_brief(); world++)
        for (int micros = 1; micros <= 2; micros++) {
            variant sharded = {.fully_shard = true, .micros = micros};
            float *first = NULL;

            run_variant(&sharded, world, change, &first);
            for (int bits = 0; bits < 9 << 4; bits += test_brief() ? 53 : 13) {
                variant v = variant_of(bits);

                v.hook = false; /* of floats */
                v.micros = micros;
                v.options.static_graph = false; /* it would be another */
                run_variant(&v, world, change, &first);
            }
            free(first);
        }
}

/* Sent in 16 bits: the same bits however, and near the others. */
static void compressed_gradients_are_near(void **state)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    (void)state;
    for (int world = 1 + test_brief(); world <= WORLDS - test_brief(); world++)
        for (int half = 0; half < 2; half++) {
            float *first = NULL;

            for (int bits = 0; bits < 1 << 3; bits += test_brief() ? 5 : 1) {
                variant v = variant_of(bits | 1 << 4); /* a cap */

                v.hook = false;
                v.options.compress = half ? FSDP_F16 : FSDP_BF16;
                run_variant(&v, world, train, &first);
            }
            CHECK_CLOSE(first, expected, count, 1e-2, 1e-3);
            free(first);
        }
    free(expected);
}

/* ---- the closed form ---- */

/* As the allocator hands it out. */
static size_t rounded(int64_t numel)
{
    return ((size_t)numel * sizeof(float) + 63) / 64 * 64;
}

static size_t parameter_bytes(fsdp_module *module)
{
    fsdp_parameters parameters;
    size_t bytes = 0;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        bytes += rounded(fsdp_tensor_numel(parameters.items[i].tensor));
    fsdp_parameters_release(&parameters);
    return bytes;
}

/* Of all buckets, and at the peak: as views of buckets they are all there is; else a bucket besides while its gradients
 * are made, after those of the buckets before it. */
static size_t gradient_bytes(fsdp_module *module, bool view, size_t *peak)
{
    size_t bytes = 0;
    int64_t count;

    CHECK_OK(fsdp_module_bucket_count(module, &count));
    *peak = 0;
    for (int64_t b = 0; b < count; b++) {
        fsdp_bucket_info info;

        CHECK_OK(fsdp_module_bucket_info(module, b, &info));
        bytes += rounded(info.numel);
        *peak = FSDP__MAX(*peak, bytes + (view ? 0 : rounded(info.numel)));
    }
    return bytes;
}

static void check_bytes(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    bool view = v->options.gradient_as_bucket_view || fsdp_context_world_size(context) == 1;
    fsdp_module *module = replicated(context, v);
    fsdp_device *device = test_device(context);
    size_t parameters = parameter_bytes(module), gradients, peak, first_live = 0;
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_total_bytes, parameters);
    for (int step = 0; step < 5; step++) {
        fsdp_device_reset_peak(device);
        net_forward_backward(module, step, 0, 1);
        gradients = gradient_bytes(module, view, &peak);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], parameters);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], gradients);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], peak);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], 0);
        net_sgd(module, 0.1f);
        fsdp_device_memory(device, &stats);
        if (step == 1)
            first_live = stats.live_total_bytes;
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        if (step > 1)
            CHECK_EQ(stats.live_total_bytes, first_live); /* no drift */
    }
    fsdp_module_unref(module);
}

static void bytes_equal_the_closed_form(void **state)
{
    (void)state;
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 3; world++)
        for (int bits = 0; bits < 6; bits++) {
            variant v = {.bare = true};

            v.options.gradient_as_bucket_view = bits & 1;
            v.options.bucket_cap_mb = bits < 2 ? 0 : 3e-4;
            v.options.no_shared_memory = bits > 3;
            test_run_ranks(world, check_bytes, &v);
        }
}

/* ---- what must not be done ---- */

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

static fsdp_status hook_of_sharded(fsdp_module *module)
{
    CHECK_OK(fsdp_fully_shard(module, NULL));
    return fsdp_module_set_bucket_hook(module, average, NULL);
}

static fsdp_status fail_in_hook(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream)
{
    (void)arg, (void)stream;
    return FSDP_FAIL(FSDP_UNSUPPORTED, "this hook has no bucket %lld", (long long)bucket->index);
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

static fsdp_status differ_in_shape(fsdp_module *module)
{
    fsdp_context *context = module->context;
    int blocks = fsdp_context_rank(context) == 1 ? BLOCKS + 1 : BLOCKS;
    fsdp_module *other = net_create(context, test_device(context), blocks);
    fsdp_status status = fsdp_replicate(other, NULL);

    fsdp_module_unref(other);
    return status;
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

static const misuse misuses[] = {
    {"twice", replicate_twice, FSDP_STATE, {"cannot replicate the Net: it is replicated already"}},
    {"over sharded", replicate_over_sharded, FSDP_STATE, {"'blocks.1' is sharded already"}},
    {"under sharded", shard_over_replicated, FSDP_UNSUPPORTED, {"'blocks.1' is replicated", "one tree"}},
    {"sharded later", shard_replicated, FSDP_STATE, {"already been applied"}},
    {"container", replicate_container, FSDP_INVALID, {"cannot replicate a ModuleList"}},
    {"nothing", replicate_nothing, FSDP_INVALID, {"needs a module"}},
    {"gradient", replicate_with_gradient, FSDP_STATE, {"cannot replicate 'input.weight'", "zero_grad"}},
    {"two dimensions", replicate_on_two_dimensions, FSDP_INVALID, {"one dimension, this one has 2"}},
    {"cap", cap_below_nothing, FSDP_INVALID, {"bucket_cap_mb -1"}},
    {"find in static", find_in_static_graph, FSDP_INVALID, {"static_graph", "find_unused_parameters"}},
    {"compress", compress_to_more, FSDP_INVALID, {"not to float32"}},
    {"hook of sharded", hook_of_sharded, FSDP_STATE, {"not replicated"}},
    {"failing hook", run_with_failing_hook, FSDP_UNSUPPORTED, {"this hook has no bucket 0"}},
    {"shapes", differ_in_shape, FSDP_MISMATCH, {"rank 0 has parameter 'weight' of a LayerNorm", "rank 1 has"}},
    {"frozen", differ_in_what_is_frozen, FSDP_MISMATCH, {"rank 1 has", "frozen"}},
    {"buckets", differ_in_buckets, FSDP_MISMATCH, {"rank 0 has options: bucket_cap_mb 1", "bucket_cap_mb 2"}},
    {"any", differ_in_having_any, FSDP_MISMATCH, {"rank 0 has parameter", "rank 1 has no more"}},
    {"bytes", differ_in_having_bytes, FSDP_MISMATCH, {"rank 0 has parameter", "rank 1 has", "on meta"}},
    {"one rank", fail_on_one_rank, FSDP_STATE, {"rank 1: cannot replicate 'input.weight'"}},
    {"forward twice", forward_twice, FSDP_STATE, {"a second forward", "static_graph"}},
    {"buckets of sharded", ask_for_buckets, FSDP_STATE, {"not replicated"}},
    {"no such bucket", ask_for_bucket, FSDP_INVALID, {"bucket 1: there are 1"}},
};

static void commit(fsdp_context *context, void *arg)
{
    const misuse *m = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_status status;

    CHECK_OK(fsdp_module_initialize(module, 1));
    status = m->make(module);
    if (status != m->status)
        TEST_FAIL("%s: %s (%s), expected %s", m->name, fsdp_status_text(status), fsdp_last_error(),
                  fsdp_status_text(m->status));
    for (int i = 0; i < 3 && m->parts[i]; i++)
        if (!strstr(fsdp_last_error(), m->parts[i]))
            TEST_FAIL("%s: '%s' is not in '%s'", m->name, m->parts[i], fsdp_last_error());
    fsdp_module_unref(module);
}

static void every_misuse_has_its_error_on_all_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < FSDP__COUNT_OF(misuses); i++)
        test_run_ranks(2, commit, (void *)(uintptr_t)&misuses[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_equals_plain_and_fully_shard),
        cmocka_unit_test(values_of_rank_0_are_all_that_is_needed),
        cmocka_unit_test(dtypes_and_what_is_frozen_may_change),
        cmocka_unit_test(compressed_gradients_are_near),
        cmocka_unit_test(bytes_equal_the_closed_form),
        cmocka_unit_test(every_misuse_has_its_error_on_all_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
