/* topk.cu - finds the indices of the largest, or smallest, of each row.
 *
 * A value and its index make one word, in the order that is wanted, so no two are equal. A block finds the word that
 * has the right number below it, digit by digit from the highest; collects the words up to it; and sorts these. */
#include "backend/cuda/kernels/rows.cuh"

enum {
    DIGIT = 8, /* bits */
    DIGITS = 1 << DIGIT,
    IN_BLOCK = 2048 /* words that a block sorts in its own memory; more are sorted in scratch */
};

struct topk_plan {
    fsdp__topk_args args;
    int64_t room;      /* words that are sorted: k, rounded up to a power of two */
    uint64_t *scratch; /* (blocks, room); NULL: the block's memory is enough */
};

/* Makes the word of an element. NaN is larger than everything; -0 equals 0. */
DEVICE uint64_t word_of(float x, int64_t index, bool largest)
{
    uint32_t bits = x != x ? 0x7fc00000u : fsdp__float_bits(x == 0.0f ? 0.0f : x);

    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)(largest ? ~bits : bits) << 32 | (uint64_t)index;
}

/* Holds a digit of the word that is looked for. */
struct found_digit {
    unsigned digit, below, count; /* words with a smaller one, and with this one, among those still possible */
};

/* Finds the digit of the word that has `rank` words before it. One warp. */
DEVICE void find_digit(const unsigned *counts, unsigned rank, found_digit *found)
{
    const int each = DIGITS / WARP;
    int lane = lane_of_warp();
    unsigned own = 0, sum;

    for (int d = 0; d < each; d++)
        own += counts[lane * each + d];
    sum = own;
    for (int step = 1; step < WARP; step *= 2) {
        unsigned other = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? other : 0;
    }
    sum -= own;
    for (int digit = lane * each; digit < (lane + 1) * each; digit++) {
        unsigned count = counts[digit];

        if (sum <= rank && rank < sum + count)
            *found = {(unsigned)digit, sum, count};
        sum += count;
    }
}

/* Returns the k-th smallest word of a row, or one between it and the next. */
template <class T>
DEVICE uint64_t find_last(const fsdp__topk_args &k, const T *x)
{
    __shared__ unsigned counts[DIGITS];
    __shared__ found_digit found;
    uint64_t last = 0;
    unsigned rank = (unsigned)k.k - 1;

    for (int shift = 64 - DIGIT; shift >= 0; shift -= DIGIT) {
        if (shift < 32 && (k.cols - 1) >> shift == 0)
            continue; /* digits of an index that all have as 0 */
        for (int d = (int)threadIdx.x; d < DIGITS; d += (int)blockDim.x)
            counts[d] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < k.cols; i += blockDim.x) {
            uint64_t word = word_of(load(x, i), i, k.largest);

            if (shift + DIGIT == 64 || (word ^ last) >> (shift + DIGIT) == 0)
                atomicAdd(&counts[word >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < WARP)
            find_digit(counts, rank, &found);
        __syncthreads();
        last |= (uint64_t)found.digit << shift;
        rank -= found.below;
        if (rank + 1 == found.count) /* all that begin so are taken */
            return last | (((uint64_t)1 << shift) - 1);
    }
    return last;
}

/* Sorts words, whose number is a power of two. All of the block. */
DEVICE void sort_words(uint64_t *words, int64_t count)
{
    for (int64_t size = 2; size <= count; size *= 2)
        for (int64_t stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int64_t i = threadIdx.x; i < count / 2; i += blockDim.x) {
                int64_t a = 2 * i - (i & (stride - 1)), b = a + stride;
                uint64_t first = words[a], second = words[b];

                if ((first > second) == ((a & size) == 0)) {
                    words[a] = second;
                    words[b] = first;
                }
            }
        }
    __syncthreads();
}

template <class T>
static __global__ __launch_bounds__(MOST_THREADS) void select_rows(GRID_CONSTANT(topk_plan) k)
{
    __shared__ uint64_t in_block[IN_BLOCK];
    __shared__ unsigned taken;
    uint64_t *words = k.scratch ? k.scratch + blockIdx.x * k.room : in_block;

    EACH_ROW (row, k.args.rows) {
        const T *x = (const T *)k.args.x + row * k.args.cols;
        uint64_t last = ~(uint64_t)0;

        if (threadIdx.x == 0)
            taken = 0;
        for (int64_t i = k.args.k + threadIdx.x; i < k.room; i += blockDim.x)
            words[i] = ~(uint64_t)0;
        if (k.args.k < k.args.cols)
            last = find_last(k.args, x);
        __syncthreads();
        for (int64_t i = threadIdx.x; i < k.args.cols; i += blockDim.x) {
            uint64_t word = word_of(load(x, i), i, k.args.largest);

            if (word <= last)
                words[atomicAdd(&taken, 1u)] = word; /* in any order: they are sorted, and no two are equal */
        }
        sort_words(words, k.room);
        for (int64_t i = threadIdx.x; i < k.args.k; i += blockDim.x)
            k.args.indices[row * k.args.k + i] = (int32_t)(uint32_t)words[i];
        __syncthreads();
    }
}

ENTRY(topk, a)
{
    topk_plan k = {*a, 1, NULL};
    unsigned block = (unsigned)threads_of_rows(a->rows, a->cols, 8).group, grid = blocks_for(a->rows, 1);

    if (a->rows == 0 || a->k == 0)
        return FSDP_OK;
    while (k.room < a->k)
        k.room *= 2;
    if (k.room > IN_BLOCK) {
        grid = FSDP__MIN(grid, (unsigned)FSDP__MAX(((int64_t)1 << 22) / k.room, 1));
        k.scratch = (uint64_t *)fsdp__stream_workspace(stream, (size_t)(grid * k.room) * sizeof *k.scratch);
        if (!k.scratch)
            return fsdp_last_status();
    }
    EACH_FLOAT(a->dtype, T, FSDP_TRY(launch(stream, "topk", select_rows<T>, grid, block, 0, k)));
    return FSDP_OK;
}
