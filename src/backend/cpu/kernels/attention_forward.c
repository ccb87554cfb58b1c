/* attention_forward.c - softmax(scale Q K^T) V by panels, with a running maximum and sum for each query.
 * See [Note: attention by strips] in attention.h. */
#include <math.h>

#include "backend/cpu/kernels/attention_single.h"
#include "base/alloc.h"

/* Packed keys and values of as many heads as fit in this many floats are held at a time (at least one). */
#define PACKED_FLOATS (1 << 21)

typedef struct plan {
    const fsdp__attention_forward_args *k;
    int64_t q_panels, kv_panels, d, d_padded;
    int64_t head_floats;  /* floats of one packed key head: keys, then values */
    int64_t first, count; /* the (batch, key head) pairs that are packed now */
    float *packed;
    float *scratch; /* one for each thread */
    int64_t scratch_floats;
} plan;

/* Packs one panel of keys of one pair: strips of K^T (d, keys), then rows of V (keys, d_padded). */
static void pack_panel(const plan *p, int64_t task)
{
    const fsdp__attention_forward_args *k = p->k;
    int64_t pair = p->first + task / p->kv_panels, s0 = task % p->kv_panels * FSDP__KV_PANEL;
    int64_t b = pair / k->kv_heads, h = pair % k->kv_heads, n = FSDP__MIN(k->kv_time - s0, FSDP__KV_PANEL);
    const void *keys = fsdp__at(k->dtype, k->k, b * k->k_batch + s0 * k->k_stride_time + h * k->k_head);
    const void *values = fsdp__at(k->dtype, k->v, b * k->v_batch + s0 * k->v_stride_time + h * k->v_head);
    float *to = p->packed + task / p->kv_panels * p->head_floats;

    fsdp__pack_transposed(k->dtype, keys, k->k_stride_time, n, p->d, to + s0 * p->d);
    to += p->kv_panels * FSDP__KV_PANEL * p->d;
    fsdp__gather_rows(k->dtype, values, k->v_stride_time, n, p->d, p->d_padded, 1.0f, to + s0 * p->d_padded);
}

/* Scratch of one query panel. */
typedef struct panel {
    float *q;      /* (rows, d), scaled */
    float *scores; /* (rows, KV_PANEL) */
    float *out;    /* (rows, d_padded) */
    float top[FSDP__Q_PANEL], sum[FSDP__Q_PANEL];
    int64_t first[FSDP__Q_PANEL]; /* the first key that each sees */
    int64_t rows, t0;
} panel;

/* Turns scores of one row, `wide` from `s` on, into e^(score - running maximum), and scales earlier sums and outputs to
 * the new maximum. The row sees [first, seen) of them: the others, of whole tiles, become e^-inf. */
static void softmax_row(panel *w, int64_t r, float *restrict s, int64_t first, int64_t seen, int64_t wide, int64_t d)
{
    float *restrict out = w->out + r * d;
    float top, sum = 0.0f;

    for (int64_t j = 0; j < FSDP__MIN(first, wide); j++)
        s[j] = -INFINITY;
    for (int64_t j = seen; j < wide; j++)
        s[j] = -INFINITY;
    top = fsdp__largest(FSDP_F32, s, wide);
    if (top > w->top[r]) {
        float factor = fsdp__expf_low(w->top[r] - top); /* 0 the first time */
        w->sum[r] *= factor;
        w->top[r] = top;
#pragma omp simd
        for (int64_t c = 0; c < d; c++)
            out[c] *= factor;
    }
    top = w->top[r];
    if (top == -INFINITY)
        top = 0.0f; /* only -inf so far: every e^x is 0 */
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < wide; j++) {
        s[j] = fsdp__expf_low(s[j] - top);
        sum += s[j];
    }
    w->sum[r] += sum;
}

