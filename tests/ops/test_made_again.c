/* What a backward makes again in place of keeping it: the input of the linear behind a gated pair, and results of norms
 * and of activations. Its numbers are those of operations that keep them, to the bit. */
#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/probe.h"
#include "device/dry.h"
#include "ops/op.h"
#include "support/ranks.h"

enum {
    ROWS = 6,
    IN = 24,
    OUT = 5,
    TENSORS = 4,
    NUMBERS = ROWS * OUT + 2 * ROWS * IN + OUT * IN + OUT
};

/* Numbers that differ from tensor to tensor. */
static fsdp_tensor *leaf(fsdp_device *device, fsdp_dtype dtype, int index, int ndim, const int64_t *shape)
{
    float values[ROWS * IN];
    int64_t count = ndim == 2 ? shape[0] * shape[1] : shape[0];
    fsdp_tensor *tensor;

    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(1.3 * sin(0.9 * (double)i + 1.7 * index));
    tensor = CHECK_PTR(fsdp_cast(fsdp_from_data(device, FSDP_F32, ndim, shape, values), dtype));
    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    return tensor;
}

/* Reads a result, and behind it the gradients. */
static void read_all(fsdp_tensor *z, fsdp_tensor *const *leaves, int count, float *out)
{
    CHECK_OK(fsdp_tensor_read(z, FSDP_F32, out));
    out += fsdp_tensor_numel(z);
    for (int i = 0; i < count; i++) {
        if (!leaves[i])
            continue;
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(leaves[i])), FSDP_F32, out));
        out += fsdp_tensor_numel(leaves[i]);
    }
}

/* ---- the gated pair and its linear ---- */

typedef struct call {
    fsdp_dtype dtype;
    bool gelu, bias, twice;
} call;

static void gated_leaves(fsdp_context *context, const call *c, fsdp_tensor **leaves, fsdp__gated_linear *m)
{
    fsdp_device *device = test_device(context);

    leaves[0] = m->gate = leaf(device, c->dtype, 0, 2, (const int64_t[]){ROWS, IN});
    leaves[1] = m->up = leaf(device, c->dtype, 1, 2, (const int64_t[]){ROWS, IN});
    leaves[2] = m->weight = leaf(device, c->dtype, 2, 2, (const int64_t[]){OUT, IN});
    leaves[3] = c->bias ? leaf(device, c->dtype, 3, 1, (const int64_t[]){OUT}) : NULL;
    m->bias = c->bias ? leaves[3] : FSDP_NO_BIAS;
    m->gelu = c->gelu;
}

static fsdp_tensor *apart(const fsdp__gated_linear *m)
{
    return fsdp_linear(m->gelu ? fsdp_geglu_tanh(m->gate, m->up) : fsdp_swiglu(m->gate, m->up), m->weight, m->bias);
}

static void compute_gated(fsdp_context *context, const call *c, bool one, float *out)
{
    fsdp_tensor *leaves[TENSORS], *z, *loss;
    fsdp__gated_linear m;

    CHECK_OK(fsdp_scope_begin(context));
    gated_leaves(context, c, leaves, &m);
    CHECK_EQ(fsdp__gated_linear_joins(&m), fsdp__device_makes_again(test_device(context)));
    z = CHECK_PTR(one ? fsdp__gated_linear_apply(&m) : apart(&m));
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(z, z)));
    for (int i = 0; i < 1 + c->twice; i++)
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, i < c->twice));
    read_all(z, leaves, TENSORS, out);
    fsdp_scope_end(context, NULL);
}

CONTEXT_TEST(a_gated_pair_with_its_linear_has_the_bits_of_both)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        for (int i = 0; i < 8; i++) {
            const call c = {dtypes[d], i & 1, i & 2, i & 4};
            float one[NUMBERS] = {0}, two[NUMBERS] = {0};

            compute_gated(context, &c, true, one);
            compute_gated(context, &c, false, two);
            CHECK_BYTES(one, two, sizeof one);
        }
}

static fsdp_status forward_and_backward(fsdp_context *context, const fsdp__gated_linear *m)
{
    fsdp_tensor *z;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    z = fsdp__gated_linear_apply(m);
    status = z ? fsdp_backward_from(&z, &z, 1, false) : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    return status;
}

CONTEXT_TEST(without_memory_it_fails)
{
    const call c = {.dtype = FSDP_F32, .bias = true};
    fsdp_tensor *leaves[TENSORS];
    fsdp__gated_linear m;

    gated_leaves(context, &c, leaves, &m);
    CHECK_OK(forward_and_backward(context, &m)); /* kernels have their scratch */
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, forward_and_backward(context, &m));
}

