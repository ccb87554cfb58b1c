/* cases.c - the calls of matrix, memory and elementwise kernels. */
#include "oracle/cases.h"

#include <math.h>

#include "base/compiler.h"

int64_t a_size(test_case *c, int64_t largest)
{
    switch (between(c, 0, 5)) {
    case 0:
        return between(c, 0, 3);
    case 1:
    case 2:
        return between(c, 1, FSDP__MIN(33, largest));
    default:
        return between(c, 1, largest);
    }
}

/* ---- matrices and memory ---- */

void draw_product(test_case *c, fsdp__matmul_args *a, bool sums)
{
    bool ta = coin(c), tb = coin(c), biased = coin(c);
    int64_t extra = sums ? 0 : between(c, 0, 3), a_ld = (ta ? a->m : a->k) + extra, b_ld = (tb ? a->k : a->n) + extra;

    a->a_row = ta ? 1 : a_ld, a->a_col = ta ? a_ld : 1;
    a->b_row = tb ? 1 : b_ld, a->b_col = tb ? b_ld : 1;
    a->c_row = a->n + extra;
    a->a_batch = (ta ? a->k : a->m) * a_ld;
    a->b_batch = coin(c) ? 0 : (tb ? a->n : a->k) * b_ld;
    a->c_batch = a->m * a->c_row;
    a->accumulate = coin(c);
    a->a = an_input(c, a->a_dtype, a->batch * a->a_batch, -1.0, 1.0);
    a->b = an_input(c, a->b_dtype, (a->b_batch ? a->batch : 1) * (tb ? a->n : a->k) * b_ld, -1.0, 1.0);
    a->c = an_output(c, a->c_dtype, a->batch * a->c_batch, 0.0, 4e-7 * (double)(a->k + 4));
    if (biased)
        a->bias = an_input(c, a->bias_dtype, a->n, -1.0, 1.0);
    a->sums_of_b = sums && coin(c);
    if (sums)
        a->sums = an_output(c, a->c_dtype, a->sums_of_b ? a->n : a->m, 0.0, 4e-7 * (double)(a->k + 4));
}

/* Lets the result of a product go through GELU. It may be rounded before that. */
static void draw_gelu(test_case *c, fsdp__matmul_args *a)
{
    double once = rounding(a->c_dtype), sum = 5e-7 * (double)(a->k + 4), size = sqrt((double)a->k);

    a->gelu = coin(c) ? FSDP__PRODUCT_GELU : FSDP__PRODUCT_GELU_GRADIENT;
    a->accumulate = false;
    also_output(c, a->c, 2.0 * once + 2e-6, sum + 0.5 * once + 4e-6 * size);
    if (a->gelu == FSDP__PRODUCT_GELU_GRADIENT)
        a->before = (void *)(uintptr_t)an_input(c, a->c_dtype, a->m * a->c_row, -6.0, 6.0);
    else if (coin(c))
        a->before = an_output(c, a->c_dtype, a->m * a->c_row, 0.0, sum);
}

void matmul_case(test_case *c)
{
    int64_t side[] = {a_size(c, 150), a_size(c, 150), a_size(c, 400)};
    int64_t batch = between(c, 0, 3) ? 1 : between(c, 2, 4);
    fsdp__matmul_args a;
    bool plain, gelu;

    if (between(c, 0, 5) == 0) /* a vector and a matrix */
        side[0] = batch = 1;
    if (between(c, 0, 7) == 0) { /* more than one block in one direction */
        int64_t large = between(c, 0, 2);
        for (int i = 0; i < 3; i++)
            side[i] = i == large ? between(c, 1025, 3000) : FSDP__MIN(side[i], 12);
        batch = 1;
    } else if (between(c, 0, 7) == 0) { /* strides that collide in a cache, where they are not widened by a few */
        side[0] = 128, side[1] = 128 * between(c, 1, 9), side[2] = between(c, 64, 200);
        batch = 1;
    }
    a = (fsdp__matmul_args){.m = side[0],
                            .n = side[1],
                            .k = side[2],
                            .batch = batch,
                            .a_dtype = c->dtype,
                            .b_dtype = coin(c) ? c->dtype : any_float(c),
                            .c_dtype = coin(c) ? c->dtype : any_float(c),
                            .bias_dtype = any_float(c),
                            .alpha = coin(c) ? 1.0f : 0.37f};
    plain = batch > 1 || a.m * a.n * a.k == 0;
    gelu = !plain && between(c, 0, 3) == 0;
    if (gelu && coin(c)) {
        a.b_dtype = a.c_dtype = a.bias_dtype = a.a_dtype;
        a.n = (a.n + 7) / 8 * 8;
    }
    draw_product(c, &a, !plain && !gelu && between(c, 0, 3) == 0);
    if (gelu)
        draw_gelu(c, &a);
    check(c, &a, PRODUCT_TEXT, PRODUCT_VALUES(a));
}