/* Adds one panel of keys [s0, s0 + n) to the query panel: a strip stays in the first-level cache for all rows. */
static void add_keys(const plan *p, panel *w, const float *keys, const float *values, int64_t s0, int64_t n)
{
    int64_t from[FSDP__Q_PANEL], width[FSDP__Q_PANEL]; /* the keys that each tile of rows looks at: [from, width) */

    for (int64_t i = 0; i < w->rows; i += FSDP__MR) {
        int64_t last = FSDP__MIN(i + FSDP__MR, w->rows) - 1;
        from[i] = FSDP__MAX(w->first[i] - s0, 0) / FSDP__NR * FSDP__NR;
        width[i] = FSDP__MAX(FSDP__MIN(fsdp__keys_seen(p->k, w->t0 + last) - s0, n), 0);
        if (from[i] >= width[i])
            width[i] = 0;
    }
    for (int64_t j = 0; j < n; j += FSDP__NR)
        for (int64_t i = 0; i < w->rows; i += FSDP__MR)
            if (j >= from[i] && j < width[i])
                fsdp__tile_across(FSDP__MIN(w->rows - i, FSDP__MR), p->d, w->q + i * p->d, p->d, keys + j * p->d,
                                  FSDP__NR, w->scores + i * FSDP__KV_PANEL + j, FSDP__KV_PANEL, false);
    for (int64_t r = 0; r < w->rows; r++) {
        int64_t at = from[r / FSDP__MR * FSDP__MR], wide = width[r / FSDP__MR * FSDP__MR] - at;
        float *scores = w->scores + r * FSDP__KV_PANEL + at;
        if (wide <= 0)
            continue;
        if (p->k->softcap > 0.0f)
            fsdp__cap(scores, p->k->softcap, wide);
        softmax_row(w, r, scores, w->first[r] - s0 - at,
                    FSDP__MAX(FSDP__MIN(fsdp__keys_seen(p->k, w->t0 + r) - s0 - at, wide), 0),
                    fsdp__round_up(wide, FSDP__NR), p->d_padded);
    }
    for (int64_t c = 0; c < p->d; c += FSDP__NR)
        for (int64_t i = 0; i < w->rows; i += FSDP__MR)
            if (width[i] > 0)
                fsdp__tile_across(FSDP__MIN(w->rows - i, FSDP__MR), width[i] - from[i],
                                  w->scores + i * FSDP__KV_PANEL + from[i], FSDP__KV_PANEL,
                                  values + from[i] * p->d_padded + c, p->d_padded, w->out + i * p->d_padded + c,
                                  p->d_padded, true);
}

static void write_rows(const plan *p, const panel *w, int64_t b, int64_t h)
{
    const fsdp__attention_forward_args *k = p->k;

    for (int64_t r = 0; r < w->rows; r++) {
        int64_t at = b * k->out_batch + (w->t0 + r) * k->out_stride_time + h * k->out_head;
        /* A NaN must stay one; a query that sees nothing gives zeros. */
        float factor = w->sum[r] > 0.0f || w->sum[r] != w->sum[r] ? 1.0f / w->sum[r] : 0.0f;
        const float *out = w->out + r * p->d_padded;
        FSDP__EACH_FLOAT(k->dtype, T,
                         for (int64_t c = 0; c < p->d; c++) fsdp__store(T, k->out, at + c, out[c] * factor));
        if (k->lse)
            k->lse[(b * k->heads + h) * k->q_time + w->t0 + r] =
                w->sum[r] == 0.0f ? -INFINITY : w->top[r] + logf(w->sum[r]);
    }
}

