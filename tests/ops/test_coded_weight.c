/* Weights in fewer bits: the codes of NF4 and int8 at every edge, and products with them, which equal those with the
 * decoded weight to the bit. */
#include "ops/coded_weight.h"

#include <math.h>

#include "fsdp/autograd.h"
#include "fsdp/ops.h"
#include "support/scope.h"

static const float levels[] = FSDP__NF4_LEVELS;

/* ---- codes ---- */

/* Encodes and decodes; returns the decoded values, which the next call overwrites. */
static const float *there_and_back(const fsdp__coded_weight *w, const float *values, uint8_t *bytes)
{
    static float decoded[512];
    int64_t numel = w->rows * w->cols;

    fsdp__encode_weight(w, values, numel, bytes);
    CHECK_OK(fsdp__decode_weight_rows(fsdp_device_stream(fsdp_cpu(context)), w, bytes, numel, FSDP_F32, decoded));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(fsdp_cpu(context))));
    return decoded;
}

SCOPE_TEST(each_level_of_nf4_comes_back_and_a_tie_goes_to_the_lower)
{
    const fsdp__coded_weight w = {FSDP__WEIGHT_NF4, 2, 32};
    float values[64] = {0};
    uint8_t bytes[36];
    const float *decoded;

    for (int i = 0; i < 16; i++) {
        values[i] = levels[i];
        values[16 + i] = i < 15 ? levels[i] * 0.49f + levels[i + 1] * 0.51f : 0;
        values[32 + i] = i < 15 ? levels[i] * 0.51f + levels[i + 1] * 0.49f : 0;
    }
    values[48] = 0.5f * levels[8]; /* as near to both, to the bit: zero is one of them */
    decoded = there_and_back(&w, values, bytes);
    for (int i = 0; i < 16; i++) {
        CHECK_EQ(bytes[4 + i / 2] >> (i % 2 ? 0 : 4) & 15, i);
        CHECK_BYTES(&decoded[i], &(float){levels[i]}, sizeof(float));
        CHECK_BYTES(&decoded[16 + i], &(float){i < 15 ? levels[i + 1] : 0}, sizeof(float));
        CHECK_BYTES(&decoded[32 + i], &(float){i < 15 ? levels[i] : 0}, sizeof(float));
    }
    CHECK_EQ(decoded[48], 0);
    CHECK_BYTES(bytes, &(float){1}, sizeof(float));
}

SCOPE_TEST(the_last_block_may_be_short_and_blocks_do_not_mix)
{
    const fsdp__coded_weight w = {FSDP__WEIGHT_NF4, 3, 43}; /* 129 elements: two blocks and one element */
    float values[129];
    uint8_t bytes[3 * 36];
    const float *decoded;

    CHECK_EQ(fsdp__coded_rows(&w), 3);
    CHECK_EQ(fsdp__coded_row_bytes(&w), 36);
    for (int i = 0; i < 129; i++)
        values[i] = i < 64 ? 1e-3f : i < 128 ? -5 : 7;
    decoded = there_and_back(&w, values, bytes);
    CHECK_BYTES(decoded, values, sizeof values);
    CHECK_EQ(bytes[2 * 36 + 4], 0xf7); /* what is beyond the end is zero */
}

SCOPE_TEST(int8_rounds_to_even_and_scales_rows)
{
    const fsdp__coded_weight w = {FSDP__WEIGHT_INT8, 2, 5};
    const float values[] = {127, 0.5f, 1.5f, -2.5f, -127, 0.01f, -0.02f, 0, 0.005f, 0.02f};
    const int8_t expected[] = {127, 0, 2, -2, -127, 64, -127, 0, 32, 127};
    uint8_t bytes[2 * 12];
    const float *decoded = there_and_back(&w, values, bytes);

    CHECK_EQ(fsdp__coded_row_bytes(&w), 12); /* a scale, five codes and the rest of a word */
    for (int i = 0; i < 10; i++) {
        CHECK_EQ((int8_t)bytes[i / 5 * 12 + 4 + i % 5], expected[i]);
        CHECK_NEAR(decoded[i], values[i], (i < 5 ? 127 : 0.02) / 254 + 1e-6);
    }
    CHECK_EQ(bytes[9] + bytes[10] + bytes[11], 0);
}