void copy_case(test_case *c)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};
    fsdp__copy_args a = {.ndim = (int)between(c, 0, 4), .src_dtype = c->dtype};
    int64_t src_numel = 1, dst_numel = 1;
    int order[2][6] = {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}};

    a.dst_dtype = coin(c) ? a.src_dtype : types[between(c, 0, 6)];
    if (between(c, 0, 3) == 0)
        a.src_dtype = types[between(c, 0, 6)];
    a.accumulate = fsdp_dtype_is_floating(a.dst_dtype) && fsdp_dtype_is_floating(a.src_dtype) && coin(c);
    for (int side = 0; side < 2; side++)
        for (int d = a.ndim - 1; d > 0 && coin(c); d--) { /* either side in another order of dimensions */
            int other = (int)between(c, 0, d), keep = order[side][d];
            order[side][d] = order[side][other];
            order[side][other] = keep;
        }
    for (int d = 0; d < a.ndim; d++)
        a.shape[d] = between(c, 0, 30) ? between(c, 1, a.ndim > 2 ? 20 : 90) : 0;
    for (int i = a.ndim - 1; i >= 0; i--) {
        int s = order[0][i], d = order[1][i];
        a.src_strides[s] = src_numel;
        src_numel *= a.shape[s] + (between(c, 0, 4) == 0);
        a.dst_strides[d] = dst_numel;
        dst_numel *= a.shape[d] + (between(c, 0, 4) == 0);
    }
    a.src = an_input(c, a.src_dtype, src_numel, 0.0, 100.0);
    a.dst = an_output(c, a.dst_dtype, dst_numel, 0.0, 0.0);
    check(c, &a, "%s to %s, %d dimensions %ld %ld %ld %ld, accumulate %d", fsdp_dtype_name(a.src_dtype),
          fsdp_dtype_name(a.dst_dtype), a.ndim, (long)a.shape[0], (long)a.shape[1], (long)a.shape[2], (long)a.shape[3],
          a.accumulate);
}

void fill_case(test_case *c)
{
    static const fsdp_dtype types[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};
    fsdp__fill_args a = {.dtype = coin(c) ? c->dtype : types[between(c, 0, 3)], .numel = a_size(c, 40000)};

    a.value = fsdp_dtype_is_floating(a.dtype) ? real(c, -5.0, 5.0) : (double)between(c, 0, 200);
    a.dst = an_output(c, a.dtype, a.numel, 0.0, 0.0);
    check(c, &a, "%ld x %g", (long)a.numel, a.value);
}

void cast_spans_case(test_case *c)
{
    fsdp__span spans[SEGMENTS];
    fsdp__cast_spans_args a = {.spans = spans, .count = between(c, 0, SEGMENTS), .src_dtype = c->dtype};

    a.dst_dtype = any_float(c);
    for (int64_t s = 0; s < a.count; s++) {
        spans[s].numel = a_size(c, 20000);
        spans[s].src = an_input(c, a.src_dtype, spans[s].numel, -3.0, 3.0);
        spans[s].dst = an_output(c, a.dst_dtype, spans[s].numel, 0.0, 0.0);
    }
    check(c, &a, "%ld spans, %s to %s", (long)a.count, fsdp_dtype_name(a.src_dtype), fsdp_dtype_name(a.dst_dtype));
}

