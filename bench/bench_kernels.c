/* bench_kernels - measures every kernel at the shapes of gpt-10m and llama-100m: time, rate, share of the machine's
 * floor.
 *
 *     bench_kernels [-t THREADS] [-i base|v3|v4] [NAME...]      only kernels whose name holds one of the words
 *
 * The floor of a kernel is the longer of its flops at the measured rate of a large matrix product and its bytes at the
 * measured triad rate, both with the same number of threads. Times are the best of several runs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backend/cpu/kernels_table.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "device/device.h"
#include "kernels/rig.h"

/* ---- products ---- */

static void matmul(bench *b, const char *what, fsdp_dtype t, bool ta, bool tb, int64_t m, int64_t n, int64_t k)
{
    fsdp__matmul_args a = {.m = m,
                           .n = n,
                           .k = k,
                           .a_row = ta ? 1 : k,
                           .a_col = ta ? m : 1,
                           .b_row = tb ? 1 : n,
                           .b_col = tb ? k : 1,
                           .c_row = n,
                           .batch = 1,
                           .a_dtype = t,
                           .b_dtype = t,
                           .c_dtype = t,
                           .alpha = 1.0f};
    char text[64];

    WANT(MATMUL)
    a.a = array(b, t, m * k, 0), a.b = array(b, t, n * k, 0), a.c = array(b, t, m * n, 0);
    snprintf(text, sizeof text, "%s %ld %ld %ld %s", what, (long)m, (long)n, (long)k, fsdp_dtype_name(t));
    measure(b, FSDP__KERNEL_MATMUL, &a, 2.0 * (double)m * (double)n * (double)k,
            (double)(m * k + n * k + m * n) * (double)fsdp_dtype_size(t), text);
}

/* Measures forward Y = X W^T, the gradient of X, and that of W. */
static void linear(bench *b, fsdp_dtype t, int64_t tokens, int64_t in, int64_t out)
{
    matmul(b, "fwd", t, false, true, tokens, out, in);
    matmul(b, "dgrad", t, false, false, tokens, in, out);
    matmul(b, "wgrad", t, true, false, out, in, tokens);
}

static void attention(bench *b, fsdp_dtype t, int64_t batch, int64_t time, int64_t heads, int64_t kv_heads, int64_t d)
{
    fsdp__attention_backward_args a = {.forward = {.batch = batch,
                                                   .q_time = time,
                                                   .kv_time = time,
                                                   .heads = heads,
                                                   .kv_heads = kv_heads,
                                                   .head_dim = d,
                                                   .scale = 1.0f / sqrtf((float)d),
                                                   .causal = true,
                                                   .dtype = t}};
    fsdp__attention_forward_args *f = &a.forward;
    int64_t q = batch * time * heads * d, kv = batch * time * kv_heads * d;
    double pairs = (double)(batch * heads) * (double)time * (double)(time + 1) / 2.0;
    char text[64];

    f->q_head = f->k_head = f->v_head = f->out_head = d;
    f->q_stride_time = f->out_stride_time = heads * d;
    f->k_stride_time = f->v_stride_time = kv_heads * d;
    f->q_batch = f->out_batch = time * heads * d;
    f->k_batch = f->v_batch = time * kv_heads * d;
    snprintf(text, sizeof text, "%ldx%ld heads %ld/%ld dim %ld %s", (long)batch, (long)time, (long)heads,
             (long)kv_heads, (long)d, fsdp_dtype_name(t));
    f->q = array(b, t, q, 0), f->k = array(b, t, kv, 0), f->v = array(b, t, kv, 0), f->out = array(b, t, q, 0);
    f->lse = array(b, FSDP_F32, batch * heads * time, 0);
    a.dout = array(b, t, q, 0), a.dq = array(b, t, q, 0), a.dk = array(b, t, kv, 0), a.dv = array(b, t, kv, 0);
    if (wanted(b, "attention_forward")) {
        int held = b->held_count;
        b->held_count = 0;
        measure(b, FSDP__KERNEL_ATTENTION_FORWARD, f, 4.0 * pairs * (double)d,
                2.0 * (double)(q + kv) * (double)fsdp_dtype_size(t), text);
        b->held_count = held;
    }
    if (wanted(b, "attention_backward"))
        measure(b, FSDP__KERNEL_ATTENTION_BACKWARD, &a, 10.0 * pairs * (double)d,
                4.0 * (double)(q + kv) * (double)fsdp_dtype_size(t), text);
    release(b);
}

