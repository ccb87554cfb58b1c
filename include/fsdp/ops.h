/* fsdp/ops.h - differentiable operations.
 *
 * Every function returns a tensor that belongs to the innermost scope, or NULL with the last error set (naming the
 * operation and the shapes); given a NULL tensor it returns NULL. Tensors of one call must be on one device. Floating
 * inputs of one call share a dtype unless said otherwise; sums are kept in f32 and rounded once. Shapes are written
 * (B,T,C); "..." is any leading dimensions.
 *
 * For its backward an operation saves what that reads, and nothing where no gradient is wanted; what is saved must not
 * be written to before. Sums and differences, scale, casts, sums and means over dimensions, new shapes, concat, dropout
 * and the losses of cross entropy save none of their inputs; exp, sqrt, rsqrt, reciprocal, tanh, sigmoid and softmax
 * their result alone; mul, linear, conv1d, conv2d and matmul an operand where the other's gradient is wanted; div its
 * first, swiglu its second where the gradient of the other is wanted; lookups and choices their indices or mask.
 */
#ifndef FSDP_OPS_H
#define FSDP_OPS_H

#include "fsdp/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- matrix products ---- */
/* x (...,C), weight (O,C), bias (O) or NULL passed as FSDP_NO_BIAS  ->  (...,O):  x weight^T + bias */
FSDP_API fsdp_tensor *fsdp_linear(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias);
/* GPT-2's Conv1D: weight (C,O):  x weight + bias */
FSDP_API fsdp_tensor *fsdp_conv1d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias);
/* "No bias": the one tensor argument that may be left out. */
#define FSDP_NO_BIAS ((fsdp_tensor *)(intptr_t)-1)
/* a (...,M,K), b (...,K,N)  ->  (...,M,N), as torch.matmul: leading dimensions of either are repeated where they are 1
 * or missing, and the gradient is the sum over what was repeated. A vector a (K) is a row, b (K) a column, and the
 * result has no such dimension. With b (K,N) it is one product over all rows of a. */
FSDP_API fsdp_tensor *fsdp_matmul(fsdp_tensor *a, fsdp_tensor *b);

/* ---- lookups ---- */
/* table (V,C), ids (...) i32  ->  (...,C). An id outside [0,V) is an error naming its position and value. */
FSDP_API fsdp_tensor *fsdp_embedding(fsdp_tensor *table, fsdp_tensor *ids);

/* ---- by index ---- */
/* Indices are int32 or int64; one that is not below the size of the dimension (at most 2^31 - 1) is an error naming its
 * position and value. Negative dimensions count from the end. Sums are made in the order of the index, so bits are
 * always the same.
 *
 * Elements index[0], index[1], ... of dimension `dim` of x, in any dtype: index (n). */
FSDP_API fsdp_tensor *fsdp_index_select(fsdp_tensor *x, int dim, fsdp_tensor *index);
/* y[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so on: shape of the index, which in the other dimensions is at
 * most as large as x. */
FSDP_API fsdp_tensor *fsdp_gather(fsdp_tensor *x, int dim, fsdp_tensor *index);
/* x, but y[i][index[i][j][k]][k] = source[i][j][k] for dim 1, and so on, with dtypes alike. The index is at most as
 * large as the source, and as x in the other dimensions. Of several the last counts; the gradient is that of source
 * elements with places of their own (PyTorch's): what adds up belongs into the second. */
FSDP_API fsdp_tensor *fsdp_scatter(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source);
/* The same, adding to what x has there. */
FSDP_API fsdp_tensor *fsdp_scatter_add(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source);
/* The k largest (or smallest) along a dimension, best first, and where they were: int32, not differentiable; `indices`
 * may be NULL. Of equal ones the first comes first; a NaN is larger than all. */
FSDP_API fsdp_tensor *fsdp_topk(fsdp_tensor *x, int64_t k, int dim, bool largest, fsdp_tensor **indices);
/* All of them; stable. */
FSDP_API fsdp_tensor *fsdp_sort(fsdp_tensor *x, int dim, bool descending, fsdp_tensor **indices);

