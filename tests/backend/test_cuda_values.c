/* Kernels of CUDA devices, compiled for the host (cudash), beside the CPU's: numbers that are not ordinary come out as
 * they do there, random bits are the same, and copies have all dtypes and dimensions. */
#include <fenv.h>
#include <math.h>

#include "backend/cpu/kernels_table.h"
#include "backend/cuda/kernels_table.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "oracle/oracle.h"
#include "support/test.h"

/* Denormals have a test of their own: the CPU takes them for zero. */
static const double odd[] = {0.0, -0.0,     1.0,       -1.0, 0.5,  -0.5,  2.0,   -2.0,  3.0,   -7.0,   3e38,
                             NAN, INFINITY, -INFINITY, 6e-8, 30.0, -30.0, -3e38, 1e-30, 100.0, -100.0, 65504.0};

enum {
    ODD = FSDP__COUNT_OF(odd),
    PAIRS = ODD * ODD,
    DRAWS = 5000
};

static const fsdp_dtype floats[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
static const fsdp_dtype all_types[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};

/* Every pair of odd numbers, in the dtype of the case. */
static uint64_t left[PAIRS], right[PAIRS];
/* What the kernel writes, and what the CPU's has written. */
static uint64_t out[PAIRS], other_out[PAIRS], want[PAIRS], other_want[PAIRS];

static void draw_pairs(fsdp_dtype dtype)
{
    for (int i = 0; i < PAIRS; i++) {
        oracle_put(dtype, left, i, odd[i / ODD]);
        oracle_put(dtype, right, i, odd[i % ODD]);
    }
}

/* NaN where the CPU has one, a zero with the CPU's sign if `signs`, another number within a few roundings; denormals
 * may be 0. */
static void compare(fsdp_dtype dtype, const void *expected, const void *got, int n, bool signs, const char *what,
                    int op)
{
    double one = dtype == FSDP_BF16 ? 0x1p-7 : dtype == FSDP_F16 ? 0x1p-10 : 0x1p-20;
    double least = dtype == FSDP_F16 ? 0x1p-24 : 0x1p-126;

    for (int i = 0; i < n; i++) {
        double a = oracle_get(dtype, expected, i), b = oracle_get(dtype, got, i);
        bool same = a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= one * fabs(a) + least;

        if (!same || (signs && a == 0.0 && b == 0.0 && signbit(a) != signbit(b)))
            TEST_FAIL("%s %d of %s, of %g and %g: %.9g, on the CPU %.9g", what, op, fsdp_dtype_name(dtype),
                      oracle_get(dtype, left, i), oracle_get(dtype, right, i), b, a);
    }
}

/* Runs the kernel on the CPU, which leaves its results in `want`, and here. */
static void both(fsdp__kernel kernel, const void *args)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context)));

    CHECK_OK(fsdp__cpu_isa_kernels(FSDP__CPU_BASE)[kernel](stream, args));
    memcpy(want, out, sizeof want);
    memcpy(other_want, other_out, sizeof other_want);
    memset(out, 0x55, sizeof out);
    memset(other_out, 0x55, sizeof other_out);
    CHECK_OK(fsdp__cuda_kernels[kernel](stream, args));
    fsdp_context_free(context);
}

TEST(functions_of_two_odd_numbers_are_the_cpu_s)
{
    for (int t = 0; t < 3; t++)
        for (fsdp__binary_op op = FSDP__ADD; op <= FSDP__OR; op++)
            for (int number = 0; number < 2; number++) {
                fsdp__binary_args k = {.a = left,
                                       .b = number ? NULL : right,
                                       .y = out,
                                       .ndim = 1,
                                       .shape = {PAIRS},
                                       .a_strides = {1},
                                       .b_strides = {1},
                                       .scalar = 0.5f,
                                       .beta = 1.0f,
                                       .op = op,
                                       .dtype = floats[t]};

                draw_pairs(k.dtype);
                both(FSDP__KERNEL_BINARY, &k);
                compare(op >= FSDP__EQ ? FSDP_BOOL : k.dtype, want, out, PAIRS, op <= FSDP__MINIMUM, "function", op);
            }
}

