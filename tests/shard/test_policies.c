/* Each call's mixed precision policy is its own modules': inputs, outputs, parameters and buffers, call by call. */
#include "shard/net.h"

/* ---- modules that note what they see ---- */

/* x [+ y] times a weight of ones, plus a buffer when it has one. */
typedef struct probe {
    fsdp_module base;
    fsdp_tensor *weight, *buffer, *steps;
    fsdp_dtype weight_seen, inputs_seen[3];
    int calls;
} probe;

static fsdp_tensor *probe_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    probe *p = (probe *)self;
    fsdp_tensor *sum;

    p->calls++;
    p->weight_seen = fsdp_tensor_dtype(p->weight);
    for (int i = 0; i < count; i++)
        p->inputs_seen[i] = fsdp_tensor_dtype(inputs[i]);
    sum = fsdp_cast(inputs[0], p->weight_seen);
    if (count > 1)
        sum = fsdp_add(sum, fsdp_cast(inputs[1], p->weight_seen));
    return fsdp_mul(sum, p->weight);
}

static const fsdp_module_type probe_type = {.name = "Probe", .forward = probe_forward};

static probe *probe_create(fsdp_context *context)
{
    int64_t numel = 3;
    probe *p;

    CHECK_OK(fsdp_module_create(context, &probe_type, sizeof *p, &p));
    CHECK_OK(fsdp_module_add_parameter(&p->base, "weight", &p->weight, test_device(context), FSDP_F32, 1, &numel,
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    return p;
}

/* Two probes, one after the other; the second gets the model's second and third input too. */
typedef struct pair {
    fsdp_module base;
    fsdp_module *first, *second;
    fsdp_dtype between, after;
} pair;

static fsdp_tensor *pair_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    pair *p = (pair *)self;
    fsdp_tensor *x = fsdp_call(p->first, inputs[0]);

    p->between = fsdp_tensor_dtype(x);
    x = count > 2 ? fsdp_call(p->second, x, inputs[1], inputs[2]) : fsdp_call(p->second, x);
    p->after = fsdp_tensor_dtype(x);
    return fsdp_sum(fsdp_cast(x, FSDP_F32));
}

static const fsdp_module_type pair_type = {.name = "Pair", .forward = pair_forward};

static pair *pair_create(fsdp_context *context)
{
    pair *p;

    CHECK_OK(fsdp_module_create(context, &pair_type, sizeof *p, &p));
    p->first = &probe_create(context)->base;
    CHECK_OK(fsdp_module_add_child(&p->base, "first", p->first));
    p->second = &probe_create(context)->base;
    CHECK_OK(fsdp_module_add_child(&p->base, "second", p->second));
    return p;
}

static void pair_backward(pair *p, bool more)
{
    fsdp_context *context = p->base.context;
    int64_t numel = 3;
    fsdp_tensor *x, *ids, *loss;

    CHECK_OK(fsdp_scope_begin(context));
    x = fsdp_full(test_device(context), FSDP_F32, 1, &numel, 2.0);
    ids = fsdp_full(test_device(context), FSDP_I32, 1, &numel, 1.0);
    loss = more ? fsdp_call(&p->base, x, x, ids) : fsdp_call(&p->base, x);
    CHECK_OK(fsdp_backward(CHECK_PTR(loss)));
    fsdp_scope_end(context, NULL);
}

static void check_seen(fsdp_module *module, fsdp_dtype weight, fsdp_dtype input)
{
    const probe *p = (const probe *)module;

    CHECK_EQ(p->weight_seen, weight);
    CHECK_EQ(p->inputs_seen[0], input);
    CHECK_EQ(fsdp_tensor_dtype(p->weight), FSDP_F32); /* the shard's */
    CHECK_EQ(fsdp_tensor_dtype(CHECK_PTR(fsdp_tensor_grad(p->weight))), FSDP_F32);
}

static fsdp_shard_options with(const fsdp_shard_options *like, fsdp_mp_policy policy)
{
    fsdp_shard_options options = *like;

    options.mp_policy = policy;
    return options;
}

static void in_all_layouts(test_rank_body body)
{
    for (int world = 1; world <= 3; world++)
        for (int i = 0; i < 4; i++)
            test_run_ranks(world, body,
                           &(fsdp_shard_options){.no_shared_memory = i & 1,
                                                 .overlap = i & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE});
}

/* ---- one module in f16 ---- */

static void one_in_half(fsdp_context *context, void *arg)
{
    static const fsdp_mp_policy policies[] = {
        {.param_dtype = FSDP_F16},
        {.param_dtype = FSDP_F16, .output_dtype = FSDP_F32},
        {.param_dtype = FSDP_F16, .keep_forward_inputs = true, .reduce_dtype = FSDP_F16},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++) {
        fsdp_shard_options half = with(arg, policies[i]), whole = with(arg, (fsdp_mp_policy){0});
        pair *p = pair_create(context);

        CHECK_OK(fsdp_fully_shard(p->second, &half));
        CHECK_OK(fsdp_fully_shard(&p->base, &whole));
        pair_backward(p, true); /* with an input from outside, and one of integers */
        check_seen(p->first, FSDP_F32, FSDP_F32);
        check_seen(p->second, FSDP_F16, policies[i].keep_forward_inputs ? FSDP_F32 : FSDP_F16);
        CHECK_EQ(((probe *)p->second)->inputs_seen[1], policies[i].keep_forward_inputs ? FSDP_F32 : FSDP_F16);
        CHECK_EQ(((probe *)p->second)->inputs_seen[2], FSDP_I32);
        CHECK_EQ(p->between, FSDP_F32);
        CHECK_EQ(p->after, policies[i].output_dtype ? policies[i].output_dtype : FSDP_F16);
        fsdp_module_unref(&p->base);
    }
}

TEST(one_module_may_compute_in_half_precision)
{
    in_all_layouts(one_in_half);
}

/* ---- modules of one call ---- */

static void grouped(fsdp_context *context, void *arg)
{
    fsdp_shard_options brain = with(arg, (fsdp_mp_policy){.param_dtype = FSDP_BF16, .output_dtype = FSDP_F32});
    fsdp_shard_options whole = with(arg, (fsdp_mp_policy){0});
    pair *p = pair_create(context);

    CHECK_OK(fsdp_fully_shard_modules((fsdp_module *const[]){p->first, p->second}, 2, &brain));
    CHECK_OK(fsdp_fully_shard(&p->base, &whole));
    pair_backward(p, false);
    check_seen(p->first, FSDP_BF16, FSDP_BF16); /* each gets its inputs cast, and its output */
    check_seen(p->second, FSDP_BF16, FSDP_BF16);
    CHECK_EQ(p->between, FSDP_F32);
    CHECK_EQ(p->after, FSDP_F32);
    fsdp_module_unref(&p->base);
}

TEST(each_module_of_a_call_gets_its_casts)
{
    in_all_layouts(grouped);
}

/* ---- norms ---- */

static void norms(fsdp_context *context, void *arg)
{
    static const fsdp_dtype low[] = {FSDP_BF16, FSDP_F16};
    int64_t shape[2] = {2, NET_DIM};

    for (int i = 0; i < 4; i++) {
        fsdp_shard_options options = with(arg, (fsdp_mp_policy){.param_dtype = low[i / 2]});
        fsdp_module *norm = i % 2 ? fsdp_rmsnorm_create(context, test_device(context), NET_DIM, 1e-5f)
                                  : fsdp_layernorm_create(context, test_device(context), NET_DIM, 1e-5f);
        fsdp_tensor *y, *weight;

        CHECK_OK(fsdp_module_initialize(CHECK_PTR(norm), 1));
        CHECK_OK(fsdp_fully_shard(norm, &options));
        CHECK_OK(fsdp_scope_begin(context));
        y = CHECK_PTR(fsdp_call(norm, fsdp_full(test_device(context), FSDP_F32, 2, shape, 3.0)));
        CHECK_EQ(fsdp_tensor_dtype(y), low[i / 2]);
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_cast(y, FSDP_F32))));
        fsdp_scope_end(context, NULL);
        weight = CHECK_PTR(fsdp_module_parameter(norm, "weight"));
        CHECK_EQ(fsdp_tensor_dtype(CHECK_PTR(fsdp_tensor_grad(weight))), FSDP_F32);
        fsdp_module_unref(norm);
    }
}

