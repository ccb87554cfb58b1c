/* images.c - convolutions, pooling, norms over channels. */
#include "oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

/* One product of an element of x, of the weight and of y. */
typedef struct term {
    int64_t x, w, y; /* elements */
} term;

/* The i-th of a convolution's products; false where the window is outside of the image. */
static bool term_at(const fsdp__conv2d_sizes *s, int64_t i, term *out)
{
    int64_t in = s->in / s->groups, rest = i;
    int64_t kx = rest % s->kernel_width, ky = (rest /= s->kernel_width) % s->kernel_height;
    int64_t c = (rest /= s->kernel_height) % in, px = (rest /= in) % s->out_width;
    int64_t py = (rest /= s->out_width) % s->out_height, o = (rest /= s->out_height) % s->out, n = rest / s->out;
    int64_t y = py * s->stride[0] - s->padding[0] + ky * s->dilation[0];
    int64_t x = px * s->stride[1] - s->padding[1] + kx * s->dilation[1];
    int64_t channel = o / (s->out / s->groups) * in + c;

    *out = (term){.x = ((n * s->in + channel) * s->in_height + y) * s->in_width + x,
                  .w = ((o * in + c) * s->kernel_height + ky) * s->kernel_width + kx,
                  .y = ((n * s->out + o) * s->out_height + py) * s->out_width + px};
    return y >= 0 && y < s->in_height && x >= 0 && x < s->in_width;
}

static int64_t terms(const fsdp__conv2d_sizes *s)
{
    return s->batch * s->out * s->out_height * s->out_width * (s->in / s->groups) * s->kernel_height * s->kernel_width;
}

/* Sums are kept in doubles and rounded at the end. */
static double *start(fsdp_dtype dtype, const void *out, int64_t numel, bool accumulate)
{
    double *sums = calloc((size_t)numel + 1, sizeof *sums);

    for (int64_t i = 0; accumulate && i < numel; i++)
        sums[i] = oracle_get(dtype, out, i);
    return sums;
}

static void finish(fsdp_dtype dtype, void *out, int64_t numel, double *sums)
{
    for (int64_t i = 0; i < numel; i++)
        oracle_put(dtype, out, i, sums[i]);
    free(sums);
}

void oracle_conv2d_forward(const fsdp__conv2d_forward_args *k)
{
    const fsdp__conv2d_sizes *s = &k->sizes;
    int64_t plane = s->out_height * s->out_width, numel = s->batch * s->out * plane;
    double *sums = start(s->dtype, k->y, numel, false);
    term t;

    for (int64_t i = 0; k->bias && i < numel; i++)
        sums[i] = oracle_get(s->dtype, k->bias, i / plane % s->out);
    for (int64_t i = 0; i < terms(s); i++)
        if (term_at(s, i, &t))
            sums[t.y] += oracle_get(s->dtype, k->x, t.x) * oracle_get(s->dtype, k->weight, t.w);
    finish(s->dtype, k->y, numel, sums);
}

void oracle_conv2d_input(const fsdp__conv2d_input_args *k)
{
    const fsdp__conv2d_sizes *s = &k->sizes;
    int64_t numel = s->batch * s->in * s->in_height * s->in_width;
    double *sums = start(s->dtype, k->dx, numel, k->accumulate);
    term t;

    for (int64_t i = 0; i < terms(s); i++)
        if (term_at(s, i, &t))
            sums[t.x] += oracle_get(s->dtype, k->dy, t.y) * oracle_get(s->dtype, k->weight, t.w);
    finish(s->dtype, k->dx, numel, sums);
}

void oracle_conv2d_weight(const fsdp__conv2d_weight_args *k)
{
    const fsdp__conv2d_sizes *s = &k->sizes;
    int64_t numel = s->out * (s->in / s->groups) * s->kernel_height * s->kernel_width;
    double *sums = start(s->dtype, k->dweight, numel, k->accumulate);
    term t;

    for (int64_t i = 0; i < terms(s); i++)
        if (term_at(s, i, &t))
            sums[t.w] += oracle_get(s->dtype, k->dy, t.y) * oracle_get(s->dtype, k->x, t.x);
    finish(s->dtype, k->dweight, numel, sums);
}