TEST(gradients_of_two_odd_numbers_are_the_cpu_s)
{
    for (int t = 0; t < 3; t++)
        for (fsdp__binary_op op = FSDP__MUL; op <= FSDP__BCE_LOGITS; op++) {
            uint64_t dy = 0;
            fsdp__binary_backward_args k = {.forward = {.a = left,
                                                        .b = right,
                                                        .ndim = 2,
                                                        .shape = {ODD, ODD},
                                                        .a_strides = {ODD, 1},
                                                        .b_strides = {ODD, 1},
                                                        .beta = 1.0f,
                                                        .op = op,
                                                        .dtype = floats[t]},
                                            .dy = &dy,
                                            .da = out,
                                            .db = other_out};

            if (op == FSDP__SUB)
                continue;
            draw_pairs(floats[t]);
            oracle_put(floats[t], &dy, 0, 1.5);
            both(FSDP__KERNEL_BINARY_BACKWARD, &k);
            compare(floats[t], want, out, PAIRS, false, "left gradient", op);
            compare(floats[t], other_want, other_out, PAIRS, false, "right gradient", op);
        }
}

TEST(functions_of_an_odd_number_and_their_gradients_are_the_cpu_s)
{
    for (int t = 0; t < 3; t++)
        for (fsdp__unary_op op = FSDP__EXP; op <= FSDP__CLAMP; op++)
            for (int bounds = 0; bounds < 2; bounds++) {
                float low = bounds ? -0.5f : -INFINITY, high = bounds ? 2.0f : INFINITY;
                fsdp__unary_forward_args k = {
                    .x = left, .y = out, .numel = PAIRS, .low = low, .high = high, .op = op, .dtype = floats[t]};
                fsdp__unary_backward_args g = {.saved = left,
                                               .dy = right,
                                               .dx = out,
                                               .numel = PAIRS,
                                               .low = low,
                                               .high = high,
                                               .op = op,
                                               .dtype = floats[t]};

                draw_pairs(k.dtype);
                both(FSDP__KERNEL_UNARY_FORWARD, &k);
                compare(k.dtype, want, out, PAIRS, op != FSDP__TANH, "function", op);
                both(FSDP__KERNEL_UNARY_BACKWARD, &g);
                compare(k.dtype, want, out, PAIRS, true, "gradient", op);
            }
}

TEST(activations_of_odd_numbers_are_the_cpu_s)
{
    for (int t = 0; t < 3; t++) {
        fsdp__swiglu_forward_args s = {
            .gate = left, .up = right, .y = out, .rows = 1, .cols = PAIRS, .dtype = floats[t]};
        fsdp__swiglu_backward_args b = {.gate = left,
                                        .up = right,
                                        .dy = right,
                                        .dgate = out,
                                        .dup = other_out,
                                        .rows = 1,
                                        .cols = PAIRS,
                                        .dtype = floats[t]};

        draw_pairs(floats[t]);
        both(FSDP__KERNEL_SWIGLU_FORWARD, &s);
        compare(floats[t], want, out, PAIRS, true, "swiglu", 0);
        both(FSDP__KERNEL_SWIGLU_BACKWARD, &b);
        compare(floats[t], want, out, PAIRS, true, "gradient of the gate", 0);
        compare(floats[t], other_want, other_out, PAIRS, true, "gradient of up", 0);
        for (fsdp__activation kind = FSDP__GELU_TANH; kind <= FSDP__RELU; kind++) {
            fsdp__activation_forward_args k = {
                .x = left, .bias = right, .y = out, .rows = ODD, .cols = ODD, .kind = kind, .dtype = floats[t]};
            fsdp__activation_backward_args g = {
                .x = left, .dy = right, .dx = out, .rows = ODD, .cols = ODD, .kind = kind, .dtype = floats[t]};

            both(FSDP__KERNEL_ACTIVATION_FORWARD, &k);
            compare(floats[t], want, out, PAIRS, true, "activation", kind);
            both(FSDP__KERNEL_ACTIVATION_BACKWARD, &g);
            compare(floats[t], want, out, PAIRS, true, "gradient", kind);
        }
    }
}

