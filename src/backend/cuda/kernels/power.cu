/* power.cu - sums of powers, from which norms are made, and a norm's verdict on a step. Digits are integers
 * (base/digit_sum.h), so the blocks add theirs in any order. */
#include "backend/cuda/kernels/spans.cuh"

DEVICE void add_to(int64_t *to, int64_t x)
{
    atomicAdd((unsigned long long *)to, (unsigned long long)x);
}

/* Returns |x|^p; P is p if that is 1 or 2, otherwise 0. */
template <int P>
DEVICE double power(double x, double p)
{
    return P == 2 ? x * x : P == 1 ? fabs(x) : pow(fabs(x), p);
}

/* Cuts the whole part off a * b, a product that is exact and not above 2^26; `rest` is what is behind the point. The
 * sum with 2^52, rounded down, has it in its last bits: conversions take several times as long. */
DEVICE uint32_t whole_of(double a, double b, double *rest)
{
    uint64_t bits;
#ifdef FSDP_CUDASH
    double sum = floor(a * b) + 0x1p52;
#else
    double sum = __fma_rz(a, b, 0x1p52);
#endif

    *rest = a * b - (sum - 0x1p52);
    memcpy(&bits, &sum, sizeof bits);
    return (uint32_t)bits;
}

/* Returns a * b * 2^26, rounded down, in its low 52 bits, where a * b is exact and below 2^26: two digits at once. */
DEVICE uint64_t two_digits_of(double a, double b, double *rest)
{
    const double shift = 1 << FSDP__DIGIT_SUM_BITS;
    uint64_t bits;
#ifdef FSDP_CUDASH
    double sum = floor(a * b * shift) / shift + shift;
#else
    double sum = __fma_rz(a, b, shift);
#endif

    *rest = a * b - (sum - shift);
    memcpy(&bits, &sum, sizeof bits);
    return bits;
}

DEVICE int64_t warp_total(int64_t x)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* Returns whether the largest power has no digits; if it is infinite or a NaN, the warp counts that. */
DEVICE bool has_no_digits(double largest, fsdp__digit_sum *sum)
{
    bool nan = largest != largest, infinite = largest == (double)INFINITY;

    if (lane_of_warp() == 0 && (nan || infinite))
        add_to(nan ? &sum->nan : &sum->infinite, 1);
    return nan || infinite || largest == 0.0;
}

/* Returns 2^exponent, a normal number. */
DEVICE double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the place of the top digit of `largest`, at least the lowest of a top digit; squares of f32 are normal
 * numbers. */
template <int P>
DEVICE int top_of(double largest)
{
    uint64_t bits;
    int exponent, top;

    memcpy(&bits, &largest, sizeof bits);
    exponent = P == 0 ? ilogb(largest) : (int)(bits >> 52) - 1023;
    top = (exponent + 1074) / FSDP__DIGIT_SUM_BITS;
    return FSDP__MAX(top, FSDP__DIGIT_SUM_KEPT - 1);
}

enum {
    RUN = 32 /* elements of a thread */
};

/* The sums of the digits of a warp's powers; `top` is below 0 if there are none. */
struct digit_totals {
    int top;
    int64_t digits[FSDP__DIGIT_SUM_KEPT];
};

/* Adds up the digits of a thread's powers at the place `top` and the two below it: 32 of 26 bits each. */
template <int P>
DEVICE void cut(const float *x, double p, int top, uint32_t *digits)
{
    const double place = 1 << FSDP__DIGIT_SUM_BITS, two_places = place * place;
    const uint32_t digit = (1u << FSDP__DIGIT_SUM_BITS) - 1;
    double scale = power_of_two(1074 - FSDP__DIGIT_SUM_BITS * top);

    UNROLL
    for (int i = 0; i < RUN; i++) {
        double rest;

        if constexpr (P == 0) {
            digits[0] += whole_of(power<P>(x[i], p), scale, &rest);
            digits[1] += whole_of(rest, place, &rest);
            digits[2] += whole_of(rest, place, &rest);
        } else {
            uint64_t two = P == 2 ? two_digits_of(x[i] * scale, x[i], &rest) : two_digits_of(fabsf(x[i]), scale, &rest);

            digits[0] += (uint32_t)(two >> FSDP__DIGIT_SUM_BITS) & digit;
            digits[1] += (uint32_t)two & digit;
            digits[2] += whole_of(rest, two_places, &rest);
        }
    }
}

/* Adds those of a block's warps. A block's additions, one for each place, are all that it shares with others. */
DEVICE void add_totals(const digit_totals *warps, int d, fsdp__digit_sum *sum)
{
    int64_t total = 0;
    int top = -1;

    for (int w = 0; w < BLOCK / WARP; w++) {
        if (warps[w].top != top && total != 0) {
            add_to(&sum->places[top - d], total);
            total = 0;
        }
        top = warps[w].top;
        total += warps[w].digits[d];
    }
    if (total != 0)
        add_to(&sum->places[top - d], total);
}

