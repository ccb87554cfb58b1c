/* What FSDP1's front door takes besides a strategy: policies, first values, what is ignored, precision, offload.
 * Links: optim */
#include "fsdp/fsdp1.h"

#include <jansson.h>

#include "fsdp/optim.h"
#include "shard/net.h"

enum {
    BLOCKS = 3,
    STEPS = 3
};

static const char *const block_class[] = {"Block"};
static const fsdp_wrap_policy by_block = {.kind = FSDP_WRAP_CLASSES, .classes = block_class, .class_count = 1};

static void wrap_by_hand(fsdp_module *module, const fsdp_fsdp1_options *options)
{
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), options));
    CHECK_OK(fsdp_fsdp1_wrap(module, options));
}

static void materialize(fsdp_module *module)
{
    CHECK_OK(fsdp_module_materialize(module, test_device(module->context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
}

/* Trains, frees, and gives all values; free() them. */
static float *values_after_training(fsdp_module *module, int64_t *count)
{
    float *values;

    net_train(module, STEPS);
    values = net_values(module, count);
    fsdp_module_unref(module);
    return values;
}

static float *wrapped_values(fsdp_context *context, const fsdp_fsdp1_options *options, int64_t *count)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    wrap_by_hand(module, options);
    materialize(module);
    return values_after_training(module, count);
}

/* ---- units ---- */

/* As PyTorch cuts the flat parameter of a Sequential of linear layers. */
typedef struct cut {
    const json_t *spec;
} cut;

static fsdp_module *linears(fsdp_context *context, const json_t *widths)
{
    fsdp_module *modules[8];
    int count = (int)json_array_size(widths) - 1;

    for (int i = 0; i < count; i++)
        modules[i] =
            fsdp_linear_create(context, fsdp_meta(context), json_integer_value(json_array_get(widths, (size_t)i)),
                               json_integer_value(json_array_get(widths, (size_t)i + 1)), NULL);
    return CHECK_PTR(fsdp_sequential_create(context, modules, count));
}

static void check_cut(fsdp_context *context, void *arg)
{
    const json_t *spec = ((const cut *)arg)->spec, *names = json_object_get(spec, "fqns"), *name;
    const json_t *parts = json_array_get(json_object_get(spec, "per_rank_params"), (size_t)fsdp_context_rank(context));
    bool whole = json_object_get(spec, "strategy") != NULL;
    fsdp_module *module = linears(context, json_object_get(spec, "widths"));
    fsdp_fsdp1_options options = {.use_orig_params = json_is_true(json_object_get(spec, "use_orig_params")),
                                  .strategy = whole ? FSDP_NO_SHARD : FSDP_FULL_SHARD,
                                  .auto_wrap_policy = NULL};
    fsdp_shard_info info;
    size_t i;

    if (json_object_get(spec, "param_dtype"))
        options.mixed_precision.param_dtype = FSDP_BF16;
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    json_array_foreach(names, i, name)
    {
        const json_t *part = json_array_get(parts, i);
        const fsdp_tensor *t = CHECK_PTR(fsdp_module_parameter(module, json_string_value(name)));
        int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];

        fsdp_tensor_box(t, offset, size);
        CHECK_EQ(fsdp_tensor_numel(t), json_integer_value(json_object_get(part, "numel")));
        if (fsdp_tensor_numel(t) > 0 && !whole) /* else the box has the whole shape */
            CHECK_EQ(offset[0], json_integer_value(json_object_get(part, "intra_start")));
    }
    CHECK_OK(fsdp_module_shard_info(module, &info));
    if (!whole) /* PyTorch pads to a multiple of the world there, too, and cuts nothing */
        CHECK_EQ(info.padded_numel, fsdp_context_world_size(context) *
                                        json_integer_value(json_array_get(json_object_get(spec, "shard_numel"), 0)));
    fsdp_module_unref(module);
}

TEST(units_are_cut_as_by_pytorch)
{
    const char *folder = getenv("FSDP_REFERENCE");

    if (!folder)
        skip();
    for (int world = 2; world <= 3; world++) {
        char name[64], *path;
        json_t *file, *cases;

        snprintf(name, sizeof name, "runs/fsdp1-units-ws%d.json", world);
        path = test_path(folder, name);
        file = CHECK_PTR(json_load_file(path, 0, NULL));
        cases = json_object_get(file, "cases");
        for (size_t i = 0; i < json_array_size(cases); i++)
            test_run_ranks(world, check_cut, &(cut){json_array_get(cases, i)});
        json_decref(file);
    }
}

/* ---- policies ---- */

static void wrap_by_policy(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_fsdp1_options options = {.strategy = *(const fsdp_sharding_strategy *)arg};
    int64_t count;
    float *by_hand;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    options.mesh = options.strategy == FSDP_HYBRID_SHARD ? net_hybrid_mesh(context, 1) : NULL;
    by_hand = wrapped_values(context, &options, &count);
    fsdp_mesh_unref(options.mesh);
    options.mesh = NULL; /* by machine */
    options.auto_wrap_policy = &by_block;
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    for (int i = 0; i < BLOCKS; i++)
        CHECK(fsdp_module_is_sharded(net_block_at(module, i)));
    CHECK(!fsdp_module_is_sharded(((net *)module)->input));
    materialize(module);
    net_check_same(by_hand, values_after_training(module, &count), count);
}

TEST(a_policy_wraps_what_calls_do)
{
    for (int strategy = FSDP_FULL_SHARD; strategy <= FSDP_HYBRID_SHARD; strategy++)
        test_run_worlds(1, 3, wrap_by_policy, &strategy);
}

/* The first block keeps its parameters, the others have none of their own. */
static fsdp_status choose(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap)
{
    fsdp_fsdp1_options *o = options;

    (void)arg;
    (void)module;
    *wrap = strncmp(name, "blocks.", 7) == 0 && strchr(name + 7, '.') == NULL;
    if (strcmp(name, "blocks.0") == 0)
        o->strategy = FSDP_SHARD_GRAD_OP;
    if (strcmp(name, "blocks.1") == 0)
        o->strategy = FSDP_NO_SHARD;
    return FSDP_OK;
}

WORLDS_TEST(units_have_options_of_their_own, 2, 3)
{
    const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CUSTOM, .choose = choose};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_comm_stats stats;
    int64_t count;
    float *plain = wrapped_values(context, NULL, &count);

    CHECK_OK(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.auto_wrap_policy = &policy}));
    materialize(module);
    fsdp_context_reset_comm_stats(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 1 + 1 + 2); /* the root and block 0 once, block 2 twice */
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 3);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], 1);
    fsdp_module_zero_grad(module);
    net_check_same(plain, values_after_training(module, &count), count);
}

