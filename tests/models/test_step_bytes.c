/* What the kernels of a step read and write on one GPU, counted on a device without bytes and on the fake GPU: no less
 * than a closed form says, and no more. Links: shard optim */
#include "base/probe.h"
#include "check/kernel_copy.h"
#include "device/dry.h"
#include "fsdp/models.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

typedef struct sizes {
    int64_t layers, dim, heads, kv_heads, head_dim, ffn, vocab, batch, time;
    bool dry; /* on the dry device; otherwise on the test's */
    fsdp_architecture architecture;
    bool erf; /* GPT-2: GELU's exact form */
} sizes;

typedef struct count {
    int64_t calls[FSDP__KERNELS], bytes[FSDP__KERNELS];
    int64_t activations; /* bytes at their peak */
} count;

/* ---- counting ---- */

static void *add_buffer(void *arg, const fsdp__buffer *buffer)
{
    *(int64_t *)arg += (int64_t)buffer->bytes * (buffer->access == FSDP__READS_AND_WRITES ? 2 : 1);
    return (void *)(uintptr_t)buffer->pointer;
}

/* Returns the bytes of so many tensors as large as q, and as many as large as k, and of the sums of each row. */
static int64_t attention_bytes(const fsdp__attention_forward_args *a, int64_t each)
{
    int64_t q = a->q_time * a->heads, k = a->kv_time * a->kv_heads;

    return a->batch * (each * (q + k) * a->head_dim * (int64_t)fsdp_dtype_size(a->dtype) + 4 * q);
}

/* Rows that are parts of a wider matrix are moved without what lies between them. */
static int64_t bytes_of(fsdp__kernel kernel, const void *args)
{
    const fsdp__rope_args *rope = args;
    const fsdp__swiglu_forward_args *forward = args;
    const fsdp__swiglu_backward_args *backward = args;
    int64_t bytes = 0;

    switch (kernel) {
    case FSDP__KERNEL_ROPE:
        return 2 * rope->batch * rope->time * rope->heads * rope->head_dim * (int64_t)fsdp_dtype_size(rope->dtype);
    case FSDP__KERNEL_SWIGLU_FORWARD:
        return 3 * forward->rows * forward->cols * (int64_t)fsdp_dtype_size(forward->dtype);
    case FSDP__KERNEL_SWIGLU_BACKWARD:
        return (backward->y ? 6 : 5) * backward->rows * backward->cols * (int64_t)fsdp_dtype_size(backward->dtype);
    case FSDP__KERNEL_ATTENTION_FORWARD:
        return attention_bytes(args, 2);
    case FSDP__KERNEL_ATTENTION_BACKWARD: /* the gradients, too */
        return attention_bytes(&((const fsdp__attention_backward_args *)args)->forward, 4);
    default:
        CHECK_OK(fsdp__kernel_copied(kernel, args, add_buffer, NULL, &bytes));
        return bytes;
    }
}

static fsdp_status add_call(void *arg, fsdp__probe_event *event)
{
    count *c = arg;

    c->calls[event->kind]++;
    c->bytes[event->kind] += bytes_of((fsdp__kernel)event->kind, event->object);
    return FSDP_OK;
}

/* ---- the step ---- */

static fsdp_device *device_of(fsdp_context *context, const sizes *s)
{
    return CHECK_PTR(s->dry ? fsdp__dry_gpu(context) : test_device(context));
}

static fsdp_module *build(fsdp_context *context, const sizes *s)
{
    const fsdp_shard_options options = {.mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}};
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = s->architecture, .n_layers = s->layers, .dim = s->dim, .n_heads = s->heads,
                     .n_kv_heads = s->kv_heads, .head_dim = s->head_dim, .ffn_dim = s->ffn, .vocab_size = s->vocab,
                     .max_seq_len = s->time, .rope_theta = 10000, .gelu_erf = s->erf);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, device_of(context, s), &config));

    for (int64_t i = 0; i < s->layers; i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    CHECK_OK(fsdp_fully_shard(model, &options));
    return model;
}

static fsdp_tensor *ids(fsdp_context *context, const sizes *s)
{
    return CHECK_PTR(fsdp_zeros(device_of(context, s), FSDP_I32, FSDP_SHAPE(s->batch, s->time)));
}

