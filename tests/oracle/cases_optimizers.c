/* cases_optimizers.c - calls of optimizers, and of what decides about their steps. */
#include "oracle/cases.h"

#include <math.h>
#include <stddef.h>

/* The call on a device of its own; its results are read back. */
static void power_sum_there(const test_case *c, fsdp_device *device, const fsdp__power_sum_args *k)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    size_t bytes[SEGMENTS], result_bytes = isinf(k->p) ? sizeof *k->largest : sizeof *k->sum;
    fsdp__span spans[SEGMENTS];
    fsdp__power_sum_args a = *k;
    void *result;

    a.spans = spans;
    CHECK_OK(fsdp__device_alloc(device, result_bytes, FSDP_MEMORY_WORKSPACE, &result));
    a.sum = isinf(k->p) ? NULL : result;
    a.largest = isinf(k->p) ? result : NULL;
    for (int64_t s = 0; s < k->count; s++) {
        spans[s] = k->spans[s];
        bytes[s] = (size_t)spans[s].numel * fsdp_dtype_size(c->dtype) + 1;
        CHECK_OK(fsdp__device_alloc(device, bytes[s], FSDP_MEMORY_WORKSPACE, (void **)(uintptr_t)&spans[s].src));
        CHECK_OK(fsdp__copy_to_device(stream, (void *)(uintptr_t)spans[s].src, k->spans[s].src, bytes[s] - 1));
    }
    if (k->accumulate && a.sum)
        CHECK_OK(fsdp__copy_to_device(stream, result, k->sum, result_bytes));
    CHECK_OK(fsdp__launch(stream, c->kernel, &a));
    CHECK_OK(fsdp__copy_to_host(stream, isinf(k->p) ? (void *)k->largest : k->sum, result, result_bytes));
    CHECK_OK(fsdp_stream_synchronize(stream));
    for (int64_t s = 0; s < k->count; s++)
        fsdp__device_free(device, (void *)(uintptr_t)spans[s].src, bytes[s], FSDP_MEMORY_WORKSPACE);
    fsdp__device_free(device, result, result_bytes, FSDP_MEMORY_WORKSPACE);
}

/* To the bit, in another order; but a device may have a pow of its own. */
static void check_power_sum(const oracle_table *table, const fsdp__power_sum_args *k, double expected)
{
    double got = isinf(k->p) ? *k->largest : fsdp__digit_sum_value(k->sum);
    bool own_powers = table->own_functions && !isinf(k->p) && k->p != 1.0 && k->p != 2.0;

    if (own_powers ? fabs(got - expected) > 1e-15 * expected : got != expected)
        TEST_FAIL("power_sum of %ld spans, p %g (%s): %.17g, expected %.17g", (long)k->count, k->p, table->name, got,
                  expected);
}

void power_sum_case(test_case *c)
{
    fsdp__span spans[SEGMENTS] = {{0}};
    static const double orders[] = {2, 1, 3, 0.5, INFINITY};
    fsdp__digit_sum sum, before = {.places = {[30] = between(c, 0, 1 << 20)}};
    double largest, expected;
    fsdp__power_sum_args a = {.spans = spans,
                              .count = between(c, 0, SEGMENTS),
                              .dtype = c->dtype,
                              .p = orders[between(c, 0, 4)],
                              .sum = &sum, /* what no buffer holds is checked here */
                              .largest = &largest,
                              .accumulate = coin(c)};

    before.places[0] = !a.accumulate; /* of no value */
    for (int64_t s = 0; s < a.count; s++) {
        double bound = ldexp(2.0, (int)between(c, -14, 12));

        spans[s].numel = a_size(c, 50000);
        spans[s].src = an_input(c, c->dtype, spans[s].numel, -bound, bound);
    }
    sum = before;
    oracle_power_sum(&a);
    expected = isinf(a.p) ? largest : fsdp__digit_sum_value(&sum);
    for (int i = 0; i < c->table_count; i++) {
        for (int threads = 1; threads <= c->tables[i].most_threads; threads++) {
            use_threads(threads);
            sum = before, largest = -1.0;
            CHECK_OK(c->tables[i].kernels[c->kernel](c->stream, &a));
            check_power_sum(&c->tables[i], &a, expected);
        }
        if (c->tables[i].device) {
            sum = before, largest = -1.0;
            power_sum_there(c, c->tables[i].device, &a);
            check_power_sum(&c->tables[i], &a, expected);
        }
    }
    free_case(c);
}

