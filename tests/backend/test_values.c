/* Values that are not ordinary numbers, and the accuracy of the elementary functions. */
#include <math.h>

#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels_table.h"
#include "backend/cuda/kernels_table.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "oracle/oracle.h"
#include "support/test.h"

#define HALVES 65536

/* Runs one kernel of every instruction set, and of CUDA devices; `see` looks at the result. */
static void run_all(fsdp__kernel kernel, const void *args, void (*see)(const void *), const void *seen)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));

    for (int i = 0; i <= FSDP__CPU_ISAS; i++) {
        const fsdp__kernel_function *kernels =
            i < FSDP__CPU_ISAS ? fsdp__cpu_isa_kernels((fsdp__cpu_isa)i) : fsdp__cuda_kernels;

        if (!kernels || !kernels[kernel])
            continue;
        CHECK_OK(kernels[kernel](stream, args));
        see(seen);
    }
    fsdp_context_free(context);
}

static uint16_t halves[HALVES], halves_back[HALVES];
static float wide[HALVES];

static void see_wide(const void *dtype)
{
    for (int i = 0; i < HALVES; i++) {
        double expected = oracle_get(*(const fsdp_dtype *)dtype, halves, i);
        CHECK((isnan(expected) && isnan(wide[i])) || (double)wide[i] == expected || fabs(expected) < 0x1p-126);
    }
}

static void see_back(const void *dtype)
{
    for (int i = 0; i < HALVES; i++) {
        double expected = oracle_get(*(const fsdp_dtype *)dtype, halves, i);
        CHECK((isnan(expected) && isnan(oracle_get(*(const fsdp_dtype *)dtype, halves_back, i))) ||
              halves_back[i] == halves[i]);
    }
}

TEST(every_16_bit_value_survives_the_way_to_f32_and_back)
{
    static const fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};

    for (int i = 0; i < HALVES; i++)
        halves[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        fsdp__copy_args out = {.src = halves,
                               .dst = wide,
                               .src_dtype = types[t],
                               .dst_dtype = FSDP_F32,
                               .ndim = 1,
                               .shape = {HALVES},
                               .src_strides = {1},
                               .dst_strides = {1}};
        fsdp__copy_args back = out;
        back.src = wide, back.dst = halves_back, back.src_dtype = FSDP_F32, back.dst_dtype = types[t];
        run_all(FSDP__KERNEL_COPY, &out, see_wide, &types[t]);
        run_all(FSDP__KERNEL_COPY, &back, see_back, &types[t]);
    }
}

static void see_rounded(const void *dtype)
{
    fsdp_dtype t = *(const fsdp_dtype *)dtype;

    for (int i = 0; i < HALVES; i++) {
        uint64_t memory = 0;
        uint16_t expected;
        oracle_put(t, &memory, 0, (double)wide[i]);
        memcpy(&expected, &memory, sizeof expected);
        if (isnan(wide[i]))
            CHECK(isnan(oracle_get(t, halves_back, i)));
        else if (fabsf(wide[i]) >= 0x1p-126f)
            CHECK_EQ(halves_back[i], expected);
    }
}

TEST(f32_rounds_to_the_nearest_even_16_bit_value)
{
    static const fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};

    for (int t = 0; t < 2; t++)
        for (int part = 0; part < 4; part++) {
            fsdp__copy_args a = {.src = wide,
                                 .dst = halves_back,
                                 .src_dtype = FSDP_F32,
                                 .dst_dtype = types[t],
                                 .ndim = 1,
                                 .shape = {HALVES},
                                 .src_strides = {1},
                                 .dst_strides = {1}};
            for (int i = 0; i < HALVES; i++) {
                uint32_t words[4], bits;
                fsdp__philox(7, (uint64_t)(part * HALVES + i), words);
                bits = part == 0   ? words[0]                                    /* anything */
                       : part == 1 ? (uint32_t)i << 16 | 0x8000u                 /* bf16 ties */
                       : part == 2 ? ((uint32_t)i << 13 | 0x1000u) + 0x33000000u /* half ties, denormal halves */
                                   : 0x477fe000u + (uint32_t)i;                  /* where halves end */
                memcpy(&wide[i], &bits, sizeof bits);
            }
            run_all(FSDP__KERNEL_COPY, &a, see_rounded, &types[t]);
        }
}