void split_spans_case(test_case *c)
{
    fsdp__split_span spans[SEGMENTS];
    fsdp__split_spans_args a = {.spans = spans, .count = between(c, 0, SEGMENTS), .join = coin(c)};

    for (int64_t s = 0; s < a.count; s++) {
        spans[s].numel = a_size(c, 20000);
        if (a.join) {
            spans[s].high = (void *)(uintptr_t)an_input(c, FSDP_BF16, spans[s].numel, -3.0, 3.0);
            spans[s].low = (void *)(uintptr_t)an_input(c, FSDP_BF16, spans[s].numel, -3.0, 3.0);
            spans[s].whole = an_output(c, FSDP_F32, spans[s].numel, 0.0, 0.0);
        } else {
            spans[s].whole = (void *)(uintptr_t)an_input(c, FSDP_F32, spans[s].numel, -3.0, 3.0);
            spans[s].high = an_output(c, FSDP_BF16, spans[s].numel, 0.0, 0.0);
            spans[s].low = an_output(c, FSDP_BF16, spans[s].numel, 0.0, 0.0);
        }
    }
    check(c, &a, "%ld spans, join %d", (long)a.count, a.join);
}

void reduce_ranks_case(test_case *c)
{
    static const fsdp_dtype integers[] = {FSDP_I32, FSDP_I64, FSDP_U8};
    static const float divisors[] = {0.0f, 1.0f, 4.0f, 3.0f, 0.7f};
    const void *srcs[7];
    bool integer = between(c, 0, 4) == 0;
    fsdp__reduce_ranks_args a = {.srcs = srcs,
                                 .count = (int)between(c, 1, 7),
                                 .numel = a_size(c, 40000),
                                 .src_dtype = integer ? integers[between(c, 0, 2)] : c->dtype,
                                 .op = (fsdp__rank_op)between(c, 0, 2),
                                 .divisor = integer ? 1.0f : divisors[between(c, 0, 4)],
                                 .accumulate = coin(c)};

    a.dst_dtype = integer || coin(c) ? a.src_dtype : any_float(c);
    for (int s = 0; s < a.count; s++)
        srcs[s] = an_input(c, a.src_dtype, a.numel, integer ? 0.0 : -2.0, integer ? 9.0 : 2.0);
    if (!integer && coin(c)) { /* by blocks, some are not there */
        a.block = (int)between(c, 1, 4);
        a.block_dtype = coin(c) ? FSDP_F32 : a.src_dtype;
        for (int s = 1; s < a.count; s++)
            srcs[s] = between(c, 0, 3) == 0 ? NULL : srcs[s];
    }
    if (a.src_dtype == a.dst_dtype && srcs[a.count - 1] && coin(c)) { /* in place */
        a.dst = (void *)(uintptr_t)srcs[coin(c) ? 0 : a.count - 1];
        also_output(c, a.dst, 1e-6, 1e-6);
    } else {
        a.dst = a_buffer(c, a.dst_dtype, a.numel, 0.0, 2.0, true, 1e-6, 1e-6);
    }
    check(c, &a, "%d ranks of %ld by %d, op %d, %s to %s, divisor %g, accumulate %d", a.count, (long)a.numel, a.block,
          a.op, fsdp_dtype_name(a.src_dtype), fsdp_dtype_name(a.dst_dtype), (double)a.divisor, a.accumulate);
}

