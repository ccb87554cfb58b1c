/* Targets of which nothing is learned, sums instead of means, and capped logits. */
#include "fsdp/ops.h"

#include <math.h>
#include <string.h>

#include "autograd/tools.h"
#include "base/probe.h"
#include "device/dry.h"
#include "support/scope.h"

enum {
    ROWS = 6,
    CLASSES = 5,
    DIM = 4
};

static const int32_t some_ids[ROWS] = {4, FSDP_IGNORE_TARGET, 2, FSDP_IGNORE_TARGET, 0, 1};
static const int32_t no_ids[ROWS] = {-100, -100, -100, -100, -100, -100};

/* A loss, and its gradients of x and of the weight. */
typedef struct outcome {
    float loss, dx[ROWS * CLASSES], dweight[CLASSES * DIM];
} outcome;

/* Computes the loss of `rows` rows: of logits, or of a head over them. */
static outcome loss_of(fsdp_device *on, bool head, const int32_t *ids, const fsdp_cross_entropy_options *options)
{
    fsdp_tensor *x = make_leaf(on, 1, 2, (const int64_t[]){ROWS, head ? DIM : CLASSES});
    fsdp_tensor *weight = make_leaf(on, 2, 2, (const int64_t[]){CLASSES, DIM});
    fsdp_tensor *targets = make_ids(on, 1, (const int64_t[]){ROWS}, ids), *loss;
    outcome o = {0};

    loss = head ? fsdp_linear_cross_entropy_with(x, weight, targets, options)
                : fsdp_cross_entropy_with(x, targets, options);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(loss), FSDP_F32, &o.loss));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, o.dx));
    if (head)
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(weight), FSDP_F32, o.dweight));
    return o;
}

static bool all_zero(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (x[i] != 0)
            return false;
    return true;
}

SCOPE_TEST(a_sum_times_one_over_the_count_has_the_bits_of_the_mean)
{
    const fsdp_cross_entropy_options quarter = {.reduction = FSDP_LOSS_SUM, .scale = 0.25};

    for (int head = 0; head < 2; head++) {
        outcome mean = loss_of(device, head, some_ids, NULL), sum = loss_of(device, head, some_ids, &quarter);

        CHECK(memcmp(&mean, &sum, sizeof mean) == 0);
        CHECK(mean.loss > 0);
        for (int row = 0; row < ROWS; row++) {
            int64_t cols = head ? DIM : CLASSES;

            CHECK(all_zero(mean.dx + row * cols, cols) == (some_ids[row] == FSDP_IGNORE_TARGET));
        }
    }
}

SCOPE_TEST(if_no_target_counts_the_mean_is_nan_and_the_sum_0_and_nothing_is_learned)
{
    const fsdp_cross_entropy_options sum = {.reduction = FSDP_LOSS_SUM};

    for (int head = 0; head < 2; head++)
        for (int kind = 0; kind < 2; kind++) {
            outcome o = loss_of(device, head, no_ids, kind ? &sum : NULL);

            CHECK(kind ? o.loss == 0 : isnan(o.loss));
            CHECK(all_zero(o.dx, ROWS * CLASSES));
            CHECK(all_zero(o.dweight, CLASSES * DIM));
        }
}

SCOPE_TEST(a_softcap_is_that_of_the_logits)
{
    const fsdp_cross_entropy_options options = {.softcap = 0.7f};
    fsdp_tensor *x = make_leaf(device, 1, 2, (const int64_t[]){ROWS, CLASSES}), *loss;
    fsdp_tensor *targets = make_ids(device, 1, (const int64_t[]){ROWS}, some_ids);
    outcome fused = loss_of(device, false, some_ids, &options), plain = {0};

    loss = fsdp_cross_entropy(fsdp_scale(fsdp_tanh(fsdp_scale(x, 1 / 0.7)), 0.7), targets);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(loss), FSDP_F32, &plain.loss));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, plain.dx));
    CHECK_NEAR(fused.loss, plain.loss, 1e-6);
    CHECK_CLOSE(fused.dx, plain.dx, ROWS * CLASSES, 1e-5, 1e-7);
}

/* ---- the logits of a head of 16 bits ---- */

enum {
    MANY_ROWS = 37,
    MANY_CLASSES = 50
};

/* Leaves of bf16 that a head multiplies, and ids. */
static void make_head(fsdp_device *on, fsdp_dtype dtype, fsdp_tensor **x, fsdp_tensor **weight, fsdp_tensor **targets)
{
    int32_t ids[MANY_ROWS];

    for (int i = 0; i < MANY_ROWS; i++)
        ids[i] = i * 7 % MANY_CLASSES;
    *x = make_leaf(on, 3, 2, (const int64_t[]){MANY_ROWS, DIM});
    *weight = make_leaf(on, 4, 2, (const int64_t[]){MANY_CLASSES, DIM});
    *x = fsdp_scale(*x, 3);
    *x = CHECK_PTR(fsdp_cast(*x, dtype));
    *weight = CHECK_PTR(fsdp_cast(*weight, dtype));
    *targets = make_ids(on, 1, (const int64_t[]){MANY_ROWS}, ids);
}

