/* rope.cu - rotary position embedding, rotate_half layout. */
#include "backend/cuda/kernels/pack.cuh"

enum {
    MOST_PAIRS = 256, /* of a head whose angles a block has at a time */
    RESIDENT = 800,   /* threads of a multiprocessor, as their registers allow, */
    FEWER = 512       /* or so many */
};

struct rope_plan {
    fsdp__rope_args args;
    int64_t rotated;                                /* dimensions of a head */
    bool whole;                                     /* packs may be fetched whole */
    bool flat;                                      /* batches lie as far apart as their positions reach */
    divisor by_time, by_packs;                      /* packs: of a head, at most of MOST_PAIRS */
    int64_t step_t, step_x, step_y, wrap_x, wrap_y; /* to a block's next position; and if that is in the next batch */
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

    /* Fetches those that lie at x and `half` behind, and at y. */
    DEVICE void fetch(const T *x, const T *y, int half)
    {
        first = *(const pack<T, N> *)x;
        second = *(const pack<T, N> *)(x + half);
        if constexpr (ADDS) {
            old[0] = *(const pack<T, N> *)y;
            old[1] = *(const pack<T, N> *)(y + half);
        }
    }

    /* Rotates them by the angles whose cosines and sines are given, and stores them. */
    DEVICE void rotate(T *y, int half, const float *cosine, const float *sine)
    {
        float a[N], b[N], c[N], d[N];

        unpack(first, a);
        unpack(second, b);
        UNROLL
        for (int e = 0; e < N; e++) {
            c[e] = a[e] * cosine[e] - b[e] * sine[e];
            d[e] = b[e] * cosine[e] + a[e] * sine[e];
        }
        if constexpr (ADDS) {
            unpack(old[0], a);
            unpack(old[1], b);
            UNROLL
            for (int e = 0; e < N; e++) {
                c[e] += a[e];
                d[e] += b[e];
            }
        }
        put_whole(y, rounded<T>(c));
        put_whole(y + half, rounded<T>(d));
    }
};

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

/* Computes cosines and sines of a position's angles. */
DEVICE void make_angles(const rope_plan &k, int64_t at, int64_t t, int from, int pairs, float *cosine, float *sine)
{
    UNROLL_BY(1)
    for (int i = (int)threadIdx.x; i < pairs; i += (int)blockDim.x) {
        float position = (float)(k.args.positions ? k.args.positions[at] : k.args.position0 + t);

        sine_and_cosine(position * k.args.frequency[from + i], &sine[i], &cosine[i]);
        sine[i] *= k.args.inverse ? -k.args.scale : k.args.scale;
        cosine[i] *= k.args.scale;
    }
}

/* Rotates the thread's pairs of a position: those in `p`, which are of head h from pair i of the part on, and what
 * comes behind. x and y are where the part begins. */
template <class T, int N, bool ADDS>
DEVICE void rotate_heads(const rope_plan &k, const T *x, T *y, int pairs, int h, int i, pairs_of<T, N, ADDS> &p,
                         const float *cosine, const float *sine)
{
    const int half = (int)k.rotated / 2, packs = (int)k.by_packs.value, items = (int)k.args.heads * packs;

    for (int item = (int)threadIdx.x; item < items;) {
        if (i < pairs)
            p.rotate(y + h * k.args.y_head + i, half, cosine + i, sine + i);
        item += (int)blockDim.x;
        if (item >= items)
            return;
        h = (int)quotient(item, k.by_packs);
        i = (item - h * packs) * N;
        if (i < pairs)
            p.fetch(x + h * k.args.x_head + i, y + h * k.args.y_head + i, half);
    }
}

/* A block rotates all heads of a position, and then of another. While it does, the elements of the next one are on
 * their way, N pairs for a thread, and its angles are computed, once for all heads. */
