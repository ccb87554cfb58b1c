/* attention.c - attention. */
#include "oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

/* Returns whether query t of batch element b sees key s. */
static bool sees(const fsdp__attention_forward_args *k, int64_t b, int64_t t, int64_t s)
{
    int64_t last = t + k->kv_time + k->lead - k->q_time;

    if (k->causal && s > last)
        return false;
    if (k->window > 0 && s <= last - k->window)
        return false;
    return !k->positions || s >= last - k->positions[b * k->q_time + t];
}

/* Returns the derivative of a score by what it was before it was capped. */
static double slope(const fsdp__attention_forward_args *k, double score)
{
    double part = k->softcap > 0.0f ? score / (double)k->softcap : 0.0;

    return 1.0 - part * part;
}

static double oracle_score(const fsdp__attention_forward_args *k, int64_t b, int64_t h, int64_t t, int64_t s)
{
    int64_t kv = h / (k->heads / k->kv_heads);
    double sum = 0.0;

    if (!sees(k, b, t, s))
        return -INFINITY;
    for (int64_t d = 0; d < k->head_dim; d++)
        sum += oracle_get(k->dtype, k->q, b * k->q_batch + t * k->q_stride_time + h * k->q_head + d) *
               oracle_get(k->dtype, k->k, b * k->k_batch + s * k->k_stride_time + kv * k->k_head + d);
    sum *= (double)k->scale;
    return k->softcap > 0.0f ? (double)k->softcap * tanh(sum / (double)k->softcap) : sum;
}

/* Probabilities of one query into p (kv_time); returns the lse. */
static double oracle_probabilities(const fsdp__attention_forward_args *k, int64_t b, int64_t h, int64_t t, double *p)
{
    double top = -INFINITY, sum = 0.0;

    for (int64_t s = 0; s < k->kv_time; s++)
        top = fmax(top, p[s] = oracle_score(k, b, h, t, s));
    for (int64_t s = 0; s < k->kv_time; s++)
        sum += p[s] = top == -INFINITY ? 0.0 : exp(p[s] - top);
    for (int64_t s = 0; s < k->kv_time; s++)
        p[s] = sum > 0.0 ? p[s] / sum : 0.0;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

/* What of a term is summed up: itself, or its size. */
typedef double part(double x);

static double itself(double x)
{
    return x;
}

/* Writes elements of `dtype` to out. */
static void attend(const fsdp__attention_forward_args *k, part *of, fsdp_dtype dtype)
{
    double *p = malloc((size_t)k->kv_time * sizeof(double) + 1);

    for (int64_t e = 0; e < k->batch * k->heads * k->q_time; e++) {
        int64_t t = e % k->q_time, h = e / k->q_time % k->heads, b = e / k->q_time / k->heads;
        int64_t kv = h / (k->heads / k->kv_heads);
        double lse = oracle_probabilities(k, b, h, t, p);
        if (k->lse)
            k->lse[e] = (float)lse;
        for (int64_t d = 0; d < k->head_dim; d++) {
            double sum = 0.0;
            for (int64_t s = 0; s < k->kv_time; s++)
                sum +=
                    of(p[s] * oracle_get(k->dtype, k->v, b * k->v_batch + s * k->v_stride_time + kv * k->v_head + d));
            oracle_put(dtype, k->out, b * k->out_batch + t * k->out_stride_time + h * k->out_head + d, sum);
        }
    }
    free(p);
}

void oracle_attention_forward(const fsdp__attention_forward_args *k)
{
    attend(k, itself, k->dtype);
}

void oracle_attention_forward_terms(const fsdp__attention_forward_args *k)
{
    attend(k, fabs, FSDP_F32);
}

/* Adds query (b, h, t)'s share to the gradients, all in double; dq, dk, dv are dense (batch, time, heads, D). */
static void oracle_attention_query(const fsdp__attention_backward_args *a, part *of, int64_t b, int64_t h, int64_t t,
                                   double *p, double *dq, double *dk, double *dv)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t kv = h / (k->heads / k->kv_heads), d_count = k->head_dim;
    int64_t out = b * k->out_batch + t * k->out_stride_time + h * k->out_head;
    double delta = 0.0;

    oracle_probabilities(k, b, h, t, p);
    for (int64_t d = 0; d < d_count; d++)
        delta += oracle_get(k->dtype, a->dout, out + d) * oracle_get(k->dtype, k->out, out + d);
    for (int64_t s = 0; s < k->kv_time; s++) {
        int64_t key = b * k->k_batch + s * k->k_stride_time + kv * k->k_head;
        int64_t value = b * k->v_batch + s * k->v_stride_time + kv * k->v_head;
        int64_t query = b * k->q_batch + t * k->q_stride_time + h * k->q_head;
        double *dks = dk + ((b * k->kv_time + s) * k->kv_heads + kv) * d_count, ds, dp = 0.0;
        double *dvs = dv + ((b * k->kv_time + s) * k->kv_heads + kv) * d_count;
        for (int64_t d = 0; d < d_count; d++)
            dp += oracle_get(k->dtype, a->dout, out + d) * oracle_get(k->dtype, k->v, value + d);
        ds = p[s] == 0.0 ? 0.0 : p[s] * (dp - delta) * (double)k->scale * slope(k, oracle_score(k, b, h, t, s));
        for (int64_t d = 0; d < d_count; d++) {
            dvs[d] += of(p[s] * oracle_get(k->dtype, a->dout, out + d));
            dks[d] += of(ds * oracle_get(k->dtype, k->q, query + d));
            dq[((b * k->q_time + t) * k->heads + h) * d_count + d] += of(ds * oracle_get(k->dtype, k->k, key + d));
        }
    }
}

