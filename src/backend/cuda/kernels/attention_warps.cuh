/* attention_warps.cuh - products of attention on tensor cores, for elements of 16 bits.
 *
 * A block of 4 warps owns a tile of rows, `FOLD` times 16 for each warp, whose elements stay in shared memory; tiles of
 * the other side pass through two buffers, one of which is filled while the other is read. A warp's scores stay in its
 * registers, laid out as multiply_add() gives them, and go from there into the second product, rounded to T: score
 * (fold, n, 2 i + j) of a lane is that of row 16 fold + g + 8 i and column 8 n + 2 t + j, for g = lane / 4 and
 * t = lane % 4. So what is stationary is always on the left: the backward for keys computes the scores transposed.
 *
 * A row in shared memory has room for WIDTH elements (the head dimension, rounded up; zeros follow it) and 16 bytes
 * more: then 8 pieces of 16 bytes from 8 rows lie in different banks. */
#pragma once

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/intrinsics.cuh"
#include "backend/cuda/kernels/pack.cuh"

/* Does the same as EACH_FLOAT for the types of 16 bits. */
#define EACH_HALF(dtype, T, ...) \
    switch (dtype) {             \
    case FSDP_BF16: {            \
        using T = bf16;          \
        __VA_ARGS__;             \
    } break;                     \
    case FSDP_F16: {             \
        using T = f16;           \
        __VA_ARGS__;             \
    } break;                     \
    default:                     \
        break;                   \
    }

namespace attention
{
enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    MOST_WIDTH = 128
};

/* Lists the sizes of a kernel: a tile of ROWS rows meets tiles of OTHERS rows. A NARROW one knows windows, documents
 * and caps. BLOCKS find room on a multiprocessor, or as many as the compiler thinks best (0). Those of heads of 64 are
 * the fastest of some twenty shapes that were timed on an H200. */
template <class T, int width, int fold, int others, bool narrow, int blocks = 0>
struct shape {
    typedef T type;
    enum {
        WIDTH = width,
        ROW = width + 8,
        FOLD = fold,
        WARP_ROWS = 16 * fold,
        ROWS = WARP_ROWS * WARPS,
        OTHERS = others,
        NARROW = narrow,
        BLOCKS = blocks
    };
    typedef float scores[fold][others / 8][4]; /* what a lane holds of a warp's scores */
    typedef float sums[fold][width / 8][4];    /* and of its results */
};

/* Returns the bytes of shared memory for `own` matrices of the block's rows and two buffers of pairs. */
template <class S>
static size_t shared_bytes(int own)
{
    return (size_t)(own * S::ROWS + 4 * S::OTHERS) * S::ROW * sizeof(typename S::type);
}

/* Begins to copy n of `rows` rows to shared memory; the others become zeros. */
template <class S, class T>
DEVICE void stage_rows(T *to, rows_of<const T> from, int rows, int64_t n, int dim)
{
    enum {
        PIECES = S::WIDTH / 8
    };
    bool pieces = in_pieces(from, dim);

    for (int i = (int)threadIdx.x; i < rows * PIECES; i += THREADS) {
        int r = i / PIECES, c = i % PIECES * 8;
        const T *row = from.data + r * from.stride;
        T *at = to + r * S::ROW + c;

        if (pieces) {
            bool real = r < n && c < dim;
            copy_16(at, real ? row + c : from.data, real ? 16 : 0);
        } else {
            uint32_t two[4] = {};
            for (int j = 0; j < 8; j++)
                if (r < n && c + j < dim)
                    two[j / 2] |= (uint32_t)row[c + j].bits << (j % 2 * 16);
            *(uint4 *)at = {two[0], two[1], two[2], two[3]};
        }
    }
}

/* Begins to copy rows of two matrices, one behind the other; n of a tile's rows are real. */
template <class S, class T>
DEVICE void stage_pair(T *to, rows_of<const T> first, rows_of<const T> second, int rows, int64_t n, int dim)
{
    stage_rows<S>(to, first, rows, n, dim);
    stage_rows<S>(to + rows * S::ROW, second, rows, n, dim);
    copies_commit();
}

/* Waits for what this thread and all others have begun to copy; all are done with what they have read before. */
DEVICE void await_stage(void)
{
    copies_wait<0>();
    __syncthreads();
}

