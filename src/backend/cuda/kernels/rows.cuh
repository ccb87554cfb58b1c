/* rows.cuh - kernels over the rows of a matrix. A row has a group of threads: one warp of a block, where that is enough
 * for it, or a whole block. A thread takes packs of its columns, which lie one after the other in the order of threads;
 * so sums are added in an order that only the sizes decide, whatever the addresses allow. */
#pragma once

#include "backend/cuda/kernels/intrinsics.cuh"
#include "backend/cuda/kernels/pack.cuh"

enum {
    MOST_THREADS = 1024 /* of a block */
};

/* Says who takes which row. */
struct row_threads {
    int group; /* threads of a row: a warp, or all of the block */
    unsigned block, grid;
};

/* Returns the threads for rows in which a thread takes about `each` columns. */
static inline row_threads threads_of_rows(int64_t rows, int64_t cols, int64_t each)
{
    int64_t warps = (cols + each * WARP - 1) / (each * WARP);
    row_threads t;

    t.group = WARP * (int)(warps < 1 ? 1 : warps < MOST_THREADS / WARP ? warps : MOST_THREADS / WARP);
    t.block = t.group == WARP ? 4 * WARP : (unsigned)t.group;
    t.grid = blocks_for(rows, t.block / (unsigned)t.group);
    return t;
}

/* Gives the first row of a thread's group. */
#define FIRST_GROUP(group) ((int64_t)blockIdx.x * (blockDim.x / (unsigned)(group)) + threadIdx.x / (unsigned)(group))

/* The groups of the grid take n rows in turns. */
#define EACH_GROUP(row, n, group)                                                               \
    for (int64_t groups_ = blockDim.x / (unsigned)(group), row = FIRST_GROUP(group); row < (n); \
         row += gridDim.x * groups_)

