/* matmul.cu - the matrix product of our own, for all layouts and dtypes: for what cuBLAS does not compute
 * (products.c). */
#include "backend/cuda/kernels/tile.cuh"

extern "C" fsdp_status fsdp__cuda_reduce(fsdp_stream *stream, const void *args);             /* reduce.cu */
extern "C" fsdp_status fsdp__cuda_activation_forward(fsdp_stream *stream, const void *args); /* activation.cu */
extern "C" fsdp_status fsdp__cuda_activation_backward(fsdp_stream *stream, const void *args);

/* Element (i,p) is at data[i * side + p * step]. */
template <class T>
struct elements {
    static constexpr int AT_ONCE = 4;
    const T *data;
    int64_t sides, side, step;

    DEVICE bool deep() const
    {
        return step == 1;
    }
    DEVICE float get(int64_t i, int64_t p) const
    {
        return load(data, i * side + p * step);
    }
};

/* Describes A, or B with its columns as sides. */
struct matrix {
    const void *data;
    fsdp_dtype dtype;
    int64_t first, sides, side, step;

    DEVICE void read(int64_t i0, int64_t p0, int64_t end, float4 (*slice)[TILE_PITCH]) const
    {
        EACH_FLOAT(dtype, T, read_slice(elements<T>{(const T *)data + first, sides, side, step}, i0, p0, end, slice));
    }
};

/* Stores a thread's part of the tile at (i0,j0) of a batch. */
DEVICE void store_part(const fsdp__matmul_args &k, const tile_part &part, int64_t batch, int64_t i0, int64_t j0)
{
    for (int i = 0; i < TILE_PART; i++)
        for (int j = 0; j < TILE_PART; j++) {
            int64_t row = i0 + tile_row() + i, col = j0 + tile_col() + j;
            int64_t at = batch * k.c_batch + row * k.c_row + col;
            float x = k.alpha * part.sum[i][j];

            if (row >= k.m || col >= k.n)
                continue;
            if (k.bias)
                x += load_any(k.bias_dtype, k.bias, col);
            if (k.accumulate)
                x += load_any(k.c_dtype, k.c, at);
            store_any(k.c_dtype, k.c, at, x);
        }
}

static __global__ void __launch_bounds__(BLOCK) multiply(GRID_CONSTANT(fsdp__matmul_args) k)
{
    int64_t down = tiles_of(k.m), across = tiles_of(k.n);

    EACH_ROW (tile, k.batch * down * across) {
        int64_t batch = tile / (down * across), i0 = tile / across % down * TILE, j0 = tile % across * TILE;
        matrix a = {k.a, k.a_dtype, batch * k.a_batch, k.m, k.a_row, k.a_col};
        matrix b = {k.b, k.b_dtype, batch * k.b_batch, k.n, k.b_col, k.b_row};

        store_part(k, tile_product(a, b, i0, j0, 0, k.k), batch, i0, j0);
    }
}

/* Adds up the operand by a pass of its own. */
ENTRY_LIKE(operand_sums, matmul, k)
{
    int64_t sides = k->sums_of_b ? k->n : k->m;
    bool across = (k->sums_of_b ? k->b_row : k->a_col) != 1; /* the sums are of columns, as it lies in memory */
    fsdp__reduce_args sum = {};

    sum.x = k->sums_of_b ? k->b : k->a;
    sum.y = k->sums;
    sum.outer = across ? 1 : sides;
    sum.reduced = k->k;
    sum.inner = across ? sides : 1;
    sum.alpha = 1.0f;
    sum.x_dtype = k->sums_of_b ? k->b_dtype : k->a_dtype;
    sum.y_dtype = k->c_dtype;
    return fsdp__cuda_reduce(stream, &sum);
}

/* Takes the rows of a product through GELU or its gradient, by a pass of its own: r lies in `before`, or in C. */
ENTRY_LIKE(product_gelu, matmul, k)
{
    int64_t rows = k->c_row == k->n ? k->m : 1, size = k->c_dtype == FSDP_F32 ? 4 : 2;

    for (int64_t row = 0; row < k->m; row += rows) {
        char *c = (char *)k->c + row * k->c_row * size;
        char *before = k->before ? (char *)k->before + row * k->c_row * size : c;
        fsdp__activation_forward_args forward = {};
        fsdp__activation_backward_args backward = {};

        forward.x = backward.x = before;
        forward.y = c;
        backward.dy = backward.dx = c;
        forward.rows = backward.rows = rows;
        forward.cols = backward.cols = k->n;
        forward.kind = backward.kind = FSDP__GELU_TANH;
        forward.dtype = backward.dtype = k->c_dtype;
        FSDP_TRY(k->gelu == FSDP__PRODUCT_GELU ? fsdp__cuda_activation_forward(stream, &forward)
                                               : fsdp__cuda_activation_backward(stream, &backward));
    }
    return FSDP_OK;
}

ENTRY_LIKE(own_matmul, matmul, k)
{
    fsdp__matmul_args plain = *k;

    if (k->sums)
        FSDP_TRY(fsdp__cuda_operand_sums(stream, k));
    if (k->gelu == FSDP__PRODUCT_GELU && k->before)
        plain.c = k->before;
    FSDP_TRY(
        launch(stream, "matmul", multiply, blocks_for(k->batch * tiles_of(k->m) * tiles_of(k->n), 1), BLOCK, 0, plain));
    return k->gelu ? fsdp__cuda_product_gelu(stream, k) : FSDP_OK;
}
