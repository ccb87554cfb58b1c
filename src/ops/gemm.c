/* gemm.c - tensors as matrices. Transposed and strided 2-D views are read in place; others are copied first. */
#include "base/compiler.h"
#include "ops/op.h"

/* Finds one stride for dimensions [first, last) of `tensor`, as if they were one; returns false if there is none. */
static bool collapse(const fsdp_tensor *tensor, int first, int last, int64_t *size, int64_t *stride)
{
    *size = 1;
    *stride = 0;
    for (int i = last - 1; i >= first; i--) {
        if (tensor->shape[i] == 1)
            continue;
        if (*size == 1)
            *stride = tensor->strides[i];
        else if (tensor->strides[i] != *stride * *size)
            return false;
        *size *= tensor->shape[i];
    }
    return true;
}

/* Returns whether the kernel can read the matrix: one stride must be 1 and the other no shorter than a row. */
static bool readable(fsdp__matrix *m)
{
    if (m->cols == 1 && m->rows > 1 && m->row > 0)
        m->col = 1;
    if (m->rows == 1 && (m->col == 1 || m->cols == 1)) {
        m->col = 1;
        m->row = m->cols > 0 ? m->cols : 1;
    }
    return (m->col == 1 && m->row >= m->cols) || (m->row == 1 && m->col >= m->rows);
}

static bool view(const fsdp_tensor *tensor, int row_first, fsdp__matrix *out)
{
    int last = tensor->ndim - 1;
    fsdp__matrix m = {.data = fsdp_tensor_data(tensor),
                      .cols = tensor->shape[last],
                      .col = tensor->strides[last],
                      .dtype = tensor->dtype};

    if (!collapse(tensor, 0, row_first, &m.batch, &m.batch_stride) ||
        !collapse(tensor, row_first, last, &m.rows, &m.row) || !readable(&m))
        return false;
    *out = m;
    return true;
}

/* Makes a matrix for a tensor without elements: none is read, so any strides will do. */
static fsdp__matrix without_elements(const fsdp_tensor *tensor, int row_first)
{
    int last = tensor->ndim - 1;

    return (fsdp__matrix){.data = fsdp_tensor_data(tensor),
                          .batch = fsdp__shape_numel(row_first, tensor->shape),
                          .rows = fsdp__shape_numel(last - row_first, tensor->shape + row_first),
                          .cols = tensor->shape[last],
                          .row = FSDP__MAX(tensor->shape[last], 1),
                          .col = 1,
                          .dtype = tensor->dtype};
}

static fsdp_status matrix_of(fsdp_tensor *tensor, int row_first, fsdp__matrix *out)
{
    if (fsdp_tensor_numel(tensor) == 0) {
        *out = without_elements(tensor, row_first);
        return FSDP_OK;
    }
    if (view(tensor, row_first, out))
        return FSDP_OK;
    FSDP__TRY_MADE(tensor = fsdp__op_contiguous(tensor));
    (void)view(tensor, row_first, out); /* a contiguous tensor can always be viewed */
    return FSDP_OK;
}

fsdp_status fsdp__matrix_of(fsdp_tensor *tensor, fsdp__matrix *out)
{
    return matrix_of(tensor, 0, out);
}

fsdp_status fsdp__matrix_batch_of(fsdp_tensor *tensor, fsdp__matrix *out)
{
    return matrix_of(tensor, tensor->ndim - 2, out);
}

fsdp__matrix fsdp__matrix_transposed(fsdp__matrix m)
{
    fsdp__matrix t = m;

    t.rows = m.cols;
    t.cols = m.rows;
    t.row = m.col;
    t.col = m.row;
    return t;
}

/* Returns how far rows of the result are apart: it has room between them only as a matrix. */
static int64_t row_of(const fsdp_tensor *c, int64_t cols)
{
    return c->ndim == 2 && c->shape[0] > 1 && c->shape[1] == cols ? c->strides[0] : cols;
}