/* Computes one panel of queries of one head. Late panels see more keys, so they come first. */
static void query_panel(const plan *p, int64_t task)
{
    const fsdp__attention_forward_args *k = p->k;
    int64_t group = k->heads / k->kv_heads, panels = p->count * group;
    int64_t q = p->q_panels - 1 - task / panels, pair = task % panels / group;
    int64_t b = (p->first + pair) / k->kv_heads, h = (p->first + pair) % k->kv_heads * group + task % group;
    const float *keys = p->packed + pair * p->head_floats, *values = keys + p->kv_panels * FSDP__KV_PANEL * p->d;
    float *scratch = p->scratch + fsdp__thread() * p->scratch_floats;
    panel w = {.t0 = q * FSDP__Q_PANEL, .rows = FSDP__MIN(k->q_time - q * FSDP__Q_PANEL, FSDP__Q_PANEL)};
    int64_t seen = fsdp__keys_seen(k, w.t0 + w.rows - 1);

    w.scores = scratch;
    w.q = w.scores + FSDP__Q_PANEL * FSDP__KV_PANEL;
    w.out = w.q + fsdp__round_up(FSDP__Q_PANEL * p->d, 16);
    fsdp__gather_rows(k->dtype, fsdp__at(k->dtype, k->q, b * k->q_batch + w.t0 * k->q_stride_time + h * k->q_head),
                      k->q_stride_time, w.rows, p->d, p->d, k->scale, w.q);
    memset(w.out, 0, (size_t)(w.rows * p->d_padded) * sizeof(float));
    for (int64_t r = 0; r < w.rows; r++) {
        w.top[r] = -INFINITY;
        w.sum[r] = 0.0f;
        w.first[r] = fsdp__first_key(k, b, w.t0 + r);
    }
    for (int64_t s0 = w.first[0] / FSDP__KV_PANEL * FSDP__KV_PANEL; s0 < seen; s0 += FSDP__KV_PANEL)
        add_keys(p, &w, keys + s0 * p->d, values + s0 * p->d_padded, s0, FSDP__MIN(k->kv_time - s0, FSDP__KV_PANEL));
    write_rows(p, &w, b, h);
}

FSDP__KERNEL(attention_forward, k)
{
    plan p = {.k = k,
              .q_panels = fsdp__ceil_div(k->q_time, FSDP__Q_PANEL),
              .kv_panels = fsdp__ceil_div(k->kv_time, FSDP__KV_PANEL),
              .d = k->head_dim,
              .d_padded = fsdp__round_up(k->head_dim, FSDP__NR)};
    int64_t pairs = k->batch * k->kv_heads, held, threads = fsdp__threads();
    int64_t work FSDP__UNUSED = k->batch * k->heads * k->q_time * k->kv_time * k->head_dim;
    float *scratch;

    if (pairs == 0 || k->q_time == 0)
        return FSDP_OK;
    if (fsdp__is_single_query(k))
        return fsdp__attend_single(stream, k);
    p.head_floats = p.kv_panels * FSDP__KV_PANEL * (p.d + p.d_padded);
    held = FSDP__MAX(FSDP__MIN(PACKED_FLOATS / FSDP__MAX(p.head_floats, 1), pairs), 1);
    p.scratch_floats = FSDP__Q_PANEL * (FSDP__KV_PANEL + p.d_padded) + fsdp__round_up(FSDP__Q_PANEL * p.d, 16);
    scratch =
        fsdp__stream_workspace(stream, (size_t)(held * p.head_floats + threads * p.scratch_floats) * sizeof(float));
    FSDP__TRY_NEW(scratch);
    p.packed = scratch;
    p.scratch = scratch + held * p.head_floats;
    for (p.first = 0; p.first < pairs; p.first += held) {
        p.count = FSDP__MIN(pairs - p.first, held);
#pragma omp parallel if (work > FSDP__PARALLEL_MIN)
        {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < p.count * p.kv_panels; t++)
                pack_panel(&p, t);
#pragma omp for schedule(dynamic, 1)
            for (int64_t t = 0; t < p.count * (k->heads / k->kv_heads) * p.q_panels; t++)
                query_panel(&p, t); /* after the barrier that ends the loop above: all is packed */
        }
    }
    return FSDP_OK;
}