enum {
    LOSSES = 3
};

/* All that a verdict is made of and from, as it lies on a device. */
typedef struct judged {
    fsdp__digit_sum sum;
    fsdp__verdict verdict;
    float losses[LOSSES];
} judged;

static void judge_there(const test_case *c, fsdp_device *device, judged *j, const fsdp__judge_step_args *k)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    fsdp__judge_step_args a = *k;
    void *there;

    CHECK_OK(fsdp__device_alloc(device, sizeof *j, FSDP_MEMORY_WORKSPACE, &there));
    CHECK_OK(fsdp__copy_to_device(stream, there, j, sizeof *j));
    a.sum = there;
    a.verdict = (void *)((char *)there + offsetof(judged, verdict));
    a.losses = (void *)((char *)there + offsetof(judged, losses));
    CHECK_OK(fsdp__launch(stream, c->kernel, &a));
    CHECK_OK(fsdp__copy_to_host(stream, j, there, sizeof *j));
    CHECK_OK(fsdp_stream_synchronize(stream));
    fsdp__device_free(device, there, sizeof *j, FSDP_MEMORY_WORKSPACE);
}

/* To the bit; but a NaN may be any. */
static void check_verdict(const oracle_table *table, const fsdp__verdict *got, const fsdp__verdict *expected)
{
    bool same_norm = got->norm == expected->norm || (isnan(got->norm) && isnan(expected->norm));
    bool same_scale = got->scale == expected->scale || (isnan(got->scale) && isnan(expected->scale));

    if (!same_norm || !same_scale || got->left_out != expected->left_out ||
        got->left_out_before != expected->left_out_before)
        TEST_FAIL("judge_step (%s): norm %.17g scale %.9g left out %d %d, expected %.17g %.9g %d %d", table->name,
                  got->norm, (double)got->scale, got->left_out, got->left_out_before, expected->norm,
                  (double)expected->scale, expected->left_out, expected->left_out_before);
}

void judge_step_case(test_case *c)
{
    static const float limits[] = {0.0f, 1.0f, 1e-3f, 1e6f, INFINITY};
    static const float values[] = {1.0f, 1.0f, 1.0f, NAN, -INFINITY};
    judged first = {.verdict = {.norm = 7, .scale = 7, .left_out = coin(c), .left_out_before = coin(c)}}, j;
    fsdp__judge_step_args a = {.sum = &j.sum,
                               .losses = j.losses,
                               .count = between(c, 0, LOSSES),
                               .verdict = &j.verdict,
                               .max_norm = limits[between(c, 0, 4)],
                               .takes_all = coin(c),
                               .stays = coin(c)};
    fsdp__verdict expected;

    first.sum.nan = between(c, 0, 5) == 0;
    first.sum.infinite = between(c, 0, 5) == 0;
    for (int place = 30; place < 50; place++)
        first.sum.places[place] = between(c, 0, 2) ? 0 : between(c, 0, 1 << 30);
    for (int i = 0; i < LOSSES; i++)
        first.losses[i] = values[between(c, 0, 4)];
    j = first;
    oracle_judge_step(&a);
    expected = j.verdict;
    for (int i = 0; i < c->table_count; i++) {
        j = first;
        if (c->tables[i].device)
            judge_there(c, c->tables[i].device, &j, &a);
        else
            CHECK_OK(c->tables[i].kernels[c->kernel](c->stream, &a));
        check_verdict(&c->tables[i], &j.verdict, &expected);
    }
    free_case(c);
}

/* A verdict on a step, or NULL. What lies behind it is never looked at. */
static const fsdp__verdict *a_verdict(test_case *c)
{
    fsdp__verdict *verdict = (void *)(uintptr_t)an_input(c, FSDP_I64, sizeof *verdict / sizeof(int64_t), 0.0, 0.0);

    *verdict = (fsdp__verdict){
        .norm = 1, .scale = 0.25f, .left_out = between(c, 0, 3) == 0, .left_out_before = between(c, 0, 1) == 0};
    return coin(c) ? verdict : NULL;
}

