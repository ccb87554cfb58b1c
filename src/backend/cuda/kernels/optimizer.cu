/* optimizer.cu - Adam, AdamW, SGD and Lion over all tensors in one launch, or a few; Adam with moments of bytes. A
 * product is rounded by itself before it is added, so that the bits are those of a CPU without fused multiply and add;
 * divisions and roots are exact to the last bit by CUDA's default. */
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/spans.cuh"
#include "base/byte_map.h"

/* Holds what the device decides about a call: [Note: verdicts]. */
struct verdict_on {
    const fsdp__verdict *verdict;
    float grad_scale;
    bool behind;
};

DEVICE bool is_left_out(const verdict_on &v)
{
    return v.verdict && v.verdict->left_out;
}

DEVICE float scale_of(const verdict_on &v)
{
    return v.verdict ? v.verdict->scale : v.grad_scale;
}

/* Returns whether the step is the one before that which the host has counted. */
DEVICE bool is_earlier(const verdict_on &v)
{
    return v.verdict && v.behind && v.verdict->left_out_before;
}

/* Holds the constants of a step that depend on t. */
struct adam_corrections {
    float step_size, root_correction;
};

/* Holds the constants of a step, computed in f64. */
struct adam_plan {
    verdict_on on;
    float eps, decay, beta2, one_minus_beta1, one_minus_beta2, decay_factor;
    adam_corrections at, earlier; /* of t as the host has counted, and of one less */
    fsdp_dtype copy_dtype;
};

template <class Args>
static adam_corrections corrections_of(const Args *k, int64_t t)
{
    adam_corrections c = {(float)(k->lr / (1.0 - pow(k->beta1, (double)t))),
                          (float)sqrt(1.0 - pow(k->beta2, (double)t))};

    return c;
}

template <class Args>
static adam_plan plan_of(const Args *k)
{
    adam_plan p;

    p.on = {k->verdict, k->grad_scale, k->behind};
    p.eps = (float)k->eps;
    p.decay = k->decoupled ? 0.0f : (float)k->weight_decay;
    p.beta2 = (float)k->beta2;
    p.one_minus_beta1 = (float)(1.0 - k->beta1);
    p.one_minus_beta2 = (float)(1.0 - k->beta2);
    p.decay_factor = k->decoupled ? (float)(1.0 - k->lr * k->weight_decay) : 1.0f;
    p.at = corrections_of(k, k->step);
    p.earlier = k->behind ? corrections_of(k, k->step - 1) : p.at;
    p.copy_dtype = k->copy_dtype;
    return p;
}

DEVICE const adam_corrections &corrections_at(const adam_plan &p)
{
    return is_earlier(p.on) ? p.earlier : p.at;
}

/* Moves both moments by a gradient, as torch.optim does: m by lerp, denominator sqrt(v) / sqrt(1 - b2^t) + eps. Returns
 * the weight `w`, which is decayed, after its step. */
DEVICE float adam_moves(const adam_plan &p, const adam_corrections &at, float w, float g, float *m, float *v)
{
    *m += times(p.one_minus_beta1, g - *m);
    *v = times(p.beta2, *v) + times(times(p.one_minus_beta2, g), g);
    return w - times(at.step_size, *m) / (sqrtf(*v) / at.root_correction + p.eps);
}

/* Stores what the parameter, of P, has become, in another dtype. */
template <class P, int N>
DEVICE void store_copy(const fsdp__optimizer_span &s, fsdp_dtype dtype, int64_t at, int64_t n, float (&w)[N])
{
    UNROLL
    for (int i = 0; i < N; i++)
        w[i] = to_float(from_float<P>(w[i]));
    EACH_FLOAT(dtype, T, store_pack((T *)s.copy + at, n, w));
}

/* Copies the chunk of a parameter that no step is taken of. */
template <class P>
DEVICE void copy_chunk(const fsdp__optimizer_span &s, fsdp_dtype dtype, chunk c)
{
    const int N = pack_of<float, P>::length;

    EACH_PACK (at, c, N) {
        float w[N];

        load_pack((const P *)s.param + at, c.end - at, w);
        store_copy<P>(s, dtype, at, c.end - at, w);
    }
}

/* Returns whether the step is left out; then the copy alone is written. */
template <class P>
DEVICE bool left_out(const verdict_on &on, const fsdp__optimizer_span &s, fsdp_dtype copy_dtype, chunk c)
{
    if (is_left_out(on) && s.copy)
        copy_chunk<P>(s, copy_dtype, c);
    return is_left_out(on);
}