/* ---- rows ---- */

static void text_of(char text[64], int64_t rows, int64_t cols, fsdp_dtype t)
{
    snprintf(text, 64, "%ld x %ld %s", (long)rows, (long)cols, fsdp_dtype_name(t));
}

static void norms(bench *b, fsdp_dtype t, int64_t rows, int64_t cols, bool rms)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    fsdp__norm_forward_args f = {.rows = rows, .cols = cols, .eps = 1e-5f, .rms = rms, .dtype = t, .weight_dtype = t};
    fsdp__norm_backward_args g = {
        .rows = rows, .cols = cols, .rms = rms, .dtype = t, .weight_dtype = t, .dweight_dtype = FSDP_F32};
    char text[64];

    text_of(text, rows, cols, t);
    strcat(text, rms ? " rms" : " layer");
    if (wanted(b, "norm_forward")) {
        f.x = array(b, t, rows * cols, 0), f.residual = array(b, t, rows * cols, 0);
        f.sum = array(b, t, rows * cols, 0), f.y = array(b, t, rows * cols, 0), f.weight = array(b, t, cols, 0);
        f.bias = rms ? NULL : array(b, t, cols, 0), f.rstd = array(b, FSDP_F32, rows, 0);
        measure(b, FSDP__KERNEL_NORM_FORWARD, &f, 0, 4.0 * bytes, text);
    }
    if (wanted(b, "norm_backward")) {
        g.s = array(b, t, rows * cols, 0), g.dy = array(b, t, rows * cols, 0), g.dsum = array(b, t, rows * cols, 0);
        g.dx = array(b, t, rows * cols, 0), g.weight = array(b, t, cols, 0), g.mean = array(b, FSDP_F32, rows, 0);
        g.rstd = array(b, FSDP_F32, rows, 0), g.dweight = array(b, FSDP_F32, cols, 0);
        g.dbias = rms ? NULL : array(b, FSDP_F32, cols, 0);
        measure(b, FSDP__KERNEL_NORM_BACKWARD, &g, 0, 4.0 * bytes, text);
    }
}

static void activations(bench *b, fsdp_dtype t, int64_t rows, int64_t cols, bool gated)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    char text[64];

    text_of(text, rows, cols, t);
    if (gated) {
        fsdp__swiglu_forward_args f = {
            .rows = rows, .cols = cols, .gate_row = cols, .up_row = cols, .y_row = cols, .dtype = t};
        fsdp__swiglu_backward_args g = {.rows = rows,
                                        .cols = cols,
                                        .gate_row = cols,
                                        .up_row = cols,
                                        .dy_row = cols,
                                        .dgate_row = cols,
                                        .dup_row = cols,
                                        .dtype = t};
        if (wanted(b, "swiglu_forward")) {
            f.gate = array(b, t, rows * cols, 0), f.up = array(b, t, rows * cols, 0), f.y = array(b, t, rows * cols, 0);
            measure(b, FSDP__KERNEL_SWIGLU_FORWARD, &f, 0, 3.0 * bytes, text);
        }
        if (wanted(b, "swiglu_backward")) {
            g.gate = array(b, t, rows * cols, 0), g.up = array(b, t, rows * cols, 0);
            g.dy = array(b, t, rows * cols, 0), g.dgate = array(b, t, rows * cols, 0);
            g.dup = array(b, t, rows * cols, 0);
            measure(b, FSDP__KERNEL_SWIGLU_BACKWARD, &g, 0, 5.0 * bytes, text);
        }
        return;
    }
    if (wanted(b, "activation_forward")) {
        fsdp__activation_forward_args f = {.rows = rows, .cols = cols, .kind = FSDP__GELU_TANH, .dtype = t};
        f.x = array(b, t, rows * cols, 0), f.bias = array(b, t, cols, 0), f.y = array(b, t, rows * cols, 0);
        measure(b, FSDP__KERNEL_ACTIVATION_FORWARD, &f, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "activation_backward")) {
        fsdp__activation_backward_args g = {.rows = rows, .cols = cols, .kind = FSDP__GELU_TANH, .dtype = t};
        g.x = array(b, t, rows * cols, 0), g.bias = array(b, t, cols, 0), g.dy = array(b, t, rows * cols, 0);
        g.dx = array(b, t, rows * cols, 0);
        measure(b, FSDP__KERNEL_ACTIVATION_BACKWARD, &g, 0, 3.0 * bytes, text);
    }
}