/* ---- pooling ---- */

/* Whether element (r, c) is in window (i, j), and by what the window's sum is divided. */
static bool inside(const fsdp__pool_sizes *s, int side, int64_t window, int64_t place)
{
    int64_t from = window * s->stride[side] - s->padding[side], off = place - from;

    if (s->kind == FSDP__POOL_ADAPTIVE)
        return place >= window * s->in[side] / s->out[side] &&
               (double)place < ceil((double)(window + 1) * (double)s->in[side] / (double)s->out[side]);
    return off >= 0 && off % s->dilation[side] == 0 && off / s->dilation[side] < s->kernel[side];
}

static double counted(const fsdp__pool_sizes *s, int side, int64_t window)
{
    double count = 0.0;

    if (s->kind == FSDP__POOL_AVG && s->count_padding)
        return (double)s->kernel[side];
    for (int64_t place = 0; place < s->in[side]; place++)
        count += inside(s, side, window, place);
    return count;
}

/* Of window (i, j) of a plane: the first maximum, or -1; `*sum` of all. */
static int64_t look(const fsdp__pool_sizes *s, const void *x, int64_t first, int64_t i, int64_t j, double *sum)
{
    int64_t top = -1;

    *sum = 0.0;
    for (int64_t r = 0; r < s->in[0]; r++)
        for (int64_t c = 0; c < s->in[1]; c++) {
            int64_t at = r * s->in[1] + c;
            double value;

            if (!inside(s, 0, i, r) || !inside(s, 1, j, c))
                continue;
            value = oracle_get(s->dtype, x, first + at);
            *sum += value;
            if (top < 0 || isnan(value) || value > oracle_get(s->dtype, x, first + top))
                top = at;
        }
    return top;
}

void oracle_pool_forward(const fsdp__pool_forward_args *k)
{
    const fsdp__pool_sizes *s = &k->sizes;

    for (int64_t e = 0; e < s->planes * s->out[0] * s->out[1]; e++) {
        int64_t j = e % s->out[1], i = e / s->out[1] % s->out[0],
                first = e / s->out[1] / s->out[0] * s->in[0] * s->in[1];
        double sum;
        int64_t top = look(s, k->x, first, i, j, &sum);

        if (s->kind != FSDP__POOL_MAX)
            oracle_put(s->dtype, k->y, e, sum / counted(s, 0, i) / counted(s, 1, j));
        else
            oracle_put(s->dtype, k->y, e, top < 0 ? -INFINITY : oracle_get(s->dtype, k->x, first + top));
        if (s->kind == FSDP__POOL_MAX && k->index)
            k->index[e] = (int32_t)top;
    }
}

void oracle_pool_backward(const fsdp__pool_backward_args *k)
{
    const fsdp__pool_sizes *s = &k->sizes;
    int64_t plane = s->in[0] * s->in[1];
    double *sums = start(s->dtype, k->dx, s->planes * plane, k->accumulate);

    for (int64_t e = 0; e < s->planes * s->out[0] * s->out[1]; e++) {
        int64_t j = e % s->out[1], i = e / s->out[1] % s->out[0], first = e / s->out[1] / s->out[0] * plane;
        double dy = oracle_get(s->dtype, k->dy, e);

        if (s->kind == FSDP__POOL_MAX) {
            if (k->index[e] >= 0)
                sums[first + k->index[e]] += dy;
            continue;
        }
        for (int64_t at = 0; at < plane; at++)
            if (inside(s, 0, i, at / s->in[1]) && inside(s, 1, j, at % s->in[1]))
                sums[first + at] += dy / counted(s, 0, i) / counted(s, 1, j);
    }
    finish(s->dtype, k->dx, s->planes * plane, sums);
}

/* ---- norms over channels ---- */

static int64_t set_of(const fsdp__channel_norm_sizes *s, int64_t element)
{
    int64_t c = element / s->inner % s->channels, n = element / s->inner / s->channels;

    return s->groups == 0 ? c : n * s->groups + c * s->groups / s->channels;
}

static int64_t sets(const fsdp__channel_norm_sizes *s)
{
    return s->groups == 0 ? s->channels : s->batch * s->groups;
}