static void see_no_signs(const void *numel)
{
    for (int i = 0; i < *(const int *)numel; i++)
        CHECK_EQ(halves_back[i], halves[i + 1] & 0x7fff);
}

/* Of a NaN as of a number. From an odd place on, and an odd number of them. */
TEST(an_absolute_value_of_16_bits_loses_its_sign_alone)
{
    static const fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};
    const int numel = HALVES - 1;

    for (int i = 0; i < HALVES; i++)
        halves[i] = (uint16_t)i;
    for (int t = 0; t < 2; t++) {
        fsdp__unary_forward_args a = {
            .x = halves + 1, .y = halves_back, .numel = numel, .op = FSDP__ABS, .dtype = types[t]};
        run_all(FSDP__KERNEL_UNARY_FORWARD, &a, see_no_signs, &numel);
    }
}

static void see_clamped(const void *dtype)
{
    for (int i = 0; i < HALVES - 1; i++) {
        double x = oracle_get(*(const fsdp_dtype *)dtype, halves, i + 1);
        double y = oracle_get(*(const fsdp_dtype *)dtype, halves_back, i);
        CHECK(isnan(x) ? isnan(y) : y == fmin(fmax(x, -0.5), 2.0) || fabs(x) < 0x1p-126);
    }
}

TEST(every_16_bit_value_is_clamped)
{
    static const fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};

    for (int t = 0; t < 2; t++) {
        fsdp__unary_forward_args a = {.x = halves + 1,
                                      .y = halves_back,
                                      .numel = HALVES - 1,
                                      .low = -0.5f,
                                      .high = 2.0f,
                                      .op = FSDP__CLAMP,
                                      .dtype = types[t]};
        for (int i = 0; i < HALVES; i++)
            halves[i] = (uint16_t)i;
        run_all(FSDP__KERNEL_UNARY_FORWARD, &a, see_clamped, &types[t]);
    }
}

/* ---- a second operand that is read down its columns: in tiles, the last of them in part ---- */

enum {
    TURNED_ROWS = 37,
    TURNED_COLS = 150
};

static float turned_sum[TURNED_ROWS * TURNED_COLS];

static void see_turned(const void *unused)
{
    (void)unused;
    for (int i = 0; i < TURNED_ROWS; i++)
        for (int j = 0; j < TURNED_COLS; j++)
            CHECK_EQ((int)turned_sum[i * TURNED_COLS + j],
                     (i * TURNED_COLS + j) + 10000 * (j * TURNED_ROWS + i) % 7919);
}

TEST(a_sum_with_a_turned_operand_is_whole)
{
    static float a[TURNED_ROWS * TURNED_COLS], b[TURNED_ROWS * TURNED_COLS];
    fsdp__binary_args k = {.ndim = 2,
                           .shape = {TURNED_ROWS, TURNED_COLS},
                           .a = a,
                           .b = b,
                           .a_strides = {TURNED_COLS, 1},
                           .b_strides = {1, TURNED_ROWS},
                           .y = turned_sum,
                           .op = FSDP__ADD,
                           .dtype = FSDP_F32};

    for (int i = 0; i < TURNED_ROWS * TURNED_COLS; i++) {
        a[i] = (float)i;
        b[i] = (float)(10000 * i % 7919);
    }
    run_all(FSDP__KERNEL_BINARY, &k, see_turned, NULL);
}

/* ---- NaN and infinity ---- */

#define N 40 /* more than a vector, not a multiple of one */

static float row[N], out_row[N];

static void see_nan(const void *count)
{
    for (int i = 0; i < *(const int *)count; i++)
        CHECK(isnan(out_row[i]));
}

static void ordinary_row(void)
{
    for (int i = 0; i < N; i++)
        row[i] = 0.1f * (float)(i % 7);
}

