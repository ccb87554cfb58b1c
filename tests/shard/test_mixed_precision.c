/* Mixed precision: which dtype is seen where, and that sums are kept as the policy says. */
#include "shard/net.h"

enum {
    BLOCKS = 2
};

/* A parameter p (1) and a forward that returns p * x: its gradient is x. */
typedef struct one {
    fsdp_module base;
    fsdp_tensor *weight;
    fsdp_dtype weight_seen, input_seen;
} one;

static fsdp_tensor *one_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    one *o = (one *)self;

    (void)count;
    o->weight_seen = fsdp_tensor_dtype(o->weight);
    o->input_seen = fsdp_tensor_dtype(inputs[0]);
    return fsdp_mul(fsdp_cast(inputs[0], o->weight_seen), o->weight);
}

static const fsdp_module_type one_type = {.name = "One", .forward = one_forward};

static one *one_create(fsdp_context *context, int64_t size)
{
    one *o;

    CHECK_OK(fsdp_module_create(context, &one_type, sizeof *o, &o));
    CHECK_OK(fsdp_module_add_parameter(&o->base, "weight", &o->weight, test_device(context), FSDP_F32, 1, &size,
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    return o;
}

static fsdp_tensor *one_call(one *o, float value, int64_t size)
{
    return CHECK_PTR(fsdp_call(&o->base, fsdp_full(test_device(o->base.context), FSDP_F32, 1, &size, value)));
}

static void dtypes(fsdp_context *context, void *arg)
{
    fsdp_mp_policy policy = *(fsdp_mp_policy *)arg;
    one *o = one_create(context, 3);
    fsdp_tensor *y;

    CHECK_OK(fsdp_fully_shard(&o->base, &(fsdp_shard_options){.mp_policy = policy}));
    CHECK_OK(fsdp_scope_begin(context));
    y = one_call(o, 1.0f, 3);
    CHECK_EQ(o->weight_seen, policy.param_dtype ? policy.param_dtype : FSDP_F32);
    CHECK_EQ(o->input_seen, policy.param_dtype && !policy.keep_forward_inputs ? policy.param_dtype : FSDP_F32);
    CHECK_EQ(fsdp_tensor_dtype(y), policy.output_dtype ? policy.output_dtype : o->weight_seen);
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_cast(y, FSDP_F32))));
    fsdp_scope_end(context, NULL);
    CHECK_EQ(fsdp_tensor_dtype(o->weight), FSDP_F32); /* the shard keeps its own */
    CHECK_EQ(fsdp_tensor_dtype(fsdp_tensor_grad(o->weight)), FSDP_F32);
    fsdp_module_unref(&o->base);
}

static void every_field_of_the_policy_is_followed(void **state)
{
    fsdp_mp_policy policies[] = {
        {0},
        {.param_dtype = FSDP_BF16},
        {.param_dtype = FSDP_F16, .reduce_dtype = FSDP_F32},
        {.param_dtype = FSDP_BF16, .output_dtype = FSDP_F32},
        {.param_dtype = FSDP_BF16, .keep_forward_inputs = true},
        {.reduce_dtype = FSDP_BF16},
        {.output_dtype = FSDP_BF16},
    };

    (void)state;
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
            test_run_ranks(world, dtypes, &policies[i]);
}

/* Without a reduce dtype the sum over microbatches rounds to bf16: 256 + 1 stays 256. With f32 it does not. */
static void accumulate(fsdp_context *context, void *arg)
{
    fsdp_mp_policy policy = *(fsdp_mp_policy *)arg;
    one *o = one_create(context, 5);
    float expected = policy.reduce_dtype == FSDP_F32 ? 258.0f : 256.0f, grad[5];

    CHECK_OK(fsdp_fully_shard(&o->base, &(fsdp_shard_options){.mp_policy = policy}));
    for (int micro = 0; micro < 3; micro++) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&o->base, micro == 2, true));
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_cast(one_call(o, micro == 0 ? 256.0f : 1.0f, 5), FSDP_F32))));
        fsdp_scope_end(context, NULL);
        if (micro < 2)
            CHECK_NULL(fsdp_tensor_grad(o->weight)); /* still whole, not the shard's */
    }
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(o->weight), FSDP_F32, grad));
    for (int64_t i = 0; i < fsdp_tensor_numel(o->weight); i++)
        CHECK_EQ((int)grad[i], (int)expected);
    fsdp_module_unref(&o->base);
}

static void unreduced_gradients_add_up_in_the_reduce_dtype(void **state)
{
    fsdp_mp_policy policies[] = {{.param_dtype = FSDP_BF16}, {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}};

    (void)state;
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
            test_run_ranks(world, accumulate, &policies[i]);
}

/* bf16 training stays near f32 and all layouts and ways of overlap give the same bits. */
typedef struct run {
    fsdp_shard_options options;
    const float *expected;
    float *first;
} run;

static void train(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, &r->options);
    int64_t count;
    float *values;

    net_train(module, 4);
    values = net_values(module, &count);
    CHECK_CLOSE(values, r->expected, count, 0.02, 0.02);
    if (fsdp_context_rank(context) == 0 && !r->first) {
        r->first = values;
        values = NULL;
    } else if (fsdp_context_rank(context) == 0) {
        CHECK_BYTES(values, r->first, (size_t)count * sizeof(float));
    }
    free(values);
    fsdp_module_unref(module);
}

static void bf16_is_near_f32_and_the_same_in_every_layout(void **state)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 4, &count);

    (void)state;
    for (int world = 1; world <= 4; world++)
        for (int reduce = 0; reduce < 2; reduce++) {
            run r = {.expected = expected};

            for (int variant = 0; variant < 8; variant++) {
                r.options = (fsdp_shard_options){
                    .mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = reduce ? FSDP_F32 : FSDP_DTYPE_NONE},
                    .no_shared_memory = variant & 1,
                    .overlap = variant & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO,
                    .reshard_after_forward = variant & 4 ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_AUTO};
                test_run_ranks(world, train, &r);
            }
            free(r.first);
        }
    free(expected);
}

TEST_MAIN(cmocka_unit_test(every_field_of_the_policy_is_followed),
          cmocka_unit_test(unreduced_gradients_add_up_in_the_reduce_dtype),
          cmocka_unit_test(bf16_is_near_f32_and_the_same_in_every_layout))
