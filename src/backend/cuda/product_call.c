/* product_call.c - a matrix product as a call of cublasLt. */
#include "backend/cuda/product_call.h"

#include <string.h>

const char *const fsdp__product_epilogue_names[] = {
#define NAME(name) #name,
    FSDP__EPILOGUE_MAP(NAME)
#undef NAME
};

static int alignment_of(const void *pointer)
{
    uintptr_t low = (uintptr_t)pointer & -(uintptr_t)pointer;

    return low == 0 || low > FSDP__PRODUCT_ALIGNMENT ? FSDP__PRODUCT_ALIGNMENT : (int)low;
}

/* Gives a matrix (rows,cols) whose element (i,j) is at data[i * row + j * col] as one that is stored by columns.
 * Returns false if its columns overlap there. */
static bool stored(int64_t rows, int64_t cols, int64_t row, int64_t col, fsdp__product_matrix *out)
{
    bool transposed = row != 1;
    int64_t length = transposed ? cols : rows, count = transposed ? rows : cols, ld = transposed ? row : col;

    if (count == 1)
        ld = length; /* there is no next column */
    if ((transposed && col != 1) || ld < length || rows > INT32_MAX || cols > INT32_MAX)
        return false;
    out->rows = length;
    out->cols = count;
    out->ld = ld;
    out->transposed = transposed;
    return true;
}

static void describe(fsdp__product_matrix *matrix, fsdp_dtype dtype, const void *data, int64_t batch)
{
    matrix->dtype = dtype;
    matrix->alignment = alignment_of(data);
    matrix->batch = batch;
}

/* Returns whether cublasLt has such a product with GELU: columns of GELU's input are multiples of 8 apart. */
static bool has_gelu(const fsdp__matmul_args *k)
{
    return k->c_dtype == k->a_dtype && k->batch == 1 && !k->accumulate && !k->sums && (!k->before || k->c_row % 8 == 0);
}

/* Returns whether cublasLt has kernels for these dtypes, with sums in f32. */
static bool has_dtypes(const fsdp__matmul_args *k)
{
    return k->a_dtype == k->b_dtype && (k->c_dtype == k->a_dtype || k->c_dtype == FSDP_F32) &&
           (!k->bias || (k->bias_dtype == k->c_dtype && !k->sums));
}

static int32_t epilogue_of(const fsdp__matmul_args *k)
{
    if (k->sums)
        return k->sums_of_b ? FSDP__EPILOGUE_SUMS_OF_FIRST : FSDP__EPILOGUE_SUMS_OF_SECOND;
    if (k->gelu == FSDP__PRODUCT_GELU_GRADIENT)
        return FSDP__EPILOGUE_DGELU;
    if (k->gelu == FSDP__PRODUCT_GELU && k->before)
        return k->bias ? FSDP__EPILOGUE_GELU_AUX_BIAS : FSDP__EPILOGUE_GELU_AUX;
    if (k->gelu == FSDP__PRODUCT_GELU)
        return k->bias ? FSDP__EPILOGUE_GELU_BIAS : FSDP__EPILOGUE_GELU;
    return k->bias ? FSDP__EPILOGUE_BIAS : FSDP__EPILOGUE_NONE;
}

bool fsdp__product_call_of(const fsdp__matmul_args *k, fsdp__product_call *out)
{
    bool many = k->batch > 1;

    memset(out, 0, sizeof *out);
    if (!has_dtypes(k) || (k->gelu && !has_gelu(k)) || k->batch > INT32_MAX ||
        !stored(k->n, k->k, k->b_col, k->b_row, &out->first) || !stored(k->k, k->m, k->a_col, k->a_row, &out->second) ||
        !stored(k->n, k->m, 1, k->c_row, &out->out))
        return false;
    describe(&out->first, k->b_dtype, k->b, many ? k->b_batch : 0);
    describe(&out->second, k->a_dtype, k->a, many ? k->a_batch : 0);
    describe(&out->out, k->c_dtype, k->c, many ? k->c_batch : 0);
    out->batch = (int32_t)k->batch;
    out->epilogue = epilogue_of(k);
    out->aux_alignment = k->before ? alignment_of(k->before) : 0;
    out->bias_alignment = k->bias ? alignment_of(k->bias) : k->sums ? alignment_of(k->sums) : 0;
    return true;
}
