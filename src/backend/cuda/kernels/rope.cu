/* rope.cu - rotary position embedding, rotate_half layout. */
#include "backend/cuda/kernels/pack.cuh"

enum {
    MOST_PAIRS = 256 /* of a head whose angles a block has at a time */
};

struct rope_plan {
    fsdp__rope_args args;
    int64_t rotated; /* dimensions of a head */
    bool whole;      /* packs may be fetched whole */
    divisor by_time;
};

/* Computes sine and cosine within 2 ulp, of angles to 10^9: the angle is reduced in f64, which takes no table. */
DEVICE void sine_and_cosine(float angle, float *sine, float *cosine)
{
    double n = rint((double)angle * 0.63661977236758134308); /* quarters of a turn */
    float r = (float)((double)angle - n * 1.57079632679489661923), s = r * r;
    float sin_r = ((-1.9515295891e-4f * s + 8.3321608736e-3f) * s - 1.6666654611e-1f) * s * r + r;
    float cos_r =
        ((2.443315711809948e-5f * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f) * s * s - 0.5f * s + 1.0f;
    int64_t quarter = (int64_t)n;
    float a = quarter & 1 ? cos_r : sin_r, b = quarter & 1 ? sin_r : cos_r;

    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

/* N pairs of a head, and what is added to them. */
template <class T, int N, bool ADDS>
struct pairs_of {
    pack<T, N> first, second, old[ADDS ? 2 : 1];
};

/* Fetches those from pair i on. */
template <int N, bool ADDS, class T>
DEVICE void fetch(const rope_plan &k, const T *x, const T *y, int i, pairs_of<T, N, ADDS> *p)
{
    int half = (int)k.rotated / 2;

    p->first = get<N>(x, i, half, k.whole);
    p->second = get<N>(x + half, i, half, k.whole);
    if constexpr (ADDS) {
        p->old[0] = get<N>(y, i, half, k.whole);
        p->old[1] = get<N>(y + half, i, half, k.whole);
    }
}

/* Rotates them by the angles whose cosines and sines are given, and stores them. */
template <int N, bool ADDS, class T>
DEVICE void rotate_pairs(const rope_plan &k, pairs_of<T, N, ADDS> *p, T *y, int i, const float *cosine,
                         const float *sine)
{
    int half = (int)k.rotated / 2;
    float c[N], d[N];

    UNROLL
    for (int e = 0; e < N; e++) {
        float a = to_float(p->first.at[e]), b = to_float(p->second.at[e]);

        c[e] = a * cosine[e] - b * sine[e];
        d[e] = b * cosine[e] + a * sine[e];
        if constexpr (ADDS) {
            c[e] += to_float(p->old[0].at[e]);
            d[e] += to_float(p->old[1].at[e]);
        }
    }
    put<N>(y, i, half, k.whole, rounded<T>(c));
    put<N>(y + half, i, half, k.whole, rounded<T>(d));
}

/* Copies, or adds, what of all heads does not rotate. */
template <class T>
DEVICE void keep_rest(const rope_plan &k, const T *x, T *y)
{
    unsigned rest = (unsigned)(k.args.head_dim - k.rotated);

    for (unsigned item = threadIdx.x; item < k.args.heads * rest; item += blockDim.x) {
        unsigned h = item / rest;
        int64_t i = k.rotated + item - h * rest;
        float old = k.args.accumulate ? load(y + h * k.args.y_head, i) : 0.0f;

        store(y + h * k.args.y_head, i, old + load(x + h * k.args.x_head, i));
    }
}

/* Computes cosines and sines of `pairs` angles of a position, and of what a pack has more. */
DEVICE void make_angles(const rope_plan &k, int64_t at, int64_t t, int from, unsigned pairs, unsigned padded,
                        float *cosine, float *sine)
{
    float position = (float)(k.args.positions ? k.args.positions[at] : k.args.position0 + t);

    for (unsigned i = threadIdx.x; i < padded; i += blockDim.x) {
        float frequency = i < pairs ? k.args.frequency[from + i] : 0.0f;

        sine_and_cosine(position * frequency, &sine[i], &cosine[i]);
        sine[i] *= k.args.inverse ? -k.args.scale : k.args.scale;
        cosine[i] *= k.args.scale;
    }
}

/* A block rotates all heads of a position of a batch: it computes the angles once, while its first elements are on
 * their way. */
template <class T, bool ADDS>
static __global__ void __launch_bounds__(BLOCK, ADDS ? 4 : 5) rotate(GRID_CONSTANT(rope_plan) k)
{
    const int n = ACCESS / (int)sizeof(T);
    __shared__ float cosine[MOST_PAIRS], sine[MOST_PAIRS];
    int half = (int)k.rotated / 2;

    EACH_ROW (at, k.args.batch * k.args.time) {
        int64_t b = quotient(at, k.by_time), t = at - b * k.args.time;
        const T *x = (const T *)k.args.x + b * k.args.x_batch + t * k.args.x_time;
        T *y = (T *)k.args.y + b * k.args.y_batch + t * k.args.y_time;

        for (int from = 0; from < half; from += MOST_PAIRS) {
            unsigned pairs = (unsigned)FSDP__MIN(half - from, (int)MOST_PAIRS), packs = (pairs + n - 1) / n;
            unsigned item = threadIdx.x, items = (unsigned)k.args.heads * packs;
            unsigned h = item / packs, i = (item - h * packs) * n;
            pairs_of<T, n, ADDS> p = {};

            if (item < items)
                fetch<n, ADDS>(k, x + h * k.args.x_head, y + h * k.args.y_head, from + (int)i, &p);
            make_angles(k, at, t, from, pairs, packs * n, cosine, sine);
            __syncthreads();
            while (item < items) {
                rotate_pairs<n, ADDS>(k, &p, y + h * k.args.y_head, from + (int)i, cosine + i, sine + i);
                item += blockDim.x;
                h = item / packs;
                i = (item - h * packs) * n;
                if (item < items)
                    fetch<n, ADDS>(k, x + h * k.args.x_head, y + h * k.args.y_head, from + (int)i, &p);
            }
            __syncthreads();
        }
        keep_rest(k, x, y);
    }
}

/* Returns how many threads, 128 to 256, share the packs of a position so that few have one less. */
static unsigned threads_for(const rope_plan &k, int64_t pack_length)
{
    int64_t packs = FSDP__MAX(k.args.heads * ((k.rotated / 2 + pack_length - 1) / pack_length), (int64_t)1);
    int64_t rounds = (packs + BLOCK - 1) / BLOCK, threads = (packs + rounds * WARP - 1) / (rounds * WARP) * WARP;

    return (unsigned)FSDP__MAX(threads, (int64_t)BLOCK / 2);
}

ENTRY(rope)
{
    const fsdp__rope_args *a = (const fsdp__rope_args *)args;
    rope_plan k = {*a, a->rotated > 0 ? a->rotated : a->head_dim, false, {}};
    int64_t strides = a->x_batch | a->x_time | a->x_head | a->y_batch | a->y_time | a->y_head | k.rotated / 2;

    if (a->heads == 0 || a->head_dim == 0)
        return FSDP_OK;
    k.args.scale = a->scale != 0 ? a->scale : 1.0f;
    k.by_time = divisor_of(a->time > 0 ? a->time : 1, a->batch * a->time);
#define ROTATE(T)                                                                       \
    k.whole = is_aligned(a->x, strides * (int64_t)sizeof(T)) && is_aligned(a->y, 0);    \
    FSDP_TRY(launch(stream, "rope", a->accumulate ? rotate<T, true> : rotate<T, false>, \
                    blocks_for(a->batch * a->time, 1), threads_for(k, ACCESS / (int64_t)sizeof(T)), 0, k))
    EACH_FLOAT(a->dtype, ROTATE)
#undef ROTATE
    return FSDP_OK;
}
