/* attention.cuh - what the kernels of attention share.
 *
 * [Note: attention by tiles]
 * A block owns a tile of queries (forward, dQ) or of keys (dK and dV) and walks over tiles of the other side, so each
 * result has one owner, who adds in the order of time: no atomics, and the same bits every time. The backward computes
 * the probabilities again, once for keys and once for queries. Query heads that share a key head are added up by the
 * owner of the keys, in their order.
 *
 * The kernels of this file multiply by ordinary arithmetic in f32, in tiles of 64 x 64, of which each of 256 threads
 * holds 4 x 4: rows 4 y to 4 y + 3 and columns 4 x to 4 x + 3. They take any head dimension, stride and alignment.
 * Where a head is wider than a block's share of columns, several blocks compute the same scores. */
#ifndef BACKEND_CUDA_ATTENTION_CUH
#define BACKEND_CUDA_ATTENTION_CUH

#include "backend/cuda/kernels/kernel.cuh"

enum {
    TILE = 64,          /* queries or keys */
    CHUNK = 32,         /* of the dimension that is summed over */
    PITCH = TILE + 4,   /* floats from row to row in shared memory */
    MOST_COLUMNS = 128, /* of a head that a block computes */
    SIDE = 16           /* threads along a side of a tile */
};

typedef float square[4][4]; /* what a thread holds of a tile */

/* Shared memory of a block. */
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

/* Heads of a batch element, or gradients of them: where they begin, and what lies between rows. */
template <class T> struct rows_of {
    T *data;
    int64_t stride;
};

HOST_DEVICE int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns how many keys query t sees. */
DEVICE int64_t keys_seen(const fsdp__attention_forward_args &k, int64_t t)
{
    int64_t seen = k.causal ? at_most(t + k.kv_time - k.q_time + 1, k.kv_time) : k.kv_time;

    return seen > 0 ? seen : 0;
}

/* Returns the first query that sees key s, or q_time if there is none. */
DEVICE int64_t first_query(const fsdp__attention_forward_args &k, int64_t s)
{
    int64_t first = k.causal ? at_most(s - k.kv_time + k.q_time, k.q_time) : 0;

    return first > 0 ? first : 0;
}

/* Returns how many parts of `each` make up n. */
HOST_DEVICE int64_t parts(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

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

/* Which tile of which head a block computes. */
struct place {
    int64_t tile, head, batch, column; /* the first of its columns */
};

/* Returns the place of a task: columns first, then heads, batch elements and tiles. */
template <int COLUMNS> DEVICE place place_of(int64_t task, int64_t heads, int64_t batch, int64_t dim)
{
    int64_t slices = parts(dim, COLUMNS);
    place p;

    p.column = task % slices * COLUMNS;
    p.head = task / slices % heads;
    p.batch = task / slices / heads % batch;
    p.tile = task / slices / heads / batch;
    return p;
}

#define EACH_TASK(task, tasks) for (int64_t task = blockIdx.x; task < (tasks); task += gridDim.x)

/* Where head h of batch element b begins at time t. */
template <class T>
DEVICE rows_of<T> rows_at(const void *base, int64_t b, int64_t batch, int64_t t, int64_t time, int64_t h, int64_t head)
{
    rows_of<T> rows = {(T *)base + b * batch + t * time + h * head, time};

    return rows;
}

#define Q_ROWS(k, b, t, h) rows_at<const T>((k).q, b, (k).q_batch, t, (k).q_stride_time, h, (k).q_head)
#define K_ROWS(k, b, t, h) rows_at<const T>((k).k, b, (k).k_batch, t, (k).k_stride_time, h, (k).k_head)
#define V_ROWS(k, b, t, h) rows_at<const T>((k).v, b, (k).v_batch, t, (k).v_stride_time, h, (k).v_head)
#define OUT_ROWS(k, base, b, t, h) rows_at<const T>(base, b, (k).out_batch, t, (k).out_stride_time, h, (k).out_head)

#endif
