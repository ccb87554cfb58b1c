/* channel_norm.c - batch and group normalisation: x (batch, channels, inner), with a weight for each channel. A row is
 * contiguous: `inner` elements of one channel of one image. Sums go over rows first, then over the rows of a set. */
#include <math.h>

#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

/* Holds what all ranges of a kernel share: sizes, and scratch. */
typedef struct shared {
    const fsdp__channel_norm_sizes *s;
    int64_t sets, set_rows;     /* rows of a set */
    const float *weight, *bias; /* as f32; NULL: ones and zeros */
    float *row_sums;            /* two for each row */
    float *set_terms;           /* two for each set: backward */
    const void *args;
} shared;

/* Returns the set of row (image n, channel c). */
FSDP__INLINE int64_t set_of(const fsdp__channel_norm_sizes *s, int64_t row)
{
    int64_t c = row % s->channels;

    return s->groups == 0 ? c : row / s->channels * s->groups + c / (s->channels / s->groups);
}

/* Returns row i of a set. */
FSDP__INLINE int64_t row_of(const fsdp__channel_norm_sizes *s, int64_t set, int64_t i)
{
    return s->groups == 0 ? i * s->channels + set : set * (s->channels / s->groups) + i;
}

static const float *as_floats(fsdp_dtype dtype, const void *p, int64_t n, float *scratch)
{
    if (!p || dtype == FSDP_F32)
        return p;
    fsdp__widen(dtype, p, n, scratch);
    return scratch;
}

static fsdp_status share(shared *h, fsdp_stream *stream, const void *weight, const void *bias)
{
    const fsdp__channel_norm_sizes *s = h->s;
    int64_t rows = s->batch * s->channels;
    float *scratch;

    h->sets = s->groups == 0 ? s->channels : s->batch * s->groups;
    h->set_rows = s->groups == 0 ? s->batch : s->channels / s->groups;
    FSDP__TRY_NEW(scratch = fsdp__stream_workspace(
                      stream, (size_t)(2 * s->channels + 2 * h->sets + 2 * rows) * sizeof(float) + 1));
    h->weight = as_floats(s->weight_dtype, weight, s->channels, scratch);
    h->bias = as_floats(s->weight_dtype, bias, s->channels, scratch + s->channels);
    h->set_terms = scratch + 2 * s->channels;
    h->row_sums = h->set_terms + 2 * h->sets;
    return FSDP_OK;
}

/* ---- forward ---- */

/* Computes the mean, and the sum of squared deviations from it. */
FSDP__INLINE void measure_row(fsdp_dtype dtype, const void *x, int64_t n, float *out)
{
    float sum = 0.0f, squares = 0.0f, mean;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += fsdp__load(dtype, x, i);
    mean = sum / (float)n;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; i++) {
        float d = fsdp__load(dtype, x, i) - mean;
        squares += d * d;
    }
    out[0] = mean;
    out[1] = squares;
}

static void measure_rows(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_forward_args *k = h->args;
    int64_t n = h->s->inner;

    for (int64_t r = begin; r < end; r++) {
        FSDP__EACH_FLOAT(h->s->dtype, T, measure_row(T, fsdp__at(T, k->x, r * n), n, h->row_sums + 2 * r));
    }
}

static void update(const fsdp__channel_norm_forward_args *k, int64_t c, double mean, double variance)
{
    double factor = k->cumulative ? 1.0 / (double)*k->batches : k->momentum;
    fsdp_dtype t = k->running_dtype;

    fsdp__store(t, k->running_mean, c,
                (float)(factor * mean + (1.0 - factor) * (double)fsdp__load(t, k->running_mean, c)));
    fsdp__store(t, k->running_var, c,
                (float)(factor * variance + (1.0 - factor) * (double)fsdp__load(t, k->running_var, c)));
}

/* Computes the mean and variance of sets from their rows: each row adds its own squares, and those of how far its mean
 * is off. */
static void measure_sets(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_forward_args *k = h->args;
    double n = (double)h->s->inner;

    for (int64_t set = begin; set < end; set++) {
        double mean = 0.0, squares = 0.0, count = 0.0;

        for (int64_t i = 0; i < h->set_rows; i++) {
            const float *row = h->row_sums + 2 * row_of(h->s, set, i);
            double off = (double)row[0] - mean;

            mean += off * n / (count + n);
            squares += (double)row[1] + off * off * count * n / (count + n);
            count += n;
        }
        k->mean[set] = (float)mean;
        k->rstd[set] = (float)(1.0 / sqrt(squares / count + (double)k->eps));
        if (k->running_mean)
            update(k, set, mean, squares / (count - 1.0));
    }
}

static void take_running(const fsdp__channel_norm_forward_args *k)
{
    fsdp_dtype t = k->running_dtype;

    for (int64_t c = 0; c < k->sizes.channels; c++) {
        k->mean[c] = fsdp__load(t, k->running_mean, c);
        k->rstd[c] = (float)(1.0 / sqrt((double)fsdp__load(t, k->running_var, c) + (double)k->eps));
    }
}

FSDP__INLINE void scale_row(fsdp_dtype dtype, const void *x, void *y, int64_t n, float mean, float scale, float bias)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, y, i, (fsdp__load(dtype, x, i) - mean) * scale + bias);
}

static void scale_rows(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_forward_args *k = h->args;
    int64_t n = h->s->inner;

    for (int64_t r = begin; r < end; r++) {
        int64_t set = set_of(h->s, r), c = r % h->s->channels;
        float scale = k->rstd[set] * (h->weight ? h->weight[c] : 1.0f), bias = h->bias ? h->bias[c] : 0.0f;
        FSDP__EACH_FLOAT(
            h->s->dtype, T,
            scale_row(T, fsdp__at(T, k->x, r * n), fsdp__at(T, k->y, r * n), n, k->mean[set], scale, bias));
    }
}

