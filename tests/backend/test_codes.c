/* Weights in one byte: every code, the ties between them, and what is not finite. */
#include <math.h>

#include "backend/cpu/kernels_table.h"
#include "backend/cuda/kernels_table.h"
#include "base/compiler.h"
#include "oracle/oracle.h"
#include "support/test.h"

#define N 300 /* more than two blocks, not a multiple of one */

static float values[N], scales[3];
static uint8_t codes[N];

/* Runs a kernel of every instruction set, and of CUDA devices, on one span; `see` looks at the result. */
static void run_all(fsdp__kernel kernel, fsdp__code code, fsdp__coded_span span, void (*see)(void))
{
    const fsdp__quantize_args quantize = {.spans = &span, .count = 1, .dtype = FSDP_F32, .code = code};
    const fsdp__dequantize_args dequantize = {.spans = &span, .count = 1, .dtype = FSDP_F32, .code = code};
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));

    for (int i = 0; i <= FSDP__CPU_ISAS; i++) {
        const fsdp__kernel_function *kernels =
            i < FSDP__CPU_ISAS ? fsdp__cpu_isa_kernels((fsdp__cpu_isa)i) : fsdp__cuda_kernels;

        if (!kernels)
            continue;
        CHECK_OK(kernels[kernel](stream, kernel == FSDP__KERNEL_QUANTIZE ? (const void *)&quantize
                                                                         : (const void *)&dequantize));
        see();
    }
    fsdp_context_free(context);
}

static fsdp__coded_span first(int64_t numel)
{
    return (fsdp__coded_span){
        .values = values, .codes = codes, .scales = scales, .runs = 1, .run = numel, .stride = numel};
}

static void see_values(void)
{
    for (int i = 0; i < 256; i++) {
        double expected = oracle_float8_value((uint8_t)i);
        CHECK(isnan(expected) ? isnan(values[i]) : (double)values[i] == expected);
        CHECK(isnan(expected) || (signbit(values[i]) != 0) == (i >= 128));
    }
}

static void see_every_code(void)
{
    for (int i = 0; i < 256; i++)
        CHECK_EQ(i % 128 == 127 ? codes[i] & 0x7f : codes[i], i % 128 == 127 ? 127 : i); /* a NaN has no sign */
}

TEST(every_float8_code_has_its_value_and_comes_back)
{
    const float amax = 448.0f; /* a scale of 1 */
    fsdp__coded_span span = first(256);

    scales[0] = 1.0f;
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    run_all(FSDP__KERNEL_DEQUANTIZE, FSDP__CODE_FLOAT8, span, see_values);
    CHECK(oracle_float8_value(0x7e) == 448.0 && oracle_float8_value(0x01) == 0x1p-9); /* as torch.float8_e4m3fn */
    CHECK(oracle_float8_value(0x38) == 1.0 && oracle_float8_value(0x08) == 0x1p-6);
    memset(codes, 0, sizeof codes);
    span.amax = &amax;
    run_all(FSDP__KERNEL_QUANTIZE, FSDP__CODE_FLOAT8, span, see_every_code);
}

static void see_nearest(void)
{
    for (int i = 0; i < 254; i++)
        CHECK_EQ(codes[i], oracle_float8_code((double)values[i]));
}

static void see_even(void)
{
    see_nearest();
    for (int i = 0; i < 126; i++)
        CHECK_EQ(codes[i], i + i % 2);
}

static void see_saturated(void)
{
    for (int i = 0; i < 6; i++)
        CHECK_EQ(codes[i], i % 2 ? 0xfe : 0x7e);
}

/* Ties go to the even code; next to a tie on both sides to the nearer. */
TEST(float8_rounds_to_the_nearest_even_and_saturates)
{
    static const float large[] = {448.1f, 464.0f, 465.0f, 1e30f, INFINITY, INFINITY};
    const float amax = 448.0f;
    fsdp__coded_span span = first(254);

    span.amax = &amax;
    for (int side = -1; side <= 1; side++) {
        for (int i = 0; i < 254; i++) {
            uint8_t code = (uint8_t)(i < 127 ? FSDP__MIN(i, 125) : FSDP__MIN(i - 127, 125));
            float tie = (float)((oracle_float8_value(code) + oracle_float8_value((uint8_t)(code + 1))) / 2);
            float x = side < 0 ? nextafterf(tie, 0.0f) : side > 0 ? nextafterf(tie, 1000.0f) : tie;
            values[i] = i < 127 ? x : -x;
        }
        run_all(FSDP__KERNEL_QUANTIZE, FSDP__CODE_FLOAT8, span, side == 0 ? see_even : see_nearest);
    }
    for (int i = 0; i < 6; i++)
        values[i] = i % 2 ? -large[i] : large[i];
    span.run = 6;
    run_all(FSDP__KERNEL_QUANTIZE, FSDP__CODE_FLOAT8, span, see_saturated);
}

/* ---- what is not finite, or nothing ---- */

static void see_nan(void)
{
    for (int i = 0; i < N; i++)
        CHECK(!isfinite(values[i]));
}

static void see_zero(void)
{
    for (int i = 0; i < N; i++)
        CHECK(values[i] == 0.0f);
}

static void unseen(void)
{
}

/* There and back. `amax` of FLOAT8. */
static void through(fsdp__code code, float amax, void (*see)(void))
{
    fsdp__coded_span span = first(N);

    span.amax = &amax;
    run_all(FSDP__KERNEL_QUANTIZE, code, span, unseen);
    run_all(FSDP__KERNEL_DEQUANTIZE, code, span, see);
}

TEST(what_is_not_finite_stays_so_and_nothing_is_zero)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    for (int b = 0; b < 3; b++) {
        for (int i = 0; i < N; i++)
            values[i] = i % FSDP__CODE_BLOCK == 7 ? bad[b] : 0.5f; /* in every block */
        through(FSDP__CODE_INT8, 0.0f, see_nan);
        for (int i = 0; i < N; i++)
            values[i] = i == 7 ? bad[b] : 0.5f;
        through(FSDP__CODE_FLOAT8, fabsf(bad[b]), see_nan);
    }
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < N; i++)
            values[i] = t == 0 ? 0.0f : t == 1 ? 1e-32f : -0x1p-140f;
        through(FSDP__CODE_INT8, 0.0f, see_zero);
        through(FSDP__CODE_FLOAT8, fabsf(values[0]), see_zero);
    }
}

static void see_close(void)
{
    for (int i = 0; i < N; i++) {
        double x = sin(0.37 * i) * (i < 128 ? 1.0 : 40.0), largest = i < 128 ? 1.0 : 40.0;
        CHECK(fabs((double)values[i] - x) <= largest / 254.0 * 1.001);
    }
}

TEST(blocks_have_scales_of_their_own)
{
    for (int i = 0; i < N; i++)
        values[i] = (float)(sin(0.37 * i) * (i < 128 ? 1.0 : 40.0));
    through(FSDP__CODE_INT8, 0.0f, see_close);
}