CONTEXT_TEST(what_does_not_fit_or_has_no_gradient_is_not_joined)
{
    const call c = {.dtype = FSDP_F32};
    fsdp_tensor *leaves[TENSORS];
    fsdp__gated_linear m, other;

    gated_leaves(context, &c, leaves, &m);
    other = m;
    other.weight = m.gate; /* (ROWS, IN) fits */
    CHECK_EQ(fsdp__gated_linear_joins(&other), fsdp__device_makes_again(test_device(context)));
    other.weight = CHECK_PTR(fsdp_transpose(m.weight, 0, 1));
    CHECK(!fsdp__gated_linear_joins(&other));
    other.weight = NULL;
    CHECK(!fsdp__gated_linear_joins(&other));
    CHECK_OK(fsdp_tensor_set_requires_grad(m.weight, false));
    CHECK(!fsdp__gated_linear_joins(&m));
}

/* ---- results of norms ---- */

typedef struct norm_run {
    fsdp_device *device;
    bool layer, residual, written; /* written: the result counts a write, so it is kept */
    bool apart;                    /* the bytes of the linear's weight come back without those of the norms' */
    int norms;                     /* launches in the backward */
    float numbers[2 * NUMBERS];
} norm_run;

static fsdp_status count_norm(void *arg, fsdp__probe_event *event)
{
    *(int *)arg += event->kind == FSDP__KERNEL_NORM_FORWARD;
    return FSDP_OK;
}

/* The norm of a norm has a product, so both are made again for it. */
static void run_norms(fsdp_context *context, norm_run *r)
{
    fsdp_tensor *leaves[TENSORS], *y, *sum = NULL, *z, *loss;
    fsdp__subscriber *subscriber;

    CHECK_OK(fsdp_scope_begin(context));
    leaves[0] = leaf(r->device, FSDP_F32, 0, 2, (const int64_t[]){ROWS, IN});
    leaves[1] = leaf(r->device, FSDP_F32, 1, 1, (const int64_t[]){IN});
    leaves[2] = leaf(r->device, FSDP_F32, 2, 1, (const int64_t[]){IN});
    leaves[3] = leaf(r->device, FSDP_F32, 3, 2, (const int64_t[]){OUT, IN});
    leaves[1]->storage->renewed_by = leaves[2]->storage->renewed_by = r;
    leaves[3]->storage->renewed_by = r->apart ? context : (const void *)r;
    y = CHECK_PTR(fsdp_rmsnorm(leaves[0], leaves[1], 1e-5f));
    if (r->written)
        CHECK_OK(fsdp_tensor_begin_write(y));
    y = r->residual ? (r->layer ? fsdp_add_layernorm(y, leaves[0], leaves[1], leaves[2], 1e-5f, &sum)
                                : fsdp_add_rmsnorm(y, leaves[0], leaves[2], 1e-5f, &sum))
        : r->layer  ? fsdp_layernorm(y, leaves[1], leaves[2], 1e-5f)
                    : fsdp_rmsnorm(y, leaves[2], 1e-5f);
    if (r->written)
        CHECK_OK(fsdp_tensor_begin_write(CHECK_PTR(y)));
    z = CHECK_PTR(fsdp_linear(y, leaves[3], FSDP_NO_BIAS));
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(z, z)));
    r->norms = 0;
    subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_norm, &r->norms));
    CHECK_OK(fsdp_backward(loss));
    fsdp__unsubscribe(subscriber);
    read_all(z, leaves, TENSORS, r->numbers);
    fsdp_scope_end(context, NULL);
}

CONTEXT_TEST(results_of_norms_that_are_made_again_have_the_bits_of_those_that_are_kept)
{
    for (int i = 0; i < 8; i++) {
        norm_run r = {.device = i & 4 ? CHECK_PTR(fsdp__dry_gpu(context)) : test_device(context),
                      .layer = i & 1,
                      .residual = i & 2},
                 kept = r, apart = r;
        /* The first is made again for the second, unless that keeps the sum, and for the second's own backward. */
        int again = fsdp__device_makes_again(r.device) ? (r.residual ? 1 : 3) : 0;

        kept.written = true;
        apart.apart = true;
        run_norms(context, &r);
        run_norms(context, &kept);
        run_norms(context, &apart);
        CHECK_EQ(r.norms, again);
        CHECK_EQ(kept.norms, 0);
        CHECK_EQ(apart.norms, again == 3);
        CHECK_BYTES(r.numbers, kept.numbers, sizeof r.numbers);
        CHECK_BYTES(r.numbers, apart.numbers, sizeof r.numbers);
    }
}

