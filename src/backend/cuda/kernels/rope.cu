/* rope.cu - rotary position embedding, rotate_half layout. */
#include "backend/cuda/kernels/pack.cuh"

enum {
    MOST_PAIRS = 256 /* of a head whose angles a block has at a time */
};

struct rope_plan {
    fsdp__rope_args args;
    int64_t rotated; /* dimensions of a head */
    bool whole;      /* packs may be fetched whole */
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

/* Rotates N pairs of a head from pair i on, by the angles whose cosines and sines are given. */
template <int N, class T>
DEVICE void rotate_pack(const rope_plan &k, const T *x, T *y, int64_t i, const float *cosine, const float *sine)
{
    int64_t half = k.rotated / 2;
    pack<T, N> first = get<N>(x, i, half, k.whole), second = get<N>(x + half, i, half, k.whole), old[2] = {};

    if (k.args.accumulate) {
        old[0] = get<N>(y, i, half, k.whole);
        old[1] = get<N>(y + half, i, half, k.whole);
    }
    UNROLL
    for (int e = 0; e < N; e++) {
        float a = to_float(first.at[e]), b = to_float(second.at[e]);
        float c = a * cosine[e] - b * sine[e], d = b * cosine[e] + a * sine[e];

        first.at[e] = from_float<T>(to_float(old[0].at[e]) + c);
        second.at[e] = from_float<T>(to_float(old[1].at[e]) + d);
    }
    put<N>(y, i, half, k.whole, first);
    put<N>(y + half, i, half, k.whole, second);
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

/* A block rotates all heads of a position of a batch: it computes the angles once. */
template <class T>
static __global__ void rotate(const __grid_constant__ rope_plan k)
{
    const int n = ACCESS / (int)sizeof(T);
    __shared__ float cosine[MOST_PAIRS], sine[MOST_PAIRS];
    int64_t half = k.rotated / 2;

    EACH_ROW (at, k.args.batch * k.args.time) {
        int64_t b = at / k.args.time, t = at - b * k.args.time;
        const T *x = (const T *)k.args.x + b * k.args.x_batch + t * k.args.x_time;
        T *y = (T *)k.args.y + b * k.args.y_batch + t * k.args.y_time;
        float position = (float)(k.args.positions ? k.args.positions[at] : k.args.position0 + t);

        for (int64_t from = 0; from < half; from += MOST_PAIRS) {
            unsigned pairs = (unsigned)FSDP__MIN(half - from, (int64_t)MOST_PAIRS), packs = (pairs + n - 1) / n;

            for (unsigned i = threadIdx.x; i < packs * n; i += blockDim.x) {
                float frequency = i < pairs ? k.args.frequency[from + i] : 0.0f;

                sine_and_cosine(position * frequency, &sine[i], &cosine[i]);
                sine[i] *= k.args.inverse ? -k.args.scale : k.args.scale;
                cosine[i] *= k.args.scale;
            }
            __syncthreads();
            for (unsigned item = threadIdx.x; item < k.args.heads * packs; item += blockDim.x) {
                unsigned h = item / packs, i = (item - h * packs) * n;

                rotate_pack<n>(k, x + h * k.args.x_head, y + h * k.args.y_head, from + i, cosine + i, sine + i);
            }
            __syncthreads();
        }
        keep_rest(k, x, y);
    }
}

ENTRY(rope)
{
    const fsdp__rope_args *a = (const fsdp__rope_args *)args;
    rope_plan k = {*a, a->rotated > 0 ? a->rotated : a->head_dim, false};
    int64_t strides = a->x_batch | a->x_time | a->x_head | a->y_batch | a->y_time | a->y_head | k.rotated / 2;

    if (a->heads == 0 || a->head_dim == 0)
        return FSDP_OK;
    k.args.scale = a->scale != 0 ? a->scale : 1.0f;
#define ROTATE(T)                                                                    \
    k.whole = is_aligned(a->x, strides * (int64_t)sizeof(T)) && is_aligned(a->y, 0); \
    FSDP_TRY(launch(stream, "rope", rotate<T>, blocks_for(a->batch * a->time, 1), BLOCK / 2, 0, k))
    EACH_FLOAT(a->dtype, ROTATE)
#undef ROTATE
    return FSDP_OK;
}