TEST(norms_compute_in_low_precision)
{
    in_all_layouts(norms);
}

/* ---- buffers ---- */

static void add_buffers(fsdp_context *context, probe *p)
{
    int64_t numel = 2;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 1, &numel, FSDP_MEMORY_ACTIVATION, &p->buffer));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_I64, 1, &numel, FSDP_MEMORY_ACTIVATION, &p->steps));
    CHECK_OK(fsdp_tensor_fill_(p->buffer, 1.00390625)); /* more bits than bf16 has */
    CHECK_OK(fsdp_tensor_fill_(p->steps, 7.0));
    CHECK_OK(fsdp_module_add_buffer(&p->base, "mean", &p->buffer, true));
    CHECK_OK(fsdp_module_add_buffer(&p->base, "steps", &p->steps, true));
}

static void buffers(fsdp_context *context, void *arg)
{
    fsdp_shard_options cast = with(arg, (fsdp_mp_policy){.param_dtype = FSDP_BF16, .buffer_dtype = FSDP_BF16});
    fsdp_shard_options keep = with(arg, (fsdp_mp_policy){.param_dtype = FSDP_BF16});
    pair *p = pair_create(context);
    probe *first = (probe *)p->first, *second = (probe *)p->second;
    float values[2];
    fsdp_tensor *before;

    add_buffers(context, first);
    add_buffers(context, second);
    fsdp_tensor_unref(second->buffer); /* one for both */
    second->buffer = fsdp_tensor_ref(first->buffer);
    CHECK_OK(fsdp_fully_shard(p->second, &keep));
    CHECK_OK(fsdp_fully_shard(&p->base, &cast));
    CHECK_EQ(fsdp_tensor_dtype(first->buffer), FSDP_F32); /* not before the first forward */
    pair_backward(p, false);
    CHECK_EQ(fsdp_tensor_dtype(first->buffer), FSDP_BF16);
    CHECK_EQ(fsdp_tensor_dtype(first->steps), FSDP_I64);
    CHECK_EQ(fsdp_tensor_dtype(second->buffer), FSDP_F32); /* its own call says nothing of buffers */
    CHECK_OK(fsdp_tensor_read(first->buffer, FSDP_F32, values));
    CHECK_EQ(values[0], 1.0f);
    before = first->buffer;
    pair_backward(p, false);
    CHECK(first->buffer == before); /* once */
    fsdp_module_unref(&p->base);
}

static void shared_buffers(fsdp_context *context, void *arg)
{
    fsdp_shard_options cast = with(arg, (fsdp_mp_policy){.buffer_dtype = FSDP_F16});
    pair *p = pair_create(context);
    probe *first = (probe *)p->first, *second = (probe *)p->second;

    add_buffers(context, first);
    add_buffers(context, second);
    fsdp_tensor_unref(second->buffer);
    second->buffer = fsdp_tensor_ref(first->buffer);
    CHECK_OK(fsdp_fully_shard(p->second, &cast));
    CHECK_OK(fsdp_fully_shard(&p->base, &cast));
    pair_backward(p, false);
    CHECK_EQ(fsdp_tensor_dtype(first->buffer), FSDP_F16);
    CHECK(first->buffer == second->buffer);
    fsdp_module_unref(&p->base);
}

TEST(buffers_are_cast_once_where_the_policy_says_so)
{
    in_all_layouts(buffers);
    in_all_layouts(shared_buffers);
}
