/* test_product.cu - a product by all that intrinsics.cuh has, and a launch of any shape. */
#include "backend/cuda/kernels/intrinsics.cuh"
#include "cudash/test_kernels.h"

enum {
    STEP = 16, /* of the depth */
    STAGES = 3
};

template <class T>
struct stage {
    __align__(16) T a[16][STEP];
    __align__(16) T b[16][8]; /* depth x columns */
    __align__(16) T b_transposed[8][STEP];
};

/* Copies the operands of one step, zeros where they end. 32 lanes take a's 16 rows of two pieces. */
template <class T>
static __device__ void fetch(stage<T> *s, const cudash_product &k, int64_t row, int64_t column, int64_t at)
{
    int lane = lane_of_warp(), r = lane / 2, piece = lane % 2 * 8;
    bool deep = at + piece < k.depth;
    int64_t from_a = (row + r) * k.depth + at + piece, from_b = (column + r) * k.depth + at + piece;

    copy_16(&s->a[r][piece], row + r < k.rows && deep ? (const T *)k.a + from_a : (const T *)k.a,
            row + r < k.rows && deep ? 16 : 0);
    if (k.b_transposed && r < 8)
        copy_16(&s->b_transposed[r][piece], column + r < k.columns && deep ? (const T *)k.b + from_b : (const T *)k.b,
                column + r < k.columns && deep ? 16 : 0);
    if (!k.b_transposed && lane < STEP)
        copy_16(s->b[lane], at + lane < k.depth ? (const T *)k.b + (at + lane) * k.columns + column : (const T *)k.b,
                at + lane < k.depth ? 16 : 0);
}

/* One warp makes 16 x 8 of the result. */
template <class T>
static __global__ void product(GRID_CONSTANT(cudash_product) k)
{
    __shared__ stage<T> stages[STAGES];
    int64_t row = (int64_t)blockIdx.x * 16, column = (int64_t)blockIdx.y * 8, steps = (k.depth + STEP - 1) / STEP;
    int lane = lane_of_warp();
    float d[4] = {0, 0, 0, 0};

    for (int64_t i = 0; i < STAGES - 1; i++) {
        if (i < steps)
            fetch(&stages[i], k, row, column, i * STEP);
        copies_commit();
    }
    for (int64_t i = 0; i < steps; i++) {
        const stage<T> *s = &stages[i % STAGES];
        uint32_t a[4], b[2];

        copies_wait<STAGES - 2>();
        __syncthreads(); /* the copies of all are there, and all have read the stage that is overwritten next */
        if (i + STAGES - 1 < steps)
            fetch(&stages[(i + STAGES - 1) % STAGES], k, row, column, (i + STAGES - 1) * STEP);
        copies_commit();
        load_matrices<4>(a, &s->a[lane % 16][lane / 16 * 8]);
        if (k.b_transposed)
            load_matrices<2>(b, &s->b_transposed[lane % 8][lane / 8 % 2 * 8]);
        else
            load_matrices<2, true>(b, s->b[lane % 16]);
        multiply_add<T>(d, a, b);
    }
    for (int i = 0; i < 4; i++) {
        int64_t r = row + lane / 4 + i / 2 * 8, c = column + lane % 4 * 2 + i % 2;
        if (r < k.rows && c < k.columns)
            k.c[r * k.columns + c] = d[i];
    }
}

fsdp_status cudash_test_product(fsdp_stream *stream, const cudash_product *args)
{
    dim3 grid((unsigned)((args->rows + 15) / 16), (unsigned)((args->columns + 7) / 8));

    return args->dtype == FSDP_BF16 ? launch(stream, "product", product<bf16>, grid, WARP, 0, *args)
                                    : launch(stream, "product", product<f16>, grid, WARP, 0, *args);
}

static __global__ void nothing(void)
{
}

fsdp_status cudash_test_launch(const cudash_shape *shape)
{
    return launch(NULL, "nothing", nothing, dim3(shape->grid[0], shape->grid[1], shape->grid[2]), shape->threads,
                  shape->shared_bytes);
}
