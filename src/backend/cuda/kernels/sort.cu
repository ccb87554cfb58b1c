/* sort.cu - a radix sort, from the lowest digit to the highest, that keeps the order of equal words.
 *
 * A pass has three kernels. Blocks count the digits of their tile. One block adds these counts up, digit by digit and
 * for each digit tile by tile: this is where a tile's words with that digit begin. Blocks then move their words: within
 * a tile those of an earlier warp come first, and each warp has words that lie one after the other, a word for each
 * lane at a time. */
#include "backend/cuda/kernels/sort.cuh"

#include "backend/cuda/kernels/rows.cuh"

enum {
    DIGIT = 9, /* bits */
    DIGITS = 1 << DIGIT,
    EACH = 8, /* words of a thread */
    TILE = BLOCK * EACH,
    WARPS = BLOCK / WARP,
    COUNTS = 8 /* that a thread adds up at a time */
};

struct sort_pass {
    const uint64_t *from;
    uint64_t *to;
    int64_t *starts; /* (digits, tiles): counts at first */
    int64_t n, tiles;
    int shift;
};

DEVICE int digit_of(const sort_pass &k, uint64_t word)
{
    return (int)(word >> k.shift & (DIGITS - 1));
}

static __global__ void count_digits(GRID_CONSTANT(sort_pass) k)
{
    __shared__ unsigned counts[DIGITS];

    EACH_ROW (tile, k.tiles) {
        uint64_t words[EACH];
        int64_t first = tile * TILE + threadIdx.x;

        UNROLL
        for (int e = 0; e < EACH; e++)
            words[e] = first + e * BLOCK < k.n ? k.from[first + e * BLOCK] : 0;
        for (int digit = (int)threadIdx.x; digit < DIGITS; digit += BLOCK)
            counts[digit] = 0;
        __syncthreads();
        UNROLL
        for (int e = 0; e < EACH; e++)
            if (first + e * BLOCK < k.n)
                atomicAdd(&counts[digit_of(k, words[e])], 1u);
        __syncthreads();
        for (int digit = (int)threadIdx.x; digit < DIGITS; digit += BLOCK)
            k.starts[digit * k.tiles + tile] = counts[digit];
    }
}

/* Replaces each count by the sum of those before it. One block. */
static __global__ __launch_bounds__(MOST_THREADS) void add_counts(int64_t *counts, int64_t n)
{
    __shared__ int64_t totals[WARP];
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    int64_t before = 0; /* of the strips before this one */

    for (int64_t first = 0; first < n; first += MOST_THREADS * COUNTS) {
        int64_t i = first + (int64_t)threadIdx.x * COUNTS, own[COUNTS], count = 0, sum, strip = 0;

        UNROLL
        for (int c = 0; c < COUNTS; c++) {
            own[c] = i + c < n ? counts[i + c] : 0;
            count += own[c];
        }
        sum = count;
        for (int step = 1; step < WARP; step *= 2) {
            int64_t other = __shfl_up_sync(ALL_LANES, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (lane == WARP - 1)
            totals[warp] = sum;
        __syncthreads();
        for (int w = 0; w < MOST_THREADS / WARP; w++) {
            sum += w < warp ? totals[w] : 0;
            strip += totals[w];
        }
        sum += before - count;
        UNROLL
        for (int c = 0; c < COUNTS; c++) {
            if (i + c < n)
                counts[i + c] = sum;
            sum += own[c];
        }
        before += strip;
        __syncthreads();
    }
}

/* Returns the lanes of a warp that have the same digit as this one; `there`: those that have a word. */
DEVICE unsigned lanes_with(int digit, unsigned there)
{
    for (int bit = 0; bit < DIGIT; bit++) {
        bool set = digit >> bit & 1;
        unsigned lanes = __ballot_sync(ALL_LANES, set);

        there &= set ? lanes : ~lanes;
    }
    return there;
}

/* Counts a warp's words by digits. Returns, for each of a thread's words, how many with its digit come before it. */
DEVICE void rank_words(const sort_pass &k, const uint64_t (&words)[EACH], int64_t first, unsigned *counts,
                       unsigned (&ranks)[EACH])
{
    unsigned below = (1u << lane_of_warp()) - 1;

    UNROLL
    for (int e = 0; e < EACH; e++) {
        bool there = first + e * WARP < k.n;
        int digit = digit_of(k, words[e]);
        unsigned same = lanes_with(digit, __ballot_sync(ALL_LANES, there));

        ranks[e] = counts[digit] + (unsigned)__popc(same & below);
        __syncwarp();
        if (there && (same & below) == 0)
            counts[digit] += (unsigned)__popc(same);
        __syncwarp();
    }
}

static __global__ void move_words(GRID_CONSTANT(sort_pass) k)
{
    __shared__ unsigned counts[WARPS][DIGITS];
    __shared__ int64_t starts[DIGITS];
    int warp = (int)threadIdx.x / WARP;

    EACH_ROW (tile, k.tiles) {
        int64_t first = tile * TILE + warp * WARP * EACH + lane_of_warp();
        uint64_t words[EACH];
        unsigned ranks[EACH];

        UNROLL
        for (int e = 0; e < EACH; e++)
            words[e] = first + e * WARP < k.n ? k.from[first + e * WARP] : 0;
        for (int digit = lane_of_warp(); digit < DIGITS; digit += WARP)
            counts[warp][digit] = 0;
        __syncwarp();
        rank_words(k, words, first, counts[warp], ranks);
        __syncthreads();
        for (int digit = (int)threadIdx.x; digit < DIGITS; digit += BLOCK) {
            unsigned sum = 0;

            starts[digit] = k.starts[digit * k.tiles + tile];
            for (int w = 0; w < WARPS; w++) {
                unsigned count = counts[w][digit];

                counts[w][digit] = sum;
                sum += count;
            }
        }
        __syncthreads();
        UNROLL
        for (int e = 0; e < EACH; e++) {
            int digit = digit_of(k, words[e]);

            if (first + e * WARP < k.n)
                k.to[starts[digit] + counts[warp][digit] + ranks[e]] = words[e];
        }
        __syncthreads();
    }
}

static int64_t tiles_of(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

size_t fsdp__cuda_sort_bytes(int64_t n)
{
    return (size_t)(2 * n + DIGITS * tiles_of(n)) * sizeof(uint64_t) + 1;
}

fsdp_status fsdp__cuda_sort(fsdp_stream *stream, const char *name, void *scratch, int64_t n, int low, int bits,
                            const uint64_t **sorted)
{
    uint64_t *words = (uint64_t *)scratch, *spare = words + n;
    sort_pass k = {words, spare, (int64_t *)(spare + n), n, tiles_of(n), low};

    for (; k.shift < low + bits; k.shift += DIGIT) {
        uint64_t *to = k.to;

        FSDP_TRY(launch(stream, name, count_digits, blocks_for(k.tiles, 1), BLOCK, 0, k));
        FSDP_TRY(launch(stream, name, add_counts, 1, MOST_THREADS, 0, k.starts, DIGITS * k.tiles));
        FSDP_TRY(launch(stream, name, move_words, blocks_for(k.tiles, 1), BLOCK, 0, k));
        k.to = (uint64_t *)k.from;
        k.from = to;
    }
    *sorted = k.from;
    return FSDP_OK;
}