/* The loss of logits that are not rounded, of what x and weight hold. */
static double exact_loss(const fsdp_tensor *x, const fsdp_tensor *weight, double *largest)
{
    float a[MANY_ROWS * DIM], w[MANY_CLASSES * DIM];
    double loss = 0;

    CHECK_OK(fsdp_tensor_read(x, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(weight, FSDP_F32, w));
    for (int i = 0; i < MANY_ROWS; i++) {
        double sum = 0, at_target = 0;

        for (int j = 0; j < MANY_CLASSES; j++) {
            double logit = 0;

            for (int c = 0; c < DIM; c++)
                logit += (double)a[i * DIM + c] * (double)w[j * DIM + c];
            sum += exp(logit);
            at_target = j == i * 7 % MANY_CLASSES ? logit : at_target;
            *largest = fmax(*largest, fabs(logit));
        }
        loss += (log(sum) - at_target) / MANY_ROWS;
    }
    return loss;
}

/* Each logit is rounded once, to the nearest: a row's loss is off by twice that at most. */
SCOPE_TEST(narrow_logits_are_those_of_wide_ones_but_for_one_rounding)
{
    static const struct {
        fsdp_dtype dtype;
        double half_step;
    } dtypes[] = {{FSDP_F32, 0}, {FSDP_BF16, 1.0 / 256}, {FSDP_F16, 1.0 / 2048}};

    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        bool narrow = fsdp__device_narrow_logits(device);
        fsdp_tensor *x, *weight, *targets, *head, *apart;
        double largest = 0, expected;
        float loss, other;

        make_head(device, dtypes[i].dtype, &x, &weight, &targets);
        expected = exact_loss(x, weight, &largest);
        head = CHECK_PTR(fsdp_linear_cross_entropy(x, weight, targets));
        apart = CHECK_PTR(fsdp_cross_entropy(fsdp_linear(x, weight, FSDP_NO_BIAS), targets)); /* always narrow */
        CHECK_OK(fsdp_tensor_read(head, FSDP_F32, &loss));
        CHECK_OK(fsdp_tensor_read(apart, FSDP_F32, &other));
        CHECK_NEAR(loss, expected, 1e-5 + (narrow ? 2 * dtypes[i].half_step * largest : 0));
        if (narrow || dtypes[i].dtype == FSDP_F32)
            CHECK_NEAR(loss, other, 1e-6);
        CHECK_OK(fsdp_backward(head));
    }
}

/* ---- how many rows at a time ---- */

typedef struct pieces {
    int count;
    int64_t most; /* rows */
    int64_t row;  /* elements from one to the next */
    fsdp_dtype dtype;
    bool in_place;
} pieces;

static fsdp_status count_pieces(void *arg, fsdp__probe_event *event)
{
    pieces *p = arg;
    const fsdp__cross_entropy_args *args = event->object;

    if (event->kind != FSDP__KERNEL_CROSS_ENTROPY)
        return FSDP_OK;
    p->count++;
    p->most = args->rows > p->most ? args->rows : p->most;
    p->row = args->logits_row;
    p->dtype = args->dtype;
    p->in_place = args->dlogits == args->logits;
    return FSDP_OK;
}

static pieces pieces_of(fsdp_device *on, fsdp_dtype dtype, int64_t classes)
{
    pieces p = {0};
    fsdp__subscriber *subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_pieces, &p));
    fsdp_tensor *x, *weight, *targets;

    x = CHECK_PTR(fsdp_zeros(on, dtype, FSDP_SHAPE(10000, DIM)));
    weight = CHECK_PTR(fsdp_zeros(on, dtype, FSDP_SHAPE(classes, DIM)));
    targets = CHECK_PTR(fsdp_zeros(on, FSDP_I32, FSDP_SHAPE(10000)));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    CHECK_OK(fsdp_tensor_set_requires_grad(weight, true));
    CHECK_PTR(fsdp_linear_cross_entropy(x, weight, targets));
    fsdp__unsubscribe(subscriber);
    return p;
}

/* A dry device takes the pieces of the one that it stands for. */
SCOPE_TEST(a_gpu_takes_2048_rows_at_a_time_or_4096_of_16_bits)
{
    fsdp_device *cpu = CHECK_PTR(fsdp__dry(context)), *gpu = CHECK_PTR(fsdp__dry_gpu(context));
    pieces wide = pieces_of(gpu, FSDP_F32, 50257), narrow = pieces_of(gpu, FSDP_BF16, 50257);
    pieces few = pieces_of(gpu, FSDP_BF16, 16), host = pieces_of(cpu, FSDP_BF16, 50257);

    CHECK_EQ(wide.count, 5);
    CHECK_EQ(wide.most, 2048);
    CHECK(wide.dtype == FSDP_F32 && wide.in_place);
    CHECK_EQ(wide.row, 50272); /* 128 bytes */
    CHECK_EQ(narrow.count, 3);
    CHECK_EQ(narrow.most, 4096);
    CHECK(narrow.dtype == FSDP_BF16 && narrow.in_place);
    CHECK_EQ(narrow.row, 50304);
    CHECK_EQ(few.count, 1); /* 64 MiB, as on a CPU, are more rows */
    CHECK_EQ(host.count, 31);
    CHECK_EQ(host.most, 333);
    CHECK_EQ(host.row, 50257);
    CHECK(host.dtype == FSDP_F32 && !host.in_place);
}