static void nan_through_rows(const float *weight)
{
    const int all = N, one = 1;
    int32_t target = 3;

    run_all(FSDP__KERNEL_SOFTMAX_FORWARD,
            &(fsdp__softmax_forward_args){.x = row, .y = out_row, .rows = 1, .cols = N, .dtype = FSDP_F32}, see_nan,
            &all);
    run_all(FSDP__KERNEL_NORM_FORWARD,
            &(fsdp__norm_forward_args){.x = row,
                                       .weight = weight,
                                       .y = out_row,
                                       .rows = 1,
                                       .cols = N,
                                       .eps = 1e-5f,
                                       .dtype = FSDP_F32,
                                       .weight_dtype = FSDP_F32},
            see_nan, &all);
    run_all(FSDP__KERNEL_CROSS_ENTROPY,
            &(fsdp__cross_entropy_args){.logits = row,
                                        .targets = &target,
                                        .loss = out_row,
                                        .rows = 1,
                                        .cols = N,
                                        .loss_scale = 1.0f,
                                        .ignore_index = -100,
                                        .dtype = FSDP_F32,
                                        .dlogits_dtype = FSDP_F32},
            see_nan, &one);
}

static void nan_through_products(const float *weight)
{
    static const float zeros[N * N];
    const int all = N;

    run_all(FSDP__KERNEL_MATMUL, /* NaN times zero */
            &(fsdp__matmul_args){.a = row,
                                 .b = zeros,
                                 .c = out_row,
                                 .m = 1,
                                 .n = N,
                                 .k = N,
                                 .a_row = N,
                                 .a_col = 1,
                                 .b_row = N,
                                 .b_col = 1,
                                 .c_row = N,
                                 .batch = 1,
                                 .a_dtype = FSDP_F32,
                                 .b_dtype = FSDP_F32,
                                 .c_dtype = FSDP_F32,
                                 .alpha = 1.0f},
            see_nan, &all);
    run_all(FSDP__KERNEL_ATTENTION_FORWARD,
            &(fsdp__attention_forward_args){.q = row,
                                            .k = weight,
                                            .v = weight,
                                            .out = out_row,
                                            .batch = 1,
                                            .q_time = 1,
                                            .kv_time = 1,
                                            .heads = 1,
                                            .kv_heads = 1,
                                            .head_dim = N,
                                            .scale = 1.0f,
                                            .dtype = FSDP_F32},
            see_nan, &all);
}

TEST(a_nan_reaches_all_it_touches)
{
    const int all = N;
    float weight[N];
    const void *srcs[] = {row, weight};

    ordinary_row();
    for (int i = 0; i < N; i++)
        weight[i] = 1.0f;
    row[17] = NAN;
    nan_through_rows(weight);
    nan_through_products(weight);
    for (int i = 0; i < N; i++)
        row[i] = NAN;
    run_all(FSDP__KERNEL_REDUCE_RANKS,
            &(fsdp__reduce_ranks_args){.srcs = srcs,
                                       .count = 2,
                                       .dst = out_row,
                                       .numel = N,
                                       .src_dtype = FSDP_F32,
                                       .dst_dtype = FSDP_F32,
                                       .op = FSDP__RANK_MAX},
            see_nan, &all);
    for (fsdp__activation kind = FSDP__GELU_TANH; kind <= FSDP__RELU; kind++)
        run_all(FSDP__KERNEL_ACTIVATION_FORWARD,
                &(fsdp__activation_forward_args){
                    .x = row, .y = out_row, .rows = 1, .cols = N, .kind = kind, .dtype = FSDP_F32},
                see_nan, &all);
}

static void see_masked(const void *unused)
{
    float sum = 0.0f;

    (void)unused;
    for (int i = 0; i < N; i++) {
        CHECK(i % 3 != 1 || out_row[i] == 0.0f);
        sum += out_row[i];
    }
    CHECK_NEAR(sum, 1.0, 1e-6);
}

enum {
    RANKED = 1000,
    MOST_RANKS = 6 /* more than the loops for a few have */
};

typedef struct quotients {
    fsdp__reduce_ranks_args args;
    float sums[RANKED], start; /* what dst holds before, when added to */
    void *dst;
} quotients;