TEST(odd_numbers_are_scaled_chosen_and_reduced_as_on_the_cpu)
{
    static uint8_t mask[PAIRS];

    for (int i = 0; i < PAIRS; i++)
        mask[i] = (uint8_t)(i % 3); /* 2 is true as well */
    for (int t = 0; t < 3; t++) {
        fsdp__scale_args s = {.x = left, .y = out, .alpha = -0.5f, .numel = PAIRS, .dtype = floats[t]};
        fsdp__where_args w = {.mask = mask,
                              .a = left,
                              .y = out,
                              .ndim = 1,
                              .shape = {PAIRS},
                              .mask_strides = {1},
                              .a_strides = {1},
                              .b_scalar = -0.0,
                              .dtype = floats[t]};

        draw_pairs(floats[t]);
        both(FSDP__KERNEL_SCALE, &s);
        compare(floats[t], want, out, PAIRS, true, "scale", 0);
        both(FSDP__KERNEL_WHERE, &w);
        compare(floats[t], want, out, PAIRS, true, "where", 0);
        for (int op = 0; op < 3; op++)
            for (int rows = 0; rows < 2; rows++) {
                fsdp__reduce_args r = {.x = right,
                                       .y = out,
                                       .outer = rows ? PAIRS / 2 : 1,
                                       .reduced = rows ? 2 : ODD,
                                       .inner = rows ? 1 : ODD,
                                       .alpha = 1.0f,
                                       .op = (fsdp__reduce_op)op,
                                       .x_dtype = floats[t],
                                       .y_dtype = floats[t]};

                both(FSDP__KERNEL_REDUCE, &r);
                compare(floats[t], want, out, (int)(r.outer * r.inner), true, "reduction", op);
            }
    }
}

TEST(denormals_stay_what_they_are)
{
    static const double values[] = {1e-40, -1e-40, 0x1p-149, 0x1p-24, -3e-8, 0x1.8p-133, 0x1p-126, -0.0, 6e-6};
    const int n = FSDP__COUNT_OF(values);
    fenv_t environment;

    CHECK(fegetenv(&environment) == 0);
    CHECK(fesetenv(FE_DFL_ENV) == 0); /* this thread's flushes them */
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            fsdp__scale_args s = {.x = left, .y = out, .alpha = 1.0f, .numel = n, .dtype = floats[from]};
            fsdp__copy_args k = {.src = left,
                                 .dst = out,
                                 .src_dtype = floats[from],
                                 .dst_dtype = floats[to],
                                 .ndim = 1,
                                 .shape = {n},
                                 .src_strides = {1},
                                 .dst_strides = {1}};

            for (int i = 0; i < n; i++)
                oracle_put(floats[from], left, i, values[i]);
            CHECK_OK(fsdp__cuda_kernels[FSDP__KERNEL_SCALE](NULL, &s));
            CHECK(memcmp(left, out, (size_t)n * fsdp_dtype_size(floats[from])) == 0);
            CHECK_OK(fsdp__cuda_kernels[FSDP__KERNEL_COPY](NULL, &k));
            for (int i = 0; i < n; i++)
                CHECK(oracle_get(floats[to], out, i) == oracle_round(floats[to], oracle_get(floats[from], left, i)));
        }
    CHECK(fesetenv(&environment) == 0);
}

/* ---- copies ---- */

/* What no integer can hold becomes the smallest, and that is cut as integers are. */
TEST(odd_numbers_become_those_of_any_dtype_as_on_the_cpu)
{
    for (int from = 0; from < 7; from++)
        for (int to = 0; to < 7; to++) {
            fsdp__copy_args k = {.src = left,
                                 .dst = out,
                                 .src_dtype = all_types[from],
                                 .dst_dtype = all_types[to],
                                 .ndim = 1,
                                 .shape = {ODD},
                                 .src_strides = {1},
                                 .dst_strides = {1}};

            for (int i = 0; i < ODD; i++)
                oracle_put(k.src_dtype, left, i, fsdp_dtype_is_floating(k.src_dtype) ? odd[i] : 3.0 * i - 7.0);
            both(FSDP__KERNEL_COPY, &k);
            if (fsdp_dtype_is_floating(k.dst_dtype))
                compare(k.dst_dtype, want, out, ODD, true, fsdp_dtype_name(k.src_dtype), 0);
            else if (memcmp(out, want, ODD * fsdp_dtype_size(k.dst_dtype)) != 0)
                TEST_FAIL("%s to %s differs", fsdp_dtype_name(k.src_dtype), fsdp_dtype_name(k.dst_dtype));
        }
}