/* Takes the step of a pack of weights, of which `n` are there. */
template <class G, int N>
DEVICE void adam_pack(const adam_plan &p, const adam_corrections &corrections, float scale,
                      const fsdp__optimizer_span &s, int64_t at, int64_t n, float (&w)[N])
{
    float g[N], m[N], v[N];

    load_pack((const G *)s.grad + at, n, g);
    load_pack(s.moment1 + at, n, m);
    load_pack(s.moment2 + at, n, v);
    UNROLL
    for (int i = 0; i < N; i++) {
        g[i] = times(g[i], scale);
        w[i] = times(w[i], p.decay_factor);
        if (p.decay != 0.0f)
            g[i] += times(p.decay, w[i]);
        w[i] = adam_moves(p, corrections, w[i], g[i], &m[i], &v[i]);
    }
    store_pack(s.moment1 + at, n, m);
    store_pack(s.moment2 + at, n, v);
}

template <class P, class G>
static __global__ void adam_step(GRID_CONSTANT(long_list<fsdp__optimizer_span>) list, const adam_plan p)
{
    const int N = pack_of<float, P>::length;
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    const adam_corrections corrections = corrections_at(p);
    float scale = scale_of(p.on);

    if (left_out<P>(p.on, s, p.copy_dtype, c))
        return;
    EACH_PACK (at, c, N) {
        int64_t n = c.end - at;
        float w[N];

        load_pack((const P *)s.param + at, n, w);
        adam_pack<G>(p, corrections, scale, s, at, n, w);
        store_pack((P *)s.param + at, n, w);
        if (s.copy)
            store_copy<P>(s, p.copy_dtype, at, n, w);
    }
}

template <class G>
static __global__ void split_adam_step(GRID_CONSTANT(long_list<fsdp__optimizer_span>) list, const adam_plan p)
{
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    const adam_corrections corrections = corrections_at(p);
    float scale = scale_of(p.on);

    if (is_left_out(p.on))
        return;
    EACH_PACK (at, c, HALVES) {
        uint16_t *high = (uint16_t *)s.copy + at, *low = (uint16_t *)s.param + at;
        int64_t n = c.end - at;
        float w[HALVES];

        load_halves(high, low, n, w);
        adam_pack<G>(p, corrections, scale, s, at, n, w);
        store_halves(high, low, n, w);
    }
}

ENTRY(adam, k)
{
    long_lists<fsdp__optimizer_span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);
    adam_plan plan = plan_of(k);

    while (next_list(&lists))
        if (k->split)
            EACH_FLOAT(k->grad_dtype, G,
                       FSDP_TRY(launch(stream, "adam", split_adam_step<G>, lists.blocks, BLOCK, 0, lists.list, plan)))
        else
            EACH_PAIR(k->param_dtype, k->grad_dtype, P, G,
                      FSDP_TRY(launch(stream, "adam", adam_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan)));
    return FSDP_OK;
}

/* ---- SGD ---- */

struct sgd_plan {
    verdict_on on;
    float decay, lr, momentum, take; /* take: from the second step on */
    int64_t step;
    bool nesterov;
    fsdp_dtype copy_dtype;
};

/* Without a buffer the momentum is 0. */
template <class P, class G>
static __global__ void sgd_step(GRID_CONSTANT(long_list<fsdp__optimizer_span>) list, const sgd_plan p)
{
    const int N = pack_of<float, P>::length;
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    bool buffered = s.moment1 && p.momentum != 0.0f, first = p.step - is_earlier(p.on) == 1;
    float scale = scale_of(p.on), take = first ? 1.0f : p.take;

    if (left_out<P>(p.on, s, p.copy_dtype, c))
        return;
    EACH_PACK (at, c, N) {
        int64_t n = c.end - at;
        float w[N], g[N], b[N];

        load_pack((const P *)s.param + at, n, w);
        load_pack((const G *)s.grad + at, n, g);
        UNROLL
        for (int i = 0; i < N; i++)
            g[i] = times(g[i], scale) + times(p.decay, w[i]);
        if (buffered) {
            load_pack(s.moment1 + at, first ? 0 : n, b);
            UNROLL
            for (int i = 0; i < N; i++) {
                b[i] = (first ? 0.0f : times(p.momentum, b[i])) + times(take, g[i]);
                g[i] = p.nesterov ? g[i] + times(p.momentum, b[i]) : b[i];
            }
            store_pack(s.moment1 + at, n, b);
        }
        UNROLL
        for (int i = 0; i < N; i++)
            w[i] -= times(p.lr, g[i]);
        store_pack((P *)s.param + at, n, w);
        if (s.copy)
            store_copy<P>(s, p.copy_dtype, at, n, w);
    }
}

