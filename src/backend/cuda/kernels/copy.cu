/* copy.cu - copies of any strides between any dtypes.
 *
 * The dimensions are ordered by the destination's strides and joined. Rows that are contiguous on both sides move by
 * packs; where the source is contiguous in another dimension than the destination, tiles of 32 x 32 are turned in
 * shared memory; all else moves element by element. */
#include "backend/cuda/kernels/numbers.cuh"
#include "backend/cuda/kernels/places.cuh"

/* ---- what becomes of an element ---- */

template <class T>
struct moves {
    typedef T from;
    typedef T to;
    enum {
        READS = false
    }; /* whether `old` is needed */

    static DEVICE T of(T x, T)
    {
        return x;
    }
};

template <class From, class To>
struct converts {
    typedef From from;
    typedef To to;
    enum {
        READS = false
    };

    static DEVICE To of(From x, To)
    {
        return from_float<To>(to_float(x));
    }
};

template <class From, class To>
struct adds {
    typedef From from;
    typedef To to;
    enum {
        READS = true
    };

    static DEVICE To of(From x, To old)
    {
        return from_float<To>(to_float(old) + to_float(x));
    }
};

/* ---- rows ---- */

/* Rows of `cols` elements, which lie `src_step` and `dst_step` apart; `rows` says where a row begins. */
struct row_copy {
    const void *src;
    void *dst;
    places<2> rows;
    int64_t cols, src_step, dst_step, packs;
    divisor by_packs;
    bool aligned; /* every pack's address, and the steps are 1 */
};

template <class F, int N>
static __global__ void copy_rows(GRID_CONSTANT(row_copy) k)
{
    typedef typename F::from from;
    typedef typename F::to to;

    EACH_ITEM (item, k.rows.numel * k.packs) {
        int64_t row = quotient(item, k.by_packs), col = (item - row * k.packs) * N, at[2];

        find_places(k.rows, row, at);
        if (N == 1) {
            to *dst = (to *)k.dst + at[1] + col * k.dst_step;

            *dst = F::of(((const from *)k.src)[at[0] + col * k.src_step], F::READS ? *dst : to());
        } else {
            bool whole = k.aligned && col + N <= k.cols;
            to *dst = (to *)k.dst + at[1];
            pack<from, N> x = get<N>((const from *)k.src + at[0], col, k.cols, whole);
            pack<to, N> y = {};

            if (F::READS)
                y = get<N>((const to *)dst, col, k.cols, whole);
            UNROLL
            for (int e = 0; e < N; e++)
                y.at[e] = F::of(x.at[e], y.at[e]);
            put<N>(dst, col, k.cols, whole, y);
        }
    }
}

/* ---- tiles ---- */

enum {
    TILE = 32
};

/* Describes a matrix that is contiguous down its columns in the source and along its rows in the destination. */
struct tile_copy {
    const void *src;
    void *dst;
    places<2> matrices;                                 /* where a matrix begins */
    int64_t rows, cols, src_col, dst_row, down, across; /* the last two: tiles */
    divisor by_tiles, by_across;
};

template <class F>
static __global__ void copy_tiles(GRID_CONSTANT(tile_copy) k)
{
    typedef typename F::from from;
    typedef typename F::to to;
    __shared__ from tile[TILE][TILE + 1];
    int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;

    EACH_ROW (item, k.matrices.numel * k.down * k.across) {
        int64_t matrix = quotient(item, k.by_tiles), t = item - matrix * k.down * k.across;
        int64_t row = quotient(t, k.by_across) * TILE, col = (t - quotient(t, k.by_across) * k.across) * TILE, at[2];

        find_places(k.matrices, matrix, at);
        __syncthreads(); /* an earlier tile has been written */
        for (int c = y; c < TILE; c += BLOCK / TILE)
            if (row + x < k.rows && col + c < k.cols)
                tile[c][x] = ((const from *)k.src)[at[0] + row + x + (col + c) * k.src_col];
        __syncthreads();
        for (int r = y; r < TILE; r += BLOCK / TILE)
            if (row + r < k.rows && col + x < k.cols) {
                to *dst = (to *)k.dst + at[1] + (row + r) * k.dst_row + col + x;

                *dst = F::of(tile[x][r], F::READS ? *dst : to());
            }
    }
}

/* ---- numbers of any dtypes ---- */

static __global__ void copy_numbers(const void *src, fsdp_dtype src_dtype, void *dst, fsdp_dtype dst_dtype,
                                    GRID_CONSTANT(places<2>) k)
{
    EACH_ITEM (item, k.numel) {
        int64_t at[2];

        find_places(k, item, at);
        put_number(dst_dtype, dst, at[1], number_at(src_dtype, src, at[0]));
    }
}

/* ---- choice ---- */

