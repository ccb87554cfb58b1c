/* fsdp/ops.h - differentiable operations.
 *
 * Every function returns a tensor that belongs to the innermost scope, or NULL with the last error set (naming the
 * operation and the shapes); given a NULL tensor it returns NULL. The tensors of a call must be on one device, and its
 * floating inputs have one dtype unless stated otherwise. Sums are kept in f32 and rounded once. Shapes are written
 * (B,T,C); "..." stands for any leading dimensions.
 *
 * An operation saves what its backward reads, and nothing if no gradient is needed; saved tensors must not be written
 * to before the backward. Sums and differences, scale, casts, sums and means over dimensions, changes of shape, concat,
 * dropout and the cross-entropy losses save none of their inputs. exp, sqrt, rsqrt, reciprocal, tanh, sigmoid and
 * softmax save only their result. mul, linear, conv1d, conv2d and matmul save an operand if the gradient of the other
 * is needed; so do div its first and the gated pairs their second. Lookups and choices save their indices or mask.
 */
#ifndef FSDP_OPS_H
#define FSDP_OPS_H

#include "fsdp/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- matrix products ---- */
/* Multiplies x (...,C) by weight (O,C) and adds bias (O), or FSDP_NO_BIAS -> (...,O): x weight^T + bias */
FSDP_API fsdp_tensor *fsdp_linear(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias);
/* Multiplies one x (...,C) by `count` weights (O_i,C), and adds biases (O_i), or FSDP_NO_BIAS -> outputs[i] (...,O_i).
 * It is fsdp_linear for each of them. On a GPU it is one product, forward and backward, where the weights lie side by
 * side in memory, as those of a sharded module do; so do the outputs then, and each is a strided view. 1 to 8 of them;
 * the scope owns the outputs. */
FSDP_API fsdp_status fsdp_linear_group(fsdp_tensor *x, int count, fsdp_tensor *const *weights,
                                       fsdp_tensor *const *biases, fsdp_tensor **outputs);
/* Does the same as GPT-2's Conv1D, with weight (C,O): x weight + bias */
FSDP_API fsdp_tensor *fsdp_conv1d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias);
/* Stands for "no bias", the only tensor argument that may be left out. */
#define FSDP_NO_BIAS ((fsdp_tensor *)(intptr_t)-1)
/* Multiplies a (...,M,K) by b (...,K,N) -> (...,M,N), as torch.matmul does: leading dimensions that are 1 or missing
 * are broadcast, and the gradient is summed over them. A vector a (K) is a row, a vector b (K) a column, and the result
 * lacks that dimension. With b (K,N) it is one product over all rows of a. */
FSDP_API fsdp_tensor *fsdp_matmul(fsdp_tensor *a, fsdp_tensor *b);

/* ---- lookups ---- */
/* Looks up rows of table (V,C) by ids (...) i32 -> (...,C). An id outside [0,V) is an error naming its position and
 * value. */
FSDP_API fsdp_tensor *fsdp_embedding(fsdp_tensor *table, fsdp_tensor *ids);

/* ---- by index ---- */
/* Indices are int32 or int64; one that is not below the size of the dimension (at most 2^31 - 1) is an error naming its
 * position and value. Negative dimensions count from the end. Sums are added in the order of the index, so the bits are
 * always the same.
 *
 * fsdp_index_select returns elements index[0], index[1], ... of dimension `dim` of x, in any dtype: index (n). */
FSDP_API fsdp_tensor *fsdp_index_select(fsdp_tensor *x, int dim, fsdp_tensor *index);
/* Returns y[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so on, with the shape of the index, which in the other
 * dimensions is at most as large as x. */
FSDP_API fsdp_tensor *fsdp_gather(fsdp_tensor *x, int dim, fsdp_tensor *index);
/* Returns x with y[i][index[i][j][k]][k] = source[i][j][k] for dim 1, and so on; dtypes must be equal. The index is at
 * most as large as the source, and in the other dimensions at most as large as x. If several elements go to one place,
 * the last counts; the gradient of the source is computed as if each had its own place (as in PyTorch): to accumulate,
 * use fsdp_scatter_add. */
FSDP_API fsdp_tensor *fsdp_scatter(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source);
/* Does the same, but adds to the values of x. */
FSDP_API fsdp_tensor *fsdp_scatter_add(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source);
/* Returns the k largest (or smallest) elements along a dimension, best first, and their indices: int32, not
 * differentiable; `indices` may be NULL. Among equal ones the first comes first; NaN is larger than any number. */
