/* attention_backward.c - gradients of attention by panels; probabilities are computed again from the saved lse.
 *
 *     P = e^(scale Q K^T - lse)      dV = P^T dO          D  = row sums of dO * O
 *     dS = P * (dO V^T - D)          dK = scale dS^T Q    dQ = scale dS K
 *
 * A thread owns a key head of one batch element with all query heads that use it, so no two threads add to the same
 * gradient; the schedule is static, so threads beyond the tasks need no scratch. See [Note: attention by strips] in
 * attention.h. */
#include "backend/cpu/kernels/attention.h"
#include "base/alloc.h"

typedef struct plan {
    const fsdp__attention_backward_args *k;
    int64_t q_panels, kv_panels, d, d_padded;
    int64_t dq_batch, dq_time, dq_head, dk_batch, dk_time, dk_head, dv_batch, dv_time, dv_head;
    float *scratch; /* one for each thread */
    int64_t scratch_floats;
} plan;

/* Holds a thread's scratch: everything of one query head and its key head, as f32. */
typedef struct work {
    float *q, *dout, *dq; /* (T, d_padded); queries are scaled */
    float *delta, *lse;   /* (T) */
    float *kt, *vt;       /* strips of K^T, V^T (d, keys) by key panel */
    float *k, *dk, *dv;   /* (S, d_padded) */
    float *p, *ds;        /* (Q_PANEL, KV_PANEL) */
} work;

/* Computes a tile whose A is read transposed, from rows of KV_PANEL. */
static void tile_along(int64_t rows, int64_t k, const float *a, const float *b, float *c, int64_t row)
{
    fsdp__tile(rows, k, a, 1, FSDP__KV_PANEL, b, row, c, row, true);
}

/* Lays out the arrays from `base` on; returns how many floats they take. */
static int64_t lay_out(const plan *p, float *base, work *w)
{
    int64_t t = p->q_panels * FSDP__Q_PANEL, s = p->kv_panels * FSDP__KV_PANEL, at = 0;
    int64_t panel = FSDP__Q_PANEL * FSDP__KV_PANEL;

#define PLACE(field, n) (w->field = base ? base + at : NULL, at += fsdp__round_up(n, 16))
    PLACE(p, panel);
    PLACE(ds, panel);
    PLACE(q, t * p->d_padded);
    PLACE(dout, t * p->d_padded);
    PLACE(dq, t * p->d_padded);
    PLACE(delta, t);
    PLACE(lse, t);
    PLACE(kt, s * p->d);
    PLACE(vt, s * p->d);
    PLACE(k, s * p->d_padded);
    PLACE(dk, s * p->d_padded);
    PLACE(dv, s * p->d_padded);
#undef PLACE
    return at;
}

static void load_keys(const plan *p, const work *w, int64_t b, int64_t h)
{
    const fsdp__attention_forward_args *k = &p->k->forward;
    const void *keys = fsdp__at(k->dtype, k->k, b * k->k_batch + h * k->k_head);
    const void *values = fsdp__at(k->dtype, k->v, b * k->v_batch + h * k->v_head);
    size_t bytes = (size_t)(k->kv_time * p->d_padded) * sizeof(float);

    for (int64_t s0 = 0; s0 < k->kv_time; s0 += FSDP__KV_PANEL) {
        int64_t n = FSDP__MIN(k->kv_time - s0, FSDP__KV_PANEL);
        const void *from = fsdp__at(k->dtype, keys, s0 * k->k_stride_time);

        fsdp__pack_transposed(k->dtype, from, k->k_stride_time, n, p->d, w->kt + s0 * p->d);
        from = fsdp__at(k->dtype, values, s0 * k->v_stride_time);
        fsdp__pack_transposed(k->dtype, from, k->v_stride_time, n, p->d, w->vt + s0 * p->d);
    }
    fsdp__gather_rows(k->dtype, keys, k->k_stride_time, k->kv_time, p->d, p->d_padded, 1.0f, w->k);
    memset(w->dk, 0, bytes);
    memset(w->dv, 0, bytes);
}

FSDP__INLINE float dot(fsdp_dtype dtype, const void *x, const float *y, int64_t n)
{
    float sum = 0.0f;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += fsdp__load(dtype, x, i) * y[i];
    return sum;
}

static void load_queries(const plan *p, const work *w, int64_t b, int64_t h)
{
    const fsdp__attention_forward_args *k = &p->k->forward;
    const void *q = fsdp__at(k->dtype, k->q, b * k->q_batch + h * k->q_head);
    const void *dout = fsdp__at(k->dtype, p->k->dout, b * k->out_batch + h * k->out_head);
    const void *out = fsdp__at(k->dtype, k->out, b * k->out_batch + h * k->out_head);

    fsdp__gather_rows(k->dtype, q, k->q_stride_time, k->q_time, p->d, p->d_padded, k->scale, w->q);
    fsdp__gather_rows(k->dtype, dout, k->out_stride_time, k->q_time, p->d, p->d_padded, 1.0f, w->dout);
    for (int64_t t = 0; t < k->q_time; t++) {
        FSDP__EACH_FLOAT(k->dtype, T,
                         w->delta[t] =
                             dot(T, fsdp__at(T, out, t * k->out_stride_time), w->dout + t * p->d_padded, p->d));
    }
    if (k->q_time == 0) /* there may be no memory */
        return;
    memcpy(w->lse, k->lse + (b * k->heads + h) * k->q_time, (size_t)k->q_time * sizeof(float));
    memset(w->dq, 0, (size_t)(k->q_time * p->d_padded) * sizeof(float));
}