void reduce_case(test_case *c)
{
    fsdp__reduce_args a = {.outer = between(c, 1, 4),
                           .reduced = coin(c) ? a_size(c, 300) : a_size(c, 20000),
                           .alpha = coin(c) ? 1.0f : 0.5f,
                           .op = (fsdp__reduce_op)between(c, 0, 2),
                           .x_dtype = c->dtype,
                           .y_dtype = any_float(c),
                           .accumulate = coin(c)};

    a.reduced = a.op == FSDP__REDUCE_SUM ? a.reduced : FSDP__MAX(a.reduced, 1);
    a.inner = coin(c) || a.reduced > 300 ? between(c, 1, 2) : a_size(c, 100);
    a.x = an_input(c, a.x_dtype, a.outer * a.reduced * a.inner, -1.0, 1.0);
    a.center = a.op == FSDP__REDUCE_SUM && coin(c) ? an_input(c, FSDP_F32, a.outer * a.inner, -1.0, 1.0) : NULL;
    a.y = an_output(c, a.y_dtype, a.outer * a.inner, a.center ? 1e-6 : 0.0, 1e-6 + 3e-8 * (double)a.reduced);
    check(c, &a, "%ld x %ld x %ld, op %d, center %d", (long)a.outer, (long)a.reduced, (long)a.inner, a.op,
          a.center != NULL);
}

/* ---- elementwise ---- */

void scale_case(test_case *c)
{
    fsdp__scale_args a = {
        .alpha = (float)real(c, -2.0, 2.0), .numel = a_size(c, 40000), .dtype = c->dtype, .accumulate = coin(c)};

    a.x = an_input(c, c->dtype, a.numel, -2.0, 2.0);
    a.scalar = coin(c) ? an_input(c, FSDP_F32, 1, -2.0, 2.0) : NULL;
    a.y = coin(c) ? (void *)(uintptr_t)a.x : an_output(c, c->dtype, a.numel, 0.0, 0.0);
    also_output(c, a.y, 1e-6, 1e-6);
    check(c, &a, "%ld, scalar %d, accumulate %d", (long)a.numel, a.scalar != NULL, a.accumulate);
}

void activation_forward_case(test_case *c)
{
    fsdp__activation_forward_args a = {.rows = a_size(c, 60),
                                       .cols = a_size(c, 700),
                                       .kind = (fsdp__activation)between(c, FSDP__GELU_TANH, FSDP__RELU),
                                       .dtype = c->dtype};

    a.x = an_input(c, c->dtype, a.rows * a.cols, -9.0, 9.0);
    a.bias = coin(c) ? an_input(c, c->dtype, a.cols, -1.0, 1.0) : NULL;
    a.y = coin(c) ? (void *)(uintptr_t)a.x : an_output(c, c->dtype, a.rows * a.cols, 0.0, 0.0);
    also_output(c, a.y, 1e-6, 1e-6);
    check(c, &a, "kind %d, %ld x %ld, bias %d", a.kind, (long)a.rows, (long)a.cols, a.bias != NULL);
}

void activation_backward_case(test_case *c)
{
    fsdp__activation_backward_args a = {.rows = a_size(c, 60),
                                        .cols = a_size(c, 700),
                                        .kind = (fsdp__activation)between(c, FSDP__GELU_TANH, FSDP__RELU),
                                        .dtype = c->dtype};

    a.x = an_input(c, c->dtype, a.rows * a.cols, -9.0, 9.0);
    a.dy = an_input(c, c->dtype, a.rows * a.cols, -2.0, 2.0);
    a.bias = coin(c) ? an_input(c, c->dtype, a.cols, -1.0, 1.0) : NULL;
    a.dx = coin(c) ? (void *)(uintptr_t)a.dy : an_output(c, c->dtype, a.rows * a.cols, 0.0, 0.0);
    also_output(c, a.dx, 2e-6, 4e-6);
    check(c, &a, "kind %d, %ld x %ld, bias %d", a.kind, (long)a.rows, (long)a.cols, a.bias != NULL);
}

