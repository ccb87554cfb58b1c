/* A small model's forward and backward as a whole: memory, failures, same bits, the meta device, precision. */
#include "fsdp/ops.h"

#include <math.h>

#include "autograd/tools.h"
#include "base/compiler.h"
#include "device/device.h"

enum {
    B = 2,
    T = 5,
    C = 6,
    V = 11,
    WEIGHTS = 8
};

/* Embedding, one attention block, one gated MLP, tied head. */
typedef struct model {
    fsdp_tensor *weights[WEIGHTS];
    fsdp_tensor *frequencies, *tokens, *targets;
} model;

static void create(model *m, fsdp_device *device)
{
    static const int64_t shapes[WEIGHTS][2] = {{V, C}, {C, 0},     {3 * C, C}, {C, C},
                                               {C, 0}, {2 * C, C}, {2 * C, C}, {C, 2 * C}};
    int32_t tokens[B * T], targets[B * T];
    const int64_t ids[] = {B, T};

    for (int i = 0; i < WEIGHTS; i++)
        m->weights[i] = make_leaf(device, (uint64_t)i, shapes[i][1] ? 2 : 1, shapes[i]);
    m->frequencies = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(1), 0.5));
    for (int i = 0; i < B * T; i++) {
        tokens[i] = (i * 7 + 3) % V;
        targets[i] = i % 4 == 2 ? -100 : (i * 5 + 1) % V;
    }
    m->tokens = make_ids(device, 2, ids, tokens);
    m->targets = make_ids(device, 2, ids, targets);
}

static fsdp_tensor *forward(const model *m)
{
    fsdp_tensor *const *w = m->weights, *x = fsdp_embedding(w[0], m->tokens), *h, *q;

    h = fsdp_linear(fsdp_layernorm(x, w[1], FSDP_NO_BIAS, 1e-5f), w[2], FSDP_NO_BIAS);
    q = fsdp_reshape(h, FSDP_SHAPE(B, T, 9, 2));
    h = fsdp_attention(fsdp_rope(fsdp_slice(q, 2, 0, 3), m->frequencies, 0), fsdp_slice(q, 2, 3, 3),
                       fsdp_slice(q, 2, 6, 3), &(fsdp_attention_options){.causal = true});
    h = fsdp_linear(fsdp_reshape(h, FSDP_SHAPE(B, T, C)), w[3], FSDP_NO_BIAS);
    h = fsdp_add_rmsnorm(fsdp_dropout(h, 0.2f, 9), x, w[4], 1e-6f, &x);
    h = fsdp_linear(fsdp_swiglu(fsdp_linear(h, w[5], FSDP_NO_BIAS), fsdp_linear(h, w[6], FSDP_NO_BIAS)), w[7],
                    FSDP_NO_BIAS);
    return fsdp_linear_cross_entropy(fsdp_add(x, h), w[0], m->targets);
}

static fsdp_status step(fsdp_context *context, const model *m)
{
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    status = fsdp_backward(forward(m));
    fsdp_scope_end(context, NULL);
    return status;
}

static void drop_gradients(const model *m)
{
    for (int i = 0; i < WEIGHTS; i++)
        CHECK_OK(fsdp_tensor_set_grad(m->weights[i], NULL));
}

CONTEXT_TEST(after_a_step_only_gradients_are_left)
{
    int64_t before, gradients = 0;
    fsdp_memory_stats stats;
    model m;

    create(&m, test_device(context));
    before = tensor_bytes(context);
    for (int i = 0; i < WEIGHTS; i++)
        gradients += (fsdp_tensor_numel(m.weights[i]) * 4 + 63) / 64 * 64;
    for (int steps = 0; steps < 3; steps++) { /* accumulating makes nothing new */
        CHECK_OK(step(context, &m));
        CHECK_EQ(tensor_bytes(context), before + gradients);
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], gradients);
    }
    drop_gradients(&m);
    CHECK_EQ(tensor_bytes(context), before);
}

CONTEXT_TEST(without_gradients_nothing_is_kept)
{
    double with, without;
    int64_t before;
    model m;

    CHECK_OK(fsdp_scope_begin(context));
    create(&m, test_device(context));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(forward(&m)), &with));
    before = tensor_bytes(context);
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(forward(&m)), &without));
    fsdp_scope_end(context, NULL);
    fsdp_no_grad_end(context);
    CHECK_EQ(tensor_bytes(context), before);
    CHECK_NEAR(with, without, 0);
    fsdp_scope_end(context, NULL);
}

CONTEXT_TEST(two_runs_give_the_same_bits)
{
    float first[V * C * 3], second[V * C * 3];
    model m;

    create(&m, test_device(context));
    for (int i = 0; i < WEIGHTS; i++) {
        int64_t numel = fsdp_tensor_numel(m.weights[i]);

        CHECK(numel <= V * C * 3);
        CHECK_OK(step(context, &m));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(m.weights[i]), FSDP_F32, first));
        drop_gradients(&m);
        CHECK_OK(step(context, &m));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(m.weights[i]), FSDP_F32, second));
        drop_gradients(&m);
        CHECK_BYTES(first, second, (size_t)numel * sizeof(float));
    }
}