/* The keys of a panel that a query sees, [first, seen), and those that tiles may look at, [begin, end). */
typedef struct reach {
    int64_t begin, first, seen, end;
} reach;

/* Turns scores into probabilities (p) and dO V^T into dS (ds) for one query, in whole vectors; writes zeros where a
 * tile may look beyond. */
static void gradient_row(float *restrict p, float *restrict ds, float lse, float delta, reach r)
{
#pragma omp simd
    for (int64_t j = r.first / FSDP__LANES * FSDP__LANES; j < fsdp__round_up(r.seen, FSDP__LANES); j++) {
        p[j] = fsdp__expf_low(p[j] - lse);
        ds[j] = p[j] * (ds[j] - delta);
    }
    for (int64_t j = r.begin; j < r.first; j++)
        p[j] = ds[j] = 0.0f;
    for (int64_t j = r.seen; j < r.end; j++)
        p[j] = ds[j] = 0.0f;
}

/* Does the same as gradient_row() for capped scores. */
static void capped_row(float *restrict p, float *restrict ds, float cap, float lse, float delta, reach r)
{
    int64_t from = r.first / FSDP__LANES * FSDP__LANES;

    fsdp__cap(p + from, cap, fsdp__round_up(r.seen, FSDP__LANES) - from);
#pragma omp simd
    for (int64_t j = from; j < fsdp__round_up(r.seen, FSDP__LANES); j++)
        ds[j] = (ds[j] - delta) * (1.0f - p[j] / cap * (p[j] / cap));
    gradient_row(p, ds, lse, 0.0f, r);
}

/* Returns what query t sees of keys [s0, s0 + n), of which its tile looks at [from, width). */
static reach reach_of(const fsdp__attention_forward_args *k, int64_t b, int64_t t, int64_t s0, int64_t n, int64_t from)
{
    reach r = {.first = FSDP__MIN(FSDP__MAX(fsdp__first_key(k, b, t) - s0, 0), n),
               .seen = FSDP__MAX(FSDP__MIN(fsdp__keys_seen(k, t) - s0, n), 0)};

    r.first = FSDP__MIN(r.first, r.seen);
    r.begin = FSDP__MIN(FSDP__MAX(r.first - FSDP__MR, 0), from);
    r.end = FSDP__MIN(r.seen + FSDP__MR, n);
    return r;
}

/* Computes what queries [t0, t0 + rows) and keys [s0, s0 + n) of batch element b add to the gradients. */
static void panel_pair(const plan *p, const work *w, int64_t b, int64_t t0, int64_t rows, int64_t s0, int64_t n)
{
    const fsdp__attention_forward_args *k = &p->k->forward;
    int64_t d = p->d, dp = p->d_padded;
    const float *kt = w->kt + s0 * d, *vt = w->vt + s0 * d;

    for (int64_t i = 0; i < rows; i += FSDP__MR) {
        int64_t m = FSDP__MIN(rows - i, FSDP__MR), t = t0 + i;
        int64_t width = FSDP__MIN(fsdp__keys_seen(k, t + m - 1) - s0, n);
        int64_t from = FSDP__MAX(fsdp__first_key(k, b, t) - s0, 0) / FSDP__NR * FSDP__NR;
        float *pi = w->p + i * FSDP__KV_PANEL, *dsi = w->ds + i * FSDP__KV_PANEL;
        if (width <= from)
            continue;
        for (int64_t j = from; j < width; j += FSDP__NR) {
            fsdp__tile_across(m, d, w->q + t * dp, dp, kt + j * d, FSDP__NR, pi + j, FSDP__KV_PANEL, false);
            fsdp__tile_across(m, d, w->dout + t * dp, dp, vt + j * d, FSDP__NR, dsi + j, FSDP__KV_PANEL, false);
        }
        for (int64_t r = 0; r < m; r++) {
            reach seen = reach_of(k, b, t + r, s0, n, from);
            float *pr = pi + r * FSDP__KV_PANEL, *dsr = dsi + r * FSDP__KV_PANEL;
            if (k->softcap > 0.0f)
                capped_row(pr, dsr, k->softcap, w->lse[t + r], w->delta[t + r], seen);
            else
                gradient_row(pr, dsr, w->lse[t + r], w->delta[t + r], seen);
        }
        for (int64_t c = 0; c < d; c += FSDP__NR)
            fsdp__tile_across(m, width - from, dsi + from, FSDP__KV_PANEL, w->k + (s0 + from) * dp + c, dp,
                              w->dq + t * dp + c, dp, true);
    }
    for (int64_t j = 0; j < n; j += FSDP__MR) {
        int64_t m = FSDP__MIN(n - j, FSDP__MR), r = FSDP__MAX(fsdp__first_query(k, s0 + j) - t0, 0);
        int64_t end = FSDP__MIN(fsdp__end_query(k, b, s0 + j + m - 1, t0) - t0, rows);
        const float *pj = w->p + r * FSDP__KV_PANEL + j, *dsj = w->ds + r * FSDP__KV_PANEL + j;
        if (r >= rows) /* later keys are seen by later queries only */
            break;
        for (int64_t c = 0; c < d && r < end; c += FSDP__NR) {
            tile_along(m, end - r, pj, w->dout + (t0 + r) * dp + c, w->dv + (s0 + j) * dp + c, dp);
            tile_along(m, end - r, dsj, w->q + (t0 + r) * dp + c, w->dk + (s0 + j) * dp + c, dp);
        }
    }
}

