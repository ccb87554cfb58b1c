/* images.c - measures the kernels over images, at the shapes of a small CNN. */
#include <stdio.h>

#include "kernels/rig.h"

/* Measures square images and kernels, with padding that keeps the size at stride 1: y, the gradient of x, that of the
 * weight. */
static void convolutions(bench *b, fsdp_dtype t, int64_t batch, int64_t in, int64_t side, int64_t out, int64_t kernel,
                         int64_t stride)
{
    int64_t pad = kernel / 2, to = (side + 2 * pad - kernel) / stride + 1;
    const fsdp__conv2d_sizes sizes = {batch,      1,      in, side, side, out, to, to, kernel, kernel, {stride, stride},
                                      {pad, pad}, {1, 1}, t};
    int64_t x = batch * in * side * side, y = batch * out * to * to, w = out * in * kernel * kernel;
    double flops = 2.0 * (double)y * (double)(in * kernel * kernel);
    double bytes = (double)(x + y + w) * (double)fsdp_dtype_size(t);
    char text[64];

    snprintf(text, sizeof text, "%ldx%ldx%ldx%ld %ld %ldx%ld/%ld %s", (long)batch, (long)in, (long)side, (long)side,
             (long)out, (long)kernel, (long)kernel, (long)stride, fsdp_dtype_name(t));
    if (wanted(b, "conv2d_forward")) {
        fsdp__conv2d_forward_args a = {.sizes = sizes};
        a.x = array(b, t, x, 0), a.weight = array(b, t, w, 0), a.bias = array(b, t, out, 0), a.y = array(b, t, y, 0);
        measure(b, FSDP__KERNEL_CONV2D_FORWARD, &a, flops, bytes, text);
    }
    if (wanted(b, "conv2d_input")) {
        fsdp__conv2d_input_args a = {.sizes = sizes};
        a.dy = array(b, t, y, 0), a.weight = array(b, t, w, 0), a.dx = array(b, t, x, 0);
        measure(b, FSDP__KERNEL_CONV2D_INPUT, &a, flops, bytes, text);
    }
    if (wanted(b, "conv2d_weight")) {
        fsdp__conv2d_weight_args a = {.sizes = sizes};
        a.x = array(b, t, x, 0), a.dy = array(b, t, y, 0), a.dweight = array(b, t, w, 0);
        measure(b, FSDP__KERNEL_CONV2D_WEIGHT, &a, flops, bytes, text);
    }
}

/* Measures windows of 2 x 2, and norms of the channels, forward and backward. */
static void planes(bench *b, fsdp_dtype t, int64_t batch, int64_t channels, int64_t side)
{
    int64_t numel = batch * channels * side * side;
    double bytes = (double)numel * (double)fsdp_dtype_size(t);
    fsdp__pool_sizes pool = {batch * channels, {side, side}, {side / 2, side / 2}, {2, 2}, {2, 2},
                             {0, 0},           {1, 1},       FSDP__POOL_MAX,       false,  t};
    fsdp__channel_norm_sizes norm = {batch, channels, side * side, 0, t, FSDP_F32};
    char text[64];

    snprintf(text, sizeof text, "%ldx%ldx%ldx%ld %s", (long)batch, (long)channels, (long)side, (long)side,
             fsdp_dtype_name(t));
    if (wanted(b, "pool_forward")) {
        fsdp__pool_forward_args a = {.sizes = pool};
        a.x = array(b, t, numel, 0), a.y = array(b, t, numel / 4, 0), a.index = array(b, FSDP_I32, numel / 4, 1);
        measure(b, FSDP__KERNEL_POOL_FORWARD, &a, 0, 1.25 * bytes + (double)numel, text);
    }
    if (wanted(b, "pool_backward")) {
        fsdp__pool_backward_args a = {.sizes = pool};
        a.dy = array(b, t, numel / 4, 0), a.dx = array(b, t, numel, 0), a.index = array(b, FSDP_I32, numel / 4, 4);
        measure(b, FSDP__KERNEL_POOL_BACKWARD, &a, 0, 1.25 * bytes + (double)numel, text);
    }
    if (wanted(b, "channel_norm_forward")) {
        fsdp__channel_norm_forward_args a = {.sizes = norm, .eps = 1e-5f};
        a.x = array(b, t, numel, 0), a.y = array(b, t, numel, 0), a.weight = array(b, FSDP_F32, channels, 0);
        a.mean = array(b, FSDP_F32, channels, 0), a.rstd = array(b, FSDP_F32, channels, 0);
        measure(b, FSDP__KERNEL_CHANNEL_NORM_FORWARD, &a, 0, 3.0 * bytes, text);
    }
    if (wanted(b, "channel_norm_backward")) {
        fsdp__channel_norm_backward_args a = {.sizes = norm};
        a.x = array(b, t, numel, 0), a.dy = array(b, t, numel, 0), a.dx = array(b, t, numel, 0);
        a.weight = array(b, FSDP_F32, channels, 0), a.dweight = array(b, FSDP_F32, channels, 0);
        a.mean = array(b, FSDP_F32, channels, 0), a.rstd = array(b, FSDP_F32, channels, 0);
        measure(b, FSDP__KERNEL_CHANNEL_NORM_BACKWARD, &a, 0, 5.0 * bytes, text);
    }
}

void bench_images(bench *b)
{
    convolutions(b, FSDP_F32, 64, 3, 32, 64, 3, 1);
    convolutions(b, FSDP_F32, 64, 64, 32, 64, 3, 1);
    convolutions(b, FSDP_F32, 64, 64, 32, 128, 3, 2);
    convolutions(b, FSDP_F32, 64, 128, 16, 256, 1, 1);
    convolutions(b, FSDP_F32, 64, 512, 4, 512, 3, 1);
    planes(b, FSDP_F32, 64, 64, 32);
    planes(b, FSDP_BF16, 64, 64, 32);
    convolutions(b, FSDP_BF16, 64, 128, 16, 128, 3, 1);
}
