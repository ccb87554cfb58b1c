/* kernels_images.h - arguments of the kernels for images: convolutions, pooling, norms over channels. It is a part of
 * kernel_args.h, whose conventions hold. */
#pragma once

#include "fsdp/device.h"

/* Lists these kernels, for FSDP__KERNEL_MAP. */
#define FSDP__KERNEL_IMAGES_MAP(X)                             \
    X(CONV2D_FORWARD, conv2d_forward, GEMM)                    \
    X(CONV2D_INPUT, conv2d_input, GEMM)                        \
    X(CONV2D_WEIGHT, conv2d_weight, GEMM)                      \
    X(POOL_FORWARD, pool_forward, ELEMENTWISE)                 \
    X(POOL_BACKWARD, pool_backward, ELEMENTWISE)               \
    X(CHANNEL_NORM_FORWARD, channel_norm_forward, ELEMENTWISE) \
    X(CHANNEL_NORM_BACKWARD, channel_norm_backward, ELEMENTWISE)

/* Describes a convolution: x (batch, in, in_height, in_width), weight (out, in / groups, kernel_height, kernel_width),
 * y (batch, out, out_height, out_width), with out_height = (in_height + 2 padding - dilation (kernel_height - 1) - 1) /
 * stride + 1, at least 1. All are contiguous and of one dtype; no size is 0. Index 0 is for the height, 1 for the
 * width. */
typedef struct fsdp__conv2d_sizes {
    int64_t batch, groups;
    int64_t in, in_height, in_width, out, out_height, out_width, kernel_height, kernel_width;
    int64_t stride[2], padding[2], dilation[2];
    fsdp_dtype dtype;
} fsdp__conv2d_sizes;

/* y = x * weight [+ bias] */
typedef struct fsdp__conv2d_forward_args {
    const void *x, *weight, *bias; /* bias (out) or NULL */
    void *y;
    fsdp__conv2d_sizes sizes;
} fsdp__conv2d_forward_args;

/* dx [+]= the gradient of x. */
typedef struct fsdp__conv2d_input_args {
    const void *dy, *weight;
    void *dx;
    fsdp__conv2d_sizes sizes;
    bool accumulate;
} fsdp__conv2d_input_args;

/* dweight [+]= the gradient of weight. */
typedef struct fsdp__conv2d_weight_args {
    const void *x, *dy;
    void *dweight;
    fsdp__conv2d_sizes sizes;
    bool accumulate;
} fsdp__conv2d_weight_args;

typedef enum fsdp__pooling {
    FSDP__POOL_MAX,     /* ignores what is outside; the first maximum counts, and a NaN is above all */
    FSDP__POOL_AVG,     /* what is outside counts as 0 (count_padding), or not at all */
    FSDP__POOL_ADAPTIVE /* mean: window i is [floor(i in / out), ceil((i + 1) in / out)) */
} fsdp__pooling;

/* Describes windows over planes x (planes, in[0], in[1]) -> y (planes, out[0], out[1]). Index 0 is for the height.
 * ADAPTIVE uses only in and out; AVG has dilation 1. */
typedef struct fsdp__pool_sizes {
    int64_t planes, in[2], out[2];
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    fsdp__pooling kind;
    bool count_padding;
    fsdp_dtype dtype;
} fsdp__pool_sizes;

typedef struct fsdp__pool_forward_args {
    const void *x;
    void *y;
    int32_t *index; /* MAX: position of the maximum in its plane, -1 for an empty window. May be NULL */
    fsdp__pool_sizes sizes;
} fsdp__pool_forward_args;

/* dx [+]= the gradient of x, which is summed in f32 for each plane. */
typedef struct fsdp__pool_backward_args {
    const void *dy;
    const int32_t *index; /* MAX */
    void *dx;
    fsdp__pool_sizes sizes;
    bool accumulate;
} fsdp__pool_backward_args;

/* Describes x (batch, channels, inner). A set of elements, which has a mean and a variance of its own, is one channel
 * of all images (groups 0: batch norm), or channels / groups channels of one image. No size is 0. */
typedef struct fsdp__channel_norm_sizes {
    int64_t batch, channels, inner, groups;
    fsdp_dtype dtype, weight_dtype; /* of x, y; of weight, bias and their gradients */
} fsdp__channel_norm_sizes;

/* y = (x - mean) rstd weight + bias, with 1 / rstd^2 = variance + eps. */
typedef struct fsdp__channel_norm_forward_args {
    const void *x, *weight, *bias; /* weight, bias (channels); either may be NULL */
    void *y;
    float *mean, *rstd; /* one for each set */
    /* Batch norm (channels), or NULL. `fixed`: they are the mean and variance to use. Otherwise running = (1 -
     * momentum) running + momentum new, where the new variance is the unbiased one; `batches` (or NULL) counts the
     * calls, and with `cumulative` the momentum is 1 / *batches, this call included. */
    void *running_mean, *running_var;
    int64_t *batches;
    double momentum;
    float eps;
    bool fixed, cumulative;
    fsdp_dtype running_dtype;
    fsdp__channel_norm_sizes sizes;
} fsdp__channel_norm_forward_args;

typedef struct fsdp__channel_norm_backward_args {
    const void *x, *dy, *weight; /* weight NULL: ones */
    const float *mean, *rstd;
    void *dx, *dweight, *dbias; /* NULL: not needed */
    bool fixed;                 /* mean and variance did not depend on x */
    bool accumulate, accumulate_weight, accumulate_bias;
    fsdp__channel_norm_sizes sizes;
} fsdp__channel_norm_backward_args;