static void losses(bench *b, fsdp_dtype t, int64_t rows, int64_t cols)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    char text[64];

    text_of(text, rows, cols, t);
    if (wanted(b, "cross_entropy")) {
        fsdp__cross_entropy_args a = {
            .rows = rows, .cols = cols, .loss_scale = 1.0f, .ignore_index = -100, .dtype = t, .dlogits_dtype = t};
        a.logits = array(b, t, rows * cols, 0), a.targets = array(b, FSDP_I32, rows, (int)cols);
        a.dlogits = (void *)(uintptr_t)a.logits, a.loss = array(b, FSDP_F32, 1, 0);
        measure(b, FSDP__KERNEL_CROSS_ENTROPY, &a, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "softmax_forward")) {
        fsdp__softmax_forward_args a = {.rows = rows, .cols = cols, .dtype = t};
        a.x = array(b, t, rows * cols, 0), a.y = array(b, t, rows * cols, 0);
        measure(b, FSDP__KERNEL_SOFTMAX_FORWARD, &a, 0, 2.0 * bytes, text);
    }
}

static void ropes(bench *b, fsdp_dtype t, int64_t batch, int64_t time, int64_t heads, int64_t d)
{
    fsdp__rope_args a = {.batch = batch, .time = time, .heads = heads, .head_dim = d, .dtype = t};
    int64_t numel = batch * time * heads * d;
    char text[64];

    WANT(ROPE)
    a.x_head = a.y_head = d, a.x_time = a.y_time = heads * d, a.x_batch = a.y_batch = time * heads * d;
    a.x = array(b, t, numel, 0), a.y = array(b, t, numel, 0), a.frequency = array(b, FSDP_F32, d / 2, 0);
    text_of(text, batch * time, heads * d, t);
    measure(b, FSDP__KERNEL_ROPE, &a, 0, 2.0 * (double)numel * (double)fsdp_dtype_size(t), text);
}

static void embeddings(bench *b, fsdp_dtype t, int64_t rows, int64_t cols, int64_t table)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    char text[64];

    text_of(text, rows, cols, t);
    if (wanted(b, "embedding_forward")) {
        fsdp__embedding_forward_args a = {.rows = rows, .cols = cols, .table_rows = table, .dtype = t};
        a.table = array(b, t, table * cols, 0), a.ids = array(b, FSDP_I32, rows, (int)table);
        a.y = array(b, t, rows * cols, 0);
        measure(b, FSDP__KERNEL_EMBEDDING_FORWARD, &a, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "embedding_backward")) {
        fsdp__embedding_backward_args a = {
            .rows = rows, .cols = cols, .table_rows = table, .dtype = t, .dtable_dtype = t};
        a.dy = array(b, t, rows * cols, 0), a.ids = array(b, FSDP_I32, rows, (int)table);
        a.dtable = array(b, t, table * cols, 0);
        measure(b, FSDP__KERNEL_EMBEDDING_BACKWARD, &a, 0, bytes + (double)(table * cols) * (double)fsdp_dtype_size(t),
                text);
    }
}

