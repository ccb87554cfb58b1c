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
    bool seen;  /* hooks of the parameters halve what arrives; those of the module count */
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

static fsdp_status halve(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)arg, (void)tensor;
    CHECK(fsdp_tensor_distribution(*grad));
    *grad = fsdp_scale(*grad, 0.5);
    return *grad ? fsdp_tensor_set_distribution(*grad, fsdp_tensor_distribution(tensor)) : fsdp_last_status();
}

static fsdp_status count_landed(void *arg, fsdp_tensor *const *parameters, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        CHECK(fsdp_tensor_grad(parameters[i]));
    *(int64_t *)arg += count;
    return FSDP_OK;
}

static void add_hooks(fsdp_module *module, int64_t *landed)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i += 3)
        CHECK_OK(fsdp_tensor_add_grad_hook(parameters.items[i].tensor, halve, NULL));
    fsdp_parameters_release(&parameters);
    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(module, count_landed, landed, true));
}

static void train(fsdp_context *context, void *arg)
{
    variant *v = arg;
    fsdp_shard_options shard = {.no_shared_memory = v->options.no_shared_memory, .overlap = v->options.overlap};
    fsdp_module *module = v->fully_shard ? net_sharded(context, BLOCKS, &shard) : replicated(context, v);
    int64_t count, landed = 0;

    if (v->seen)
        add_hooks(module, &landed);
    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < v->micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, micro == v->micros - 1, true));
            net_forward_backward(module, step, micro, v->micros);
        }
        net_sgd(module, 0.1f);
    }
    CHECK_EQ(landed, v->seen ? STEPS * (4 * BLOCKS + 6) : 0);
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

TEST(every_variant_equals_plain_and_fully_shard)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

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

TEST(values_of_rank_0_are_all_that_is_needed)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 0, &count);

    test_run_worlds(1, 3, take_values, expected);
    free(expected);
}

/* What the norm has made is read outside the module, before that has anything back from the backward before. */
WORLDS_TEST(a_graph_that_ends_in_a_norm_is_walked_twice, 1, 3)
{
    fsdp_module *norm = CHECK_PTR(fsdp_rmsnorm_create(context, test_device(context), NET_DIM, 1e-5f));
    float values[NET_DIM], once[NET_DIM], twice[NET_DIM];
    fsdp_tensor *x, *y, *loss, *gradient, *weight;

    for (int i = 0; i < NET_DIM; i++)
        values[i] = (float)(i + 1) / 4;
    CHECK_OK(fsdp_module_initialize(norm, 1));
    CHECK_OK(fsdp_replicate(norm, NULL));
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, NET_DIM), values));
    y = CHECK_PTR(fsdp_call(norm, x));
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(y, y)));
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    gradient = CHECK_PTR(fsdp_tensor_grad(CHECK_PTR(fsdp_module_parameter(norm, "weight"))));
    CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, once));
    CHECK_OK(fsdp_module_unshard(norm));
    weight = CHECK_PTR(fsdp_module_parameter(norm, "weight"));
    CHECK(weight->storage->renewed_by && weight->storage->strict); /* where no GPU tells */
    CHECK_OK(fsdp_module_reshard(norm));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, twice));
    for (int i = 0; i < NET_DIM; i++)
        CHECK(once[i] != 0 && twice[i] == 2 * once[i]);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(norm);
}