static void put_heads(fsdp_dtype dtype, const double *src, void *dst, const int64_t size[4], int64_t batch,
                      int64_t time, int64_t head)
{
    for (int64_t e = 0; e < size[0] * size[1] * size[2] * size[3]; e++) {
        int64_t d = e % size[3], h = e / size[3] % size[2], t = e / size[3] / size[2] % size[1];
        oracle_put(dtype, dst, e / size[3] / size[2] / size[1] * batch + t * time + h * head + d, src[e]);
    }
}

/* Writes elements of `dtype` to dq, dk, dv. */
static void differentiate(const fsdp__attention_backward_args *a, part *of, fsdp_dtype dtype)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t q_size[4] = {k->batch, k->q_time, k->heads, k->head_dim};
    int64_t kv_size[4] = {k->batch, k->kv_time, k->kv_heads, k->head_dim};
    size_t q_count = (size_t)(k->batch * k->q_time * k->heads * k->head_dim);
    size_t kv_count = (size_t)(k->batch * k->kv_time * k->kv_heads * k->head_dim);
    double *p = malloc((size_t)k->kv_time * sizeof(double) + 1), *dq = calloc(q_count + 1, sizeof(double));
    double *dk = calloc(kv_count + 1, sizeof(double)), *dv = calloc(kv_count + 1, sizeof(double));
    bool own = a->dq_batch != 0;

    for (int64_t e = 0; e < k->batch * k->heads * k->q_time; e++)
        oracle_attention_query(a, of, e / k->q_time / k->heads, e / k->q_time % k->heads, e % k->q_time, p, dq, dk, dv);
    put_heads(dtype, dq, a->dq, q_size, own ? a->dq_batch : k->q_batch, own ? a->dq_stride_time : k->q_stride_time,
              own ? a->dq_head : k->q_head);
    put_heads(dtype, dk, a->dk, kv_size, own ? a->dk_batch : k->k_batch, own ? a->dk_stride_time : k->k_stride_time,
              own ? a->dk_head : k->k_head);
    put_heads(dtype, dv, a->dv, kv_size, own ? a->dv_batch : k->v_batch, own ? a->dv_stride_time : k->v_stride_time,
              own ? a->dv_head : k->v_head);
    free(p);
    free(dq);
    free(dk);
    free(dv);
}

void oracle_attention_backward(const fsdp__attention_backward_args *a)
{
    differentiate(a, itself, a->forward.dtype);
}

void oracle_attention_backward_terms(const fsdp__attention_backward_args *a)
{
    differentiate(a, fabs, FSDP_F32);
}