static void store_rows(const plan *p, const float *src, float scale, void *dst, int64_t row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        FSDP__EACH_FLOAT(p->k->forward.dtype, T,
                         for (int64_t c = 0; c < p->d; c++)
                             fsdp__store(T, dst, i * row + c, src[i * p->d_padded + c] * scale));
    }
}

static void key_head(const plan *p, int64_t task)
{
    const fsdp__attention_forward_args *k = &p->k->forward;
    int64_t b = task / k->kv_heads, kv = task % k->kv_heads, group = k->heads / k->kv_heads;
    fsdp_dtype dtype = k->dtype;
    work w;

    lay_out(p, p->scratch + fsdp__thread() * p->scratch_floats, &w);
    load_keys(p, &w, b, kv);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        load_queries(p, &w, b, h);
        for (int64_t s0 = 0; s0 < k->kv_time; s0 += FSDP__KV_PANEL) {
            int64_t n = FSDP__MIN(k->kv_time - s0, FSDP__KV_PANEL);
            int64_t first = fsdp__first_query(k, s0) / FSDP__Q_PANEL * FSDP__Q_PANEL;
            int64_t end = fsdp__end_query(k, b, s0 + n - 1, first);
            for (int64_t t0 = first; t0 < end; t0 += FSDP__Q_PANEL)
                panel_pair(p, &w, b, t0, FSDP__MIN(k->q_time - t0, FSDP__Q_PANEL), s0, n);
        }
        store_rows(p, w.dq, k->scale, fsdp__at(dtype, p->k->dq, b * p->dq_batch + h * p->dq_head), p->dq_time,
                   k->q_time);
    }
    /* The queries in this sum were scaled when they were loaded. */
    store_rows(p, w.dk, 1.0f, fsdp__at(dtype, p->k->dk, b * p->dk_batch + kv * p->dk_head), p->dk_time, k->kv_time);
    store_rows(p, w.dv, 1.0f, fsdp__at(dtype, p->k->dv, b * p->dv_batch + kv * p->dv_head), p->dv_time, k->kv_time);
}

FSDP__KERNEL(attention_backward, a)
{
    const fsdp__attention_forward_args *k = &a->forward;
    bool own = a->dq_batch != 0;
    plan p = {.k = a,
              .q_panels = fsdp__ceil_div(k->q_time, FSDP__Q_PANEL),
              .kv_panels = fsdp__ceil_div(k->kv_time, FSDP__KV_PANEL),
              .d = k->head_dim,
              .d_padded = fsdp__round_up(k->head_dim, FSDP__NR),
              .dq_batch = own ? a->dq_batch : k->q_batch,
              .dq_time = own ? a->dq_stride_time : k->q_stride_time,
              .dq_head = own ? a->dq_head : k->q_head,
              .dk_batch = own ? a->dk_batch : k->k_batch,
              .dk_time = own ? a->dk_stride_time : k->k_stride_time,
              .dk_head = own ? a->dk_head : k->k_head,
              .dv_batch = own ? a->dv_batch : k->v_batch,
              .dv_time = own ? a->dv_stride_time : k->v_stride_time,
              .dv_head = own ? a->dv_head : k->v_head};
    int64_t tasks = k->batch * k->kv_heads, threads = FSDP__MIN(fsdp__threads(), FSDP__MAX(tasks, 1));
    int64_t cost FSDP__UNUSED = k->batch * k->heads * k->q_time * k->kv_time * k->head_dim;
    work w;

    p.scratch_floats = lay_out(&p, NULL, &w);
    FSDP__TRY_NEW(p.scratch = fsdp__stream_workspace(stream, (size_t)(p.scratch_floats * threads) * sizeof(float)));
#pragma omp parallel for schedule(static, 1) if (cost > FSDP__PARALLEL_MIN && threads > 1)
    for (int64_t t = 0; t < tasks; t++)
        key_head(&p, t);
    return FSDP_OK;
}
