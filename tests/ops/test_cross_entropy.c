/* Targets of which nothing is learned, sums instead of means, and capped logits. */
#include "fsdp/ops.h"

#include <math.h>
#include <string.h>

#include "autograd/tools.h"
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