CONTEXT_TEST(every_failing_allocation_leaves_the_model_usable)
{
    int64_t before;
    model m;

    create(&m, test_device(context));
    before = tensor_bytes(context);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, step(context, &m));
        drop_gradients(&m);
        CHECK_EQ(tensor_bytes(context), before);
    }
}

/* The meta device makes the same tensors at the same moments: a plan made there is exact. */
TEST(meta_counts_the_bytes_that_the_cpu_uses)
{
    fsdp_memory_stats stats[2];

    for (int meta = 0; meta < 2; meta++) {
        fsdp_context *context = test_context();
        fsdp_device *device = meta ? fsdp_meta(context) : test_device(context);
        model m;

        CHECK_OK(fsdp_scope_begin(context));
        create(&m, device);
        fsdp_device_reset_peak(device);
        CHECK_OK(step(context, &m));
        fsdp_device_memory(device, &stats[meta]);
        fsdp_scope_end(context, NULL);
        fsdp_context_free(context);
    }
    CHECK_EQ(stats[1].live_bytes[FSDP_MEMORY_ACTIVATION], stats[0].live_bytes[FSDP_MEMORY_ACTIVATION]);
    CHECK_EQ(stats[1].peak_bytes[FSDP_MEMORY_ACTIVATION], stats[0].peak_bytes[FSDP_MEMORY_ACTIVATION]);
    CHECK_EQ(stats[1].peak_bytes[FSDP_MEMORY_GRADIENT], stats[0].peak_bytes[FSDP_MEMORY_GRADIENT]);
}

CONTEXT_TEST(bfloat16_weights_stay_near_the_float32_loss)
{
    double loss, low;
    model m;

    create(&m, test_device(context));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(forward(&m)), &loss));
    for (int i = 0; i < WEIGHTS; i++) {
        m.weights[i] = CHECK_PTR(fsdp_detach(fsdp_cast(m.weights[i], FSDP_BF16)));
        CHECK_OK(fsdp_tensor_set_requires_grad(m.weights[i], true));
    }
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(forward(&m)), &low));
    CHECK_NEAR(low, loss, 0.02 * loss);
    CHECK_OK(step(context, &m));
    CHECK_EQ(fsdp_tensor_dtype(fsdp_tensor_grad(m.weights[0])), FSDP_BF16);
}

/* More rows than one chunk, so that sums over chunks are met. */
CONTEXT_TEST(the_fused_head_equals_the_plain_one)
{
    enum {
        ROWS = 600, /* a chunk has 419 */
        CLASSES = 40000,
        DIM = 5
    };
    static float values[2][CLASSES * DIM], inputs[2][ROWS * DIM];
    int32_t ids[ROWS];
    double losses[2];

    for (int i = 0; i < ROWS; i++)
        ids[i] = i % 7 == 0 ? -100 : (i * 11) % CLASSES;
    for (int fused = 0; fused < 2; fused++) {
        fsdp_tensor *x, *weight, *targets, *loss;

        CHECK_OK(fsdp_scope_begin(context));
        x = make_leaf(test_device(context), 1, 2, (const int64_t[]){ROWS, DIM});
        weight = make_leaf(test_device(context), 2, 2, (const int64_t[]){CLASSES, DIM});
        targets = make_ids(test_device(context), 1, (const int64_t[]){ROWS}, ids);
        loss = fused ? fsdp_linear_cross_entropy(x, weight, targets)
                     : fsdp_cross_entropy(fsdp_linear(x, weight, FSDP_NO_BIAS), targets);
        CHECK_OK(fsdp_tensor_item(CHECK_PTR(loss), &losses[fused]));
        CHECK_OK(fsdp_backward(fsdp_scale(loss, 2)));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(weight), FSDP_F32, values[fused]));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, inputs[fused]));
        fsdp_scope_end(context, NULL);
    }
    CHECK_NEAR(losses[1], losses[0], 1e-6);
    CHECK_CLOSE(values[1], values[0], CLASSES * DIM, 1e-5, 1e-6);
    CHECK_CLOSE(inputs[1], inputs[0], ROWS * DIM, 1e-5, 1e-7);
}

/* A kept graph can be walked again, also through losses that made their gradients in the forward. */
CONTEXT_TEST(a_kept_loss_gives_its_gradient_twice)
{
    fsdp_tensor *loss, *weight;
    float once[V * C], twice[V * C];
    model m;

    create(&m, test_device(context));
    weight = m.weights[0];
    loss = CHECK_PTR(forward(&m));
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(weight), FSDP_F32, once));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(weight), FSDP_F32, twice));
    for (int i = 0; i < V * C; i++)
        once[i] *= 2;
    CHECK_CLOSE(twice, once, V * C, 1e-5, 1e-7);
}