/* Zeros stay zeros, numbers next to nothing become zeros, and what is not finite is not made finite. */
SCOPE_TEST(rows_of_zeros_and_of_what_is_not_finite)
{
    const float specials[] = {0, 1e-42f, NAN, INFINITY};

    for (int code = FSDP__WEIGHT_NF4; code <= FSDP__WEIGHT_INT8; code++)
        for (int s = 0; s < 4; s++) {
            const fsdp__coded_weight w = {(fsdp__weight_code)code, 2, 64};
            float values[128];
            uint8_t bytes[2 * 68];
            const float *decoded;

            for (int i = 0; i < 128; i++)
                values[i] = i < 64 ? 0 : 2;
            values[5] = specials[s];
            decoded = there_and_back(&w, values, bytes);
            for (int i = 0; i < 64; i++)
                CHECK(s < 2 ? decoded[i] == 0 : !isfinite(decoded[i]));
            for (int i = 64; i < 128; i++)
                CHECK_NEAR(decoded[i], 2, 1e-6);
        }
}

/* ---- products ---- */

static fsdp_tensor *on_device(int ndim, const int64_t *shape, int64_t numel, double phase)
{
    float values[512];

    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)sin(0.7 * (double)i + phase);
    return CHECK_PTR(fsdp_from_data(device, FSDP_F32, ndim, shape, values));
}

/* Makes the bytes of a weight (rows,cols). */
static fsdp_tensor *coded(const fsdp__coded_weight *w)
{
    float values[512];
    uint8_t bytes[1024];

    for (int64_t i = 0; i < w->rows * w->cols; i++)
        values[i] = (float)cos(1.3 * (double)i) / 4;
    fsdp__encode_weight(w, values, w->rows * w->cols, bytes);
    return CHECK_PTR(fsdp_from_data(device, FSDP_U8, FSDP_SHAPE(fsdp__coded_rows(w), fsdp__coded_row_bytes(w)), bytes));
}

static void check_same(const fsdp_tensor *a, const fsdp_tensor *b)
{
    float left[512], right[512];

    CHECK_PTR(a);
    CHECK_PTR(b);
    CHECK_EQ(fsdp_tensor_numel(a), fsdp_tensor_numel(b));
    CHECK_OK(fsdp_tensor_read(a, FSDP_F32, left));
    CHECK_OK(fsdp_tensor_read(b, FSDP_F32, right));
    CHECK_BYTES(left, right, (size_t)fsdp_tensor_numel(a) * sizeof *left);
}

static void backward(fsdp_tensor *y, fsdp_tensor *weights)
{
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_mul(y, weights))))));
}