/* Each warp cuts the powers of its part of a chunk into digits at the same places, and waits for nobody before. */
template <class T, int P>
static __global__ void __launch_bounds__(BLOCK, P == 2 ? 4 : 3)
    sum_powers(GRID_CONSTANT(long_list<fsdp__span>) list, double p, fsdp__digit_sum *sum)
{
    const int N = pack_of<T, T>::length;
    __shared__ digit_totals warps[BLOCK / WARP];
    chunk c = chunk_of_block(list);
    const T *src = (const T *)list.spans[c.span].src;
    digit_totals own = {-1, {0, 0, 0}};
    uint32_t digits[FSDP__DIGIT_SUM_KEPT] = {0, 0, 0};
    float x[RUN / N][N];
    unsigned bits = 0;
    double largest;

    UNROLL
    for (int r = 0; r < RUN / N; r++) {
        int64_t at = c.begin + (int64_t)(r * BLOCK + (int)threadIdx.x) * N;

        load_pack(src + at, c.end - at, x[r]);
        UNROLL
        for (int i = 0; i < N; i++)
            bits = magnitude_bits(x[r][i]) > bits ? magnitude_bits(x[r][i]) : bits;
    }
    largest = power<P>(fsdp__bits_float(warp_largest(bits)), p);
    if (!has_no_digits(largest, sum)) {
        own.top = top_of<P>(largest);
        cut<P>(&x[0][0], p, own.top, digits);
        for (int d = 0; d < FSDP__DIGIT_SUM_KEPT; d++)
            own.digits[d] = warp_total(digits[d]);
    }
    if (lane_of_warp() == 0)
        warps[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x < FSDP__DIGIT_SUM_KEPT)
        add_totals(warps, (int)threadIdx.x, sum);
}

/* The bits of doubles that are not negative have their order, with those of a NaN as the largest. */
template <class T>
static __global__ void find_largest(GRID_CONSTANT(long_list<fsdp__span>) list, double *largest)
{
    chunk c = chunk_of_block(list);
    unsigned bits = chunk_largest((const T *)list.spans[c.span].src, c);

    if (threadIdx.x == 0) {
        double own = fabs((double)fsdp__bits_float(bits));
        unsigned long long own_bits;

        memcpy(&own_bits, &own, sizeof own_bits);
        atomicMax((unsigned long long *)largest, own_bits);
    }
}

template <class T>
static fsdp_status sum_list(fsdp_stream *stream, const fsdp__power_sum_args *k, const long_lists<fsdp__span> &lists)
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

ENTRY(power_sum, k)
{
    long_lists<fsdp__span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);

    if (isinf(k->p))
        FSDP_TRY(fsdp__cuda_set_bytes(stream, k->largest, 0, sizeof *k->largest));
    else if (!k->accumulate)
        FSDP_TRY(fsdp__cuda_set_bytes(stream, k->sum, 0, sizeof *k->sum));
    while (next_list(&lists)) {
        EACH_FLOAT(k->dtype, T, FSDP_TRY(sum_list<T>(stream, k, lists)));
    }
    return FSDP_OK;
}

/* ---- what becomes of a step ---- */

/* Does the same as fsdp__digit_sum_value. */
DEVICE double value_of(const fsdp__digit_sum *sum)
{
    int top = FSDP__DIGIT_SUM_PLACES - 1;
    double value = 0.0;

    if (sum->nan > 0 || sum->infinite > 0)
        return sum->nan > 0 ? (double)NAN : (double)INFINITY;
    while (top > FSDP__DIGIT_SUM_KEPT - 1 && sum->places[top] == 0)
        top--;
    for (int i = top - (FSDP__DIGIT_SUM_KEPT - 1); i <= top; i++)
        value += ldexp((double)sum->places[i], FSDP__DIGIT_SUM_BITS * i - 1074);
    return value;
}

static __global__ void judge(const fsdp__judge_step_args k)
{
    bool clips = k.max_norm > 0.0f && !isinf(k.max_norm), left_out_before = k.verdict->left_out != 0;
    double norm = sqrt(value_of(k.sum));
    float factor;

    for (int64_t i = 0; i < k.count && !k.takes_all; i++)
        norm = isfinite(k.losses[i]) ? norm : (double)NAN;
    factor = 1.0f / ((float)norm + 1e-6f) * k.max_norm;
    k.verdict->norm = norm;
    k.verdict->scale = !clips || factor > 1.0f ? 1.0f : factor;
    k.verdict->left_out = !k.takes_all && (!isfinite(norm) || (k.stays && left_out_before));
    k.verdict->left_out_before = left_out_before;
}

ENTRY(judge_step, k)
{
    return launch(stream, "judge_step", judge, 1, 1, 0, *k);
}