/* The parameter's dtype is drawn, too. */
static int64_t optimizer_segments(test_case *c, fsdp__optimizer_span *spans, fsdp_dtype param_dtype, bool second,
                                  double tolerance)
{
    int64_t count = between(c, 0, 4);

    for (int64_t s = 0; s < count; s++) {
        fsdp__optimizer_span *g = &spans[s];
        g->numel = a_size(c, 20000);
        g->param = an_output(c, param_dtype, g->numel, tolerance, tolerance);
        g->grad = an_input(c, c->dtype, g->numel, -1.0, 1.0);
        g->moment1 = an_output(c, FSDP_F32, g->numel, 1e-6, 1e-6);
        g->moment2 = second ? a_buffer(c, FSDP_F32, g->numel, 0.01, 1.0, true, 1e-6, 1e-6) : NULL;
        g->copy = NULL;
    }
    return count;
}

/* Draws copies of some of the parameters, and gives their dtype. A parameter that was rounded the other way is a step
 * of its own dtype off, and so is its copy. */
static void *a_copy(test_case *c, fsdp_dtype dtype, fsdp_dtype param_dtype, int64_t numel)
{
    double step = param_dtype == FSDP_F32 ? 1e-6 : param_dtype == FSDP_BF16 ? 0x1p-7 : 0x1p-10;

    return dtype != FSDP_DTYPE_NONE && between(c, 0, 3) > 0 ? an_output(c, dtype, numel, step, 1e-6) : NULL;
}

static fsdp_dtype draw_copies(test_case *c, fsdp__optimizer_span *spans, int64_t count, fsdp_dtype param_dtype)
{
    fsdp_dtype dtype = coin(c) ? any_float(c) : FSDP_DTYPE_NONE;

    for (int64_t s = 0; s < count; s++)
        spans[s].copy = a_copy(c, dtype, param_dtype, spans[s].numel);
    return dtype;
}

void adam_case(test_case *c)
{
    fsdp__optimizer_span spans[SEGMENTS];
    fsdp__adam_args a = {.spans = spans,
                         .param_dtype = any_float(c),
                         .grad_dtype = c->dtype,
                         .lr = 1e-3,
                         .beta1 = 0.9,
                         .beta2 = coin(c) ? 0.999 : 0.95,
                         .eps = 1e-8,
                         .weight_decay = coin(c) ? 0.1 : 0.0,
                         .grad_scale = coin(c) ? 1.0f : 0.3f,
                         .verdict = a_verdict(c),
                         .step = coin(c) ? 1 : between(c, 2, 1000),
                         .decoupled = coin(c)};

    a.behind = a.step > 1 && coin(c);
    a.count = optimizer_segments(c, spans, a.param_dtype, true, 1e-6);
    a.copy_dtype = draw_copies(c, spans, a.count, a.param_dtype);
    check(c, &a, "%ld spans, step %ld, decay %g, decoupled %d, verdict %d, behind %d, copy %d", (long)a.count,
          (long)a.step, a.weight_decay, a.decoupled, a.verdict != NULL, a.behind, (int)a.copy_dtype);
}

void sgd_case(test_case *c)
{
    fsdp__optimizer_span spans[SEGMENTS];
    fsdp__sgd_args a = {.spans = spans,
                        .param_dtype = any_float(c),
                        .grad_dtype = c->dtype,
                        .lr = 0.1,
                        .momentum = coin(c) ? 0.9 : 0.0,
                        .dampening = coin(c) ? 0.0 : 0.1,
                        .weight_decay = coin(c) ? 0.01 : 0.0,
                        .grad_scale = coin(c) ? 1.0f : 0.3f,
                        .verdict = a_verdict(c),
                        .step = between(c, 1, 3),
                        .nesterov = coin(c)};

    a.behind = a.step > 1 && coin(c);
    a.count = optimizer_segments(c, spans, a.param_dtype, false, 1e-6);
    for (int64_t s = 0; a.momentum == 0.0 && s < a.count; s++)
        spans[s].moment1 = NULL;
    a.copy_dtype = draw_copies(c, spans, a.count, a.param_dtype);
    check(c, &a, "%ld spans, momentum %g, nesterov %d, step %ld, verdict %d, behind %d, copy %d", (long)a.count,
          a.momentum, a.nesterov, (long)a.step, a.verdict != NULL, a.behind, (int)a.copy_dtype);
}

