/* sort.cu - a radix sort, from the lowest digit to the highest, that keeps the order of equal words.
 *
 * A pass has three kernels. Blocks count the digits of their tile. One block adds these counts up, digit by digit and
 * for each digit tile by tile: this is where a tile's words with that digit begin. Blocks then move their words: within
 * a tile those of an earlier warp come first, and each warp has words that lie one after the other, a word for each
 * lane at a time.
 *
 * Of few words a pass takes more bits, and has one kernel: each block looks at all words, and moves those that have one
 * of its digits. Three kernels that are launched one after the other take longer than that. */
#include "backend/cuda/kernels/sort.cuh"

#include "backend/cuda/kernels/rows.cuh"

enum {
    DIGIT = 9, /* bits */
    DIGITS = 1 << DIGIT,
    EACH = 8, /* words of a thread */
    TILE = BLOCK * EACH,
    WARPS = BLOCK / WARP,
    FEW = MOST_THREADS * WARP, /* words that a pass of one kernel takes: a bit of 32 for each of a thread's */
    WIDE = 18,                 /* bits of such a pass: so many blocks have room at a time, or nearly */
    COUNTS = 8                 /* that a thread adds up at a time */
};

struct sort_pass {
    const uint64_t *from;
    uint64_t *to;
    int64_t *starts; /* (digits, tiles): counts at first */
    int64_t n, tiles;
    int shift, bits; /* of the digit */
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

/* Returns to each lane of a warp that has a word, one of `there`, which lanes have one with the same digit. */
DEVICE unsigned lanes_with(int digit, unsigned there)
{
    if ((there & (there - 1)) == 0)
        return there;
    for (int bit = 0; bit < DIGIT; bit++) {
        bool set = digit >> bit & 1;
        unsigned lanes = __ballot_sync(ALL_LANES, set);

        there &= set ? lanes : ~lanes;
    }
    return there;
}

/* Returns how many of a warp's words with this lane's digit came before this lane's, and counts those of the lanes
 * `there`, of which this may be none. */
template <class Count>
DEVICE unsigned count_word(int digit, unsigned there, Count *counts)
{
    const int lane = lane_of_warp();
    unsigned same = lanes_with(digit, there), below = same & ((1u << lane) - 1), rank = counts[digit] + __popc(below);

    __syncwarp();
    if (there >> lane & 1 && below == 0)
        counts[digit] = (Count)(counts[digit] + __popc(same));
    __syncwarp();
    return rank;
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
        UNROLL
        for (int e = 0; e < EACH; e++)
            ranks[e] =
                count_word(digit_of(k, words[e]), __ballot_sync(ALL_LANES, first + e * WARP < k.n), counts[warp]);
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

/* ---- few words ---- */

/* Returns a word's digit from the block's first one on; one that is not the block's is negative or DIGITS and more. */
DEVICE int digit_of_block(const sort_pass &k, uint64_t word)
{
    return (int)((unsigned)(word >> k.shift) & ((1u << k.bits) - 1)) - (int)(blockIdx.x * DIGITS);
}

/* Counts the block's words of a warp, and in `before` this thread's that belong before those of the block. Returns in
 * which turns, of a word for each lane, there are any of the block's. */
DEVICE unsigned count_few(const sort_pass &k, int64_t first, int turns, uint16_t *counts, unsigned *before)
{
    unsigned hits = 0;

    for (int turn = 0; turn < turns; turn += EACH) {
        uint64_t words[EACH];

        UNROLL
        for (int e = 0; e < EACH; e++)
            words[e] = first + (turn + e) * WARP < k.n ? k.from[first + (turn + e) * WARP] : ~(uint64_t)0;
        UNROLL
        for (int e = 0; e < EACH; e++) {
            bool there = first + (turn + e) * WARP < k.n;
            int digit = digit_of_block(k, words[e]);
            unsigned own = __ballot_sync(ALL_LANES, there && (unsigned)digit < DIGITS);

            *before += there && digit < 0;
            if (own) {
                (void)count_word(digit & (DIGITS - 1), own, counts);
                hits |= 1u << (turn + e);
            }
        }
    }
    return hits;
}

/* Returns the sum of what the block's threads before this one have, and of all their `base`. `partial` is shared memory
 * for two numbers a warp. */
DEVICE unsigned sum_before(unsigned count, unsigned base, unsigned *partial)
{
    const int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    unsigned sum = count;

    for (int step = 1; step < WARP; step *= 2) {
        unsigned other = __shfl_up_sync(ALL_LANES, sum, step);

        sum += lane >= step ? other : 0;
        base += __shfl_xor_sync(ALL_LANES, base, step);
    }
    if (lane == WARP - 1) {
        partial[warp] = sum;
        partial[WARP + warp] = base;
    }
    __syncthreads();
    sum -= count;
    for (int w = 0; w < (int)blockDim.x / WARP; w++)
        sum += (w < warp ? partial[w] : 0) + partial[WARP + w];
    return sum;
}

static __global__ __launch_bounds__(MOST_THREADS) void move_few(GRID_CONSTANT(sort_pass) k)
{
    __shared__ uint16_t counts[MOST_THREADS / WARP][DIGITS];
    __shared__ unsigned starts[DIGITS], partial[2 * WARP];
    const int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    const int turns = (int)((k.n + MOST_THREADS * EACH - 1) / (MOST_THREADS * EACH)) * EACH;
    int64_t first = (int64_t)warp * turns * WARP + lane;
    unsigned before = 0, count = 0, hits;

    for (int digit = lane; digit < DIGITS; digit += WARP)
        counts[warp][digit] = 0;
    __syncwarp();
    hits = count_few(k, first, turns, counts[warp], &before);
    __syncthreads();
    for (int w = 0; threadIdx.x < DIGITS && w < MOST_THREADS / WARP; w++) {
        unsigned own = counts[w][threadIdx.x];

        counts[w][threadIdx.x] = (uint16_t)count;
        count += own;
    }
    before = sum_before(count, before, partial);
    if (threadIdx.x < DIGITS)
        starts[threadIdx.x] = before;
    __syncthreads();
    for (; hits; hits >>= 1, first += WARP) {
        uint64_t word;
        unsigned rank;
        int digit;
        bool own;

        if (!(hits & 1))
            continue;
        word = first < k.n ? k.from[first] : 0;
        digit = digit_of_block(k, word);
        own = first < k.n && (unsigned)digit < DIGITS;
        rank = count_word(digit & (DIGITS - 1), __ballot_sync(ALL_LANES, own), counts[warp]);
        if (own)
            k.to[starts[digit] + rank] = word;
    }
}

/* ---- passes ---- */

static int64_t tiles_of(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

size_t fsdp__cuda_sort_bytes(int64_t n)
{
    return (size_t)(2 * n + DIGITS * tiles_of(n)) * sizeof(uint64_t) + 1;
}

static fsdp_status move_many(fsdp_stream *stream, const char *name, const sort_pass &k)
{
    FSDP_TRY(launch(stream, name, count_digits, blocks_for(k.tiles, 1), BLOCK, 0, k));
    FSDP_TRY(launch(stream, name, add_counts, 1, MOST_THREADS, 0, k.starts, DIGITS * k.tiles));
    return launch(stream, name, move_words, blocks_for(k.tiles, 1), BLOCK, 0, k);
}

fsdp_status fsdp__cuda_sort(fsdp_stream *stream, const char *name, void *scratch, int64_t n, int low, int bits,
                            const uint64_t **sorted)
{
    uint64_t *words = (uint64_t *)scratch, *spare = words + n;
    const bool few = n <= FEW;
    const int passes = few ? (bits + WIDE - 1) / WIDE : (bits + DIGIT - 1) / DIGIT;
    sort_pass k = {
        words, spare, (int64_t *)(spare + n), n, tiles_of(n), low, few ? (bits + passes - 1) / passes : DIGIT};

    for (; k.shift < low + bits; k.shift += k.bits) {
        uint64_t *to = k.to;

        if (few)
            FSDP_TRY(launch(stream, name, move_few, blocks_for((int64_t)1 << k.bits, DIGITS), MOST_THREADS, 0, k));
        else
            FSDP_TRY(move_many(stream, name, k));
        k.to = (uint64_t *)k.from;
        k.from = to;
    }
    *sorted = k.from;
    return FSDP_OK;
}