/* Computes x = left right^T; `left` are the warp's own rows. */
template <class S, class T>
DEVICE void multiply_tiles(typename S::scores &x, const T *left, const T *right)
{
    int lane = lane_of_warp();

    for (int m = 0; m < S::FOLD; m++)
        for (int n = 0; n < S::OTHERS / 8; n++)
            for (int i = 0; i < 4; i++)
                x[m][n][i] = 0.0f;
    left += lane % 16 * S::ROW + lane / 16 * 8;
    right += (lane % 8 + lane / 16 * 8) * S::ROW + lane / 8 % 2 * 8;
    for (int c = 0; c < S::WIDTH; c += 16) {
        uint32_t a[S::FOLD][4], b[4];

        for (int m = 0; m < S::FOLD; m++)
            load_matrices<4>(a[m], left + 16 * m * S::ROW + c);
        for (int n = 0; n < S::OTHERS / 8; n += 2) {
            load_matrices<4>(b, right + 8 * n * S::ROW + c);
            for (int m = 0; m < S::FOLD; m++) {
                multiply_add<T>(x[m][n], a[m], b);
                multiply_add<T>(x[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Adds x, rounded to T, times the rows of a tile to sum. */
template <class S, class T>
DEVICE void add_tile(typename S::sums &sum, const typename S::scores &x, const T *tile)
{
    int lane = lane_of_warp();

    tile += lane % 16 * S::ROW + lane / 16 * 8;
    for (int r = 0; r < S::OTHERS / 8; r += 2) {
        uint32_t a[S::FOLD][4], b[4];

        for (int m = 0; m < S::FOLD; m++)
            for (int i = 0; i < 4; i++)
                a[m][i] = pack_two<T>(x[m][r + i / 2][i % 2 * 2], x[m][r + i / 2][i % 2 * 2 + 1]);
        for (int c = 0; c < S::WIDTH / 8; c += 2) {
            load_matrices<4, true>(b, tile + 8 * r * S::ROW + 8 * c);
            for (int m = 0; m < S::FOLD; m++) {
                multiply_add<T>(sum[m][c], a[m], b);
                multiply_add<T>(sum[m][c + 1], a[m], b + 2);
            }
        }
    }
}

/* Puts `hidden` where a row does not see a key; the warp's rows begin at query t0, and the keys at s0. */
template <class S>
DEVICE void hide_keys(const fsdp__attention_forward_args &k, int64_t batch, typename S::scores &x, float hidden,
                      int64_t t0, int64_t s0)
{
    int lane = lane_of_warp();

    /* The first row sees the fewest last keys, and the last row the fewest first ones. */
    if (s0 + S::OTHERS <= keys_seen(k, t0) && (!S::NARROW || s0 >= first_key(k, batch, t0 + S::WARP_ROWS - 1)))
        return;
    UNROLL
    for (int m = 0; m < S::FOLD; m++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        int64_t t = t0 + 16 * m + lane / 4 + i / 2 * 8;
        int seen = (int)at_most(keys_seen(k, t) - s0, S::OTHERS);
        int first = (int)at_most(first_seen<S::NARROW>(k, batch, t) - s0, S::OTHERS);

        UNROLL
        for (int n = 0; n < S::OTHERS / 8; n++) {
            int s = 8 * n + lane % 4 * 2 + i % 2;
            x[m][n][i] = s < seen && (!S::NARROW || s >= first) ? x[m][n][i] : hidden;
        }
    }
}

/* Stores a warp's results, of which n rows are real, by way of `own`: the warp's rows in shared memory, which nobody
 * else reads. factor(m, i) is for the rows 16 m + g + 8 i. */
template <class S, class T>
DEVICE void store_sums(const typename S::sums &sum, const float (&factor)[S::FOLD][2], T *own, rows_of<T> to, int64_t n,
                       int dim)
{
    enum {
        PIECES = S::WIDTH / 8
    };
    int lane = lane_of_warp();
    bool pieces = in_pieces(to, dim);

    __syncwarp();
    for (int m = 0; m < S::FOLD; m++)
        for (int c = 0; c < S::WIDTH / 8; c++)
            for (int i = 0; i < 2; i++) {
                T *at = own + (16 * m + lane / 4 + 8 * i) * S::ROW + 8 * c + lane % 4 * 2;
                *(uint32_t *)at = pack_two<T>(sum[m][c][2 * i] * factor[m][i], sum[m][c][2 * i + 1] * factor[m][i]);
            }
    __syncwarp();
    for (int i = lane; i < S::WARP_ROWS * PIECES; i += WARP) {
        int r = i / PIECES, c = i % PIECES * 8;
        const T *at = own + r * S::ROW + c;
        T *row = to.data + r * to.stride + c;

        if (r < n && c < dim && pieces)
            *(uint4 *)row = *(const uint4 *)at;
        else if (r < n)
            for (int j = 0; j < 8 && c + j < dim; j++)
                row[j] = at[j];
    }
    __syncwarp();
}
} // namespace attention