static void step(fsdp_context *context, const sizes *s, fsdp_module *model, fsdp_optimizer *optimizer)
{
    fsdp_tensor *tokens, *targets;

    CHECK_OK(fsdp_scope_begin(context));
    tokens = ids(context, s);
    targets = ids(context, s);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(model, tokens, targets))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device_of(context, s))));
}

/* Counts the second step: the first makes the casts, and the optimizer's state. */
static void take(fsdp_context *context, const sizes *s, count *out)
{
    fsdp__point point = s->dry ? FSDP__POINT_KERNEL_ISSUED : FSDP__POINT_KERNEL_BEGUN;
    const fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_module *model = build(context, s);
    fsdp_parameters parameters;
    fsdp_memory_stats memory;
    fsdp_optimizer *optimizer;
    fsdp__subscriber *subscriber;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    step(context, s, model, optimizer);
    *out = (count){0};
    subscriber = CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(point), add_call, out));
    step(context, s, model, optimizer);
    fsdp__unsubscribe(subscriber);
    fsdp_device_memory(device_of(context, s), &memory);
    out->activations = (int64_t)memory.peak_bytes[FSDP_MEMORY_ACTIVATION];
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
}

/* ---- the closed form ---- */

enum {
    HALF = 2, /* bytes */
    WHOLE = 4
};

/* Returns the bytes of the three products of a linear (rows, in) -> (rows, out): y, dx, and dW in f32. */
static int64_t linear(int64_t rows, int64_t in, int64_t out)
{
    return HALF * 3 * (rows * in + rows * out) + (2 * HALF + WHOLE) * in * out;
}

/* Each chunk of the head has the three products; from the second on the gradient of the weight is read, too. */
static int64_t head(const sizes *s, int64_t tokens, int64_t chunk)
{
    int64_t chunks = (tokens + chunk - 1) / chunk, weight = s->vocab * s->dim;

    return HALF * 3 * tokens * (s->dim + s->vocab) + chunks * (2 * HALF + WHOLE) * weight +
           (chunks - 1) * WHOLE * weight;
}

static void expect(const sizes *s, count *out)
{
    int64_t n = s->batch * s->time, x = HALF * n * s->dim, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int64_t norms = 2 * s->layers + 1, row = WHOLE * n, weight = HALF * s->dim;
    int64_t block = s->dim * (q + 2 * kv) + q * s->dim + 3 * s->dim * s->ffn + 2 * s->dim;
    int64_t parameters = s->layers * block + 2 * s->vocab * s->dim + s->dim, chunk = n < 4096 ? n : 4096;
    int64_t *bytes = out->bytes;

    *out = (count){0};
    bytes[FSDP__KERNEL_MATMUL] = s->layers * (linear(n, s->dim, q + 2 * kv) + linear(n, q, s->dim) +
                                              linear(n, s->dim, 2 * s->ffn) + linear(n, s->ffn, s->dim)) +
                                 head(s, n, chunk);
    /* q, k, v and the result; then those again, with the gradients of all four. */
    bytes[FSDP__KERNEL_ATTENTION_FORWARD] = s->layers * (HALF * n * (2 * q + 2 * kv) + WHOLE * n * s->heads);
    bytes[FSDP__KERNEL_ATTENTION_BACKWARD] = s->layers * (HALF * n * (4 * q + 4 * kv) + WHOLE * n * s->heads);
    bytes[FSDP__KERNEL_ROPE] = s->layers * 2 * 2 * HALF * n * (q + kv);
    bytes[FSDP__KERNEL_SWIGLU_FORWARD] = s->layers * 3 * HALF * n * s->ffn;
    bytes[FSDP__KERNEL_SWIGLU_BACKWARD] = s->layers * 6 * HALF * n * s->ffn; /* what the forward wrote, again */
    /* Half of a block's norms add a residual first: x, residual, sum, y. The others have x, y. A block's y are made
     * again in its backward. */
    bytes[FSDP__KERNEL_NORM_FORWARD] =
        s->layers * 6 * x + 2 * x + norms * (weight + row) + s->layers * 2 * (2 * x + weight);
    /* s, dy, what comes along the residual, dx; the last norm has no residual. */
    bytes[FSDP__KERNEL_NORM_BACKWARD] = (4 * 2 * s->layers + 3) * x + norms * (weight + row + WHOLE * s->dim);
    bytes[FSDP__KERNEL_BINARY] = s->layers * 3 * x;
    bytes[FSDP__KERNEL_CROSS_ENTROPY] = 2 * HALF * n * s->vocab;
    bytes[FSDP__KERNEL_EMBEDDING_FORWARD] = x + HALF * s->vocab * s->dim;
    bytes[FSDP__KERNEL_EMBEDDING_BACKWARD] = x + WHOLE * s->vocab * s->dim;
    /* The f32 parameter and two moments are read and written, the gradient is read, the bf16 copy written. */
    bytes[FSDP__KERNEL_ADAM] = (3 * 2 * WHOLE + WHOLE + HALF) * parameters;
}