/* Measures rows by index, and the fifty best of each row. */
static void indices(bench *b, fsdp_dtype t, int64_t rows, int64_t cols, int64_t table)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    fsdp__index_map map = {.outer = 1, .size = table, .inner = cols, .count = rows, .index_along = 1};
    char text[64];

    text_of(text, rows, cols, t);
    if (wanted(b, "gather")) {
        fsdp__gather_args a = {.map = map, .dtype = t};
        a.x = array(b, t, table * cols, 0), a.map.index = array(b, FSDP_I32, rows, (int)table);
        a.y = array(b, t, rows * cols, 0);
        measure(b, FSDP__KERNEL_GATHER, &a, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "scatter")) {
        fsdp__scatter_args a = {.map = map, .dtype = t, .add = true};
        a.x = array(b, t, rows * cols, 0), a.map.index = array(b, FSDP_I32, rows, (int)table);
        a.y = array(b, t, table * cols, 0);
        measure(b, FSDP__KERNEL_SCATTER, &a, 0, bytes + (double)(table * cols) * (double)fsdp_dtype_size(t), text);
    }
    if (wanted(b, "topk")) {
        fsdp__topk_args a = {.rows = rows, .cols = cols, .k = 50, .largest = true, .dtype = t};
        a.x = array(b, t, rows * cols, 0), a.indices = array(b, FSDP_I32, rows * 50, 2);
        measure(b, FSDP__KERNEL_TOPK, &a, 0, bytes, text);
    }
}

/* ---- flat memory ---- */

static void flat(bench *b, fsdp_dtype t, int64_t numel)
{
    double bytes = (double)numel * (double)fsdp_dtype_size(t);
    char text[64];

    snprintf(text, sizeof text, "%ld %s", (long)numel, fsdp_dtype_name(t));
    if (wanted(b, "scale")) {
        fsdp__scale_args a = {.alpha = 0.5f, .numel = numel, .dtype = t};
        a.x = array(b, t, numel, 0), a.y = array(b, t, numel, 0);
        measure(b, FSDP__KERNEL_SCALE, &a, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "reduce")) {
        fsdp__reduce_args a = {
            .outer = 1, .reduced = numel / 1152, .inner = 1152, .alpha = 1.0f, .x_dtype = t, .y_dtype = FSDP_F32};
        a.x = array(b, t, numel, 0), a.y = array(b, FSDP_F32, 1152, 0);
        measure(b, FSDP__KERNEL_REDUCE, &a, 0, bytes, text);
    }
    if (wanted(b, "dropout")) {
        fsdp__dropout_args a = {.numel = numel, .key = 3, .p = 0.1f, .dtype = t};
        a.x = array(b, t, numel, 0), a.y = array(b, t, numel, 0);
        measure(b, FSDP__KERNEL_DROPOUT, &a, 0, 2.0 * bytes, text);
    }
    if (wanted(b, "random")) {
        fsdp__random_args a = {.numel = numel, .key = 3, .b = 0.02f, .dtype = t};
        a.dst = array(b, t, numel, 0);
        measure(b, FSDP__KERNEL_RANDOM, &a, 0, bytes, text);
    }
}

