/* f32 in halves ([Note: split numbers] in device/formulas.h), and Adam's steps on them, by every instruction set of
 * the CPU and by CUDA's kernels on the host. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels_table.h"
#include "backend/cuda/kernels_table.h"
#include "oracle/oracle.h"
#include "support/test.h"

enum {
    HALVES = 65536,
    STEPPED = 1003
};

/* Returns the i-th table; NULL: it is not there. */
static const fsdp__kernel_function *table_at(int i)
{
    const fsdp__kernel_function *kernels =
        i < FSDP__CPU_ISAS ? fsdp__cpu_isa_kernels((fsdp__cpu_isa)i) : fsdp__cuda_kernels;

    return kernels && kernels[FSDP__KERNEL_SPLIT_SPANS] ? kernels : NULL;
}

/* Splits and joins with every table. */
static void split_and_join(const fsdp__split_span *there, const fsdp__split_span *back, void (*see)(const void *),
                           const void *seen)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));

    for (int i = 0; i <= FSDP__CPU_ISAS; i++) {
        if (!table_at(i))
            continue;
        CHECK_OK(table_at(i)[FSDP__KERNEL_SPLIT_SPANS](stream, &(fsdp__split_spans_args){there, 1, false}));
        CHECK_OK(table_at(i)[FSDP__KERNEL_SPLIT_SPANS](stream, &(fsdp__split_spans_args){back, 1, true}));
        see(seen);
    }
    fsdp_context_free(context);
}

typedef struct split_numbers {
    float whole[HALVES], back[HALVES];
    uint16_t high[HALVES], low[HALVES];
} split_numbers;

/* The upper half of a number is at most half a step of bf16 away: as bits, since small numbers may count as zeros. */
static bool is_nearest(uint32_t whole, uint32_t high)
{
    int64_t away = (int64_t)(high << 16) - (int64_t)whole;

    if ((whole & 0x7fffffffu) > 0x7f800000u)
        return (high & 0x7fffu) > 0x7f80u;
    return away >= -0x7fff && away <= 0x8000;
}

static void see_halves(const void *seen)
{
    const split_numbers *x = seen;

    for (int i = 0; i < HALVES; i++) {
        uint32_t whole, back;
        bool nan;

        memcpy(&whole, &x->whole[i], sizeof whole);
        memcpy(&back, &x->back[i], sizeof back);
        nan = (whole & 0x7fffffffu) > 0x7f800000u && (back & 0x7fffffffu) > 0x7f800000u;
        if ((whole != back && !nan) || !is_nearest(whole, x->high[i]))
            TEST_FAIL("%08x in halves comes back as %08x, and the upper one is %04x", whole, back, x->high[i]);
    }
}

/* All lower halves of some upper ones; for `make test-long` of all. */
TEST(every_float_survives_the_way_to_halves_and_back)
{
    static split_numbers x;
    const fsdp__split_span there = {x.whole, x.high, x.low, HALVES}, back = {x.back, x.high, x.low, HALVES};

    for (uint32_t upper = 0; upper < HALVES; upper += test_long() ? 1 : 0x3ff) {
        for (uint32_t i = 0; i < HALVES; i++) {
            uint32_t bits = upper << 16 | i;

            memcpy(&x.whole[i], &bits, sizeof bits);
        }
        split_and_join(&there, &back, see_halves, &x);
    }
}

typedef struct step_numbers {
    float param[STEPPED], moment1[STEPPED], moment2[STEPPED];
    uint16_t high[STEPPED], low[STEPPED];
} step_numbers;

/* Takes one step on whole numbers, and one on halves, by one table. */
static void step_both(fsdp_stream *stream, fsdp__kernel_function adam, fsdp__adam_args args, step_numbers *x,
                      const float *grad)
{
    for (int split = 0; split < 2; split++) {
        const fsdp__optimizer_span span = {split ? (void *)x[1].low : (void *)x[0].param,
                                           grad,
                                           x[split].moment1,
                                           x[split].moment2,
                                           STEPPED,
                                           split ? x[1].high : NULL};

        args.spans = &span;
        args.split = split;
        args.copy_dtype = split ? FSDP_BF16 : FSDP_DTYPE_NONE;
        CHECK_OK(adam(stream, &args));
    }
}

static void check_step(fsdp_stream *stream, const fsdp__kernel_function *kernels, fsdp__adam_args args)
{
    static step_numbers x[2];
    float grad[STEPPED];
    const fsdp__split_span there = {x[0].param, x[1].high, x[1].low, STEPPED};
    const fsdp__split_span back = {x[1].param, x[1].high, x[1].low, STEPPED};

    for (int i = 0; i < STEPPED; i++) {
        x[0].param[i] = (float)sin(i);
        grad[i] = (float)cos(3 * i);
        x[0].moment1[i] = x[1].moment1[i] = (float)cos(5 * i);
        x[0].moment2[i] = x[1].moment2[i] = 0.3f + (float)i;
    }
    CHECK_OK(kernels[FSDP__KERNEL_SPLIT_SPANS](stream, &(fsdp__split_spans_args){&there, 1, false}));
    step_both(stream, kernels[FSDP__KERNEL_ADAM], args, x, grad);
    CHECK_OK(kernels[FSDP__KERNEL_SPLIT_SPANS](stream, &(fsdp__split_spans_args){&back, 1, true}));
    CHECK_BYTES(x[1].param, x[0].param, sizeof x->param);
    CHECK_BYTES(x[1].moment1, x[0].moment1, sizeof x->moment1);
    CHECK_BYTES(x[1].moment2, x[0].moment2, sizeof x->moment2);
}

TEST(a_step_on_halves_has_the_bits_of_one_on_whole_numbers)
{
    const fsdp__verdict verdicts[] = {{.scale = 0.25f}, {.left_out = 1}};
    fsdp_context *context = test_context();
    fsdp__adam_args args = {.count = 1,
                            .param_dtype = FSDP_F32,
                            .grad_dtype = FSDP_F32,
                            .lr = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .grad_scale = 0.3f,
                            .step = 3};

    for (int i = 0; i <= FSDP__CPU_ISAS; i++) {
        for (int way = 0; way < 6 && table_at(i); way++) {
            args.decoupled = way & 1;
            args.verdict = way < 2 ? NULL : &verdicts[way / 2 - 1];
            check_step(fsdp_device_stream(fsdp_cpu(context)), table_at(i), args);
        }
    }
    fsdp_context_free(context);
}