template <class T, int N, bool ADDS>
static __global__ void __launch_bounds__(BLOCK, ADDS ? 2 : 3) rotate(GRID_CONSTANT(rope_plan) k)
{
    const int half = (int)k.rotated / 2, packs = (int)k.by_packs.value, from = (int)blockIdx.y * MOST_PAIRS;
    const int h = (int)threadIdx.x / packs, i = ((int)threadIdx.x - h * packs) * N;
    const int pairs = FSDP__MIN(half - from, (int)MOST_PAIRS);
    const bool mine = h < k.args.heads && i < pairs;
    const int64_t positions = k.args.batch * k.args.time, x_first = h * k.args.x_head + i,
                  y_first = h * k.args.y_head + i;
    __shared__ float cosine[2][MOST_PAIRS], sine[2][MOST_PAIRS];
    int64_t at = blockIdx.x, b = quotient(at, k.by_time), t = at - b * k.args.time;
    const T *x = (const T *)k.args.x + b * k.args.x_batch + t * k.args.x_time + from, *x_before = NULL;
    T *y = (T *)k.args.y + b * k.args.y_batch + t * k.args.y_time + from, *y_before = NULL;
    pairs_of<T, N, ADDS> ahead = {};

    for (int now = 0;; now = 1 - now) {
        pairs_of<T, N, ADDS> p = ahead;

        if (at < positions) {
            if (mine)
                ahead.fetch(x + x_first, y + y_first, half);
            make_angles(k, at, t, from, pairs, cosine[now], sine[now]);
        }
        if (x_before) {
            rotate_heads(k, x_before, y_before, pairs, h, i, p, cosine[1 - now], sine[1 - now]);
            if (from == 0)
                keep_rest(k, x_before, y_before);
        }
        if (at >= positions)
            return;
        __syncthreads();
        x_before = x, y_before = y;
        at += gridDim.x, t += k.step_t, x += k.step_x, y += k.step_y;
        if (t >= k.args.time)
            t -= k.args.time, x += k.wrap_x, y += k.wrap_y;
    }
}

/* Returns how many threads, 128 to 256, share the packs of a position so that few have one less. */
static int64_t threads_for(int64_t packs)
{
    int64_t rounds = (packs + BLOCK - 1) / BLOCK, threads = (packs + rounds * WARP - 1) / (rounds * WARP) * WARP;

    return FSDP__MAX(threads, (int64_t)BLOCK / 2);
}

template <class T, int N>
static fsdp_status launch_rope(fsdp_stream *stream, rope_plan k)
{
    const fsdp__rope_args *a = &k.args;
    int64_t half = k.rotated / 2, time = FSDP__MAX(a->time, (int64_t)1);
    int64_t packs = FSDP__MAX((FSDP__MIN(half, (int64_t)MOST_PAIRS) + N - 1) / N, (int64_t)1), blocks;
    int64_t threads = threads_for(a->heads * packs);
    int multiprocessors;
    size_t shared_bytes;

    fsdp__cuda_card(stream, &multiprocessors, &shared_bytes);
    blocks = FSDP__MIN(a->batch * a->time, (a->accumulate ? FEWER : RESIDENT) / threads * multiprocessors);
    k.by_time = divisor_of(time, a->batch * a->time);
    k.by_packs = divisor_of(packs, a->heads * packs + BLOCK);
    k.step_t = blocks % time;
    k.step_x = blocks / time * a->x_batch + k.step_t * a->x_time;
    k.step_y = blocks / time * a->y_batch + k.step_t * a->y_time;
    k.wrap_x = a->x_batch - time * a->x_time;
    k.wrap_y = a->y_batch - time * a->y_time;
    return launch(stream, "rope", a->accumulate ? rotate<T, N, true> : rotate<T, N, false>,
                  dim3((unsigned)blocks, (unsigned)FSDP__MAX((half + MOST_PAIRS - 1) / MOST_PAIRS, (int64_t)1)),
                  (unsigned)threads, 0, k);
}

/* Packs are whole: where they do not lie so, each is one pair. */
ENTRY(rope, a)
{
    rope_plan k = {};
    int64_t rotated = a->rotated > 0 ? a->rotated : a->head_dim;
    int64_t strides = a->x_batch | a->x_time | a->x_head | a->y_batch | a->y_time | a->y_head | rotated / 2;

    if (a->heads == 0 || a->head_dim == 0)
        return FSDP_OK;
    k.args = *a;
    k.args.scale = a->scale != 0 ? a->scale : 1.0f;
    k.rotated = rotated;
#define ROTATE(T)                                                              \
    if (is_aligned(a->x, strides * (int64_t)sizeof(T)) && is_aligned(a->y, 0)) \
        return launch_rope<T, ACCESS / (int)sizeof(T)>(stream, k);             \
    return launch_rope<T, 1>(stream, k)
    EACH_FLOAT(a->dtype, T, ROTATE(T));
#undef ROTATE
    return FSDP_OK;
}
