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

TEST(every_field_of_the_policy_is_followed)
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

    for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
        test_run_worlds(1, 4, dtypes, &policies[i]);
}

/* In bf16 the sum over microbatches rounds: 256 + 1 stays 256. In f32, which the shard's dtype stands for, it does not.
 */
static void accumulate(fsdp_context *context, void *arg)
{
    fsdp_mp_policy policy = *(fsdp_mp_policy *)arg;
    one *o = one_create(context, 5);
    float expected = policy.reduce_dtype == FSDP_BF16 ? 256.0f : 258.0f, grad[5];

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

TEST(unreduced_gradients_add_up_in_the_reduce_dtype)
{
    fsdp_mp_policy policies[] = {{.param_dtype = FSDP_BF16},
                                 {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16},
                                 {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}};

    for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
        test_run_worlds(1, 4, accumulate, &policies[i]);
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

TEST(bf16_is_near_f32_and_the_same_in_every_layout)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 4, &count);

    for (int world = 1; world <= 4; world++)
        for (int reduce = 0; reduce < 2; reduce++) {
            run r = {.expected = expected};

            for (int variant = 0; variant < 8; variant++) {
                r.options = (fsdp_shard_options){
                    .mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = reduce ? FSDP_F32 : FSDP_BF16},
                    .no_shared_memory = variant & 1,
                    .overlap = variant & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO,
                    .reshard_after_forward = variant & 4 ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_AUTO};
                test_run_ranks(world, train, &r);
            }
            free(r.first);
        }
    free(expected);
}

/* ---- several dtypes in one group: what is sent ---- */

enum {
    KINDS = 3,
    SENT_NUMEL = 5
};

static const fsdp_dtype kinds[KINDS] = {FSDP_F32, FSDP_BF16, FSDP_F16};

/* y = sum of x * w over weights of three dtypes: each gradient is a sum of small whole numbers, exact in all. */
typedef struct three {
    fsdp_module base;
    fsdp_tensor *weights[KINDS];
} three;

static fsdp_tensor *three_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    three *t = (three *)self;
    fsdp_tensor *sum = NULL;

    (void)count;
    for (int i = 0; i < KINDS; i++) {
        fsdp_tensor *product =
            fsdp_cast(fsdp_mul(fsdp_cast(inputs[0], fsdp_tensor_dtype(t->weights[i])), t->weights[i]), FSDP_F32);

        sum = i == 0 ? product : fsdp_add(sum, product);
    }
    return fsdp_sum(sum);
}

static const fsdp_module_type three_type = {.name = "Three", .forward = three_forward};

static three *three_create(fsdp_context *context)
{
    static const char *const names[KINDS] = {"float", "brain", "half"};
    int64_t numel = SENT_NUMEL;
    three *t;

    CHECK_OK(fsdp_module_create(context, &three_type, sizeof *t, &t));
    for (int i = 0; i < KINDS; i++)
        CHECK_OK(fsdp_module_add_parameter(&t->base, names[i], &t->weights[i], test_device(context), kinds[i], 1,
                                           &numel, (fsdp_init){.kind = FSDP_INIT_ONES}));
    return t;
}

static void three_backward(three *t)
{
    fsdp_context *context = t->base.context;
    int64_t numel = SENT_NUMEL;
    double value = fsdp_context_rank(context) + 1.0;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(
        fsdp_backward(CHECK_PTR(fsdp_call(&t->base, fsdp_full(test_device(context), FSDP_F32, 1, &numel, value)))));
    fsdp_scope_end(context, NULL);
}

/* In units of one rank's padded elements times the peers. */
static int64_t bytes_of_all(fsdp_dtype dtype, int frozen)
{
    int64_t bytes = 0;

    for (int i = 0; i < KINDS; i++)
        bytes += i == frozen ? 0 : (int64_t)fsdp_dtype_size(dtype ? dtype : kinds[i]);
    return bytes;
}

static void check_sent(three *t, const fsdp_mp_policy *policy, int frozen)
{
    fsdp_context *context = t->base.context;
    int64_t world = fsdp_context_world_size(context), peers = (world - 1) * ((SENT_NUMEL + world - 1) / world);
    fsdp_comm_stats stats;

    fsdp_context_reset_comm_stats(context);
    three_backward(t);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1); /* the root's is kept for the backward */
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], world > 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], peers * bytes_of_all(policy->param_dtype, -1));
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], peers * bytes_of_all(policy->reduce_dtype, frozen));
}

static void check_three_gradients(const three *t, float factor, int frozen)
{
    float world = (float)fsdp_context_world_size(t->base.context), grad[SENT_NUMEL];

    for (int i = 0; i < KINDS; i++) {
        const fsdp_tensor *gradient = fsdp_tensor_grad(t->weights[i]);

        CHECK_EQ(gradient == NULL, i == frozen);
        if (i == frozen)
            continue;
        CHECK_EQ(fsdp_tensor_dtype(gradient), kinds[i]);
        CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, grad));
        for (int64_t k = 0; k < fsdp_tensor_numel(gradient); k++)
            CHECK_EQ(grad[k], factor * (world + 1) / 2);
    }
}

/* One frozen before the first forward and trained later: its dtypes were its own all along. Then gradients that add up
 * unsharded, each in its reduce dtype. */
static void send(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    three *t = three_create(context);
    int64_t live = 0;

    CHECK_OK(fsdp_fully_shard(&t->base, options));
    CHECK_OK(fsdp_tensor_set_requires_grad(t->weights[1], false));
    check_sent(t, &options->mp_policy, 1);
    check_three_gradients(t, 1, 1);
    fsdp_module_zero_grad(&t->base);
    CHECK_OK(fsdp_tensor_set_requires_grad(t->weights[1], true));
    for (int step = 0; step < 3; step++) {
        check_sent(t, &options->mp_policy, -1);
        check_three_gradients(t, 1, -1);
        fsdp_module_zero_grad(&t->base);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&t->base, false, true));
        three_backward(t);
        three_backward(t);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&t->base, true, true));
        check_sent(t, &options->mp_policy, -1);
        check_three_gradients(t, 3, -1);
        fsdp_module_zero_grad(&t->base);
        live = step == 0 ? test_live_bytes(context) : live;
    }
    CHECK_EQ(test_live_bytes(context), live);
    fsdp_module_unref(&t->base);
}

TEST(the_reduce_dtype_is_what_is_sent)
{
    for (int i = 0; i < 16; i++) {
        fsdp_shard_options options = {.overlap = i % 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE,
                                      .no_shared_memory = i / 2 % 2};

        options.mp_policy.param_dtype = i % 4 < KINDS ? kinds[i % 4] : FSDP_DTYPE_NONE;
        options.mp_policy.reduce_dtype = i / 4 < KINDS ? kinds[i / 4] : FSDP_DTYPE_NONE;
        test_run_ranks(1 + i % 3, send, &options);
        test_run_ranks(4, send, &options);
    }
}