static fsdp__matmul_args args_of(fsdp__matrix a, fsdp__matrix b, const fsdp_tensor *bias, const fsdp_tensor *c,
                                 bool accumulate)
{
    int64_t batch = a.batch > b.batch ? a.batch : b.batch;

    return (fsdp__matmul_args){.a = a.data,
                               .b = b.data,
                               .c = fsdp_tensor_data(c),
                               .bias = bias ? fsdp_tensor_data(bias) : NULL,
                               .m = a.rows,
                               .n = b.cols,
                               .k = a.cols,
                               .a_row = a.row,
                               .a_col = a.col,
                               .b_row = b.row,
                               .b_col = b.col,
                               .c_row = row_of(c, b.cols),
                               .batch = batch,
                               .a_batch = a.batch == 1 ? 0 : a.batch_stride,
                               .b_batch = b.batch == 1 ? 0 : b.batch_stride,
                               .c_batch = a.rows * b.cols,
                               .a_dtype = a.dtype,
                               .b_dtype = b.dtype,
                               .c_dtype = c->dtype,
                               .bias_dtype = bias ? bias->dtype : FSDP_DTYPE_NONE,
                               .alpha = 1.0f,
                               .accumulate = accumulate};
}

/* Writes what a product of nothing is: the bias in each row, or zeros. */
static fsdp_status empty_sums(const fsdp_tensor *bias, fsdp_tensor *c)
{
    int64_t strides[FSDP_MAX_DIMS] = {0};

    if (!bias)
        return fsdp_tensor_fill_(c, 0.0);
    strides[c->ndim - 1] = 1;
    return fsdp__op_broadcast(c, bias, strides);
}

fsdp_status fsdp__gemm(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *bias, fsdp_tensor *c, bool accumulate)
{
    fsdp_tensor *row = fsdp__op_contiguous(bias);
    const fsdp__matmul_args args = args_of(a, b, row, c, accumulate);

    if (bias && !row)
        return fsdp_last_status();
    if (fsdp_tensor_numel(c) == 0)
        return FSDP_OK;
    if (a.cols == 0)
        return accumulate ? FSDP_OK : empty_sums(row, c);
    return fsdp__launch_matmul(fsdp__op_stream(c), &args);
}

/* Returns whether the matrix, or its transpose, has no room between its rows. */
static bool is_dense(const fsdp__matrix *m)
{
    return m->col == 1 ? m->row == m->cols : m->col == m->rows;
}

bool fsdp__gemm_sums(fsdp__matrix a, fsdp__matrix b, const fsdp_tensor *c, const fsdp_tensor *sums, bool of_b)
{
    return fsdp__device_sums_operands(c->storage->device) && sums->dtype == c->dtype && a.batch == 1 && b.batch == 1 &&
           a.cols > 0 && fsdp_tensor_numel(c) > 0 && is_dense(of_b ? &b : &a);
}

fsdp_status fsdp__gemm_and_sums(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *c, bool accumulate, fsdp_tensor *sums,
                                bool of_b)
{
    fsdp__matmul_args args = args_of(a, b, NULL, c, accumulate);

    args.sums = fsdp_tensor_data(sums);
    args.sums_of_b = of_b;
    return fsdp__launch_matmul(fsdp__op_stream(c), &args);
}

fsdp_status fsdp__gemm_gelu(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *bias, fsdp_tensor *c, fsdp_tensor *before)
{
    fsdp_tensor *row = fsdp__op_contiguous(bias);
    fsdp__matmul_args args = args_of(a, b, row, c, false);

    if (bias && !row)
        return fsdp_last_status();
    args.gelu = FSDP__PRODUCT_GELU;
    args.before = before ? fsdp_tensor_data(before) : NULL;
    return fsdp__launch_matmul(fsdp__op_stream(c), &args);
}

fsdp_status fsdp__gemm_gelu_gradient(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *c, fsdp_tensor *before)
{
    fsdp__matmul_args args = args_of(a, b, NULL, c, false);

    args.gelu = FSDP__PRODUCT_GELU_GRADIENT;
    args.before = fsdp_tensor_data(before);
    return fsdp__launch_matmul(fsdp__op_stream(c), &args);
}