/* ---- of two, element by element ---- */
/* Shapes fit from the last dimension on: a dimension of either that is 1 or missing is repeated, as PyTorch does, and
 * its gradient is the sum over what was repeated. */
FSDP_API fsdp_tensor *fsdp_add(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_sub(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_mul(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_div(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_pow(fsdp_tensor *base, fsdp_tensor *exponent);
/* A NaN of either is the result; of equals each gets half of the gradient. */
FSDP_API fsdp_tensor *fsdp_maximum(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_minimum(fsdp_tensor *a, fsdp_tensor *b);
/* With a number, kept in f32: x + number, x * factor, x to the power of exponent. */
FSDP_API fsdp_tensor *fsdp_add_scalar(fsdp_tensor *x, double number);
FSDP_API fsdp_tensor *fsdp_scale(fsdp_tensor *x, double factor);
FSDP_API fsdp_tensor *fsdp_pow_scalar(fsdp_tensor *x, double exponent);
/* () of like's device and dtype, for all others: 1 - x is fsdp_sub(fsdp_scalar(x, 1), x), x > 0 is
 * fsdp_gt(x, fsdp_scalar(x, 0)). */
FSDP_API fsdp_tensor *fsdp_scalar(fsdp_tensor *like, double value);

/* ---- masks: FSDP_BOOL, with shapes as above, and no gradient ---- */
/* Inputs of one dtype, whatever it is. A NaN is only `ne`. */
FSDP_API fsdp_tensor *fsdp_eq(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_ne(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_lt(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_le(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_gt(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_ge(fsdp_tensor *a, fsdp_tensor *b);
/* Of masks, or of what is not zero. */
FSDP_API fsdp_tensor *fsdp_logical_and(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_logical_or(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_logical_not(fsdp_tensor *x);
/* mask ? a : b, a and b of one dtype, whatever it is; the gradient goes to the one that was chosen. All three are
 * repeated where they are smaller. */
FSDP_API fsdp_tensor *fsdp_where(fsdp_tensor *mask, fsdp_tensor *a, fsdp_tensor *b);
/* mask ? value : x */
FSDP_API fsdp_tensor *fsdp_masked_fill(fsdp_tensor *x, fsdp_tensor *mask, double value);

/* ---- of one, element by element ---- */
FSDP_API fsdp_tensor *fsdp_neg(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_exp(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_ln(fsdp_tensor *x); /* natural logarithm (torch.log; fsdp_log prints) */
FSDP_API fsdp_tensor *fsdp_sqrt(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_rsqrt(fsdp_tensor *x); /* 1 / sqrt(x) */
FSDP_API fsdp_tensor *fsdp_reciprocal(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_square(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_abs(fsdp_tensor *x); /* gradient at 0: 0 */
FSDP_API fsdp_tensor *fsdp_tanh(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_sigmoid(fsdp_tensor *x);
/* min(max(x, low), high), infinite ones being none. The gradient passes between the bounds, at neither of them. */
FSDP_API fsdp_tensor *fsdp_clamp(fsdp_tensor *x, double low, double high);
FSDP_API fsdp_tensor *fsdp_gelu(fsdp_tensor *x);      /* erf form */
FSDP_API fsdp_tensor *fsdp_gelu_tanh(fsdp_tensor *x); /* tanh form: GPT-2's gelu_new */
FSDP_API fsdp_tensor *fsdp_silu(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_relu(fsdp_tensor *x);
/* silu(gate) * up */
FSDP_API fsdp_tensor *fsdp_swiglu(fsdp_tensor *gate, fsdp_tensor *up);
/* Zero with probability p in [0, 1), else x / (1 - p). The mask is a function of (key, element index). p 0 returns x.
 */
FSDP_API fsdp_tensor *fsdp_dropout(fsdp_tensor *x, float p, uint64_t key);
/* To another dtype; the same tensor when it has it already. The gradient is cast back. */
FSDP_API fsdp_tensor *fsdp_cast(fsdp_tensor *x, fsdp_dtype dtype);
/* To another device; the same tensor when it is there already. The gradient goes the way back. [blocks] */
FSDP_API fsdp_tensor *fsdp_to_device(fsdp_tensor *x, fsdp_device *device);

/* ---- normalisation, over the last dimension; weight and bias (C) may have a dtype of their own ---- */
/* bias may be FSDP_NO_BIAS here and in fsdp_add_layernorm. */
FSDP_API fsdp_tensor *fsdp_layernorm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, float eps);
FSDP_API fsdp_tensor *fsdp_rmsnorm(fsdp_tensor *x, fsdp_tensor *weight, float eps);
/* *sum = x + residual; returns norm(*sum): one pass instead of two. */
FSDP_API fsdp_tensor *fsdp_add_layernorm(fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor *weight, fsdp_tensor *bias,
                                         float eps, fsdp_tensor **sum);
FSDP_API fsdp_tensor *fsdp_add_rmsnorm(fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor *weight, float eps,
                                       fsdp_tensor **sum);
FSDP_API fsdp_tensor *fsdp_softmax(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_log_softmax(fsdp_tensor *x);

/* ---- attention ---- */
typedef struct fsdp_attention_options {
    bool causal;
    float scale; /* 0: 1 / sqrt(D) */
} fsdp_attention_options;

/* q (B,T,H,D), k and v (B,S,G,D), H a multiple of G  ->  (B,T,H,D). Views with a contiguous last dimension are read in
 * place. Causal: query t sees keys up to t + S - T. */
FSDP_API fsdp_tensor *fsdp_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                     const fsdp_attention_options *options);
/* The same from one tensor qkv (B,T,(H+2G)*D) that holds q, k and v side by side, as GPT-2's c_attn makes it; its
 * gradient is written as one tensor. -> (B,T,H*D) */
FSDP_API fsdp_tensor *fsdp_attention_packed(fsdp_tensor *qkv, int64_t heads, int64_t kv_heads,
                                            const fsdp_attention_options *options);
/* Rotary position embedding, Hugging Face's half rotation: x (B,T,H,D), frequencies (D/2) f32, position of t = 0. */
FSDP_API fsdp_tensor *fsdp_rope(fsdp_tensor *x, fsdp_tensor *frequencies, int64_t position0);

/* ---- losses ---- */
/* Mean over targets that are not -100 of the cross-entropy: logits (...,V), targets (...) i32  ->  () f32; 0 and no
 * gradient when all are -100.
 * A target outside [0,V) and not -100 is an error naming its position and value. */
FSDP_API fsdp_tensor *fsdp_cross_entropy(fsdp_tensor *logits, fsdp_tensor *targets);
/* cross_entropy(linear(x, weight), targets) in chunks of rows: never holds all logits. x (...,C), weight (V,C). When a
 * gradient is wanted it is made in the same pass; a leaf weight's goes straight to where its gradient will lie. */
FSDP_API fsdp_tensor *fsdp_linear_cross_entropy(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets);

/* Of inputs and targets of one dtype, repeated where they are smaller, in it: their mean or sum (), or each by itself.
 * Both may require a gradient. */
typedef enum fsdp_loss_reduction {
    FSDP_LOSS_MEAN,
    FSDP_LOSS_SUM,
    FSDP_LOSS_NONE
} fsdp_loss_reduction;
FSDP_API fsdp_tensor *fsdp_mse_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
FSDP_API fsdp_tensor *fsdp_l1_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
/* d = |input - target|: below beta d^2 / (2 beta), else d - beta / 2. PyTorch's beta is 1. */
FSDP_API fsdp_tensor *fsdp_smooth_l1_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction,
                                          double beta);
/* -(target log(input) + (1 - target) log(1 - input)), a logarithm being at least -100; NaN of an input outside [0, 1],
 * which PyTorch refuses. The second takes sigmoid(input), and is exact for any. */
FSDP_API fsdp_tensor *fsdp_binary_cross_entropy(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
FSDP_API fsdp_tensor *fsdp_binary_cross_entropy_with_logits(fsdp_tensor *input, fsdp_tensor *target,
                                                            fsdp_loss_reduction reduction);
/* -input[target]: input (...,C), as fsdp_log_softmax gives it, targets (...) i32. What is -100 counts nothing, nor in
 * the mean; a target outside [0,C) and not -100 is an error naming its position and value. */
FSDP_API fsdp_tensor *fsdp_nll_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);

/* ---- reductions ---- */
/* Over everything: (). The mean of nothing is NaN, and has no gradient but zeros. */
FSDP_API fsdp_tensor *fsdp_sum(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_mean(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_sum_dim(fsdp_tensor *x, int dim, bool keep_dim);
/* Over `count` dimensions, 0 being all of them; negative ones count from the end. FSDP_DIMS(0, -1) is 2 of them. */
#ifdef __cplusplus
extern "C++" {
template <int count> struct fsdp__dims {
    static constexpr int ndim = count;
    int dims[count];
    const int *data() const
    {
        return dims;
    }
};
template <typename... Dims> fsdp__dims<sizeof...(Dims)> fsdp__dims_of(Dims... dims)
{
    return {{static_cast<int>(dims)...}};
}
}
#define FSDP_DIMS(...) int(decltype(fsdp__dims_of(__VA_ARGS__))::ndim), fsdp__dims_of(__VA_ARGS__).data()
#else
#define FSDP_DIMS(...)                                               \
    (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) \
    {                                                                \
        __VA_ARGS__                                                  \
    }
#endif
FSDP_API fsdp_tensor *fsdp_sum_dims(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_mean_dims(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
/* Divided by elements - correction, which is 1 in PyTorch, 0 in normalisations; in f32, whatever the dtype is. */
FSDP_API fsdp_tensor *fsdp_var(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_std(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim);
/* The largest and smallest, NaN if there is one; their gradient goes in equal parts to all that are equal. */
FSDP_API fsdp_tensor *fsdp_amax(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_amin(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
/* Along one dimension, with where they were (i32, the first of equals), which gets the gradient; `indices` may be NULL.
 * A NaN is the result, of both. */
FSDP_API fsdp_tensor *fsdp_max(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices);
FSDP_API fsdp_tensor *fsdp_min(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices);
FSDP_API fsdp_tensor *fsdp_argmax(fsdp_tensor *x, int dim, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_argmin(fsdp_tensor *x, int dim, bool keep_dim);

/* ---- images: (N,C,H,W); index 0 of a pair is of the height, 1 of the width ---- */
/* A stride, dilation or number of groups of 0 is 1. */
typedef struct fsdp_conv2d_options {
    int64_t stride[2], padding[2], dilation[2], groups;
} fsdp_conv2d_options;
/* x (N,C,H,W), weight (O,C/groups,kh,kw), bias (O) or FSDP_NO_BIAS  ->  (N,O,H',W') with
 * H' = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1, rounded down. NULL options: zeros. The result, gradients
 * too, is the same for any number of threads. */
FSDP_API fsdp_tensor *fsdp_conv2d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                  const fsdp_conv2d_options *options);

/* Windows of `kernel`, every `stride` (0: of the kernel's size) of x with `padding`, at most half of the kernel, on
 * each side. x (N,C,H,W)  ->  (N,C,H',W') as fsdp_conv2d's. Sizes are rounded down (ceil_mode False). */
typedef struct fsdp_pool2d_options {
    int64_t kernel[2], stride[2], padding[2];
    int64_t dilation[2];  /* of max_pool2d; 0: 1 */
    bool exclude_padding; /* of avg_pool2d: the mean is over what is inside alone (count_include_pad False) */
} fsdp_pool2d_options;
/* The padding is below all values; a NaN is above. The gradient goes to the first maximum of a window. */
FSDP_API fsdp_tensor *fsdp_max_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options);
FSDP_API fsdp_tensor *fsdp_avg_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options);
/* Means over height x width windows that cover x and differ by one in size, if at all. 0: x's own. */
FSDP_API fsdp_tensor *fsdp_adaptive_avg_pool2d(fsdp_tensor *x, int64_t height, int64_t width);

/* ---- norms over channels: x (N,C,...), weight and bias (C) or FSDP_NO_BIAS, of x's or another floating dtype ---- */
/* Mean and variance of C / groups channels of each image. */
FSDP_API fsdp_tensor *fsdp_group_norm(fsdp_tensor *x, int64_t groups, fsdp_tensor *weight, fsdp_tensor *bias,
                                      float eps);
typedef struct fsdp_batch_norm_options {
    fsdp_tensor *running_mean, *running_var; /* (C), any floating dtype, contiguous; NULL: none are kept */
    fsdp_tensor *num_batches_tracked;        /* one int64, or NULL; counts the batches of training */
    bool training;                           /* statistics of the batch, and running ones follow; else running ones */
    bool cumulative_average;                 /* running statistics are of all batches alike (momentum None) */
    double momentum;                         /* running = (1 - momentum) running + momentum new */
    float eps;
} fsdp_batch_norm_options;
/* Mean and variance of each channel of all images. The running variance is the unbiased one. They are written as the
 * forward runs, under no_grad too, and by a checkpoint's forward once: its second run, for the backward, leaves them as
 * they are. (PyTorch's writes them twice: a checkpoint would change what a model is.) Without training, that run
 * computes with those of the first, whatever was written since. */
FSDP_API fsdp_tensor *fsdp_batch_norm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                      const fsdp_batch_norm_options *options);

/* ---- shapes ---- */
/* One size may be -1. Views where strides allow, else a copy. */
FSDP_API fsdp_tensor *fsdp_reshape(fsdp_tensor *x, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_transpose(fsdp_tensor *x, int dim0, int dim1);
FSDP_API fsdp_tensor *fsdp_slice(fsdp_tensor *x, int dim, int64_t start, int64_t length);
FSDP_API fsdp_tensor *fsdp_concat(fsdp_tensor *const *tensors, int count, int dim);
FSDP_API fsdp_tensor *fsdp_contiguous(fsdp_tensor *x);
/* Dimension d of the result is dims[d] of x. A view. */
FSDP_API fsdp_tensor *fsdp_permute(fsdp_tensor *x, int ndim, const int *dims);
/* Another dimension, of size 1, before `dim`; and without dimension `dim` if its size is 1. */
FSDP_API fsdp_tensor *fsdp_unsqueeze(fsdp_tensor *x, int dim);
FSDP_API fsdp_tensor *fsdp_squeeze(fsdp_tensor *x, int dim);
/* Dimensions `start` to `end`, both included, as one: all of x by (0, -1), all but the batch by (1, -1). */
FSDP_API fsdp_tensor *fsdp_flatten(fsdp_tensor *x, int start, int end);
/* Dimensions of size 1, and new ones in front, repeated; -1 keeps a size. A view, whose elements are not its own: it
 * cannot be written to. */
FSDP_API fsdp_tensor *fsdp_expand(fsdp_tensor *x, int ndim, const int64_t *shape);
/* One next to the other in a new dimension. */
FSDP_API fsdp_tensor *fsdp_stack(fsdp_tensor *const *tensors, int count, int dim);
/* Into `count` parts of these sizes, which add up; NULL sizes: of ceil(size / count), the last ones with what is left
 * (torch.chunk, which leaves parts of 0 out). Views, in `parts`. */
FSDP_API fsdp_status fsdp_split(fsdp_tensor *x, int dim, int count, const int64_t *sizes, fsdp_tensor **parts);

#ifdef __cplusplus
}
#endif
#endif