/* By the compiler's division. */
static void see_quotients(const void *seen)
{
    const quotients *q = seen;
    int differ = 0;

    for (int i = 0; i < RANKED; i++) {
        float quotient = q->sums[i] / q->args.divisor, actual;
        float expected = q->args.accumulate ? q->start + quotient : quotient;
        uint64_t rounded;

        differ += quotient != q->sums[i] * (1.0f / q->args.divisor);
        if (q->args.dst_dtype == FSDP_F32) {
            memcpy(&actual, (const float *)q->dst + i, sizeof actual);
        } else {
            oracle_put(q->args.dst_dtype, &rounded, 0, (double)expected);
            expected = (float)oracle_get(q->args.dst_dtype, &rounded, 0);
            actual = (float)oracle_get(q->args.dst_dtype, q->dst, i);
        }
        if (actual != expected)
            TEST_FAIL("element %d of %d ranks by %g: %.9g, expected %.9g", i, q->args.count, (double)q->args.divisor,
                      (double)actual, (double)expected);
        oracle_put(q->args.dst_dtype, q->dst, i, (double)q->start); /* for the next instruction set */
    }
    CHECK((differ > 0) == (q->args.divisor != 4.0f));
}

TEST(sums_over_ranks_are_divided_not_scaled)
{
    static const float divisors[] = {3.0f, 5.0f, 0.7f, 6.0f, 4.0f};
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static uint16_t narrow[MOST_RANKS][RANKED];
    static float values[MOST_RANKS][RANKED], out[RANKED];
    const void *srcs[MOST_RANKS];

    for (int count = 1; count <= MOST_RANKS; count++)
        for (int t = 0; t < 27 * 2; t++) {
            quotients q = {.start = 0.5f, .dst = out};

            q.args = (fsdp__reduce_ranks_args){.srcs = srcs,
                                               .count = count,
                                               .dst = out,
                                               .numel = RANKED,
                                               .src_dtype = types[t % 3],
                                               .dst_dtype = types[t / 3 % 3],
                                               .divisor = divisors[(t / 9 + count) % 5],
                                               .accumulate = t >= 27};
            for (int i = 0; i < RANKED; i++) {
                q.sums[i] = 0;
                for (int r = 0; r < count; r++) {
                    values[r][i] = (float)((i * 7 + r * 31) % 61 - 20); /* exact in every dtype, as are the sums */
                    oracle_put(q.args.src_dtype, q.args.src_dtype == FSDP_F32 ? (void *)values[r] : (void *)narrow[r],
                               i, (double)values[r][i]);
                    q.sums[i] += values[r][i];
                }
                oracle_put(q.args.dst_dtype, out, i, (double)q.start);
            }
            for (int r = 0; r < count; r++)
                srcs[r] = q.args.src_dtype == FSDP_F32 ? (void *)values[r] : (void *)narrow[r];
            run_all(FSDP__KERNEL_REDUCE_RANKS, &q.args, see_quotients, &q);
        }
}

TEST(minus_infinity_has_probability_zero)
{
    ordinary_row();
    for (int i = 1; i < N; i += 3)
        row[i] = -INFINITY;
    run_all(FSDP__KERNEL_SOFTMAX_FORWARD,
            &(fsdp__softmax_forward_args){.x = row, .y = out_row, .rows = 1, .cols = N, .dtype = FSDP_F32}, see_masked,
            NULL);
}

static void see_infinite(const void *sum)
{
    CHECK(isinf(fsdp__digit_sum_value(sum)));
}

TEST(an_infinite_gradient_shows_in_the_norm)
{
    fsdp__span span = {.src = row, .numel = N};
    fsdp__digit_sum sum;

    ordinary_row();
    row[N - 1] = -INFINITY;
    run_all(FSDP__KERNEL_POWER_SUM,
            &(fsdp__power_sum_args){.spans = &span, .count = 1, .dtype = FSDP_F32, .p = 2, .sum = &sum}, see_infinite,
            &sum);
}

/* ---- elementary functions ---- */