static int64_t norm_numel(const fsdp__channel_norm_sizes *s)
{
    return s->batch * s->channels * s->inner;
}

static void measure_set(const fsdp__channel_norm_forward_args *k, int64_t set)
{
    const fsdp__channel_norm_sizes *s = &k->sizes;
    double count = 0.0, mean = 0.0, squares = 0.0, factor = k->momentum;

    for (int64_t e = 0; e < norm_numel(s); e++)
        if (set_of(s, e) == set)
            count += 1.0, mean += oracle_get(s->dtype, k->x, e);
    mean /= count;
    for (int64_t e = 0; e < norm_numel(s); e++)
        if (set_of(s, e) == set)
            squares += pow(oracle_get(s->dtype, k->x, e) - mean, 2.0);
    k->mean[set] = (float)mean;
    k->rstd[set] = (float)(1.0 / sqrt(squares / count + (double)k->eps));
    if (!k->running_mean)
        return;
    if (k->cumulative)
        factor = 1.0 / (double)*k->batches;
    oracle_put(k->running_dtype, k->running_mean, set,
               factor * mean + (1.0 - factor) * oracle_get(k->running_dtype, k->running_mean, set));
    oracle_put(k->running_dtype, k->running_var, set,
               factor * squares / (count - 1.0) + (1.0 - factor) * oracle_get(k->running_dtype, k->running_var, set));
}

void oracle_channel_norm_forward(const fsdp__channel_norm_forward_args *k)
{
    const fsdp__channel_norm_sizes *s = &k->sizes;

    if (k->batches)
        ++*k->batches;
    for (int64_t set = 0; set < sets(s); set++) {
        if (!k->fixed) {
            measure_set(k, set);
            continue;
        }
        k->mean[set] = (float)oracle_get(k->running_dtype, k->running_mean, set);
        k->rstd[set] = (float)(1.0 / sqrt(oracle_get(k->running_dtype, k->running_var, set) + (double)k->eps));
    }
    for (int64_t e = 0; e < norm_numel(s); e++) {
        int64_t set = set_of(s, e), c = e / s->inner % s->channels;
        double y = (oracle_get(s->dtype, k->x, e) - (double)k->mean[set]) * (double)k->rstd[set];

        y *= k->weight ? oracle_get(s->weight_dtype, k->weight, c) : 1.0;
        oracle_put(s->dtype, k->y, e, y + (k->bias ? oracle_get(s->weight_dtype, k->bias, c) : 0.0));
    }
}

void oracle_channel_norm_backward(const fsdp__channel_norm_backward_args *k)
{
    const fsdp__channel_norm_sizes *s = &k->sizes;
    double *sum = calloc((size_t)sets(s), sizeof *sum), *dot = calloc((size_t)sets(s), sizeof *dot);
    double *dw = start(s->weight_dtype, k->dweight, s->channels, k->dweight && k->accumulate_weight);
    double *db = start(s->weight_dtype, k->dbias, s->channels, k->dbias && k->accumulate_bias);
    double count = (double)(norm_numel(s) / sets(s));

    for (int pass = 0; pass < 2; pass++)
        for (int64_t e = 0; e < norm_numel(s) && (pass == 0 || k->dx); e++) {
            int64_t set = set_of(s, e), c = e / s->inner % s->channels;
            double x = (oracle_get(s->dtype, k->x, e) - (double)k->mean[set]) * (double)k->rstd[set];
            double dy = oracle_get(s->dtype, k->dy, e);
            double g = dy * (k->weight ? oracle_get(s->weight_dtype, k->weight, c) : 1.0);

            if (pass == 0) {
                sum[set] += k->fixed ? 0.0 : g / count, dot[set] += k->fixed ? 0.0 : g * x / count;
                dw[c] += dy * x, db[c] += dy;
                continue;
            }
            g = (g - sum[set] - x * dot[set]) * (double)k->rstd[set];
            oracle_put(s->dtype, k->dx, e, g + (k->accumulate ? oracle_get(s->dtype, k->dx, e) : 0.0));
        }
    finish(s->weight_dtype, k->dweight, k->dweight ? s->channels : 0, dw);
    finish(s->weight_dtype, k->dbias, k->dbias ? s->channels : 0, db);
    free(sum);
    free(dot);
}