/* ---- first values ---- */

typedef struct probe {
    fsdp_module base;
    fsdp_tensor *scale, *shift; /* a buffer */
    fsdp_dtype seen;            /* of its input */
} probe;

static fsdp_tensor *probe_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    probe *p = (probe *)self;

    (void)count;
    p->seen = inputs[0]->dtype;
    return fsdp_mul(inputs[0], p->scale);
}

static const fsdp_module_type probe_type = {.name = "BatchNorm", .forward = probe_forward};

static probe *probe_create(fsdp_context *context)
{
    probe *p;

    CHECK_OK(fsdp_module_create(context, &probe_type, sizeof *p, &p));
    CHECK_OK(fsdp_module_add_parameter(&p->base, "scale", &p->scale, test_device(context), FSDP_F32,
                                       FSDP_SHAPE(NET_DIM), (fsdp_init){.kind = FSDP_INIT_ONES}));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(NET_DIM), FSDP_MEMORY_PARAMETER_SHARD,
                                &p->shift));
    CHECK_OK(fsdp_module_add_buffer(&p->base, "shift", &p->shift, true));
    return p;
}

static void sync_values(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = *(const bool *)arg ? net_hybrid_mesh(context, 2) : NULL;
    const fsdp_fsdp1_options options = {
        .strategy = mesh ? FSDP_HYBRID_SHARD : FSDP_FULL_SHARD, .mesh = mesh, .sync_module_states = true};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    probe *p = probe_create(context);
    float shift[NET_DIM];
    int64_t count, same_count;
    float *expected, *values;

    CHECK_OK(fsdp_module_add_child(module, "probe", &p->base));
    CHECK_OK(fsdp_module_initialize(module, 1));
    expected = net_values(module, &count);
    CHECK_OK(fsdp_module_initialize(module, 1 + (uint64_t)fsdp_context_rank(context)));
    CHECK_OK(fsdp_tensor_fill_(p->shift, fsdp_context_rank(context)));
    wrap_by_hand(module, &options);
    values = net_values(module, &same_count);
    net_check_same(expected, values, count);
    CHECK_OK(fsdp_tensor_read(p->shift, FSDP_F32, shift));
    for (int i = 0; i < NET_DIM; i++)
        CHECK_EQ(shift[i], 0);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(ranks_get_the_values_of_the_first)
{
    bool hybrid = true, plain = false;

    test_run_ranks(3, sync_values, &plain);
    test_run_ranks(4, sync_values, &hybrid);
}

static fsdp_status init_module(void *arg, fsdp_module *module)
{
    int *calls = arg;

    ++*calls;
    FSDP_TRY(fsdp_module_materialize(module, test_device(module->context)));
    return fsdp_module_initialize(module, 1);
}

static fsdp_status init_nothing(void *arg, fsdp_module *module)
{
    (void)arg;
    (void)module;
    return FSDP_OK;
}

RANKS_TEST(a_function_gives_first_values, 2)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    int calls = 0;
    fsdp_fsdp1_options options = {.param_init_fn = init_nothing, .param_init_arg = &calls, .sync_module_states = true};

    CHECK_ERROR(fsdp_fsdp1_wrap(module, &options), FSDP_STATE, "left 'input.weight' of the Net '' on the meta device");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.sync_module_states = true}), FSDP_INVALID,
                "sync_module_states: 'input.weight' of the Net '' is on the meta device");
    options.param_init_fn = init_module;
    options.auto_wrap_policy = &by_block;
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    CHECK_EQ(calls, BLOCKS * 2 + 3); /* layers with parameters: up and down; input, norm and head */
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* ---- what is ignored ---- */