TEST(six_dimensions_in_another_order_are_copied)
{
    static const int64_t shape[6] = {2, 3, 2, 4, 3, 2};
    fsdp__copy_args k = {.src = left,
                         .dst = out,
                         .src_dtype = FSDP_I32,
                         .dst_dtype = FSDP_I32,
                         .ndim = 6,
                         .dst_strides = {144, 48, 24, 6, 2, 1}};
    int64_t next = 1;

    for (int d = 0; d < 6; d++) { /* the first one is the source's innermost */
        k.shape[d] = shape[d];
        k.src_strides[d] = next;
        next *= shape[d];
    }
    for (int i = 0; i < 288; i++)
        ((int32_t *)left)[i] = i;
    both(FSDP__KERNEL_COPY, &k);
    CHECK(memcmp(out, want, 288 * sizeof(int32_t)) == 0);
    CHECK_EQ(((int32_t *)out)[287], 287);
    CHECK_EQ(((int32_t *)out)[1], 144);
}

/* ---- random numbers ---- */

static uint64_t drawn[DRAWS], drawn_there[DRAWS], numbers[DRAWS];

/* Runs the kernel with the CPU's best instructions into `drawn`, and here into `drawn_there`. Returns whether the CPU
 * rounds a product and a sum once, as here. */
static bool draw_both(fsdp__kernel kernel, const void *here, const void *there)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context)));
    fsdp__cpu_isa isa = FSDP__CPU_ISAS;

    while (!fsdp__cpu_isa_kernels(--isa))
        ;
    CHECK_OK(fsdp__cpu_isa_kernels(isa)[kernel](stream, here));
    CHECK_OK(fsdp__cuda_kernels[kernel](stream, there));
    fsdp_context_free(context);
    return isa != FSDP__CPU_BASE;
}

/* Counters that begin anywhere, also past 2^32. */
static const uint64_t offsets[] = {0, 1, 2, 3, 4, 123456789, 4 * 0xffffffffull - 6};

TEST(uniform_numbers_have_the_cpu_s_bits_and_normal_ones_are_near)
{
    static const float spans[][2] = {
        {0.0f, 1.0f}, {-0.25f, 0.5f}, {-0.02f, 0.04f}}; /* products are exact but the last */

    for (int t = 0; t < 3; t++)
        for (size_t o = 0; o < FSDP__COUNT_OF(offsets); o++)
            for (int s = 0; s < 3; s++) {
                fsdp__random_args k = {.dst = drawn,
                                       .numel = DRAWS - (int64_t)o,
                                       .key = 0x123456789abcdefull + o,
                                       .offset = offsets[o],
                                       .a = spans[s][0],
                                       .b = spans[s][1],
                                       .distribution = FSDP__UNIFORM,
                                       .dtype = floats[t]};
                fsdp__random_args there = k;

                there.dst = drawn_there;
                if (!draw_both(FSDP__KERNEL_RANDOM, &k, &there) && s == 2)
                    continue;
                CHECK(memcmp(drawn, drawn_there, (size_t)k.numel * fsdp_dtype_size(k.dtype)) == 0);
                k.distribution = there.distribution = FSDP__NORMAL;
                draw_both(FSDP__KERNEL_RANDOM, &k, &there);
                for (int i = 0; i < k.numel; i++) {
                    double a = oracle_get(k.dtype, drawn, i), b = oracle_get(k.dtype, drawn_there, i);
                    double step = k.dtype == FSDP_BF16 ? 0x1p-7 : k.dtype == FSDP_F16 ? 0x1p-10 : 0x1p-22;

                    if (fabs(a - b) > step * fabs(a) + 2e-6 * (double)k.b)
                        TEST_FAIL("normal number %d: %.9g, on the CPU %.9g", i, b, a);
                }
            }
}

TEST(masks_of_dropout_have_the_cpu_s_bits)
{
    static const float shares[] = {0.0f, 0.1f, 1.0f};

    for (int t = 0; t < 3; t++)
        for (size_t o = 0; o < FSDP__COUNT_OF(offsets); o++)
            for (int p = 0; p < 4; p++) {
                fsdp__dropout_args k = {.x = numbers,
                                        .y = drawn,
                                        .numel = DRAWS - (int64_t)o,
                                        .key = 77 + o,
                                        .offset = offsets[o],
                                        .p = p < 3 ? shares[p] : fsdp__rng_uniform(77 + o, offsets[o] + 9), /* kept */
                                        .dtype = floats[t]};
                fsdp__dropout_args there = k;

                for (int i = 0; i < DRAWS; i++)
                    oracle_put(k.dtype, numbers, i, 0.37 * i - 900.0);
                there.y = drawn_there;
                draw_both(FSDP__KERNEL_DROPOUT, &k, &there);
                CHECK(memcmp(drawn, drawn_there, (size_t)k.numel * fsdp_dtype_size(k.dtype)) == 0);
            }
}