static void copies(bench *b, fsdp_dtype t, int64_t rows, int64_t cols)
{
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);
    fsdp__copy_args a = {.src_dtype = t,
                         .dst_dtype = t,
                         .ndim = 2,
                         .shape = {rows, cols},
                         .src_strides = {cols, 1},
                         .dst_strides = {cols, 1}};
    char text[64];

    WANT(COPY)
    text_of(text, rows, cols, t);
    a.src = array(b, t, rows * cols, 0), a.dst = array(b, t, rows * cols, 0);
    measure(b, FSDP__KERNEL_COPY, &a, 0, 2.0 * bytes, text);
    strcat(text, " transposed");
    a.src = array(b, t, rows * cols, 0), a.dst = array(b, t, rows * cols, 0);
    a.dst_strides[0] = 1, a.dst_strides[1] = rows;
    measure(b, FSDP__KERNEL_COPY, &a, 0, 2.0 * bytes, text);
}

static void optimizers(bench *b, fsdp_dtype grad, int64_t numel)
{
    fsdp__optimizer_span span = {.numel = numel};
    fsdp__span plain = {.numel = numel};
    double g = (double)fsdp_dtype_size(grad) * (double)numel;
    fsdp__digit_sum sum;
    char text[64];

    snprintf(text, sizeof text, "%ld %s gradients", (long)numel, fsdp_dtype_name(grad));
    if (wanted(b, "adam")) {
        fsdp__adam_args a = {.spans = &span,
                             .count = 1,
                             .param_dtype = FSDP_F32,
                             .grad_dtype = grad,
                             .lr = 1e-5,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .grad_scale = 1.0f,
                             .step = 3,
                             .decoupled = true};
        span.param = array(b, FSDP_F32, numel, 0), span.grad = array(b, grad, numel, 0);
        span.moment1 = array(b, FSDP_F32, numel, 0), span.moment2 = array(b, FSDP_F32, numel, 0);
        for (int64_t i = 0; i < numel; i++)
            span.moment2[i] += 0.6f;
        measure(b, FSDP__KERNEL_ADAM, &a, 0, 24.0 * (double)numel + g, text);
    }
    if (wanted(b, "power_sum")) {
        fsdp__power_sum_args a = {.spans = &plain, .count = 1, .dtype = grad, .p = 2, .sum = &sum};
        plain.src = array(b, grad, numel, 0);
        measure(b, FSDP__KERNEL_POWER_SUM, &a, 0, g, text);
    }
}

static void ranks(bench *b, fsdp_dtype src, fsdp_dtype dst, int count, int64_t numel)
{
    const void *srcs[8];
    fsdp__reduce_ranks_args a = {
        .srcs = srcs, .count = count, .numel = numel, .src_dtype = src, .dst_dtype = dst, .divisor = (float)count};
    char text[64];

    WANT(REDUCE_RANKS)
    for (int i = 0; i < count; i++)
        srcs[i] = array(b, src, numel, 0);
    a.dst = array(b, dst, numel, 0);
    snprintf(text, sizeof text, "%d x %ld %s", count, (long)numel, fsdp_dtype_name(src));
    measure(b, FSDP__KERNEL_REDUCE_RANKS, &a, 0,
            (double)numel * (double)(count * (int64_t)fsdp_dtype_size(src) + (int64_t)fsdp_dtype_size(dst)), text);
}

static void casts(bench *b, fsdp_dtype src, fsdp_dtype dst, int64_t numel)
{
    fsdp__span span = {.numel = numel};
    fsdp__cast_spans_args a = {.spans = &span, .count = 1, .src_dtype = src, .dst_dtype = dst};
    char text[64];

    WANT(CAST_SPANS)
    span.src = array(b, src, numel, 0), span.dst = array(b, dst, numel, 0);
    snprintf(text, sizeof text, "%ld %s to %s", (long)numel, fsdp_dtype_name(src), fsdp_dtype_name(dst));
    measure(b, FSDP__KERNEL_CAST_SPANS, &a, 0, (double)numel * (double)(fsdp_dtype_size(src) + fsdp_dtype_size(dst)),
            text);
}