RANKS_TEST(what_is_ignored_is_left_alone, 2)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *norm = ((net *)module)->norm;
    fsdp_tensor *bias = CHECK_PTR(fsdp_module_parameter(module, "head.bias"));
    const fsdp_fsdp1_options options = {.ignored_modules = &norm,
                                        .ignored_module_count = 1,
                                        .ignored_params = &bias,
                                        .ignored_param_count = 1,
                                        .auto_wrap_policy = &by_block};

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    CHECK_NULL(fsdp_tensor_distribution(bias));
    CHECK_NULL(fsdp_tensor_distribution(CHECK_PTR(fsdp_module_parameter(module, "norm.weight"))));
    CHECK_PTR((void *)(uintptr_t)fsdp_tensor_distribution(CHECK_PTR(fsdp_module_parameter(module, "head.weight"))));
    net_forward_backward(module, 0, 0, 1);
    CHECK_PTR(fsdp_tensor_grad(bias));
    fsdp_module_unref(module);
}

/* ---- precision ---- */

WORLDS_TEST(gradients_are_reduced_in_the_dtype_of_parameters, 1, 3)
{
    const fsdp_mp_policy policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16};
    fsdp_fsdp1_options options = {.mixed_precision.param_dtype = FSDP_BF16};
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mp_policy = policy});
    int64_t count;
    float *expected = values_after_training(module, &count);

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* a world of one is NO_SHARD */
    for (int every = 0; every < 2; every++) {
        float *values;

        options.mixed_precision.cast_forward_inputs = options.mixed_precision.keep_root_forward_inputs = every;
        values = wrapped_values(context, &options, &count);
        if (test_has_cpu_bits())
            CHECK_BYTES(values, expected, (size_t)count * sizeof(float));
        else /* the flat vector places the weights elsewhere, and products of other alignment may have other sums */
            CHECK_CLOSE(values, expected, count, 1e-2, 1e-3);
        free(values);
    }
    free(expected);
}

static fsdp_tensor *row_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_mean(
        fsdp_call(fsdp_module_child(self, "probe"), fsdp_call(fsdp_module_child(self, "block"), inputs[0])));
}

