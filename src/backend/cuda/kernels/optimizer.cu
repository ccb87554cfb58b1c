/* optimizer.cu - Adam, AdamW and SGD over all tensors in one launch, or a few. A product is rounded by itself before it
 * is added, so that the bits are those of a CPU without fused multiply and add; divisions and roots are exact to the
 * last bit by CUDA's default. */
#include "backend/cuda/kernels/spans.cuh"

/* A product that the compiler does not join with an addition. */
DEVICE float times(float a, float b)
{
#ifdef FSDP_CUDASH
    return a * b; /* compiled with -ffp-contract=off */
#else
    return __fmul_rn(a, b);
#endif
}

/* What of a call is decided on the device: [Note: verdicts]. */
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

/* Whether the step is the one before that which the host has counted. */
DEVICE bool is_earlier(const verdict_on &v)
{
    return v.verdict && v.behind && v.verdict->left_out_before;
}

/* Constants of a step that depend on t. */
struct adam_corrections {
    float step_size, root_correction;
};

/* The constants of a step, computed in f64. */
struct adam_plan {
    verdict_on on;
    float eps, decay, beta2, one_minus_beta1, one_minus_beta2, decay_factor;
    adam_corrections at, earlier; /* of t as the host has counted, and of one less */
};

static adam_corrections corrections_of(const fsdp__adam_args *k, int64_t t)
{
    adam_corrections c = {(float)(k->lr / (1.0 - pow(k->beta1, (double)t))),
                          (float)sqrt(1.0 - pow(k->beta2, (double)t))};

    return c;
}

static adam_plan plan_of(const fsdp__adam_args *k)
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
    return p;
}

/* Updates as torch.optim does: m by lerp, denominator sqrt(v) / sqrt(1 - b2^t) + eps. */
template <class P, class G>
static __global__ void adam_step(const __grid_constant__ span_list<fsdp__optimizer_span> list, const adam_plan p)
{
    const int N = pack_of<float, P>::length;
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    float scale = scale_of(p.on), step_size = is_earlier(p.on) ? p.earlier.step_size : p.at.step_size,
          root_correction = is_earlier(p.on) ? p.earlier.root_correction : p.at.root_correction;

    if (is_left_out(p.on))
        return;
    EACH_PACK (at, c, N) {
        int64_t n = c.end - at;
        float w[N], g[N], m[N], v[N];

        load_pack((const P *)s.param + at, n, w);
        load_pack((const G *)s.grad + at, n, g);
        load_pack(s.moment1 + at, n, m);
        load_pack(s.moment2 + at, n, v);
        UNROLL
        for (int i = 0; i < N; i++) {
            g[i] = times(g[i], scale);
            w[i] = times(w[i], p.decay_factor);
            if (p.decay != 0.0f)
                g[i] += times(p.decay, w[i]);
            m[i] += times(p.one_minus_beta1, g[i] - m[i]);
            v[i] = times(p.beta2, v[i]) + times(times(p.one_minus_beta2, g[i]), g[i]);
            w[i] -= times(step_size, m[i]) / (sqrtf(v[i]) / root_correction + p.eps);
        }
        store_pack(s.moment1 + at, n, m);
        store_pack(s.moment2 + at, n, v);
        store_pack((P *)s.param + at, n, w);
    }
}

template <class P>
static fsdp_status adam_of(fsdp_stream *stream, const fsdp__adam_args *k)
{
    span_lists<fsdp__optimizer_span> lists = lists_of(k->spans, k->count);
    adam_plan plan = plan_of(k);

    while (next_list(&lists)) {
#define STEP(G) FSDP_TRY(launch(stream, "adam", adam_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan))
        EACH_FLOAT(k->grad_dtype, STEP)
#undef STEP
    }
    return FSDP_OK;
}

ENTRY(adam)
{
    const fsdp__adam_args *k = (const fsdp__adam_args *)args;

#define ADAM(P) return adam_of<P>(stream, k)
    EACH_FLOAT(k->param_dtype, ADAM)
#undef ADAM
    return FSDP_OK;
}

struct sgd_plan {
    verdict_on on;
    float decay, lr, momentum, take; /* take: from the second step on */
    int64_t step;
    bool nesterov;
};

/* Without a buffer the momentum is 0. */
template <class P, class G>
static __global__ void sgd_step(const __grid_constant__ span_list<fsdp__optimizer_span> list, const sgd_plan p)
{
    const int N = pack_of<float, P>::length;
    chunk c = chunk_of_block(list);
    const fsdp__optimizer_span &s = list.spans[c.span];
    bool buffered = s.moment1 && p.momentum != 0.0f, first = p.step - is_earlier(p.on) == 1;
    float scale = scale_of(p.on), take = first ? 1.0f : p.take;

    if (is_left_out(p.on))
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
    }
}

template <class P>
static fsdp_status sgd_of(fsdp_stream *stream, const fsdp__sgd_args *k)
{
    span_lists<fsdp__optimizer_span> lists = lists_of(k->spans, k->count);
    sgd_plan plan = {{k->verdict, k->grad_scale, k->behind},
                     (float)k->weight_decay,
                     (float)k->lr,
                     (float)k->momentum,
                     (float)(1.0 - k->dampening),
                     k->step,
                     k->nesterov};

    while (next_list(&lists)) {
#define STEP(G) FSDP_TRY(launch(stream, "sgd", sgd_step<P, G>, lists.blocks, BLOCK, 0, lists.list, plan))
        EACH_FLOAT(k->grad_dtype, STEP)
#undef STEP
    }
    return FSDP_OK;
}

ENTRY(sgd)
{
    const fsdp__sgd_args *k = (const fsdp__sgd_args *)args;

#define SGD(P) return sgd_of<P>(stream, k)
    EACH_FLOAT(k->param_dtype, SGD)
#undef SGD
    return FSDP_OK;
}