FSDP_API fsdp_tensor *fsdp_topk(fsdp_tensor *x, int64_t k, int dim, bool largest, fsdp_tensor **indices);
/* Does the same for all elements; stable. */
FSDP_API fsdp_tensor *fsdp_sort(fsdp_tensor *x, int dim, bool descending, fsdp_tensor **indices);

/* ---- binary operations, element by element ---- */
/* Broadcast their inputs as PyTorch does: shapes are aligned at the last dimension, and a dimension that is 1 or
 * missing is repeated; its gradient is the sum over the repetitions. */
FSDP_API fsdp_tensor *fsdp_add(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_sub(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_mul(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_div(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_pow(fsdp_tensor *base, fsdp_tensor *exponent);
/* Return NaN if either input is NaN; equal inputs get half of the gradient each. */
FSDP_API fsdp_tensor *fsdp_maximum(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_minimum(fsdp_tensor *a, fsdp_tensor *b);
/* Combine x with a number, kept in f32: x + number, x * factor, x to the power of exponent. */
FSDP_API fsdp_tensor *fsdp_add_scalar(fsdp_tensor *x, double number);
FSDP_API fsdp_tensor *fsdp_scale(fsdp_tensor *x, double factor);
FSDP_API fsdp_tensor *fsdp_pow_scalar(fsdp_tensor *x, double exponent);
/* Returns a scalar () with like's device and dtype, for use in other operations: 1 - x is fsdp_sub(fsdp_scalar(x, 1),
 * x), x > 0 is fsdp_gt(x, fsdp_scalar(x, 0)). */
FSDP_API fsdp_tensor *fsdp_scalar(fsdp_tensor *like, double value);

/* ---- masks: FSDP_BOOL, broadcast as above, without gradients ---- */
/* Compare inputs of the same dtype, which may be any. Any comparison with NaN is false, except `ne`. */
FSDP_API fsdp_tensor *fsdp_eq(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_ne(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_lt(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_le(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_gt(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_ge(fsdp_tensor *a, fsdp_tensor *b);
/* Combine masks, or other tensors, whose elements count as true if they are not zero. */
FSDP_API fsdp_tensor *fsdp_logical_and(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_logical_or(fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_logical_not(fsdp_tensor *x);
/* Returns mask ? a : b. a and b have the same dtype, which may be any; the gradient goes to the one that was chosen.
 * All three are broadcast. */
FSDP_API fsdp_tensor *fsdp_where(fsdp_tensor *mask, fsdp_tensor *a, fsdp_tensor *b);
/* Returns mask ? value : x. */
FSDP_API fsdp_tensor *fsdp_masked_fill(fsdp_tensor *x, fsdp_tensor *mask, double value);

/* ---- unary operations, element by element ---- */
FSDP_API fsdp_tensor *fsdp_neg(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_exp(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_ln(fsdp_tensor *x); /* natural logarithm (torch.log; fsdp_log prints) */
FSDP_API fsdp_tensor *fsdp_sqrt(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_rsqrt(fsdp_tensor *x); /* 1 / sqrt(x) */
FSDP_API fsdp_tensor *fsdp_reciprocal(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_square(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_abs(fsdp_tensor *x); /* its gradient at 0 is 0 */
FSDP_API fsdp_tensor *fsdp_tanh(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_sigmoid(fsdp_tensor *x);
/* Returns min(max(x, low), high); an infinite bound is none. The gradient passes strictly between the bounds only. */
FSDP_API fsdp_tensor *fsdp_clamp(fsdp_tensor *x, double low, double high);
FSDP_API fsdp_tensor *fsdp_gelu(fsdp_tensor *x);      /* erf form */
FSDP_API fsdp_tensor *fsdp_gelu_tanh(fsdp_tensor *x); /* tanh form: GPT-2's gelu_new */
FSDP_API fsdp_tensor *fsdp_silu(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_relu(fsdp_tensor *x);
/* Return silu(gate) * up, and gelu_tanh(gate) * up. */
FSDP_API fsdp_tensor *fsdp_swiglu(fsdp_tensor *gate, fsdp_tensor *up);
FSDP_API fsdp_tensor *fsdp_geglu_tanh(fsdp_tensor *gate, fsdp_tensor *up);
/* Returns x with each element set to zero with probability p in [0, 1), and others to x / (1 - p). The mask is a
 * function of (key, element index). p 0 returns x. */
FSDP_API fsdp_tensor *fsdp_dropout(fsdp_tensor *x, float p, uint64_t key);
/* Casts to another dtype; returns x itself if it has the dtype already. The gradient is cast back. */
FSDP_API fsdp_tensor *fsdp_cast(fsdp_tensor *x, fsdp_dtype dtype);
/* Copies to another device; returns x itself if it is there already. The gradient is copied back. [blocks] */
FSDP_API fsdp_tensor *fsdp_to_device(fsdp_tensor *x, fsdp_device *device);

/* ---- normalisation over the last dimension; weight and bias (C) may have another dtype than x ---- */
/* The bias may be FSDP_NO_BIAS here and in fsdp_add_layernorm. */
FSDP_API fsdp_tensor *fsdp_layernorm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, float eps);
FSDP_API fsdp_tensor *fsdp_rmsnorm(fsdp_tensor *x, fsdp_tensor *weight, float eps);
FSDP_API fsdp_tensor *fsdp_rmsnorm_plus_one(fsdp_tensor *x, fsdp_tensor *weight, float eps); /* by 1 + weight, in f32 */
/* Set *sum = x + residual and return norm(*sum), in one pass instead of two. */
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
    /* The fields below narrow what a causal query sees. Blocks that no query sees are not computed. */
    int64_t window; /* only the last `window` keys, the query's own included: local attention. 0: all */
    /* (B,T) i32: the position of each token in its document. A document begins with 0, every other position is one more
     * than the one before, and each row begins with 0. A query sees only its own document. S must be T. NULL: a row is
     * a document. Other values are an error that names the first; checking blocks as that of indices does. */
    fsdp_tensor *positions;
    float
        softcap; /* the scaled scores x become softcap tanh(x / softcap) (Gemma 2: 50), before the mask; 0: they stay */
} fsdp_attention_options;

/* Computes attention of q (B,T,H,D) over k and v (B,S,G,D), where H is a multiple of G -> (B,T,H,D). Views with a
 * contiguous last dimension are read in place. Causal: query t sees keys up to t + S - T. */
FSDP_API fsdp_tensor *fsdp_attention(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                     const fsdp_attention_options *options);
/* Does the same with one tensor qkv (B,T,(H+2G)*D) that contains q, k and v side by side, as GPT-2's c_attn makes it;
 * its gradient is written as one tensor. -> (B,T,H*D) */
FSDP_API fsdp_tensor *fsdp_attention_packed(fsdp_tensor *qkv, int64_t heads, int64_t kv_heads,
                                            const fsdp_attention_options *options);
/* Applies rotary position embedding, Hugging Face's half rotation: x (B,T,H,D), frequencies (R/2) f32, position of t =
 * 0. If R is less than D only the first R dimensions of a head rotate (partial rotary). */
FSDP_API fsdp_tensor *fsdp_rope(fsdp_tensor *x, fsdp_tensor *frequencies, int64_t position0);
/* Does the same at positions (B,T) i32, which are as in fsdp_attention_options. */
FSDP_API fsdp_tensor *fsdp_rope_at(fsdp_tensor *x, fsdp_tensor *frequencies, fsdp_tensor *positions);

/* ---- losses ---- */
/* Says how a loss is reduced: to a mean or sum (), or not. */
typedef enum fsdp_loss_reduction {
    FSDP_LOSS_MEAN,
    FSDP_LOSS_SUM,
    FSDP_LOSS_NONE
} fsdp_loss_reduction;

enum {
    FSDP_IGNORE_TARGET = -100 /* a target of which nothing is learned */
};
typedef struct fsdp_cross_entropy_options {
    fsdp_loss_reduction reduction; /* FSDP_LOSS_MEAN or FSDP_LOSS_SUM */
    double scale;                  /* of a sum, which is multiplied by it at no cost; 0: 1. A mean has none */
    float softcap; /* softcap * tanh(logits / softcap) takes the place of the logits (Gemma 2: 30); 0: none */
} fsdp_cross_entropy_options;

/* Returns the cross-entropy of logits (...,V) and targets (...) i32 -> () f32: the mean over targets that are not
 * FSDP_IGNORE_TARGET, which is NaN without a gradient if there are none, or their sum, which then is 0. NULL options:
 * the mean. Any other target outside [0,V) is an error naming its position and value. */
FSDP_API fsdp_tensor *fsdp_cross_entropy_with(fsdp_tensor *logits, fsdp_tensor *targets,
                                              const fsdp_cross_entropy_options *options);
/* Computes cross_entropy(linear(x, weight), targets) in chunks of rows, so that it never holds all logits. x (...,C),
 * weight (V,C). If a gradient is needed, it is computed in the same pass; that of a leaf weight is written directly to
 * its final place. */
FSDP_API fsdp_tensor *fsdp_linear_cross_entropy_with(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets,
                                                     const fsdp_cross_entropy_options *options);
/* Do the same without options. */
FSDP_API fsdp_tensor *fsdp_cross_entropy(fsdp_tensor *logits, fsdp_tensor *targets);
FSDP_API fsdp_tensor *fsdp_linear_cross_entropy(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets);

/* The losses below take inputs and targets of one dtype, which are broadcast, and return that dtype. Both may require a
 * gradient. */
FSDP_API fsdp_tensor *fsdp_mse_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
FSDP_API fsdp_tensor *fsdp_l1_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
/* Computes, with d = |input - target|, d^2 / (2 beta) if d is below beta, otherwise d - beta / 2. PyTorch's beta is
 * 1. */
FSDP_API fsdp_tensor *fsdp_smooth_l1_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction,
                                          double beta);
/* Compute -(target log(input) + (1 - target) log(1 - input)), with logarithms of at least -100; NaN for an input
 * outside [0, 1], which PyTorch refuses. The second takes sigmoid(input), and is exact for any input. */
FSDP_API fsdp_tensor *fsdp_binary_cross_entropy(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);
FSDP_API fsdp_tensor *fsdp_binary_cross_entropy_with_logits(fsdp_tensor *input, fsdp_tensor *target,
                                                            fsdp_loss_reduction reduction);
/* Returns -input[target]: input (...,C), as from fsdp_log_softmax, targets (...) i32. A target of -100 is ignored, also
 * in the mean; any other target outside [0,C) is an error naming its position and value. */
FSDP_API fsdp_tensor *fsdp_nll_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction);

/* ---- reductions ---- */
/* Reduce over everything: (). The mean of zero elements is NaN, and its gradient zeros. */
FSDP_API fsdp_tensor *fsdp_sum(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_mean(fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_sum_dim(fsdp_tensor *x, int dim, bool keep_dim);
/* Lists dimensions: fsdp_sum_dims(x, FSDP_DIMS(0, -1), false) reduces over 2. A count of 0 means all dimensions;
 * negative ones count from the end. */
#ifdef __cplusplus
extern "C++" {
template <int count>
struct fsdp__dims {
    static constexpr int ndim = count;
    int dims[count];
    const int *data() const
    {
        return dims;
    }
};
template <typename... Dims>
fsdp__dims<sizeof...(Dims)> fsdp__dims_of(Dims... dims)
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
/* Return the variance or its root: squared deviations divided by elements - correction (1 in PyTorch, 0 in
 * normalisations), in f32 for any dtype. */
FSDP_API fsdp_tensor *fsdp_var(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_std(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim);
/* Return the largest or smallest element, NaN if there is one; the gradient is shared equally by all that are equal to
 * it. */
FSDP_API fsdp_tensor *fsdp_amax(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_amin(fsdp_tensor *x, int count, const int *dims, bool keep_dim);
/* Return the largest or smallest along one dimension and its index (i32, the first of equal ones), which gets the
 * gradient; `indices` may be NULL. If there is a NaN, it is the result of both. */
FSDP_API fsdp_tensor *fsdp_max(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices);
FSDP_API fsdp_tensor *fsdp_min(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices);
FSDP_API fsdp_tensor *fsdp_argmax(fsdp_tensor *x, int dim, bool keep_dim);
FSDP_API fsdp_tensor *fsdp_argmin(fsdp_tensor *x, int dim, bool keep_dim);

/* ---- images: (N,C,H,W); index 0 of a pair is the height, 1 the width ---- */
/* Holds options; a stride, dilation or number of groups of 0 means 1. */
typedef struct fsdp_conv2d_options {
    int64_t stride[2], padding[2], dilation[2], groups;
} fsdp_conv2d_options;
/* Convolves x (N,C,H,W) with weight (O,C/groups,kh,kw) and bias (O) or FSDP_NO_BIAS -> (N,O,H',W') with H' = (H + 2
 * padding - dilation (kh - 1) - 1) / stride + 1, rounded down. NULL options: zeros. The results, including gradients,
 * are the same for any number of threads. */
FSDP_API fsdp_tensor *fsdp_conv2d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                  const fsdp_conv2d_options *options);

/* Describes windows of `kernel` at every `stride` (0: the kernel's size) of x, with `padding` of at most half the
 * kernel on each side. x (N,C,H,W) -> (N,C,H',W') as in fsdp_conv2d. Sizes are rounded down (ceil_mode False). */
typedef struct fsdp_pool2d_options {
    int64_t kernel[2], stride[2], padding[2];
    int64_t dilation[2];  /* for max_pool2d; 0: 1 */
    bool exclude_padding; /* for avg_pool2d: leave padding out of the mean (count_include_pad False) */
} fsdp_pool2d_options;
/* Pool over windows. For the maximum, padding is below all values and NaN above; the gradient goes to the first maximum
 * of a window. */
FSDP_API fsdp_tensor *fsdp_max_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options);
FSDP_API fsdp_tensor *fsdp_avg_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options);
/* Averages over height x width windows that cover x and differ in size by at most one. 0: x's own size. */
FSDP_API fsdp_tensor *fsdp_adaptive_avg_pool2d(fsdp_tensor *x, int64_t height, int64_t width);

/* ---- norms over channels: x (N,C,...), weight and bias (C) or FSDP_NO_BIAS, in any floating dtype ---- */
/* Normalises by mean and variance over C / groups channels of each image. */
FSDP_API fsdp_tensor *fsdp_group_norm(fsdp_tensor *x, int64_t groups, fsdp_tensor *weight, fsdp_tensor *bias,
                                      float eps);
typedef struct fsdp_batch_norm_options {
    fsdp_tensor *running_mean, *running_var; /* (C), any floating dtype, contiguous; NULL: not kept */
    fsdp_tensor *num_batches_tracked;        /* one int64, or NULL; counts training batches */
    bool training; /* use the batch's statistics and update the running ones; otherwise use the running ones */
    bool cumulative_average; /* running statistics weight all batches equally (momentum None) */
    double momentum;         /* running = (1 - momentum) running + momentum new */
    float eps;
} fsdp_batch_norm_options;
/* Normalises by mean and variance of each channel over all images. The running variance is the unbiased one. Running
 * statistics are written when the forward runs, under no_grad too, and once in a recomputed function: its second run,
 * for the backward, does not change them. (PyTorch's second run writes them again, so that checkpointing changes the
 * model.) Without training the second run uses the values of the first, whatever was written since. An input without
 * elements leaves statistics and their count as they are. */
FSDP_API fsdp_tensor *fsdp_batch_norm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                      const fsdp_batch_norm_options *options);

/* ---- shapes ---- */
/* Changes the shape; one size may be -1. A view if strides allow, otherwise a copy. */
FSDP_API fsdp_tensor *fsdp_reshape(fsdp_tensor *x, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_transpose(fsdp_tensor *x, int dim0, int dim1);
FSDP_API fsdp_tensor *fsdp_slice(fsdp_tensor *x, int dim, int64_t start, int64_t length);
FSDP_API fsdp_tensor *fsdp_concat(fsdp_tensor *const *tensors, int count, int dim);
FSDP_API fsdp_tensor *fsdp_contiguous(fsdp_tensor *x);
/* Reorders dimensions: dimension d of the result is dims[d] of x. A view. */
FSDP_API fsdp_tensor *fsdp_permute(fsdp_tensor *x, int ndim, const int *dims);
/* Insert a dimension of size 1 before `dim`, and remove dimension `dim` if its size is 1. */
FSDP_API fsdp_tensor *fsdp_unsqueeze(fsdp_tensor *x, int dim);
FSDP_API fsdp_tensor *fsdp_squeeze(fsdp_tensor *x, int dim);
/* Merges dimensions `start` to `end`, both included: (0, -1) merges all of x, (1, -1) all but the batch. */
FSDP_API fsdp_tensor *fsdp_flatten(fsdp_tensor *x, int start, int end);
/* Repeats dimensions of size 1 and new ones in front; -1 keeps a size. A view whose elements share memory: it cannot be
 * written to. */
FSDP_API fsdp_tensor *fsdp_expand(fsdp_tensor *x, int ndim, const int64_t *shape);
/* Joins tensors along a new dimension. */
FSDP_API fsdp_tensor *fsdp_stack(fsdp_tensor *const *tensors, int count, int dim);
/* Splits x into `count` parts of the given sizes, which must add up to the dimension. NULL sizes: ceil(size / count)
 * each, the last ones with the rest (torch.chunk, which leaves out parts of 0). The parts are views, stored in
 * `parts`. */
FSDP_API fsdp_status fsdp_split(fsdp_tensor *x, int dim, int count, const int64_t *sizes, fsdp_tensor **parts);

#ifdef __cplusplus
}
#endif
#endif