FSDP__KERNEL(channel_norm_forward, k)
{
    shared h = {.s = &k->sizes, .args = k};
    int64_t rows = k->sizes.batch * k->sizes.channels;

    FSDP_TRY(share(&h, stream, k->weight, k->bias));
    if (k->batches)
        ++*k->batches;
    if (k->fixed) {
        take_running(k);
    } else {
        fsdp__for_ranges(rows, k->sizes.inner, measure_rows, &h);
        fsdp__for_ranges(h.sets, h.set_rows, measure_sets, &h);
    }
    fsdp__for_ranges(rows, k->sizes.inner, scale_rows, &h);
    return FSDP_OK;
}

/* ---- backward ---- */

/* Computes the sums of dy and of dy times the normalised x. */
FSDP__INLINE void sum_row(fsdp_dtype dtype, const void *x, const void *dy, int64_t n, float mean, float rstd,
                          float *out)
{
    float sum = 0.0f, dot = 0.0f;

#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; i++) {
        float g = fsdp__load(dtype, dy, i);
        sum += g;
        dot += g * (fsdp__load(dtype, x, i) - mean);
    }
    out[0] = sum;
    out[1] = dot * rstd;
}

static void sum_rows(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_backward_args *k = h->args;
    int64_t n = h->s->inner;

    for (int64_t r = begin; r < end; r++) {
        int64_t set = set_of(h->s, r);
        FSDP__EACH_FLOAT(h->s->dtype, T,
                         sum_row(T, fsdp__at(T, k->x, r * n), fsdp__at(T, k->dy, r * n), n, k->mean[set], k->rstd[set],
                                 h->row_sums + 2 * r));
    }
}

static void add_to(fsdp_dtype dtype, void *to, int64_t i, bool accumulate, double sum)
{
    if (to)
        fsdp__store(dtype, to, i, (float)(sum + (accumulate ? (double)fsdp__load(dtype, to, i) : 0.0)));
}

/* Computes the gradients of weight and bias, over the images. */
static void sum_channels(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_backward_args *k = h->args;

    for (int64_t c = begin; c < end; c++) {
        double sum = 0.0, dot = 0.0;

        for (int64_t n = 0; n < h->s->batch; n++) {
            sum += (double)h->row_sums[2 * (n * h->s->channels + c)];
            dot += (double)h->row_sums[2 * (n * h->s->channels + c) + 1];
        }
        add_to(h->s->weight_dtype, k->dweight, c, k->accumulate_weight, dot);
        add_to(h->s->weight_dtype, k->dbias, c, k->accumulate_bias, sum);
    }
}

/* Computes what a set subtracts from each of its elements: the means of the two sums over the set. */
static void sum_sets(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_backward_args *k = h->args;
    double count = (double)(h->set_rows * h->s->inner);

    for (int64_t set = begin; set < end; set++) {
        double sum = 0.0, dot = 0.0;

        for (int64_t i = 0; i < h->set_rows && !k->fixed; i++) {
            int64_t row = row_of(h->s, set, i);
            double weight = h->weight ? (double)h->weight[row % h->s->channels] : 1.0;

            sum += weight * (double)h->row_sums[2 * row];
            dot += weight * (double)h->row_sums[2 * row + 1];
        }
        h->set_terms[2 * set] = (float)(sum / count);
        h->set_terms[2 * set + 1] = (float)(dot / count);
    }
}

/* Computes dx [+]= rstd (weight dy - terms[0] - normalised x terms[1]). */
FSDP__INLINE void spread_row(fsdp_dtype dtype, const fsdp__channel_norm_backward_args *k, int64_t at, int64_t n,
                             float mean, float rstd, float weight, const float *terms)
{
    const void *x = fsdp__at(dtype, k->x, at), *dy = fsdp__at(dtype, k->dy, at);
    void *dx = fsdp__at(dtype, k->dx, at);
    float slope = rstd * rstd * terms[1], shift = rstd * terms[0], factor = rstd * weight;

    if (k->accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, dx, i,
                        fsdp__load(dtype, dx, i) + fsdp__load(dtype, dy, i) * factor - shift -
                            (fsdp__load(dtype, x, i) - mean) * slope);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, dx, i, fsdp__load(dtype, dy, i) * factor - shift - (fsdp__load(dtype, x, i) - mean) * slope);
}

static void spread_rows(const void *args, int64_t begin, int64_t end)
{
    const shared *h = args;
    const fsdp__channel_norm_backward_args *k = h->args;
    int64_t n = h->s->inner;

    for (int64_t r = begin; r < end; r++) {
        int64_t set = set_of(h->s, r);
        float weight = h->weight ? h->weight[r % h->s->channels] : 1.0f;
        FSDP__EACH_FLOAT(h->s->dtype, T,
                         spread_row(T, k, r * n, n, k->mean[set], k->rstd[set], weight, h->set_terms + 2 * set));
    }
}

FSDP__KERNEL(channel_norm_backward, k)
{
    shared h = {.s = &k->sizes, .args = k};
    int64_t rows = k->sizes.batch * k->sizes.channels;

    FSDP_TRY(share(&h, stream, k->weight, NULL));
    fsdp__for_ranges(rows, k->sizes.inner, sum_rows, &h);
    if (k->dweight || k->dbias)
        fsdp__for_ranges(k->sizes.channels, k->sizes.batch, sum_channels, &h);
    if (!k->dx)
        return FSDP_OK;
    fsdp__for_ranges(h.sets, h.set_rows, sum_sets, &h);
    fsdp__for_ranges(rows, k->sizes.inner, spread_rows, &h);
    return FSDP_OK;
}