TEST(exp_erf_sin_and_cos_are_accurate)
{
    for (int i = 0; i < 2000000; i++) {
        float x = -87.0f + 175.0f * (float)i / 2e6f, z = -6.0f + 12.0f * (float)i / 2e6f, angle = 0.013f * (float)i;
        float sine, cosine;
        double e = exp((double)x);
        fsdp__sincosf(angle, &sine, &cosine);
        if (fabs((double)fsdp__expf(x) - e) > 2e-7 * e)
            TEST_FAIL("exp(%.9g) is %.9g", (double)x, (double)fsdp__expf(x));
        if (fabs((double)fsdp__erff(z) - erf((double)z)) > 2e-7 * fabs(erf((double)z)))
            TEST_FAIL("erf(%.9g) is %.9g", (double)z, (double)fsdp__erff(z));
        if (fabs((double)sine - sin((double)angle)) > 1.2e-7 || fabs((double)cosine - cos((double)angle)) > 1.2e-7)
            TEST_FAIL("sin, cos(%.9g) are %.9g, %.9g", (double)angle, (double)sine, (double)cosine);
    }
    CHECK(fsdp__expf(-INFINITY) == 0.0f);
    CHECK(fsdp__expf(-200.0f) == 0.0f);
    CHECK(isinf(fsdp__expf(INFINITY)) && isinf(fsdp__expf(1000.0f)));
    CHECK(isnan(fsdp__expf(NAN)) && isnan(fsdp__erff(NAN)));
    CHECK(fsdp__erff(INFINITY) == 1.0f && fsdp__erff(-INFINITY) == -1.0f);
}

/* Computes x^p as the kernels of binary.c do. */
static float power_of(float x, float p)
{
    float low, high = fsdp__log2_times(fsdp__bits_float(fsdp__float_bits(x) & 0x7fffffffu), p, &low);

    return fsdp__pow_of(x, p, fsdp__exp2f(high, low));
}

TEST(powers_of_what_is_no_ordinary_number_are_those_of_c)
{
    static const float values[] = {0.0f,     -0.0f,     1.0f,    -1.0f, 2.0f,   -2.0f,  0.5f, -0.5f,
                                   INFINITY, -INFINITY, 0x1p24f, 3.0f,  1e-30f, -1e30f, NAN};

    for (size_t i = 0; i < FSDP__COUNT_OF(values); i++)
        for (size_t j = 0; j < FSDP__COUNT_OF(values); j++) {
            float got = power_of(values[i], values[j]), expected = powf(values[i], values[j]);

            if (!(isnan(expected) && isnan(got)) && (got != expected || signbit(got) != signbit(expected)))
                TEST_FAIL("%g to the power of %g is %g", (double)values[i], (double)values[j], (double)got);
        }
}

/* Within 1 ulp for every usual number, whatever the exponent is; and right where a float has the power. */
TEST(powers_are_accurate)
{
    uint32_t bits = 12345;

    for (int i = 0; i < 2000000; i++) {
        float x = fsdp__bits_float((bits = bits * 1664525u + 1013904223u) >> 1), p, y;
        double expected;
        int exponent;

        if (!isnormal(x) || x == 1.0f)
            continue;
        x = i % 3 ? x : 1.0f + 1e-3f * (float)(i % 2003 - 1001); /* near 1 powers are large */
        p = (float)((-125.0 + 252.0 * (double)(i % 9973) / 9973.0) / log2((double)x));
        expected = pow((double)x, (double)p);
        if (!isfinite(p) || expected < 0x1p-126 || expected >= 0x1p128)
            continue;
        y = power_of(x, p);
        frexp(expected, &exponent);
        if (fabs((double)y - expected) > ldexp(1.0, exponent - 24))
            TEST_FAIL("%.9g to the power of %.9g is %.9g", (double)x, (double)p, (double)y);
    }
    for (int base = -300; base <= 300; base++)
        for (int p = -2; p <= 12; p++)
            if (p >= 0 ? fabs(pow(base, p)) <= 0x1p24 : base != 0 && (base & (base - 1)) == 0)
                CHECK(power_of((float)base, (float)p) == (float)pow(base, p));
    CHECK(power_of(2.0f, -127.0f) == 0.0f && power_of(2.0f, -126.0f) == 0x1p-126f);
    CHECK(power_of(2.0f, 127.0f) == 0x1p127f && isinf(power_of(-2.0f, 129.0f)));
}