TEST(hooks_see_what_they_see_when_it_is_sharded)
{
    for (int world = 1 + test_brief(); world <= (test_brief() ? 2 : WORLDS); world++) {
        variant sharded = {.fully_shard = true, .seen = true, .micros = 1};
        float *first = NULL;

        run_variant(&sharded, world, train, &first);
        for (int bits = world; bits < 9 << 4; bits += test_brief() ? 61 : 17) {
            variant v = variant_of(bits);

            v.seen = true;
            run_variant(&v, world, train, &first);
        }
        free(first);
    }
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

TEST(dtypes_and_what_is_frozen_may_change)
{
    for (int world = 1 + test_brief(); world <= (test_brief() ? 2 : WORLDS); world++)
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
TEST(compressed_gradients_are_near)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

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

/* ---- what is ignored ---- */

typedef struct own {
    fsdp_module base;
    fsdp_tensor *scale, *counter; /* a parameter and a buffer */
} own;

static fsdp_tensor *own_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_mul(inputs[0], ((own *)self)->scale);
}

static const fsdp_module_type own_type = {.name = "Own", .forward = own_forward};

/* linear, then a module that each rank has its own of: multiplied by 1 + rank. */
static fsdp_module *mixed(fsdp_context *context, own **out)
{
    fsdp_module *modules[2] = {fsdp_linear_create(context, test_device(context), 3, 3, NULL)}, *all;
    own *o;

    CHECK_OK(fsdp_module_create(context, &own_type, sizeof *o, &o));
    CHECK_OK(fsdp_module_add_parameter(&o->base, "scale", &o->scale, test_device(context), FSDP_F32, FSDP_SHAPE(3),
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    CHECK_OK(
        fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(1), FSDP_MEMORY_PARAMETER_SHARD, &o->counter));
    CHECK_OK(fsdp_module_add_buffer(&o->base, "counter", &o->counter, true));
    modules[1] = &o->base;
    all = CHECK_PTR(fsdp_sequential_create(context, modules, 2));
    CHECK_OK(fsdp_module_initialize(all, 1));
    CHECK_OK(fsdp_tensor_fill_(o->scale, 1 + fsdp_context_rank(context)));
    CHECK_OK(fsdp_tensor_fill_(o->counter, 1 + fsdp_context_rank(context)));
    *out = o;
    return all;
}

static void read_all(const fsdp_tensor *t, float *values)
{
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
}

/* The loss's gradient of the linear's bias is each rank's scale: their mean. */
static void ignore_parts(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    fsdp_replicate_options options = v->options;
    int world = fsdp_context_world_size(context), rank = fsdp_context_rank(context);
    float values[3], x[3] = {1, 2, 3}, y[3];
    own *o;
    fsdp_module *module = mixed(context, &o), *ignored = &o->base;

    options.ignored_modules = &ignored;
    options.ignored_module_count = 1;
    if (v->bare) {
        options.ignored_module_count = 0;
        options.ignored_params = &o->scale;
        options.ignored_param_count = 1;
    }
    CHECK_OK(fsdp_replicate(module, &options));
    CHECK_NULL((void *)(uintptr_t)fsdp_tensor_distribution(o->scale));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(
            fsdp_sum(fsdp_call(module, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, 3), x)))));
        read_all(fsdp_linear(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, 3), x),
                             fsdp_module_parameter(module, "0.weight"), fsdp_module_parameter(module, "0.bias")),
                 y);
        fsdp_scope_end(context, NULL);
        read_all(CHECK_PTR(fsdp_tensor_grad(o->scale)), values);
        CHECK_BYTES(values, y, sizeof y); /* as this rank computed it */
        read_all(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "0.bias"))), values);
        CHECK_NEAR(values[0], (1 + world) / 2.0, 1e-6);
        read_all(o->counter, values);
        CHECK_EQ(values[0], v->bare ? 1 : 1 + rank); /* the buffers of a module that is not ignored are rank 0's */
        fsdp_module_zero_grad(module);
    }
    read_all(o->scale, values);
    CHECK_EQ(values[0], 1 + rank);
    fsdp_module_unref(module);
}

TEST(what_is_ignored_is_each_ranks_own)
{
    for (int world = 1; world <= 3; world++)
        for (int bits = 0; bits < 8; bits += test_brief() ? 3 : 1) {
            variant v = {.bare = bits & 1};

            v.options.find_unused_parameters = bits & 2;
            v.options.no_shared_memory = bits & 4;
            v.options.overlap = bits & 4 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
            test_run_ranks(world, ignore_parts, &v);
        }
}

RANKS_TEST(a_module_without_parameters_is_replicated, 2)
{
    fsdp_module *module = CHECK_PTR(fsdp_gelu_create(context, false));

    CHECK(!fsdp_module_is_replicated(module));
    CHECK_OK(fsdp_replicate(module, NULL));
    CHECK(fsdp_module_is_replicated(module));
    fsdp_module_unref(module);
}

/* ---- gradients that the caller holds ---- */

static void hold_gradient(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    fsdp_module *module = replicated(context, v);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(module, "head.weight"));
    float before[NET_OUT * NET_DIM], after[NET_OUT * NET_DIM];

    for (int step = 0; step < 3; step++) {
        fsdp_tensor *held;

        net_forward_backward(module, step, 0, 1);
        held = fsdp_tensor_ref(CHECK_PTR(fsdp_tensor_grad(weight)));
        read_all(held, before);
        fsdp_module_zero_grad(module);
        net_forward_backward(module, step + 1, 0, 1); /* in memory of its own */
        CHECK(fsdp_tensor_grad(weight) != held);
        read_all(held, after);
        CHECK_BYTES(before, after, sizeof after);
        read_all(fsdp_tensor_grad(weight), after);
        CHECK(memcmp(before, after, sizeof after) != 0);
        fsdp_module_zero_grad(module);
        fsdp_tensor_unref(held);
    }
    fsdp_module_unref(module);
}

TEST(a_gradient_that_is_held_stays_what_it_is)
{
    for (int world = 1; world <= 3; world++)
        for (int bits = 0; bits < 8; bits += test_brief() ? 3 : 1) {
            variant v = {.bare = true};

            v.options.gradient_as_bucket_view = bits & 1;
            v.options.no_shared_memory = bits & 2;
            v.options.bucket_cap_mb = bits & 2 ? 3e-4 : 0;
            v.options.overlap = bits & 4 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
            test_run_ranks(world, hold_gradient, &v);
        }
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

TEST(bytes_equal_the_closed_form)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 3; world++)
        for (int bits = 0; bits < 6; bits++) {
            variant v = {.bare = true, .options.overlap = FSDP_OVERLAP_INLINE};

            v.options.gradient_as_bucket_view = bits & 1;
            v.options.bucket_cap_mb = bits < 2 ? 0 : 3e-4;
            v.options.no_shared_memory = bits > 3;
            test_run_ranks(world, check_bytes, &v);
        }
}