/* The sign of what decides is sure: gradients of a call have one sign, and outweigh the momentum. */
void lion_case(test_case *c)
{
    fsdp__optimizer_span spans[SEGMENTS] = {{0}};
    fsdp__lion_args a = {.spans = spans,
                         .count = between(c, 0, 4),
                         .param_dtype = any_float(c),
                         .grad_dtype = c->dtype,
                         .lr = 1e-2,
                         .beta1 = coin(c) ? 0.5 : 0.3,
                         .beta2 = 0.99,
                         .weight_decay = coin(c) ? 0.1 : 0.0,
                         .grad_scale = 0.7f,
                         .verdict = a_verdict(c)};
    double sign = coin(c) ? 1.0 : -1.0;

    for (int64_t s = 0; s < a.count; s++) {
        fsdp__optimizer_span *g = &spans[s];

        g->numel = a_size(c, 20000);
        g->param = an_output(c, a.param_dtype, g->numel, 1e-6, 1e-6);
        g->grad = an_input(c, c->dtype, g->numel, sign > 0 ? 0.5 : -1.0, sign > 0 ? 1.0 : -0.5);
        g->moment1 = a_buffer(c, FSDP_F32, g->numel, -0.05, 0.05, true, 1e-6, 1e-6);
    }
    a.copy_dtype = draw_copies(c, spans, a.count, a.param_dtype);
    check(c, &a, "%ld spans, decay %g, verdict %d, copy %d", (long)a.count, a.weight_decay, a.verdict != NULL,
          (int)a.copy_dtype);
}

void lerp_spans_case(test_case *c)
{
    fsdp__span spans[SEGMENTS] = {{0}};
    fsdp__lerp_spans_args a = {.spans = spans,
                               .count = between(c, 0, 4),
                               .src_dtype = c->dtype,
                               .dst_dtype = any_float(c),
                               .weight = coin(c) ? 1.0f : 0.125f,
                               .scale = coin(c) ? 1.0f : 0.3f,
                               .verdict = a_verdict(c)};

    for (int64_t s = 0; s < a.count; s++) {
        spans[s].numel = a_size(c, 20000);
        spans[s].src = an_input(c, c->dtype, spans[s].numel, -1.0, 1.0);
        spans[s].dst = an_output(c, a.dst_dtype, spans[s].numel, 1e-6, 1e-6);
    }
    check(c, &a, "%ld spans, weight %g, scale %g, verdict %d", (long)a.count, (double)a.weight, (double)a.scale,
          a.verdict != NULL);
}

/* A number that lies between two codes may go to either. */
void byte_adam_case(test_case *c)
{
    fsdp__byte_span spans[SEGMENTS] = {{0}};
    fsdp__byte_adam_args a = {.spans = spans,
                              .count = between(c, 0, 3),
                              .param_dtype = any_float(c),
                              .grad_dtype = c->dtype,
                              .lr = 1e-3,
                              .beta1 = 0.9,
                              .beta2 = coin(c) ? 0.999 : 0.95,
                              .eps = 1e-8,
                              .weight_decay = coin(c) ? 0.1 : 0.0,
                              .grad_scale = coin(c) ? 1.0f : 0.3f,
                              .verdict = a_verdict(c),
                              .step = coin(c) ? 1 : between(c, 2, 1000),
                              .decoupled = coin(c),
                              .copy_dtype = coin(c) ? any_float(c) : FSDP_DTYPE_NONE};

    a.behind = a.step > 1 && coin(c);
    for (int64_t s = 0; s < a.count; s++) {
        fsdp__byte_span *g = &spans[s];
        int64_t numel, scales;

        g->rows = between(c, 0, 20);
        g->cols = between(c, 1, 700);
        numel = g->rows * g->cols;
        scales = g->rows * ((g->cols + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK);
        g->param = an_output(c, a.param_dtype, numel, 2e-6, 2e-6);
        g->grad = an_input(c, c->dtype, numel, -1.0, 1.0);
        g->codes1 = a_buffer(c, FSDP_U8, numel, 0.0, 255.0, true, 0.0, 1.0);
        g->codes2 = a_buffer(c, FSDP_U8, numel, 0.0, 255.0, true, 0.0, 1.0);
        g->scales1 = a_buffer(c, FSDP_F32, scales, 0.01, 1.0, true, 1e-6, 1e-6);
        g->scales2 = a_buffer(c, FSDP_F32, scales, 0.01, 1.0, true, 1e-6, 1e-6);
        g->copy = a_copy(c, a.copy_dtype, a.param_dtype, numel);
    }
    check(c, &a, "%ld spans, step %ld, decay %g, decoupled %d, verdict %d, behind %d, copy %d", (long)a.count,
          (long)a.step, a.weight_decay, a.decoupled, a.verdict != NULL, a.behind, (int)a.copy_dtype);
}