ENTRY(sgd, k)
{
    long_lists<fsdp__optimizer_span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);
    sgd_plan plan = {{k->verdict, k->grad_scale, k->behind},
                     (float)k->weight_decay,
                     (float)k->lr,
                     (float)k->momentum,
                     (float)(1.0 - k->dampening),
                     k->step,
                     k->nesterov,
                     k->copy_dtype};

    while (next_list(&lists))
        EACH_PAIR(k->param_dtype, k->grad_dtype, P, G,
                  FSDP_TRY(launch(stream, "sgd", sgd_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan)));
    return FSDP_OK;
}

/* ---- Lion ---- */

struct lion_plan {
    verdict_on on;
    float lr, take1, take2, decay;
    fsdp_dtype copy_dtype;
};

template <class P, class G>
static __global__ void lion_step(GRID_CONSTANT(long_list<fsdp__optimizer_span>) list, const lion_plan p)
{
    const int N = pack_of<float, P>::length;
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    float scale = scale_of(p.on);

    if (left_out<P>(p.on, s, p.copy_dtype, c))
        return;
    EACH_PACK (at, c, N) {
        int64_t n = c.end - at;
        float w[N], g[N], m[N];

        load_pack((const P *)s.param + at, n, w);
        load_pack((const G *)s.grad + at, n, g);
        load_pack(s.moment1 + at, n, m);
        UNROLL
        for (int i = 0; i < N; i++) {
            float u;

            g[i] = times(g[i], scale);
            u = m[i] + times(p.take1, g[i] - m[i]);
            m[i] += times(p.take2, g[i] - m[i]);
            w[i] -= times(p.decay, w[i]);
            w[i] -= u > 0.0f ? p.lr : u < 0.0f ? -p.lr : times(0.0f, u);
        }
        store_pack(s.moment1 + at, n, m);
        store_pack((P *)s.param + at, n, w);
        if (s.copy)
            store_copy<P>(s, p.copy_dtype, at, n, w);
    }
}

ENTRY(lion, k)
{
    long_lists<fsdp__optimizer_span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);
    lion_plan plan = {
        {k->verdict, k->grad_scale, false}, (float)k->lr, (float)(1.0 - k->beta1), (float)(1.0 - k->beta2),
        (float)(k->lr * k->weight_decay),   k->copy_dtype};

    while (next_list(&lists))
        EACH_PAIR(k->param_dtype, k->grad_dtype, P, G,
                  FSDP_TRY(launch(stream, "lion", lion_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan)));
    return FSDP_OK;
}

/* ---- averages ---- */

template <class D, class S>
static __global__ void lerp(GRID_CONSTANT(long_list<fsdp__span>) list, const fsdp__verdict *verdict, float weight,
                            float scale)
{
    const int N = pack_of<D, S>::length;
    chunk c = chunk_of_block(list);
    D *dst = (D *)list.spans[c.span].dst;
    const S *src = (const S *)list.spans[c.span].src;

    if (verdict && verdict->left_out)
        return;
    EACH_PACK (at, c, N) {
        float x[N], y[N];

        load_pack(src + at, c.end - at, x);
        load_pack((const D *)dst + at, c.end - at, y);
        UNROLL
        for (int i = 0; i < N; i++)
            y[i] += times(weight, times(scale, x[i]) - y[i]);
        store_pack(dst + at, c.end - at, y);
    }
}

ENTRY(lerp_spans, k)
{
    long_lists<fsdp__span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);

    while (next_list(&lists))
        EACH_PAIR(k->dst_dtype, k->src_dtype, D, S,
                  FSDP_TRY(launch(stream, "lerp_spans", lerp<D, S>, lists.blocks, BLOCK, 0, lists.list, k->verdict,
                                  k->weight, k->scale)));
    return FSDP_OK;
}

/* ---- Adam with moments of bytes: each warp has a block of a row ---- */

enum {
    BYTES_A_LANE = FSDP__BYTE_BLOCK / WARP
};

/* Returns the code of the nearest number; of two the lower. */
DEVICE uint8_t encode(const float *map, float x)
{
    int low = 0;

    for (int step = FSDP__BYTE_CODES / 2; step > 0; step /= 2)
        low += x > times(0.5f, map[low + step - 1] + map[low + step]) ? step : 0;
    return (uint8_t)low;
}