static void check_product(const fsdp__coded_weight *w, fsdp_dtype dtype, bool conv1d, bool with_bias)
{
    int64_t in = conv1d ? w->rows : w->cols, out = conv1d ? w->cols : w->rows;
    fsdp_tensor *bytes = coded(w), *decoded = NULL, *results[2], *x[2], *bias[2];
    fsdp_tensor *weights = fsdp_cast(on_device(FSDP_SHAPE(2, 3, out), 6 * out, 2), dtype);

    CHECK_OK(fsdp__decode_weight(w, bytes, dtype, &decoded));
    for (int i = 0; i < 2; i++) {
        x[i] = CHECK_PTR(fsdp_detach(fsdp_cast(on_device(FSDP_SHAPE(2, 3, in), 6 * in, 1), dtype)));
        bias[i] =
            with_bias ? CHECK_PTR(fsdp_detach(fsdp_cast(on_device(FSDP_SHAPE(out), out, 3), dtype))) : FSDP_NO_BIAS;
        CHECK_OK(fsdp_tensor_set_requires_grad(x[i], true));
        if (with_bias)
            CHECK_OK(fsdp_tensor_set_requires_grad(bias[i], true));
        results[i] = CHECK_PTR(i == 0   ? fsdp__coded_linear(x[i], w, bytes, bias[i], conv1d)
                               : conv1d ? fsdp_conv1d(x[i], decoded, bias[i])
                                        : fsdp_linear(x[i], decoded, bias[i]));
        backward(results[i], weights);
    }
    check_same(results[0], results[1]);
    check_same(fsdp_tensor_grad(x[0]), fsdp_tensor_grad(x[1]));
    if (with_bias)
        check_same(fsdp_tensor_grad(bias[0]), fsdp_tensor_grad(bias[1]));
    CHECK_NULL(fsdp_tensor_grad(bytes));
    fsdp_tensor_unref(decoded);
}

SCOPE_TEST(products_are_those_with_the_decoded_weight)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const int64_t sizes[][2] = {{7, 9}, {8, 64}, {1, 1}, {13, 33}, {0, 5}};

    for (size_t s = 0; s < FSDP__COUNT_OF(sizes); s++)
        for (int way = 0; way < 24; way++) {
            const fsdp__coded_weight w = {way % 2 ? FSDP__WEIGHT_NF4 : FSDP__WEIGHT_INT8, sizes[s][0], sizes[s][1]};

            check_product(&w, dtypes[way / 8], way / 2 % 2, way / 4 % 2);
        }
}

/* Between forward and backward neither x nor the decoded weight is kept. */
SCOPE_TEST(the_decoded_weight_is_let_go)
{
    const fsdp__coded_weight w = {FSDP__WEIGHT_NF4, 16, 16};
    fsdp_tensor *bytes = coded(&w), *x = on_device(FSDP_SHAPE(4, 16), 64, 1), *y;
    fsdp_memory_stats before, after;

    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    fsdp_device_memory(device, &before);
    y = CHECK_PTR(fsdp__coded_linear(x, &w, bytes, FSDP_NO_BIAS, false));
    fsdp_device_memory(device, &after);
    CHECK_EQ(after.live_bytes[FSDP_MEMORY_ACTIVATION] - before.live_bytes[FSDP_MEMORY_ACTIVATION], 4 * 16 * 4);
    backward(y, on_device(FSDP_SHAPE(4, 16), 64, 2));
}

SCOPE_TEST(bytes_of_another_weight_are_refused)
{
    const fsdp__coded_weight w = {FSDP__WEIGHT_NF4, 4, 16}, other = {FSDP__WEIGHT_NF4, 4, 48};
    fsdp_tensor *x = on_device(FSDP_SHAPE(2, 16), 32, 1), *bytes = coded(&w);

    CHECK_NULL(fsdp__coded_linear(x, &w, coded(&other), FSDP_NO_BIAS, false));
    CHECK_CONTAINS(fsdp_last_error(), "linear: weight must be the bytes of all codes");
    CHECK_NULL(fsdp__coded_linear(x, &w, x, FSDP_NO_BIAS, false));
    CHECK_NULL(fsdp__coded_linear(on_device(FSDP_SHAPE(2, 8), 16, 1), &w, bytes, FSDP_NO_BIAS, false));
    CHECK_CONTAINS(fsdp_last_error(), "input (2, 8) does not fit");
    CHECK_NULL(fsdp__coded_linear(x, &w, bytes, on_device(FSDP_SHAPE(3), 3, 1), false));
    CHECK_CONTAINS(fsdp_last_error(), "bias (3,) does not fit");
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tensor *y = fsdp__coded_linear(x, &w, bytes, FSDP_NO_BIAS, false);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, y ? FSDP_OK : fsdp_last_status());
    }
}