/* Gradients of weight and input, of the loss times `scale`, divided by it; values are those that `dtype` holds. */
static void head_gradients(fsdp_context *context, fsdp_dtype dtype, bool wide, int64_t rows, double scale, double *loss,
                           float *dweight, float *dx)
{
    enum {
        CLASSES = 40000,
        DIM = 3
    };
    fsdp_tensor *leaves[2], *targets, *result;
    int32_t ids[600];

    for (int i = 0; i < rows; i++)
        ids[i] = i % 7 == 0 ? -100 : (i * 11) % CLASSES;
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < 2; i++) {
        const int64_t shape[] = {i ? CLASSES : rows, DIM};
        fsdp_tensor *leaf = fsdp_cast(fsdp_detach(make_leaf(test_device(context), (uint64_t)i + 1, 2, shape)), dtype);

        leaves[i] = CHECK_PTR(fsdp_detach(wide ? fsdp_cast(leaf, FSDP_F32) : leaf));
        CHECK_OK(fsdp_tensor_set_requires_grad(leaves[i], true));
    }
    targets = make_ids(test_device(context), 1, &rows, ids);
    result = CHECK_PTR(fsdp_linear_cross_entropy(leaves[0], leaves[1], targets));
    CHECK_OK(fsdp_tensor_item(result, loss));
    CHECK_OK(fsdp_backward(fsdp_scale(result, scale)));
    CHECK_EQ(fsdp_tensor_dtype(fsdp_tensor_grad(leaves[1])), wide ? FSDP_F32 : dtype);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(leaves[0]), FSDP_F32, dx));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(leaves[1]), FSDP_F32, dweight));
    for (int i = 0; i < rows * DIM; i++)
        dx[i] /= (float)scale;
    for (int i = 0; i < CLASSES * DIM; i++)
        dweight[i] /= (float)scale;
    fsdp_scope_end(context, NULL);
}

static float largest_of(const float *values, int64_t count)
{
    float largest = 0;

    for (int64_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

/* One chunk and two. Most gradients of the weight are of classes that are no target: a softmax of 1/40000, over some
 * hundred rows. float16 cannot hold them as they are, but a scaled loss brings them through. */
CONTEXT_TEST(the_head_in_16_bits_stays_near_the_float32_one)
{
    static const struct {
        fsdp_dtype dtype;
        double scale;
        int64_t rows;
        float relative; /* of an element, and of the largest one */
    } cases[] = {{FSDP_BF16, 1, 40, 1.5e-2f},
                 {FSDP_BF16, 1, 600, 1.5e-2f},
                 {FSDP_F16, 65536, 40, 3e-3f},
                 {FSDP_F16, 65536, 600, 3e-3f},
                 {FSDP_BF16, 3, 40, 1.5e-2f}};
    static float dweight[2][40000 * 3], dx[2][600 * 3];

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        int64_t rows = cases[i].rows;
        bool narrow = fsdp__device_narrow_logits(test_device(context)); /* each is rounded, too */
        float relative = cases[i].relative * (narrow ? 2.0f : 1.0f);
        double loss[2], near = narrow ? (double)cases[i].relative / 20 : 1e-6;

        head_gradients(context, cases[i].dtype, false, rows, cases[i].scale, &loss[0], dweight[0], dx[0]);
        head_gradients(context, cases[i].dtype, true, rows, cases[i].scale, &loss[1], dweight[1], dx[1]);
        CHECK_NEAR(loss[0], loss[1], near * loss[1]);
        CHECK_CLOSE(dx[0], dx[1], rows * 3, relative, relative * largest_of(dx[1], rows * 3));
        CHECK_CLOSE(dweight[0], dweight[1], 40000 * 3, relative, relative * (narrow ? 16.0f : 1.0f) / 40000);
        CHECK_EQ(tensor_bytes(context), 0);
    }
}

/* A batch without rows: a mean of nothing, and nothing to learn from it. */
CONTEXT_TEST(the_mean_of_nothing_is_nan)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *weight;
    float gradient[12];
    double mean;

    weight = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(4, 3), 2));
    CHECK_OK(fsdp_tensor_set_requires_grad(weight, true));
    for (int over_rows = 0; over_rows < 2; over_rows++) {
        fsdp_tensor *y = fsdp_linear(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(0, 3)), weight, FSDP_NO_BIAS);

        y = CHECK_PTR(over_rows ? fsdp_sum(fsdp_mean_dims(y, FSDP_DIMS(0), false)) : fsdp_mean(y));
        CHECK_OK(fsdp_tensor_item(y, &mean));
        CHECK(mean != mean);
        CHECK_OK(fsdp_backward(y));
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(weight)), FSDP_F32, gradient));
        for (int i = 0; i < 12; i++)
            CHECK(gradient[i] == 0);
    }
}