/* Small things that no table has: ids and losses are not worth counting. */
static bool is_near(int64_t bytes, int64_t expected, const sizes *s)
{
    int64_t n = s->batch * s->time, room = WHOLE * 4 * n + 4096;

    return bytes >= expected && bytes <= expected + room;
}

static void check_step(fsdp_context *context, void *arg)
{
    const sizes *s = arg;
    count real, closed;

    if (!s->dry && !fsdp__device_joins_products(test_device(context)))
        return; /* no GPU */
    take(context, s, &real);
    expect(s, &closed);
    for (int k = 0; k < FSDP__KERNELS; k++)
        if (!is_near(real.bytes[k], closed.bytes[k], s))
            TEST_FAIL("%s: %lld calls move %lld bytes, expected %lld", fsdp__kernel_infos[k].name,
                      (long long)real.calls[k], (long long)real.bytes[k], (long long)closed.bytes[k]);
}

TEST(a_step_on_one_gpu_moves_what_its_closed_form_says)
{
    /* Llama of 1.5 billion parameters, 8 x 2,048 tokens; and one that a fake can compute. */
    sizes large = {16, 2048, 32, 8, 64, 8192, 128256, 8, 2048, true, FSDP_LLAMA, false};
    sizes small = {2, 32, 4, 2, 8, 64, 48, 2, 8, false, FSDP_LLAMA, false}, dry = small;

    dry.dry = true;
    test_run_ranks(1, check_step, &large);
    test_run_ranks(1, check_step, &dry);
    test_run_ranks(1, check_step, &small);
}

/* A block keeps its input, q, k and v, what attention makes of them with the sums of its rows, the sum behind that, and
 * a number for each row of both norms; Llama's gate and up; GPT-2's a second number for each row, what GELU is of, and
 * what it makes if that comes along with a product. */
static void check_kept(fsdp_context *context, void *arg)
{
    sizes s = *(const sizes *)arg;
    int64_t n = s.batch * s.time, q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    bool gpt2 = s.architecture == FSDP_GPT2;
    int64_t inner = gpt2 && s.erf ? s.ffn : 2 * s.ffn, numbers = gpt2 ? 4 : 2;
    int64_t block = HALF * n * (s.dim + q + 2 * kv + q + s.dim + inner) + WHOLE * n * (s.heads + numbers);
    count few, many;

    take(context, &s, &few);
    s.layers *= 2;
    take(context, &s, &many);
    CHECK_EQ(many.activations - few.activations, s.layers / 2 * block);
}

TEST(on_a_gpu_a_block_does_not_keep_what_is_cheap_to_make_again)
{
    sizes llama = {8, 2048, 32, 8, 64, 8192, 128256, 8, 2048, true, FSDP_LLAMA, false};
    sizes gpt2 = {6, 768, 12, 12, 64, 3072, 50304, 32, 1024, true, FSDP_GPT2, false}, erf = gpt2;

    erf.erf = true;
    test_run_ranks(1, check_kept, &llama);
    test_run_ranks(1, check_kept, &gpt2);
    test_run_ranks(1, check_kept, &erf);
}