/* ---- results of activations ---- */

typedef struct activation_run {
    fsdp_device *device;
    fsdp_tensor *(*activate)(fsdp_tensor *x);
    bool written; /* the results of the norm and of the activation count a write, so they are kept */
    bool frozen;  /* the linear's weight has no gradient, so nobody needs what the linear reads */
    bool twice;   /* there are two backwards */
    int launches[FSDP__KERNELS];
    int64_t kept; /* bytes that the forward leaves */
    float numbers[2 * NUMBERS];
} activation_run;

static fsdp_status count_kernel(void *arg, fsdp__probe_event *event)
{
    ((int *)arg)[event->kind]++;
    return FSDP_OK;
}

static int64_t live(fsdp_device *device)
{
    fsdp_memory_stats memory;

    fsdp_device_memory(device, &memory);
    return (int64_t)memory.live_bytes[FSDP_MEMORY_ACTIVATION];
}

static void activation_leaves(const activation_run *r, fsdp_tensor **leaves)
{
    leaves[0] = leaf(r->device, FSDP_F32, 0, 2, (const int64_t[]){ROWS, IN});
    leaves[1] = leaf(r->device, FSDP_F32, 1, 1, (const int64_t[]){IN});
    leaves[2] = leaf(r->device, FSDP_F32, 2, 2, (const int64_t[]){OUT, IN});
    leaves[3] = leaf(r->device, FSDP_F32, 3, 1, (const int64_t[]){OUT});
    CHECK_OK(fsdp_tensor_set_requires_grad(leaves[2], !r->frozen));
}

/* An activation of a norm's result, and a linear of its own. */
static fsdp_tensor *activation_forward(const activation_run *r, fsdp_tensor *const *leaves)
{
    fsdp_tensor *y = fsdp_rmsnorm(leaves[0], leaves[1], 1e-5f);

    if (r->written)
        CHECK_OK(fsdp_tensor_begin_write(y));
    y = r->activate(y);
    if (r->written)
        CHECK_OK(fsdp_tensor_begin_write(y));
    return fsdp_linear(y, leaves[2], leaves[3]);
}

static void run_activation(fsdp_context *context, activation_run *r)
{
    fsdp_tensor *leaves[TENSORS], *z, *loss;
    fsdp__subscriber *subscriber;

    CHECK_OK(fsdp_scope_begin(context));
    activation_leaves(r, leaves);
    r->kept = -live(r->device);
    CHECK_OK(fsdp_scope_begin(context));
    z = CHECK_PTR(activation_forward(r, leaves));
    fsdp_scope_end(context, z);
    r->kept += live(r->device);
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(z, z)));
    subscriber = CHECK_PTR(
        fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_kernel, r->launches));
    for (int i = 0; i < 1 + r->twice; i++)
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, i < r->twice));
    fsdp__unsubscribe(subscriber);
    leaves[2] = r->frozen ? NULL : leaves[2];
    read_all(z, leaves, TENSORS, r->numbers);
    fsdp_scope_end(context, NULL);
}

/* The activation is made again for the linear's weight, and the norm for that and for the activation's own backward. */
static void check_activation(fsdp_context *context, const activation_run *of)
{
    activation_run r = *of, kept = *of;
    bool again = fsdp__device_makes_again(r.device);
    int backwards = 1 + r.twice, results = r.frozen ? 1 : 2;

    kept.written = true;
    run_activation(context, &r);
    run_activation(context, &kept);
    CHECK_EQ(r.launches[FSDP__KERNEL_ACTIVATION_FORWARD], again && !r.frozen ? backwards : 0);
    CHECK_EQ(r.launches[FSDP__KERNEL_NORM_FORWARD], again ? backwards * results : 0);
    CHECK_EQ(kept.launches[FSDP__KERNEL_ACTIVATION_FORWARD], 0);
    CHECK_EQ(kept.launches[FSDP__KERNEL_NORM_FORWARD], 0);
    CHECK_EQ(kept.kept - r.kept, again ? results * ROWS * IN * (int)sizeof(float) : 0);
    CHECK_BYTES(r.numbers, kept.numbers, sizeof r.numbers);
}

static fsdp_tensor *(*const activations[])(fsdp_tensor *x) = {fsdp_gelu, fsdp_gelu_tanh, fsdp_silu, fsdp_relu};