static const fsdp_module_type row_type = {.name = "Row", .forward = row_forward};

RANKS_TEST(batch_norms_stay_in_full_precision, 2)
{
    const fsdp_fsdp1_options options = {.mixed_precision.param_dtype = FSDP_BF16, .auto_wrap_policy = &by_block};
    probe *p = probe_create(context);
    fsdp_module *row;
    fsdp_tensor *loss;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_OK(fsdp_module_create(context, &row_type, sizeof *row, &row));
    CHECK_OK(fsdp_module_add_child(row, "block", net_block_create(context, test_device(context))));
    CHECK_OK(fsdp_module_add_child(row, "probe", &p->base));
    CHECK_OK(fsdp_module_initialize(row, 1));
    CHECK_OK(fsdp_fsdp1_wrap(row, &options));
    CHECK(fsdp_module_is_sharded(&p->base));
    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(fsdp_call(row, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM))));
    CHECK_EQ(p->seen, FSDP_F32);
    CHECK_EQ(loss->dtype, FSDP_BF16);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(row);
}

/* ---- offload ---- */

static void offload(fsdp_context *context, void *arg)
{
    fsdp_fsdp1_options options = {.strategy = *(const fsdp_sharding_strategy *)arg};
    fsdp_module *module;
    fsdp_shard_info info;
    int64_t count;
    float *expected, *values;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    expected = wrapped_values(context, &options, &count);
    options.cpu_offload.cpu = true;
    module = net_create(context, fsdp_meta(context), BLOCKS);
    wrap_by_hand(module, &options);
    materialize(module);
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.offloaded,
             fsdp_tensor_device(CHECK_PTR(fsdp_module_parameter(module, "head.weight"))) != test_device(context));
    values = values_after_training(module, &count);
    if (test_has_cpu_bits())
        CHECK_BYTES(values, expected, (size_t)count * sizeof *values);
    else /* gradients are the same, but the host, which takes the step here, rounds otherwise than a GPU */
        CHECK_CLOSE(values, expected, count, 1e-5, 1e-5);
    free(values);
    free(expected);
}

TEST(offload_changes_no_bit)
{
    for (int strategy = FSDP_FULL_SHARD; strategy <= FSDP_NO_SHARD; strategy++)
        test_run_worlds(1, 2, offload, &strategy);
}

/* ---- optimizers ---- */

static fsdp_optimizer *make_optimizer(fsdp_module *module)
{
    fsdp_adam_options adamw = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adamw, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

/* Made before wrapping, or after. */
static float *optimized(fsdp_context *context, bool before, int64_t *count)
{
    const fsdp_fsdp1_options options = {.use_orig_params = true};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_optimizer *optimizer = NULL;
    float *values;

    CHECK_OK(fsdp_module_initialize(module, 1));
    if (before)
        optimizer = make_optimizer(module);
    wrap_by_hand(module, &options);
    if (!before)
        optimizer = make_optimizer(module);
    for (int step = 0; step < STEPS; step++) {
        net_forward_backward(module, step, 0, 1);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    }
    values = net_values(module, count);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
    return values;
}

static void optimize(fsdp_context *context, void *arg)
{
    int64_t count;
    float *after = optimized(context, false, &count);

    (void)arg;
    net_check_same(after, optimized(context, true, &count), count);
}

/* Without original parameters it has parts of what has the gradients. */
static void optimize_parts(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_optimizer *before;

    (void)arg;
    CHECK_OK(fsdp_module_initialize(module, 1));
    before = make_optimizer(module);
    wrap_by_hand(module, &(fsdp_fsdp1_options){0});
    net_forward_backward(module, 0, 0, 1);
    CHECK_ERROR(fsdp_optimizer_step(before), FSDP_STATE, "is a part of a flat parameter");
    fsdp_optimizer_free(before);
    fsdp_module_unref(module);
}

TEST(an_optimizer_from_before_goes_on_or_is_refused)
{
    test_run_ranks(2, optimize_parts, NULL);
    test_run_ranks(2, optimize, NULL);
    test_run_ranks(3, optimize, NULL);
}