static void codes(bench *b, fsdp__kernel kernel, fsdp_dtype dtype, fsdp__code code, int64_t numel)
{
    float amax = 2.0f;
    fsdp__coded_span span = {.amax = &amax, .runs = 1, .run = numel, .stride = numel};
    fsdp__quantize_args q = {.spans = &span, .count = 1, .dtype = dtype, .code = code};
    fsdp__dequantize_args d = {.spans = &span, .count = 1, .dtype = dtype, .code = code};
    char text[64];

    if (!wanted(b, fsdp__kernel_infos[kernel].name))
        return;
    snprintf(text, sizeof text, "%ld %s, %s", (long)numel, fsdp_dtype_name(dtype),
             code == FSDP__CODE_FLOAT8 ? "float8" : "int8");
    span.values = array(b, dtype, numel, 0);
    span.codes = array(b, FSDP_BF16, numel / 2, 0);
    span.scales = array(b, FSDP_F32, numel / FSDP__CODE_BLOCK + 1, 0);
    measure(b, kernel, kernel == FSDP__KERNEL_QUANTIZE ? (const void *)&q : (const void *)&d, 0,
            (double)numel * (double)(fsdp_dtype_size(dtype) + 1), text);
}

static void largest(bench *b, fsdp_dtype dtype, int64_t numel)
{
    float amax;
    fsdp__span span = {.dst = &amax, .numel = numel};
    fsdp__amax_args a = {.spans = &span, .count = 1, .dtype = dtype};
    char text[64];

    WANT(AMAX)
    span.src = array(b, dtype, numel, 0);
    snprintf(text, sizeof text, "%ld %s", (long)numel, fsdp_dtype_name(dtype));
    measure(b, FSDP__KERNEL_AMAX, &a, 0, (double)numel * (double)fsdp_dtype_size(dtype), text);
}

/* ---- the machine ---- */

/* Measures the machine: a large product comes as near to the peak of multiply-adds as anything, and the triad runs over
 * 3 x 64 MiB. */
static void measure_machine(bench *b)
{
    int64_t n = 1536, numel = 16 << 20;
    fsdp__matmul_args product = {.m = n,
                                 .n = n,
                                 .k = n,
                                 .a_row = n,
                                 .a_col = 1,
                                 .b_row = n,
                                 .b_col = 1,
                                 .c_row = n,
                                 .batch = 1,
                                 .a_dtype = FSDP_F32,
                                 .b_dtype = FSDP_F32,
                                 .c_dtype = FSDP_F32,
                                 .alpha = 1.0f};
    fsdp__binary_args triad = {.ndim = 1, .shape = {numel}, .a_strides = {1}, .b_strides = {1}, .dtype = FSDP_F32};
    double best = 1e30;

    product.a = array(b, FSDP_F32, n * n, 0), product.b = array(b, FSDP_F32, n * n, 0);
    product.c = array(b, FSDP_F32, n * n, 0);
    for (int i = 0; i < 15; i++) {
        double start = seconds();
        (void)b->kernels[FSDP__KERNEL_MATMUL](b->stream, &product);
        best = fmin(best, seconds() - start);
    }
    b->flop_rate = 2.0 * (double)(n * n * n) / best * 1e-9;
    triad.a = array(b, FSDP_F32, numel, 0), triad.b = array(b, FSDP_F32, numel, 0);
    triad.y = array(b, FSDP_F32, numel, 0);
    best = 1e30;
    for (int i = 0; i < 10; i++) {
        double start = seconds();
        (void)b->kernels[FSDP__KERNEL_BINARY](b->stream, &triad);
        best = fmin(best, seconds() - start);
    }
    b->byte_rate = 12.0 * (double)numel / best * 1e-9;
    release(b);
}