/* The dimensions that are left: src and dst strides in `at`. */
struct copy_plan {
    const fsdp__copy_args *k;
    fsdp_stream *stream;
    places<2> at;
};

static copy_plan plan_of(fsdp_stream *stream, const fsdp__copy_args *k)
{
    int64_t shape[6], src[6], dst[6];
    int n = 0;

    for (int d = 0; d < k->ndim; d++) {
        int i = n++;

        for (; i > 0 && dst[i - 1] < k->dst_strides[d]; i--)
            shape[i] = shape[i - 1], src[i] = src[i - 1], dst[i] = dst[i - 1];
        shape[i] = k->shape[d], src[i] = k->src_strides[d], dst[i] = k->dst_strides[d];
    }
    return copy_plan{k, stream, places_of<2>(n, shape, {src, dst})};
}

/* Returns all dimensions but one or two. */
static places<2> without(const places<2> &p, int one, int other)
{
    int64_t shape[6], src[6], dst[6];
    int n = 0;

    for (int d = 0; d < p.ndim; d++)
        if (d != one && d != other)
            shape[n] = p.shape[d], src[n] = p.strides[0][d], dst[n++] = p.strides[1][d];
    return places_of<2>(n, shape, {src, dst});
}

template <class F>
static fsdp_status launch_tiles(const copy_plan &plan, int down)
{
    const places<2> &p = plan.at;
    int inner = p.ndim - 1;
    tile_copy t = {plan.k->src,
                   plan.k->dst,
                   without(p, down, inner),
                   p.shape[down],
                   p.shape[inner],
                   p.strides[0][inner],
                   p.strides[1][down],
                   (p.shape[down] + TILE - 1) / TILE,
                   (p.shape[inner] + TILE - 1) / TILE,
                   {},
                   {}};
    int64_t tiles = t.matrices.numel * t.down * t.across;

    t.by_tiles = divisor_of(t.down * t.across, tiles);
    t.by_across = divisor_of(t.across, t.down * t.across);
    return launch(plan.stream, "copy", copy_tiles<F>, blocks_for(tiles, 1), BLOCK, 0, t);
}

/* Copies by F in the way that the strides allow. */
template <class F>
static fsdp_status copy_by(const copy_plan &plan)
{
    const int from = (int)sizeof(typename F::from), to = (int)sizeof(typename F::to);
    const int n = ACCESS / (from < to ? from : to);
    const places<2> &p = plan.at;
    int inner = p.ndim - 1;
    bool packed = p.strides[0][inner] == 1 && p.strides[1][inner] == 1;
    row_copy r = {plan.k->src,
                  plan.k->dst,
                  without(p, inner, inner),
                  p.shape[inner],
                  p.strides[0][inner],
                  p.strides[1][inner],
                  packed ? (p.shape[inner] + n - 1) / n : p.shape[inner],
                  {},
                  true};

    for (int d = 0; d < inner && !packed && p.strides[1][inner] == 1; d++)
        if (p.strides[0][d] == 1)
            return launch_tiles<F>(plan, d);
    for (int d = 0; d < inner; d++)
        r.aligned = r.aligned && is_aligned(r.src, p.strides[0][d] * from) && is_aligned(r.dst, p.strides[1][d] * to);
    r.aligned = r.aligned && is_aligned(r.src, 0) && is_aligned(r.dst, 0);
    r.by_packs = divisor_of(r.packs, r.rows.numel * r.packs);
    return launch(plan.stream, "copy", packed ? copy_rows<F, n> : copy_rows<F, 1>,
                  blocks_for(r.rows.numel * r.packs, BLOCK), BLOCK, 0, r);
}

static fsdp_status copy_bits(const copy_plan &plan)
{
    switch (fsdp_dtype_size(plan.k->src_dtype)) {
    case 8:
        return copy_by<moves<uint64_t>>(plan);
    case 4:
        return copy_by<moves<uint32_t>>(plan);
    case 2:
        return copy_by<moves<uint16_t>>(plan);
    default:
        return copy_by<moves<uint8_t>>(plan);
    }
}

ENTRY(copy, k)
{
    copy_plan plan = plan_of(stream, k);
    bool same = k->src_dtype == k->dst_dtype && !k->accumulate;

    if (plan.at.numel == 0 || (same && k->src == k->dst)) /* it is in place */
        return FSDP_OK;
    if (same)
        return copy_bits(plan);
    if (!is_float(k->src_dtype) || !is_float(k->dst_dtype))
        return launch(stream, "copy", copy_numbers, blocks_for(plan.at.numel, BLOCK), BLOCK, 0, k->src, k->src_dtype,
                      k->dst, k->dst_dtype, plan.at);
    EACH_PAIR(k->src_dtype, k->dst_dtype, From, To,
              return k->accumulate ? copy_by<adds<From, To>>(plan) : copy_by<converts<From, To>>(plan));
    return FSDP_OK;
}