/* Replaces each of COUNT numbers by its sum over a warp. Of two, half of the lanes add up each after the first step. */
template <int COUNT>
DEVICE void warp_sums(float (&x)[COUNT])
{
    const int half = WARP / 2;

    if constexpr (COUNT == 2) {
        bool second = lane_of_warp() >= half;
        float sum = (second ? x[1] : x[0]) + __shfl_xor_sync(ALL_LANES, second ? x[0] : x[1], half);

        for (int step = half / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        x[0] = __shfl_sync(ALL_LANES, sum, 0);
        x[1] = __shfl_sync(ALL_LANES, sum, half);
    } else {
        UNROLL
        for (int c = 0; c < COUNT; c++)
            x[c] = warp_sum(x[c]);
    }
}

/* Replaces each of COUNT numbers by its sum over the group. `partial` is shared memory for COUNT numbers a warp. Groups
 * of several warps call this together with the block's other groups; `first` is the group's first warp. */
template <int COUNT>
DEVICE void group_sums(float (&x)[COUNT], float *partial, int group, int first = 0)
{
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;

    warp_sums(x);
    if (group == WARP)
        return;
    __syncthreads(); /* somebody may still read what an earlier call has left there */
    UNROLL
    for (int c = 0; c < COUNT; c++)
        if (lane == 0)
            partial[c * WARP + warp] = x[c];
    __syncthreads();
    UNROLL
    for (int c = 0; c < COUNT; c++)
        x[c] = lane < group / WARP ? partial[c * WARP + first + lane] : 0.0f;
    warp_sums(x);
}

DEVICE float group_sum(float x, float *partial, int group)
{
    float sums[1] = {x};

    group_sums(sums, partial, group);
    return sums[0];
}

DEVICE float group_max(float x, float *partial, int group)
{
    return group == WARP ? warp_max(x) : block_max(x, partial);
}

/* Waits for the group's other threads, and for what they have read and written. */
DEVICE void group_sync(int group)
{
    if (group == WARP)
        __syncwarp();
    else
        __syncthreads();
}

/* ---- softmax ---- */

/* The columns of a thread's packs of a row, which are below 2^31. One pack is fetched at a time: many warps hide more
 * of memory's latency than few that fetch ahead, and 32 bits leave registers for them. */
#define EACH_ROW_PACK(col, cols, n, group) \
    for (uint32_t col = threadIdx.x % (unsigned)(group) * (n); col < (uint32_t)(cols); col += (unsigned)(group) * (n))

/* Fetches the pack at a column. What is past the row's end is `none`. */
template <int N, class T>
DEVICE pack<T, N> get_or(const T *p, int64_t i, int64_t n, bool whole, T none)
{
    pack<T, N> x;

    if (whole)
        return *(const pack<T, N> *)(p + i);
    UNROLL
    for (int e = 0; e < N; e++)
        x.at[e] = i + e < n ? p[i + e] : none;
    return x;
}

/* Returns e^x, as 2^(x log2 e): an error of 2^-24 of x, which is not above 0, is added to that of the result; 0 below
 * 2^-126. */
DEVICE float exponential(float x)
{
    return exp2_fast(x * 1.44269504f);
}

/* Holds the largest of a row, and the sum of e^(x - largest) over it, which is NaN if an element is or if the largest
 * is infinite. */
struct exp_sum {
    float largest, sum;
};

/* Holds what sum_exponentials() makes of an element before it counts it; one that is not real, but past the end, is
 * -infinity and stays so. */
struct as_it_is {
    enum {
        BLOCKS = 2, /* of 1,024 threads on a multiprocessor: the more warps, the faster */
        PLAIN = 1
    };

    DEVICE float operator()(float x, bool) const
    {
        return x;
    }
    DEVICE float slope(float) const
    {
        return 1.0f;
    }
};

/* Adds a pack from a column on to a thread's sum, which is scaled if an element is larger than those before. WHOLE: all
 * elements are real. */
template <class T, int N, class Made>
DEVICE void add_exponentials(const pack<T, N> &p, uint32_t col, int64_t cols, bool whole, Made made, exp_sum &all)
{
    float x[N], most = all.largest, shift;

    unpack(p, x);
    UNROLL
    for (int e = 0; e < N; e++)
        most = fmaxf(most, made(x[e], whole || col + e < cols));
    shift = most == -INFINITY ? 0.0f : most;
    all.sum *= exponential(all.largest - shift);
    UNROLL
    for (int e = 0; e < N; e++)
        all.sum += exponential(made(x[e], whole || col + e < cols) - shift);
    all.largest = most;
}

/* Returns what the sums of a group's threads come to. */
DEVICE exp_sum join_exponentials(exp_sum own, int group, float *partial)
{
    exp_sum all;

    all.largest = group_max(own.largest, partial, group);
    all.sum = group_sum(own.sum * exponential(own.largest - all.largest), partial, group);
    return all;
}

/* Puts -infinity for what of a pack is past the row's end. */
template <class T, int N>
DEVICE void mask_pack(pack<T, N> &p, uint32_t col, int64_t cols)
{
    UNROLL
    for (int e = 0; e < N; e++)
        p.at[e] = col + e < (uint32_t)cols ? p.at[e] : from_float<T>(-INFINITY);
}

/* Finds it in one pass (PADDED: the last pack may be fetched whole, too, and ends behind the row). A NaN is no largest
 * one here, but gets into the sum. */
template <bool PADDED = false, class T, class Made = as_it_is>
DEVICE exp_sum sum_exponentials(const T *x, int64_t cols, bool whole, int group, float *partial, Made made = Made())
{
    const int n = ACCESS / (int)sizeof(T);
    exp_sum own = {-INFINITY, 0.0f};

    EACH_ROW_PACK (col, cols, n, group) {
        pack<T, n> p = get_or<n>(x, col, cols, whole, from_float<T>(-INFINITY));

        if (PADDED)
            mask_pack(p, col, cols);
        add_exponentials(p, col, cols, whole && !PADDED, made, own);
    }
    return join_exponentials(own, group, partial);
}

/* ---- rows that are not as they should be ---- */

/* Returns the least of a block's numbers to its first thread. `partial` is shared memory for one number a warp. */
DEVICE int64_t block_min(int64_t x, int64_t *partial)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        int64_t other = __shfl_xor_sync(ALL_LANES, x, step);
        x = other < x ? other : x;
    }
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int warp = 1; warp < (int)blockDim.x / WARP; warp++)
        x = threadIdx.x == 0 && partial[warp] < x ? partial[warp] : x;
    return x;
}
