/* attention_tiles.cuh - products of attention by ordinary arithmetic, in f32.
 *
 * Tiles are 64 x 64, of which each of 256 threads holds 4 x 4: rows 4 y to 4 y + 3 and columns 4 x to 4 x + 3. Where a
 * head is wider than a block's share of columns, several blocks compute the same scores. */
#pragma once

#include "backend/cuda/kernels/attention.cuh"

namespace attention
{
enum {
    TILE = 64,          /* queries or keys */
    CHUNK = 32,         /* of the dimension that is summed over */
    PITCH = TILE + 4,   /* floats from row to row in shared memory */
    MOST_COLUMNS = 128, /* of a head that a block computes */
    SIDE = 16           /* threads along a side of a tile */
};

typedef float square[4][4]; /* what a thread holds of a tile */

/* Lays out the shared memory of a block. */
struct __align__(16) tiles
{
    union {
        struct {
            float left[CHUNK][PITCH], right[CHUNK][PITCH]; /* both transposed */
        };
        float rows[CHUNK][MOST_COLUMNS];
    };
    float factor[TILE][PITCH]; /* probabilities or their gradients, transposed */
};

DEVICE int tile_x(void)
{
    return (int)threadIdx.x % SIDE;
}

DEVICE int tile_y(void)
{
    return (int)threadIdx.x / SIDE;
}

DEVICE void load_four(const float *p, float (&x)[4])
{
    float4 four = *(const float4 *)p;

    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

DEVICE void add_outer(square &sum, const float (&a)[4], const float (&b)[4])
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] += a[i] * b[j];
}

/* Stages n rows, columns [first, first + CHUNK) of `dim`, transposed, with zeros around. */
template <class T>
DEVICE void stage_across(float (*to)[PITCH], rows_of<const T> from, int n, int64_t first, int64_t dim)
{
    for (int i = (int)threadIdx.x; i < TILE * CHUNK; i += BLOCK) {
        int r = i / CHUNK, c = i % CHUNK;

        to[c][r] = r < n && first + c < dim ? load(from.data, r * from.stride + first + c) : 0.0f;
    }
}

/* Computes x = left right^T: left_n and right_n rows of `dim` columns. */
template <class T>
DEVICE void multiply_rows(square &x, tiles &s, rows_of<const T> left, int left_n, rows_of<const T> right, int right_n,
                          int64_t dim)
{
    float a[4], b[4];

    for (int i = 0; i < 16; i++)
        x[i / 4][i % 4] = 0.0f;
    for (int64_t c0 = 0; c0 < dim; c0 += CHUNK) {
        __syncthreads();
        stage_across(s.left, left, left_n, c0, dim);
        stage_across(s.right, right, right_n, c0, dim);
        __syncthreads();
        for (int c = 0; c < CHUNK; c++) {
            load_four(&s.left[c][4 * tile_y()], a);
            load_four(&s.right[c][4 * tile_x()], b);
            add_outer(x, a, b);
        }
    }
}

/* Makes x the left matrix of add_product(). Whoever reads the one before must be done. */
DEVICE void keep_factor(tiles &s, const square &x)
{
    for (int j = 0; j < 4; j++) {
        float4 column = {x[0][j], x[1][j], x[2][j], x[3][j]};

        *(float4 *)&s.factor[4 * tile_x() + j][4 * tile_y()] = column;
    }
}

/* Adds factor times n rows, columns [first, first + COLUMNS) of `dim`, to sum. */
template <class T, int COLUMNS>
DEVICE void add_product(square (&sum)[COLUMNS / TILE], tiles &s, rows_of<const T> from, int n, int64_t first,
                        int64_t dim)
{
    float a[4], b[4];

    for (int r0 = 0; r0 < n; r0 += CHUNK) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < CHUNK * COLUMNS; i += BLOCK) {
            int r = i / COLUMNS, c = i % COLUMNS;

            s.rows[r][c] = r0 + r < n && first + c < dim ? load(from.data, (r0 + r) * from.stride + first + c) : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < CHUNK; r++) {
            load_four(&s.factor[r0 + r][4 * tile_y()], a);
            for (int part = 0; part < COLUMNS / TILE; part++) {
                load_four(&s.rows[r][TILE * part + 4 * tile_x()], b);
                add_outer(sum[part], a, b);
            }
        }
    }
}

/* Stores n rows of a result, times a factor for each of the thread's rows. */
template <class T, int COLUMNS>
DEVICE void store_rows(const square (&sum)[COLUMNS / TILE], const float (&factor)[4], rows_of<T> to, int n,
                       int64_t first, int64_t dim)
{
    for (int part = 0; part < COLUMNS / TILE; part++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                int r = 4 * tile_y() + i;
                int64_t c = first + TILE * part + 4 * tile_x() + j;

                if (r < n && c < dim)
                    store(to.data, r * to.stride + c, sum[part][i][j] * factor[i]);
            }
}

} // namespace attention
