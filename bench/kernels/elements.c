/* elements.c - measures functions of one, two and three operands. */
#include <stdio.h>
#include <string.h>

#include "kernels/rig.h"

/* Measures two operands: the second is as large, a row, a column, or transposed. */
static void operands(bench *b, fsdp_dtype t, int64_t rows, int64_t cols, fsdp__binary_op op, const char *name)
{
    static const char *const second[] = {"", " row", " column", " turned", " number"};
    int64_t numel = rows * cols;
    double size = (double)fsdp_dtype_size(t);

    WANT(BINARY)
    for (int kind = 0; kind < 5; kind++) {
        fsdp__binary_args a = {.ndim = 2, .shape = {rows, cols}, .a_strides = {cols, 1}, .op = op, .dtype = t};
        int64_t strides[5][2] = {{cols, 1}, {0, 1}, {1, 0}, {1, rows}, {0, 0}};
        double read = kind == 0 || kind == 3 ? 2.0 : 1.0, written = op >= FSDP__EQ ? 1.0 : size;
        char text[64];

        a.b_strides[0] = strides[kind][0], a.b_strides[1] = strides[kind][1];
        a.a = array(b, t, numel, 0), a.b = kind == 4 ? NULL : array(b, t, numel, 0), a.y = array(b, t, numel, 0);
        snprintf(text, sizeof text, "%s %ld x %ld %s%s", name, (long)rows, (long)cols, fsdp_dtype_name(t),
                 second[kind]);
        measure(b, FSDP__KERNEL_BINARY, &a, 0, (double)numel * (read * size + written), text);
    }
}

static void slopes(bench *b, fsdp_dtype t, int64_t numel, fsdp__binary_op op, const char *name)
{
    fsdp__binary_backward_args a = {
        .forward =
            {.ndim = 1, .shape = {numel}, .a_strides = {1}, .b_strides = {1}, .op = op, .beta = 1.0f, .dtype = t},
        .dy_strides = {1}};
    char text[64];

    WANT(BINARY_BACKWARD)
    a.forward.a = array(b, t, numel, 0), a.forward.b = array(b, t, numel, 0), a.dy = array(b, t, numel, 0);
    a.da = array(b, t, numel, 0), a.db = array(b, t, numel, 0);
    snprintf(text, sizeof text, "%s %ld %s", name, (long)numel, fsdp_dtype_name(t));
    measure(b, FSDP__KERNEL_BINARY_BACKWARD, &a, 0, 5.0 * (double)numel * (double)fsdp_dtype_size(t), text);
}

static void choices(bench *b, fsdp_dtype t, int64_t numel)
{
    fsdp__where_args a = {
        .ndim = 1, .shape = {numel}, .mask_strides = {1}, .a_strides = {1}, .b_strides = {1}, .dtype = t};
    char text[64];

    WANT(WHERE)
    a.mask = memset(array(b, t, numel, 0), 1, (size_t)numel);
    a.a = array(b, t, numel, 0), a.b = array(b, t, numel, 0), a.y = array(b, t, numel, 0);
    snprintf(text, sizeof text, "%ld %s", (long)numel, fsdp_dtype_name(t));
    measure(b, FSDP__KERNEL_WHERE, &a, 0, (double)numel * (1.0 + 3.0 * (double)fsdp_dtype_size(t)), text);
}

static void functions(bench *b, fsdp_dtype t, int64_t numel)
{
    static const char *const names[] = {"exp",     "sqrt", "rsqrt", "reciprocal", "tanh",
                                        "sigmoid", "log",  "abs",   "square",     "clamp"};
    double bytes = (double)numel * (double)fsdp_dtype_size(t);

    for (int op = FSDP__EXP; op <= FSDP__CLAMP; op++) {
        fsdp__unary_forward_args f = {.numel = numel, .op = (fsdp__unary_op)op, .low = -0.2f, .high = 0.2f, .dtype = t};
        fsdp__unary_backward_args g = {.numel = numel, .op = f.op, .low = f.low, .high = f.high, .dtype = t};
        char text[64];

        snprintf(text, sizeof text, "%s %ld %s", names[op], (long)numel, fsdp_dtype_name(t));
        if (wanted(b, "unary_forward")) {
            f.x = array(b, t, numel, 0), f.y = array(b, t, numel, 0);
            measure(b, FSDP__KERNEL_UNARY_FORWARD, &f, 0, 2.0 * bytes, text);
        }
        if (wanted(b, "unary_backward")) {
            g.saved = array(b, t, numel, 0), g.dy = array(b, t, numel, 0), g.dx = array(b, t, numel, 0);
            measure(b, FSDP__KERNEL_UNARY_BACKWARD, &g, 0, 3.0 * bytes, text);
        }
    }
}

/* Measures the largest, and sums of squares about a mean: of rows, and of columns. */
static void reductions(bench *b, fsdp_dtype t, int64_t rows, int64_t cols)
{
    static const char *const names[] = {"max of rows", "max of columns", "squares of rows", "squares of columns"};
    double bytes = (double)(rows * cols) * (double)fsdp_dtype_size(t);

    WANT(REDUCE)
    for (int kind = 0; kind < 4; kind++) {
        fsdp__reduce_args a = {.outer = kind % 2 ? 1 : rows, .alpha = 1.0f, .x_dtype = t, .y_dtype = FSDP_F32};
        char text[64];

        a.reduced = kind % 2 ? rows : cols;
        a.inner = kind % 2 ? cols : 1;
        a.op = kind < 2 ? FSDP__REDUCE_MAX : FSDP__REDUCE_SUM;
        a.x = array(b, t, rows * cols, 0), a.y = array(b, FSDP_F32, a.outer * a.inner, 0);
        a.center = kind < 2 ? NULL : array(b, FSDP_F32, a.outer * a.inner, 0);
        snprintf(text, sizeof text, "%s %ld x %ld %s", names[kind], (long)rows, (long)cols, fsdp_dtype_name(t));
        measure(b, FSDP__KERNEL_REDUCE, &a, 0, bytes, text);
    }
}

void bench_elements(bench *b, fsdp_dtype t, int64_t rows, int64_t cols)
{
    operands(b, t, rows, cols, FSDP__ADD, "add");
    operands(b, t, rows, cols, FSDP__DIV, "div");
    operands(b, t, rows, cols, FSDP__POW, "pow");
    operands(b, t, rows, cols, FSDP__GT, "gt");
    slopes(b, t, rows * cols, FSDP__DIV, "div");
    slopes(b, t, rows * cols, FSDP__POW, "pow");
    slopes(b, t, rows * cols, FSDP__MAXIMUM, "maximum");
    slopes(b, t, rows * cols, FSDP__SQUARED_ERROR, "squared error");
    slopes(b, t, rows * cols, FSDP__BCE_LOGITS, "bce");
    choices(b, t, rows * cols);
    functions(b, t, rows * cols);
    reductions(b, t, rows, cols);
}
