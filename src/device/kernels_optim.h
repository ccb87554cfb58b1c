/* kernels_optim.h - arguments of the kernels of optimizers. It is a part of kernel_args.h, whose conventions hold. */
#pragma once

#include "base/digit_sum.h"
#include "device/kernels_elementwise.h"

/* Lists these kernels, for FSDP__KERNEL_MAP. */
#define FSDP__KERNEL_OPTIM_MAP(X)        \
    X(POWER_SUM, power_sum, OPTIMIZER)   \
    X(JUDGE_STEP, judge_step, OPTIMIZER) \
    X(ADAM, adam, OPTIMIZER)             \
    X(SGD, sgd, OPTIMIZER)               \
    X(LION, lion, OPTIMIZER)             \
    X(BYTE_ADAM, byte_adam, OPTIMIZER)   \
    X(LERP_SPANS, lerp_spans, OPTIMIZER)

/* *sum [+]= the sum over all spans' src of |x|^p, each power rounded to f64; the bits do not depend on how the elements
 * are spread over spans and calls (base/digit_sum.h). With p infinite *largest = the largest |x| instead; NaN is larger
 * than all. */
typedef struct fsdp__power_sum_args {
    const fsdp__span *spans; /* in host memory; only src and numel are used */
    int64_t count;
    fsdp_dtype dtype;
    double p; /* above 0 */
    fsdp__digit_sum *sum;
    double *largest;
    bool accumulate; /* p is not infinite */
} fsdp__power_sum_args;

/* Holds what was decided on the device about a step of the optimizer. */
typedef struct fsdp__verdict {
    double norm;             /* of the gradients; NaN also where a loss is not finite */
    float scale;             /* of the gradients: it clips them */
    int32_t left_out;        /* 1: the step changes nothing; 0 */
    int32_t left_out_before; /* the same of the step before */
} fsdp__verdict;

/* Replaces the verdict on the step before by that on this one: norm = sqrt(*sum); scale = max_norm / (norm + 1e-6) as
 * torch.nn.utils.clip_grad_norm_ has it in f32, at most 1. A step is left out if its norm is not finite, unless
 * `takes_all`. */
typedef struct fsdp__judge_step_args {
    const fsdp__digit_sum *sum; /* of the squares of all gradients */
    const float *losses;        /* (count): unless takes_all, the norm is NaN if one of them is not finite */
    int64_t count;
    fsdp__verdict *verdict;
    float max_norm; /* 0 or infinite: scale is 1 */
    bool takes_all;
    bool stays; /* what comes after a step that was left out is left out, too */
} fsdp__judge_step_args;

/* Describes one optimizer tensor. Moments are f32; a parameter of 16 bits is rounded once, at the end. */
typedef struct fsdp__optimizer_span {
    void *param;
    const void *grad;
    float *moment1, *moment2; /* Adam: both; Lion: moment1; SGD: moment1 is the momentum buffer or NULL */
    int64_t numel;
    void *copy; /* where the parameter also goes, as it is after the step, left out or not; NULL: nowhere */
} fsdp__optimizer_span;

/* [Note: verdicts]
 * A step may be taken before the host knows what was decided about it on the device. If `verdict` is not NULL, its
 * `scale` takes the place of grad_scale, and nothing is changed if the step is left out. If the host does not know of
 * the step before either, which it has counted in `step`, it says so by `behind`: t is one less where that was left
 * out. */

/* Steps PyTorch's Adam and AdamW (torch.optim): g = grad_scale * grad; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -=
 * lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps). AdamW first scales p by 1 - lr * weight_decay; Adam adds
 * weight_decay * p to g. */
typedef struct fsdp__adam_args {
    const fsdp__optimizer_span *spans; /* a table */
    int64_t count;
    fsdp_dtype param_dtype, grad_dtype;
    double lr, beta1, beta2, eps, weight_decay; /* f64, as in torch: 1 - beta2 loses digits in f32 */
    float grad_scale;
    const fsdp__verdict *verdict; /* [Note: verdicts] */
    int64_t step;                 /* t, from 1; with `behind` from 2 */
    bool decoupled;               /* AdamW */
    bool behind;
    fsdp_dtype copy_dtype; /* of all copies, which are rounded to it; NONE: there are none */
    bool split; /* parameters are f32 in halves: `param` is the low ones, `copy` the high ones, read and written */
} fsdp__adam_args;

/* Steps PyTorch's SGD: g = grad_scale * grad + weight_decay p; buf = t is 1 ? g : momentum buf + (1 - dampening) g; g =
 * nesterov ? g + momentum buf : buf; p -= lr g. */
typedef struct fsdp__sgd_args {
    const fsdp__optimizer_span *spans; /* a table */
    int64_t count;
    fsdp_dtype param_dtype, grad_dtype;
    double lr, momentum, dampening, weight_decay;
    float grad_scale;
    const fsdp__verdict *verdict; /* [Note: verdicts] */
    int64_t step;                 /* t, from 1; with `behind` from 2 */
    bool nesterov, behind;
    fsdp_dtype copy_dtype; /* as Adam's */
} fsdp__sgd_args;

/* Steps Lion: g = grad_scale * grad; p *= 1 - lr * weight_decay; p -= lr * sign(b1 m + (1-b1) g); m = b2 m + (1-b2)
 * g. */
typedef struct fsdp__lion_args {
    const fsdp__optimizer_span *spans; /* a table; moment1 alone is used */
    int64_t count;
    fsdp_dtype param_dtype, grad_dtype;
    double lr, beta1, beta2, weight_decay;
    float grad_scale;
    const fsdp__verdict *verdict; /* [Note: verdicts] */
    fsdp_dtype copy_dtype;        /* as Adam's */
} fsdp__lion_args;

enum {
    FSDP__BYTE_BLOCK = 256, /* elements of a row that have one scale; the last of a row may have fewer */
    FSDP__BYTE_CODES = 256
};

/* Describes one tensor (rows, cols) of which the moments are bytes: a moment is scale * value of its code, by the map
 * of its sign (base/byte_map.h), and the scale is the largest magnitude of its block. */
typedef struct fsdp__byte_span {
    void *param;
    const void *grad;
    uint8_t *codes1, *codes2; /* of m, with a sign, and of v */
    float *scales1, *scales2; /* (rows, ceil(cols / FSDP__BYTE_BLOCK)) */
    int64_t rows, cols;
    void *copy; /* as fsdp__optimizer_span has it */
} fsdp__byte_span;

/* Does what Adam does (fsdp__adam_args) with moments that are bytes: they are decoded, moved, used for the step as they
 * are in f32, and encoded again by the nearest code. */
typedef struct fsdp__byte_adam_args {
    const fsdp__byte_span *spans; /* a table */
    int64_t count;
    fsdp_dtype param_dtype, grad_dtype;
    double lr, beta1, beta2, eps, weight_decay;
    float grad_scale;
    const fsdp__verdict *verdict; /* [Note: verdicts] */
    int64_t step;
    bool decoupled, behind;
    fsdp_dtype copy_dtype; /* as Adam's */
} fsdp__byte_adam_args;

/* Moves dst towards scale * src: dst += weight * (scale * src - dst), unless the verdict leaves the step out. */
typedef struct fsdp__lerp_spans_args {
    const fsdp__span *spans; /* a table */
    int64_t count;
    fsdp_dtype src_dtype, dst_dtype;
    float weight, scale;
    const fsdp__verdict *verdict; /* its scale does not matter; may be NULL */
} fsdp__lerp_spans_args;