/* Encodes the `n` numbers that the warp has, of which lane i has i, i + WARP and so on. */
DEVICE void store_block(const float *map, const float *x, int n, uint8_t *codes, float *scale)
{
    unsigned bits = 0;
    float largest;

    for (int i = 0; i < BYTES_A_LANE; i++)
        if (lane_of_warp() + i * WARP < n)
            bits = magnitude_bits(x[i]) > bits ? magnitude_bits(x[i]) : bits;
    largest = fsdp__bits_float(warp_largest(bits));
    if (lane_of_warp() == 0)
        *scale = largest;
    for (int i = 0; i < BYTES_A_LANE; i++)
        if (lane_of_warp() + i * WARP < n)
            codes[lane_of_warp() + i * WARP] = encode(map, largest > 0.0f ? x[i] / largest : 0.0f);
}

/* Stores element e of a parameter, of P, in its copy, if it has one. */
template <class P>
DEVICE void copy_element(const fsdp__byte_span &s, fsdp_dtype dtype, int64_t e, P w)
{
    if (s.copy)
        EACH_FLOAT(dtype, T, ((T *)s.copy)[e] = from_float<T>(to_float(w)));
}

/* Copies the warp's block of a parameter that no step is taken of. */
template <class P>
DEVICE void copy_block(const fsdp__byte_span &s, fsdp_dtype dtype, int64_t at, int n)
{
    for (int i = lane_of_warp(); i < n; i += WARP)
        copy_element(s, dtype, at + i, ((const P *)s.param)[at + i]);
}

template <class P, class G>
static __global__ void byte_adam_step(GRID_CONSTANT(long_list<fsdp__byte_span>) list, const adam_plan p)
{
    __shared__ float first[FSDP__BYTE_CODES], second[FSDP__BYTE_CODES];
    int span;
    int64_t block = number_of_chunk(list, &span) * BYTE_ROWS + threadIdx.x / WARP;
    const fsdp__byte_span &s = list.spans[span];
    int64_t in_row = blocks_in_row(s);
    int64_t column = block % in_row * FSDP__BYTE_BLOCK, at = block / in_row * s.cols + column;
    int n = s.cols - column < FSDP__BYTE_BLOCK ? (int)(s.cols - column) : (int)FSDP__BYTE_BLOCK;
    const adam_corrections corrections = corrections_at(p);
    float scale = scale_of(p.on), m[BYTES_A_LANE], v[BYTES_A_LANE], scale1, scale2;

    if (is_left_out(p.on)) {
        if (block < s.rows * in_row)
            copy_block<P>(s, p.copy_dtype, at, n);
        return;
    }
    for (int c = threadIdx.x; c < FSDP__BYTE_CODES; c += BLOCK) {
        first[c] = fsdp__byte_map_value(c, 1);
        second[c] = fsdp__byte_map_value(c, 0);
    }
    __syncthreads();
    if (block >= s.rows * in_row)
        return;
    scale1 = s.scales1[block];
    scale2 = s.scales2[block];
    __syncwarp();
    for (int i = 0; i < BYTES_A_LANE; i++) {
        int64_t e = at + lane_of_warp() + i * WARP;
        float w, g;
        P stepped;

        m[i] = v[i] = 0.0f;
        if (lane_of_warp() + i * WARP >= n)
            continue;
        w = times(to_float(((const P *)s.param)[e]), p.decay_factor);
        g = times(to_float(((const G *)s.grad)[e]), scale) + times(p.decay, w);
        m[i] = times(first[s.codes1[e]], scale1);
        v[i] = times(second[s.codes2[e]], scale2);
        stepped = from_float<P>(adam_moves(p, corrections, w, g, &m[i], &v[i]));
        ((P *)s.param)[e] = stepped;
        copy_element(s, p.copy_dtype, e, stepped);
    }
    store_block(first, m, n, s.codes1 + at, &s.scales1[block]);
    store_block(second, v, n, s.codes2 + at, &s.scales2[block]);
}

ENTRY(byte_adam, k)
{
    long_lists<fsdp__byte_span> lists = lists_of<LONG_LIST_BYTES>(k->spans, k->count);
    adam_plan plan = plan_of(k);

    while (next_list(&lists))
        EACH_PAIR(
            k->param_dtype, k->grad_dtype, P, G,
            FSDP_TRY(launch(stream, "byte_adam", byte_adam_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan)));
    return FSDP_OK;
}
