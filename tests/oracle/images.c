/* images.c - convolutions. */
#include "oracle/oracle.h"

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