static void run_all(bench *b)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16};

    for (size_t i = 0; i < FSDP__COUNT_OF(types); i++) {
        fsdp_dtype t = types[i];
        printf("-- gpt-10m, %s\n", fsdp_dtype_name(t));
        linear(b, t, 2048, 384, 1152);
        linear(b, t, 1024, 384, 384);
        linear(b, t, 1024, 384, 1536);
        linear(b, t, 2048, 384, 256);
        attention(b, t, 8, 256, 6, 6, 64);
        activations(b, t, 2048, 1536, false);
        norms(b, t, 2048, 384, false);
        losses(b, t, 2048, 256);
        embeddings(b, t, 2048, 384, 256);
        indices(b, t, 2048, 384, 256);
        printf("-- llama-100m, %s\n", fsdp_dtype_name(t));
        linear(b, t, 512, 768, 768);
        linear(b, t, 512, 768, 256);
        linear(b, t, 1024, 768, 2048);
        linear(b, t, 512, 768, 32000);
        matmul(b, "one token", t, false, true, 1, 32000, 768);
        attention(b, t, 2, 512, 12, 4, 64);
        attention(b, t, 1, 1024, 12, 4, 64);
        activations(b, t, 1024, 2048, true);
        norms(b, t, 1024, 768, true);
        ropes(b, t, 2, 512, 12, 64);
        losses(b, t, 512, 32000);
        embeddings(b, t, 1024, 768, 32000);
        flat(b, t, 2048 * 1152);
        bench_elements(b, t, 2048, 1152);
        copies(b, t, 2048, 768);
        optimizers(b, t, 8 << 20);
        ranks(b, t, t, 2, 4 << 20);
        ranks(b, t, t, 3, 4 << 20); /* with a division: 3 has no exact inverse */
        ranks(b, t, FSDP_F32, 4, 4 << 20);
        ranks(b, t, FSDP_F32, 5, 4 << 20);
    }
    printf("-- a small CNN\n");
    bench_images(b);
    casts(b, FSDP_F32, FSDP_BF16, 8 << 20);
    casts(b, FSDP_BF16, FSDP_F32, 8 << 20);
    for (int t = FSDP_F32; t <= FSDP_BF16; t++) {
        largest(b, (fsdp_dtype)t, 8 << 20);
        for (int code = FSDP__CODE_FLOAT8; code <= FSDP__CODE_INT8; code++) {
            codes(b, FSDP__KERNEL_QUANTIZE, (fsdp_dtype)t, (fsdp__code)code, 8 << 20);
            codes(b, FSDP__KERNEL_DEQUANTIZE, (fsdp_dtype)t, (fsdp__code)code, 8 << 20);
        }
    }
}

int main(int argc, char **argv)
{
    bench b = {.kernels = fsdp__backend_cpu.kernels, .threads = 1};
    fsdp_context_options options = {0};
    const char *isa_name = NULL;
    fsdp_context *context = NULL;

    for (int option; (option = getopt(argc, argv, "t:i:")) != -1;) {
        if (option == 't')
            b.threads = atoi(optarg);
        else if (option == 'i')
            isa_name = optarg;
        else
            return 2;
    }
    for (fsdp__cpu_isa isa = 0; isa_name && isa < FSDP__CPU_ISAS; isa++)
        if (strcmp(isa_name, fsdp__cpu_isa_name(isa)) == 0)
            b.kernels = fsdp__cpu_isa_kernels(isa);
    options.threads = b.threads;
    if (!b.kernels || b.threads < 1 || fsdp_context_create(&options, &context) != FSDP_OK || !fsdp_cpu(context)) {
        fprintf(stderr, "bench_kernels: %s\n", b.kernels ? fsdp_last_error() : "this processor lacks that set");
        return 1;
    }
    b.words = argv + optind;
    b.word_count = argc - optind;
    b.stream = fsdp_device_stream(fsdp_cpu(context));
    measure_machine(&b);
    printf("%s, %d threads: %.1f GF/s, triad %.1f GB/s\n",
           isa_name ? isa_name : fsdp__cpu_isa_name(fsdp__cpu_best_isa()), b.threads, b.flop_rate, b.byte_rate);
    run_all(&b);
    fsdp_context_free(context);
    return 0;
}
