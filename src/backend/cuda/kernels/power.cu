/* power.cu - sums of powers, from which norms are made. Digits are integers (base/digit_sum.h), so the blocks add
 * theirs in any order. */
#include "backend/cuda/kernels/spans.cuh"

DEVICE void add_to(int64_t *to, int64_t x)
{
    atomicAdd((unsigned long long *)to, (unsigned long long)x);
}

/* |x|^p; P is p if that is 1 or 2, otherwise 0. */
template <int P>
DEVICE double power(double x, double p)
{
    return P == 2 ? x * x : P == 1 ? fabs(x) : pow(fabs(x), p);
}

/* The sum over a block of BLOCK threads, of integers below 2^53 in all, so it is exact; for the first thread. */
DEVICE double block_total(double x)
{
    __shared__ double partial[BLOCK / WARP];

    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    __syncthreads();
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0.0;
    for (int w = 0; w < BLOCK / WARP && threadIdx.x == 0; w++)
        x += partial[w];
    return x;
}

/* Whether the largest power is nothing that has digits; if it is infinite or a NaN that is counted. */
DEVICE bool has_no_digits(double largest, fsdp__digit_sum *sum)
{
    bool nan = largest != largest, infinite = largest == (double)INFINITY;

    if (threadIdx.x == 0 && (nan || infinite))
        add_to(nan ? &sum->nan : &sum->infinite, 1);
    return nan || infinite || largest == 0.0;
}

/* Each block cuts the powers of its chunk into digits at the same places. */
template <class T, int P>
static __global__ void sum_powers(const __grid_constant__ span_list<fsdp__span> list, double p, fsdp__digit_sum *sum)
{
    const int N = run_of<T, T>::length, RUNS = CHUNK / (N * BLOCK); /* of a thread */
    const double place = 1 << FSDP__DIGIT_SUM_BITS;
    chunk c = chunk_of_block(list);
    const T *src = (const T *)list.spans[c.span].src;
    double digits[FSDP__DIGIT_SUM_KEPT] = {0.0, 0.0, 0.0}, largest, scale;
    float x[RUNS][N];
    unsigned bits = 0;
    int top;

    UNROLL
    for (int r = 0; r < RUNS; r++) {
        int64_t at = c.begin + (int64_t)(r * BLOCK + (int)threadIdx.x) * N;

        load_run(src + at, c.end - at, x[r]);
        UNROLL
        for (int i = 0; i < N; i++)
            bits = magnitude_bits(x[r][i]) > bits ? magnitude_bits(x[r][i]) : bits;
    }
    largest = power<P>(bits_float(block_largest(bits)), p);
    if (has_no_digits(largest, sum))
        return;
    top = (ilogb(largest) + 1074) / FSDP__DIGIT_SUM_BITS;
    top = top < FSDP__DIGIT_SUM_KEPT - 1 ? FSDP__DIGIT_SUM_KEPT - 1 : top;
    scale = ldexp(1.0, 1074 - FSDP__DIGIT_SUM_BITS * top);
    UNROLL
    for (int r = 0; r < RUNS; r++) {
        UNROLL
        for (int i = 0; i < N; i++) {
            double v = power<P>(x[r][i], p) * scale;

            UNROLL
            for (int d = 0; d < FSDP__DIGIT_SUM_KEPT; d++) {
                double whole = (int32_t)v;

                digits[d] += whole;
                v = (v - whole) * place;
            }
        }
    }
    for (int d = 0; d < FSDP__DIGIT_SUM_KEPT; d++) {
        double total = block_total(digits[d]);

        if (threadIdx.x == 0)
            add_to(&sum->places[top - d], (int64_t)total);
    }
}

/* The bits of doubles that are not negative have their order, with those of a NaN as the largest. */
template <class T>
static __global__ void find_largest(const __grid_constant__ span_list<fsdp__span> list, double *largest)
{
    const int N = run_of<T, T>::length;
    chunk c = chunk_of_block(list);
    const T *src = (const T *)list.spans[c.span].src;
    unsigned bits = 0;

    EACH_RUN (at, c, N) {
        float x[N];

        load_run(src + at, c.end - at, x);
        UNROLL
        for (int i = 0; i < N; i++)
            bits = magnitude_bits(x[i]) > bits ? magnitude_bits(x[i]) : bits;
    }
    bits = block_largest(bits);
    if (threadIdx.x == 0) {
        double own = fabs((double)bits_float(bits));
        unsigned long long own_bits;

        memcpy(&own_bits, &own, sizeof own_bits);
        atomicMax((unsigned long long *)largest, own_bits);
    }
}

template <class T>
static fsdp_status sum_list(fsdp_stream *stream, const fsdp__power_sum_args *k, const span_lists<fsdp__span> &lists)
{
    const char *name = "power_sum";

    if (isinf(k->p))
        return launch(stream, name, find_largest<T>, lists.blocks, BLOCK, 0, lists.list, k->largest);
    if (k->p == 2.0)
        return launch(stream, name, sum_powers<T, 2>, lists.blocks, BLOCK, 0, lists.list, k->p, k->sum);
    if (k->p == 1.0)
        return launch(stream, name, sum_powers<T, 1>, lists.blocks, BLOCK, 0, lists.list, k->p, k->sum);
    return launch(stream, name, sum_powers<T, 0>, lists.blocks, BLOCK, 0, lists.list, k->p, k->sum);
}

ENTRY(power_sum)
{
    const fsdp__power_sum_args *k = (const fsdp__power_sum_args *)args;
    span_lists<fsdp__span> lists = lists_of(k->spans, k->count);

    if (isinf(k->p))
        FSDP_TRY(fsdp__cuda_set_bytes(stream, k->largest, 0, sizeof *k->largest));
    else
        FSDP_TRY(fsdp__cuda_set_bytes(stream, k->sum, 0, sizeof *k->sum));
    while (next_list(&lists)) {
#define SUM(T) FSDP_TRY(sum_list<T>(stream, k, lists))
        EACH_FLOAT(k->dtype, SUM)
#undef SUM
    }
    return FSDP_OK;
}