CONTEXT_TEST(results_of_activations_that_are_made_again_have_the_bits_of_those_that_are_kept)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(activations); i++)
        for (int way = 0; way < 8; way++)
            check_activation(context,
                             &(activation_run){.device = way & 4 ? fsdp__dry_gpu(context) : test_device(context),
                                               .activate = activations[i],
                                               .frozen = way & 1,
                                               .twice = way & 2});
}

static fsdp_status step_of_activation(fsdp_context *context, const activation_run *r, fsdp_tensor *const *leaves)
{
    fsdp_tensor *z;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    z = activation_forward(r, leaves);
    status = z ? fsdp_backward_from(&z, &z, 1, false) : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    return status;
}

CONTEXT_TEST(without_memory_an_activation_is_not_made_again)
{
    const activation_run r = {.device = test_device(context), .activate = fsdp_gelu};
    fsdp_tensor *leaves[TENSORS];

    activation_leaves(&r, leaves);
    CHECK_OK(step_of_activation(context, &r, leaves)); /* kernels have their scratch */
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, step_of_activation(context, &r, leaves));
}

/* Somebody may write to what an activation is of, after the forward. */
CONTEXT_TEST(an_activation_is_not_made_again_of_what_was_written)
{
    activation_run r = {.device = test_device(context), .activate = fsdp_gelu};
    fsdp_tensor *leaves[TENSORS], *x, *loss;

    activation_leaves(&r, leaves);
    x = CHECK_PTR(fsdp_scale(leaves[0], 2));
    loss = CHECK_PTR(fsdp_sum(fsdp_linear(fsdp_gelu(x), leaves[2], leaves[3])));
    CHECK_OK(fsdp_tensor_fill_(x, 3));
    CHECK_STATUS(fsdp_backward(loss), FSDP_STATE);
    if (fsdp__device_makes_again(r.device))
        CHECK_PTR(strstr(fsdp_last_error(), "gelu, which makes input 0 again"));
}

/* Weights that are gathered anew for a backward may be others by then. What was computed of the old ones is kept, or
 * there is an error: it is not made of the new ones. */
CONTEXT_TEST(a_result_is_not_made_again_of_weights_that_were_written)
{
    float gradients[2][OUT * IN];

    for (int written = 0; written < 2; written++) {
        fsdp_tensor *x, *scale, *weight, *loss;

        CHECK_OK(fsdp_scope_begin(context));
        x = leaf(test_device(context), FSDP_F32, 0, 2, (const int64_t[]){ROWS, IN});
        scale = leaf(test_device(context), FSDP_F32, 1, 1, (const int64_t[]){IN});
        weight = leaf(test_device(context), FSDP_F32, 2, 2, (const int64_t[]){OUT, IN});
        scale->storage->renewed_by = weight->storage->renewed_by = context;
        loss = CHECK_PTR(fsdp_sum(fsdp_linear(fsdp_rmsnorm(x, scale, 1e-5f), weight, FSDP_NO_BIAS)));
        if (written)
            CHECK_OK(fsdp_tensor_fill_(scale, 3));
        if (written && fsdp__device_makes_again(test_device(context))) {
            CHECK_ERROR(fsdp_backward(loss), FSDP_STATE,
                        "rmsnorm, which makes input 0 again: input 1 (24,) was written to after");
            CHECK(!fsdp_tensor_grad(weight));
            memcpy(gradients[1], gradients[0], sizeof gradients[0]);
        } else {
            CHECK_OK(fsdp_backward(loss));
            CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(weight)), FSDP_F32, gradients[written]));
        }
        fsdp_scope_end(context, NULL);
    }
    CHECK_BYTES(gradients[0], gradients[1], sizeof gradients[0]);
}

CONTEXT_TEST(a_result_cannot_be_made_again_when_its_norm_has_run)
{
    fsdp_tensor *x, *scale, *weight, *y, *losses[2];

    x = leaf(test_device(context), FSDP_F32, 0, 2, (const int64_t[]){ROWS, IN});
    scale = leaf(test_device(context), FSDP_F32, 1, 1, (const int64_t[]){IN});
    weight = leaf(test_device(context), FSDP_F32, 2, 2, (const int64_t[]){OUT, IN});
    y = CHECK_PTR(fsdp_rmsnorm(x, scale, 1e-5f));
    for (int i = 0; i < 2; i++)
        losses[i] = CHECK_PTR(fsdp_sum(fsdp_linear(y, weight, FSDP_NO_BIAS)));
    CHECK_OK(fsdp_backward(losses[0]));
    CHECK_STATUS(fsdp_backward(losses[1]), FSDP_STATE);
}
