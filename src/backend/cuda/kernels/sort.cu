/* sort.cu - a radix sort, from the lowest digit to the highest, that keeps the order of equal words.
 *
 * A pass has three kernels. Blocks count the digits of their tile. One block adds these counts up, digit by digit and
 * for each digit tile by tile: this is where a tile's words with that digit begin. Blocks then move their words: within
 * a tile those of an earlier thread come first, and each thread has words that lie one after the other. */
#include "backend/cuda/kernels/sort.cuh"

#include "backend/cuda/kernels/rows.cuh"

enum {
    DIGIT = 6, /* bits */
    DIGITS = 1 << DIGIT,
    EACH = 8, /* words of a thread */
    TILE = BLOCK * EACH,
    SEGMENTS = BLOCK / DIGITS, /* threads that together add up the counts of a digit */
    SEGMENT = BLOCK / SEGMENTS,
    COUNTERS = BLOCK + 2 /* of a digit in shared memory: threads that have one digit each use different banks */
};

static_assert(DIGITS * SEGMENTS == BLOCK, "every thread has its part of a digit's counts");

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
        if (threadIdx.x < DIGITS)
            counts[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = tile * TILE + threadIdx.x; i < (tile + 1) * TILE && i < k.n; i += BLOCK)
            atomicAdd(&counts[digit_of(k, k.from[i])], 1u);
        __syncthreads();
        if (threadIdx.x < DIGITS)
            k.starts[threadIdx.x * k.tiles + tile] = counts[threadIdx.x];
    }
}

/* Replaces each count by the sum of those before it. One block. */
static __global__ __launch_bounds__(MOST_THREADS) void add_counts(int64_t *counts, int64_t n)
{
    __shared__ int64_t totals[WARP];
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    int64_t before = 0; /* of the strips before this one */

    for (int64_t first = 0; first < n; first += MOST_THREADS) {
        int64_t i = first + threadIdx.x, count = i < n ? counts[i] : 0, sum = count, strip = 0;

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
        if (i < n)
            counts[i] = before + sum - count;
        before += strip;
        __syncthreads();
    }
}

/* Replaces the counts of each thread and digit of a tile by the sum over the threads before it. */
DEVICE void add_threads(uint16_t (*counts)[COUNTERS], uint16_t (*totals)[SEGMENTS])
{
    int digit = (int)threadIdx.x / SEGMENTS, segment = (int)threadIdx.x % SEGMENTS;
    uint16_t sum = 0;

    for (int t = segment * SEGMENT; t < (segment + 1) * SEGMENT; t++)
        sum = (uint16_t)(sum + counts[digit][t]);
    totals[digit][segment] = sum;
    __syncthreads();
    sum = 0;
    for (int s = 0; s < segment; s++)
        sum = (uint16_t)(sum + totals[digit][s]);
    for (int t = segment * SEGMENT; t < (segment + 1) * SEGMENT; t++) {
        uint16_t count = counts[digit][t];

        counts[digit][t] = sum;
        sum = (uint16_t)(sum + count);
    }
}

static __global__ void move_words(GRID_CONSTANT(sort_pass) k)
{
    __shared__ uint16_t counts[DIGITS][COUNTERS], totals[DIGITS][SEGMENTS];
    int me = (int)threadIdx.x;

    EACH_ROW (tile, k.tiles) {
        int64_t first = tile * TILE + me * EACH, end = first + EACH < k.n ? first + EACH : k.n;

        for (int digit = 0; digit < DIGITS; digit++)
            counts[digit][me] = 0;
        for (int64_t i = first; i < end; i++)
            counts[digit_of(k, k.from[i])][me]++;
        __syncthreads();
        add_threads(counts, totals);
        __syncthreads();
        for (int64_t i = first; i < end; i++) {
            uint64_t word = k.from[i];
            int digit = digit_of(k, word);

            k.to[k.starts[digit * k.tiles + tile] + counts[digit][me]++] = word;
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