void swiglu_forward_case(test_case *c)
{
    int64_t rows = a_size(c, 50), cols = a_size(c, 400);
    fsdp__swiglu_forward_args a = {.rows = rows,
                                   .cols = cols,
                                   .gate_row = 2 * cols,
                                   .up_row = 2 * cols,
                                   .y_row = cols + 3,
                                   .dtype = c->dtype,
                                   .gelu = coin(c)};

    a.gate = an_input(c, c->dtype, rows * 2 * cols, -6.0, 6.0);
    a.up = (const char *)a.gate + cols * (int64_t)fsdp_dtype_size(c->dtype);
    a.y = an_output(c, c->dtype, rows * a.y_row, 1e-6, 1e-6);
    check(c, &a, "%ld x %ld, gelu %d", (long)rows, (long)cols, a.gelu);
}

void swiglu_backward_case(test_case *c)
{
    int64_t rows = a_size(c, 50), cols = a_size(c, 400);
    fsdp__swiglu_backward_args a = {.rows = rows,
                                    .cols = cols,
                                    .gate_row = 2 * cols,
                                    .up_row = 2 * cols,
                                    .dy_row = cols,
                                    .dgate_row = 2 * cols,
                                    .dup_row = 2 * cols,
                                    .dtype = c->dtype,
                                    .gelu = coin(c)};

    a.gate = an_input(c, c->dtype, rows * 2 * cols, -6.0, 6.0);
    a.up = (const char *)a.gate + cols * (int64_t)fsdp_dtype_size(c->dtype);
    a.dy = an_input(c, c->dtype, rows * cols, -2.0, 2.0);
    a.dgate = coin(c) ? (void *)(uintptr_t)a.gate : an_output(c, c->dtype, rows * 2 * cols, 0.0, 0.0);
    also_output(c, a.dgate, 2e-6, 1e-5);
    a.dup = (char *)a.dgate + cols * (int64_t)fsdp_dtype_size(c->dtype);
    if (coin(c)) {
        a.y_row = coin(c) ? cols : cols + 3;
        a.y = a.y_row == cols ? (void *)(uintptr_t)a.dy : an_output(c, c->dtype, rows * a.y_row, 0.0, 0.0);
        also_output(c, a.y, 1e-6, 1e-6);
    }
    check(c, &a, "%ld x %ld, in place %d, gelu %d, y again %d", (long)rows, (long)cols, a.dgate == a.gate, a.gelu,
          a.y ? 1 + (a.y == a.dy) : 0);
}

void dropout_case(test_case *c)
{
    fsdp__dropout_args a = {.numel = a_size(c, 40000),
                            .key = draw(c),
                            .offset = (uint64_t)between(c, 0, 9) + (coin(c) ? 0xfffffffdu * (uint64_t)4 : 0),
                            .p = coin(c) ? 0.1f : (float)real(c, 0.0, 0.9),
                            .dtype = c->dtype};

    a.x = an_input(c, c->dtype, a.numel, -2.0, 2.0);
    a.y = coin(c) ? (void *)(uintptr_t)a.x : an_output(c, c->dtype, a.numel, 0.0, 0.0);
    also_output(c, a.y, 1e-6, 0.0);
    check(c, &a, "%ld from %lu, p %g", (long)a.numel, (unsigned long)a.offset, (double)a.p);
}

void random_case(test_case *c)
{
    fsdp__random_args a = {.numel = a_size(c, 40000),
                           .key = draw(c),
                           .offset = (uint64_t)between(c, 0, 9) + (coin(c) ? 0xfffffffdu * (uint64_t)4 : 0),
                           .a = coin(c) ? 0.0f : 1.5f,
                           .b = coin(c) ? 1.0f : 0.02f,
                           .distribution = coin(c) ? FSDP__NORMAL : FSDP__UNIFORM,
                           .dtype = c->dtype};

    a.dst = an_output(c, c->dtype, a.numel, 0.0, a.a == 0.0f ? 0.0 : 1e-7);
    for (int t = 0; t < c->table_count && a.distribution == FSDP__NORMAL; t++)
        if (c->tables[t].own_functions)
            also_output(c, a.dst, 0.0, 2e-6 * (double)a.b);
    check(c, &a, "%ld from %lu, distribution %d", (long)a.numel, (unsigned long)a.offset, a.distribution);
}