/* q, k and v of Qwen2 have biases, whose gradients come with those of their weights, by one product. */
static void check_group_biases(fsdp_context *context, void *arg)
{
    const sizes *s = arg;
    count c;

    if (!s->dry && !fsdp__device_sums_operands(test_device(context)))
        return;
    take(context, s, &c);
    CHECK_EQ(c.calls[FSDP__KERNEL_MATMUL], s->layers * 4 * 3 + 3);
    CHECK_EQ(c.calls[FSDP__KERNEL_REDUCE], 0);
}

TEST(on_a_gpu_biases_of_qwen2_have_no_pass_of_their_own)
{
    sizes dry = {2, 896, 14, 2, 64, 4864, 4096, 2, 64, true, FSDP_QWEN2, false};
    sizes here = {2, 64, 4, 2, 16, 64, 64, 2, 8, false, FSDP_QWEN2, false};

    test_run_ranks(1, check_group_biases, &dry);
    test_run_ranks(1, check_group_biases, &here);
}

/* Takes the gradients of GPT-2's biases, the sums of these rows, by the products that read the rows anyway. */
static void check_biases(fsdp_context *context, void *arg)
{
    const sizes *s = arg;
    bool has_gpu = s->dry || fsdp__device_sums_operands(test_device(context));
    count c;

    take(context, s, &c);
    CHECK_EQ(c.calls[FSDP__KERNEL_MATMUL], s->layers * 4 * 3 + 3);
    /* On a processor: those of four linears in a block, and, wherever it is, that of the positions' table. */
    CHECK_EQ(c.calls[FSDP__KERNEL_REDUCE], has_gpu ? 1 : 4 * s->layers + 1);
}

/* GELU of GPT-2 comes along with the products that make what it is of, and its gradient: with F bytes for a block's
 * inner activation, these write F more in the forward and read F more in the backward. As passes of their own they read
 * and wrote 2 F and 3 F: a block moves 3 F less, 12 times its input. */
static void check_gelu(fsdp_context *context, void *arg)
{
    const sizes *s = arg;
    bool has_gpu = s->dry || fsdp__device_gelu_products(test_device(context));
    int64_t n = s->batch * s->time, d = s->dim, inner = HALF * n * s->ffn, chunk = n < 4096 ? n : 4096;
    int64_t biases = (HALF + WHOLE) * (3 * d + d + s->ffn + d); /* read, and their gradients written */
    int64_t products = linear(n, d, 3 * d) + linear(n, d, d) + linear(n, d, s->ffn) + linear(n, s->ffn, d) + biases;
    count c;

    take(context, s, &c);
    CHECK_EQ(c.calls[FSDP__KERNEL_ACTIVATION_FORWARD], has_gpu ? 0 : s->layers);
    CHECK_EQ(c.bytes[FSDP__KERNEL_ACTIVATION_FORWARD], has_gpu ? 0 : s->layers * 2 * inner);
    CHECK_EQ(c.calls[FSDP__KERNEL_ACTIVATION_BACKWARD], has_gpu ? 0 : s->layers);
    CHECK_EQ(c.bytes[FSDP__KERNEL_ACTIVATION_BACKWARD], has_gpu ? 0 : s->layers * 3 * inner);
    if (has_gpu) /* otherwise the head and gradients are in other dtypes */
        CHECK_EQ(c.bytes[FSDP__KERNEL_MATMUL], s->layers * (products + 2 * inner) + head(s, n, chunk));
}

TEST(on_a_gpu_gelu_of_gpt2_has_no_pass_of_its_own)
{
    sizes large = {12, 768, 12, 12, 64, 3072, 50304, 32, 1024, true, FSDP_GPT2, false};
    sizes gpu = {3, 32, 4, 4, 8, 64, 64, 2, 8, true, FSDP_GPT2, false}, here = gpu; /* rows of logits are not padded */

    here.dry = false;
    test_run_ranks(1, check_gelu, &large);
    test_run_ranks(1, check_gelu, &gpu);
    test_run_ranks(1, check_gelu, &here);
}

TEST(on_a_gpu_biases_of_gpt2_have_no_pass_of_their_own)
{
    sizes gpu = {3, 32, 4, 4, 8, 64, 64, 2, 8, true, FSDP_GPT2, false}, here = gpu; /* rows of logits are not padded */

    here.dry = false;
    test_run_ranks(1, check_biases, &gpu);
    test_run_ranks(1, check_biases, &here);
}
