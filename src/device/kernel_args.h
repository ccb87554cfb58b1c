/* kernel_args.h - the list of kernels, and what each is given: one plain struct of pointers and sizes.
 *
 * Conventions
 *   - row-major, last dimension contiguous unless strides are given; sizes are element counts
 *   - `dtype` is that of all floating pointers of the struct unless a field has its own; arithmetic is in f32, rounded
 *     once on store (bf16 and f16: nearest even)
 *   - `accumulate`: the result is added to what the output holds, instead of replacing it
 *   - outputs may alias inputs only where a comment says "in place"
 *   - results do not depend on the number of threads, except those of matrix products that the CPU leaves to oneDNN
 * C++ may include this file: kernels of a backend may be written in it. */
#pragma once

#include "device/kernels_elementwise.h"
#include "device/kernels_images.h"
#include "device/kernels_optim.h"

/* X(NAME, name, class): class is what a profile counts the time under. */
#define FSDP__KERNEL_MAP(X)                                  \
    X(MATMUL, matmul, GEMM)                                  \
    FSDP__KERNEL_IMAGES_MAP(X)                               \
    X(COPY, copy, MEMORY)                                    \
    X(FILL, fill, MEMORY)                                    \
    X(CAST_SPANS, cast_spans, MEMORY)                        \
    X(SPLIT_SPANS, split_spans, MEMORY)                      \
    X(REDUCE_RANKS, reduce_ranks, COMMUNICATION)             \
    X(AMAX, amax, COMMUNICATION)                             \
    X(QUANTIZE, quantize, COMMUNICATION)                     \
    X(DEQUANTIZE, dequantize, COMMUNICATION)                 \
    X(DECODE_WEIGHT, decode_weight, ELEMENTWISE)             \
    X(BINARY, binary, ELEMENTWISE)                           \
    X(BINARY_BACKWARD, binary_backward, ELEMENTWISE)         \
    X(WHERE, where, ELEMENTWISE)                             \
    X(UNARY_FORWARD, unary_forward, ELEMENTWISE)             \
    X(UNARY_BACKWARD, unary_backward, ELEMENTWISE)           \
    X(SCALE, scale, ELEMENTWISE)                             \
    X(REDUCE, reduce, ELEMENTWISE)                           \
    X(ACTIVATION_FORWARD, activation_forward, ELEMENTWISE)   \
    X(ACTIVATION_BACKWARD, activation_backward, ELEMENTWISE) \
    X(SWIGLU_FORWARD, swiglu_forward, ELEMENTWISE)           \
    X(SWIGLU_BACKWARD, swiglu_backward, ELEMENTWISE)         \
    X(NORM_FORWARD, norm_forward, ELEMENTWISE)               \
    X(NORM_BACKWARD, norm_backward, ELEMENTWISE)             \
    X(ROPE, rope, ELEMENTWISE)                               \
    X(ATTENTION_FORWARD, attention_forward, ATTENTION)       \
    X(ATTENTION_BACKWARD, attention_backward, ATTENTION)     \
    X(SOFTMAX_FORWARD, softmax_forward, ELEMENTWISE)         \
    X(SOFTMAX_BACKWARD, softmax_backward, ELEMENTWISE)       \
    X(CROSS_ENTROPY, cross_entropy, ELEMENTWISE)             \
    X(EMBEDDING_FORWARD, embedding_forward, ELEMENTWISE)     \
    X(EMBEDDING_BACKWARD, embedding_backward, ELEMENTWISE)   \
    X(GATHER, gather, ELEMENTWISE)                           \
    X(SCATTER, scatter, ELEMENTWISE)                         \
    X(TOPK, topk, ELEMENTWISE)                               \
    X(DROPOUT, dropout, ELEMENTWISE)                         \
    X(RANDOM, random, ELEMENTWISE)                           \
    FSDP__KERNEL_OPTIM_MAP(X)

typedef enum fsdp__kernel {
#define FSDP__KERNEL_ENUM(NAME, name, class) FSDP__KERNEL_##NAME,
    FSDP__KERNEL_MAP(FSDP__KERNEL_ENUM)
#undef FSDP__KERNEL_ENUM
    FSDP__KERNELS
} fsdp__kernel;

typedef enum fsdp__kernel_class {
    FSDP__KERNEL_CLASS_GEMM,
    FSDP__KERNEL_CLASS_ATTENTION,
    FSDP__KERNEL_CLASS_ELEMENTWISE,
    FSDP__KERNEL_CLASS_MEMORY,
    FSDP__KERNEL_CLASS_OPTIMIZER,
    FSDP__KERNEL_CLASS_COMMUNICATION,
    FSDP__KERNEL_CLASSES
} fsdp__kernel_class;

/* Says what a product does with its result r, in the form of FSDP__GELU_TANH. */
typedef enum fsdp__product_gelu {
    FSDP__PRODUCT_PLAIN,         /* C = r */
    FSDP__PRODUCT_GELU,          /* C = gelu(r), and `before` gets r unless it is NULL */
    FSDP__PRODUCT_GELU_GRADIENT, /* C = r * gelu'(before) */
} fsdp__product_gelu;

/* C (m,n) = alpha * A (m,k) x B (k,n) [+ bias (n)] [+ C], `batch` times. A element (i,p) is at
 * a[i * a_row + p * a_col]; one of a_row, a_col is 1 (transposed when a_row is 1 and a_col is not). B likewise with
 * (p,j). C rows are c_row apart. Batch strides in elements, 0 repeats. Each operand has its own dtype; the sum is f32.
 * With `sums` the product also adds an operand up over k: each row of A, or each column of B, without alpha. That
 * operand is contiguous or its transpose is, batch is 1 and m, n, k are above 0. With `gelu` the result goes through
 * that: batch is 1, k above 0, and nothing is accumulated or added up; r is rounded before it, or not. */
typedef struct fsdp__matmul_args {
    const void *a, *b;
    void *c;
    const void *bias; /* NULL: none; added once per row */
    void *sums;       /* (m) or (n), of c_dtype, never added to; NULL: none */
    void *before;     /* (m,n), of c_dtype, with C's rows; NULL: none */
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t batch, a_batch, b_batch, c_batch; /* batch >= 1 */
    fsdp_dtype a_dtype, b_dtype, c_dtype, bias_dtype;
    fsdp__product_gelu gelu;
    float alpha;
    bool accumulate, sums_of_b;
} fsdp__matmul_args;

/* dst = src element by element, any strides, with conversion. In place when both are the same view and dtype. */
typedef struct fsdp__copy_args {
    const void *src;
    void *dst;
    fsdp_dtype src_dtype, dst_dtype;
    int ndim;
    int64_t shape[6], src_strides[6], dst_strides[6];
    bool accumulate; /* floating dtypes only */
} fsdp__copy_args;

typedef struct fsdp__fill_args {
    void *dst;
    fsdp_dtype dtype;
    int64_t numel;
    double value;
} fsdp__fill_args;

/* f32 in halves: [Note: split numbers] in formulas.h. */
typedef struct fsdp__split_span {
    float *whole;
    uint16_t *high, *low;
    int64_t numel;
} fsdp__split_span;

typedef struct fsdp__split_spans_args {
    const fsdp__split_span *spans; /* a table */
    int64_t count;
    bool join; /* makes whole numbers of the halves, in place of splitting them */
} fsdp__split_spans_args;

typedef enum fsdp__rank_op {
    FSDP__RANK_SUM,
    FSDP__RANK_MAX,
    FSDP__RANK_MIN
} fsdp__rank_op;

/* dst[i] = (srcs[0][i] op srcs[1][i] op ...) / divisor, in that order, with an f32 accumulator (integers: i64). In
 * place when dst is one of srcs. */
typedef struct fsdp__reduce_ranks_args {
    const void *const *srcs; /* in host memory */
    int count;
    void *dst;
    int64_t numel;
    fsdp_dtype src_dtype, dst_dtype;
    fsdp__rank_op op;
    float divisor;   /* for floating dtypes; the quotient is rounded once, to f32; 0 and 1: no division */
    bool accumulate; /* dst += result, one rounding */
    /* > 0: this many srcs at a time are reduced first, each result is rounded to block_dtype, and then these results
     * are reduced in order. NULLs in srcs are left out; not all may be NULL. 0: there is no NULL. For integers the
     * result is the same either way. */
    int block;
    fsdp_dtype block_dtype;
} fsdp__reduce_ranks_args;

/* Computes for every span: *dst, an f32, = the largest |src|; 0 for an empty span, NaN if any element is NaN. */
typedef struct fsdp__amax_args {
    const fsdp__span *spans; /* a table */
    int64_t count;
    fsdp_dtype dtype;
} fsdp__amax_args;

enum {
    FSDP__CODE_BLOCK = 128 /* number of elements with a common scale (INT8) */
};

/* Says how a value is coded in one byte. */
typedef enum fsdp__code {
    /* e4m3 of the product with the only scale: nearest even, at most 448; a NaN becomes 0x7f. The scale is 448 /
     * amax. */
    FSDP__CODE_FLOAT8,
    /* A signed integer of at most 127: nearest even of the product with 127 / amax of its block. The block's scale is
     * amax / 127, and 0 where all values are next to nothing. */
    FSDP__CODE_INT8
} fsdp__code;

/* `runs` runs of `run` values, which begin `stride` apart; their codes lie one after the other. */
typedef struct fsdp__coded_span {
    void *values;
    uint8_t *codes;
    float *scales; /* FLOAT8: one; INT8: one for every FSDP__CODE_BLOCK codes */
    /* quantize to FLOAT8: the largest magnitude that counts, read when the kernel runs; otherwise NULL */
    const float *amax;
    int64_t runs, run, stride;
    /* quantize to FLOAT8: codes of these values are there already, right if `scales` is; if so they are left alone */
    bool keep;
} fsdp__coded_span;

/* codes, scales = values. The values lie together: runs is 1. */
typedef struct fsdp__quantize_args {
    const fsdp__coded_span *spans; /* a table */
    int64_t count;
    fsdp_dtype dtype; /* of values */
    fsdp__code code;
} fsdp__quantize_args;

/* values = codes: f32 of the code, divided by the scale (FLOAT8) or times it (INT8). */
typedef struct fsdp__dequantize_args {
    const fsdp__coded_span *spans; /* a table */
    int64_t count;
    fsdp_dtype dtype; /* of values */
    fsdp__code code;
} fsdp__dequantize_args;

/* Says how a frozen weight is held in fewer bits: as rows of bytes, each of which has a scale, an f32, and then codes.
 * The scale is the largest magnitude of the row's values. */
typedef enum fsdp__weight_code {
    FSDP__WEIGHT_PLAIN, /* it is not */
    /* Two codes in each byte, the first in the high half. A value is scale * FSDP__NF4_LEVELS[code]. */
    FSDP__WEIGHT_NF4,
    /* A signed byte for each value, which is (code * scale) * FSDP__INT8_STEP. */
    FSDP__WEIGHT_INT8
} fsdp__weight_code;

#define FSDP__INT8_STEP 7.87401571869850159e-3f /* 1 / 127, as bitsandbytes has it */
/* Quantiles of the normal distribution (QLoRA's NormalFloat), as bitsandbytes has them. */
#define FSDP__NF4_LEVELS                                                                                            \
    {                                                                                                               \
        -1.0f, -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.18477343f, -0.0910500363f, 0.0f,      \
            0.0795802996f, 0.160930201f, 0.246112302f, 0.337915242f, 0.440709829f, 0.562617004f, 0.722956836f, 1.0f \
    }

/* values = codes. Each row has those of `row_numel` values, the last row of those that are left. */
typedef struct fsdp__decode_weight_args {
    const uint8_t *rows; /* `row_bytes` apart, on multiples of 4 bytes */
    void *values;
    int64_t numel, row_numel, row_bytes; /* NF4: row_numel is even */
    fsdp__weight_code code;
    fsdp_dtype dtype; /* of values */
} fsdp__decode_weight_args;

/* Computes LayerNorm (mean and weight, bias) or RMSNorm over the last dimension of x (rows,cols), with an optional
 * addition before it: s = x + residual, y = norm(s). Statistics are f32. */
typedef struct fsdp__norm_forward_args {
    const void *x, *residual;  /* residual NULL: s is x and `sum` is not written */
    void *sum;                 /* s (rows,cols); NULL when residual is NULL. In place when sum == x or residual */
    const void *weight, *bias; /* (cols); either may be NULL */
    void *y;
    float *mean, *rstd; /* (rows) saved for backward; mean NULL for RMSNorm; either may be NULL without a backward */
    int64_t rows, cols;
    float eps;
    bool rms; /* 1 / sqrt(mean(s^2) + eps), no mean subtracted */
    fsdp_dtype dtype, weight_dtype;
    bool plus_one; /* 1 + weight, in f32, counts as the weight, which is not NULL */
} fsdp__norm_forward_args;

/* dx = gradient of s [+ dsum, the gradient that reaches s directly]; dweight and dbias are [+]= column sums. */
typedef struct fsdp__norm_backward_args {
    const void *s, *dy, *dsum; /* dsum NULL: none */
    const void *weight;        /* NULL: ones */
    const float *mean, *rstd;
    void *dx;              /* in place when dx == dy or dsum. NULL: not needed */
    void *dweight, *dbias; /* NULL: not needed */
    int64_t rows, cols;
    bool rms, accumulate_weight, accumulate_bias;
    fsdp_dtype dtype, weight_dtype, dweight_dtype;
    bool plus_one; /* as in the forward */
} fsdp__norm_backward_args;

/* Applies rotary position embedding as in Hugging Face's Llama (rotate_half): element i < R/2 of a head rotates with i
 * + R/2 by the angle (position0 + t) * frequency[i]; elements from R on stay as they are. x, y (batch, time, heads, D),
 * D contiguous. In place when y == x with equal strides. `inverse` rotates back, for the backward. */
typedef struct fsdp__rope_args {
    const void *x;
    void *y;
    const float *frequency; /* (R/2), on the device */
    int64_t batch, time, heads, head_dim, position0;
    int64_t x_batch, x_time, x_head, y_batch, y_time, y_head; /* strides */
    fsdp_dtype dtype;
    bool inverse, accumulate;
    const int32_t *positions; /* (batch, time): each takes the place of position0 + t. NULL: none */
    int64_t rotated;          /* R, even; 0: D */
    float scale;              /* of what rotates; 0: 1 */
} fsdp__rope_args;

/* Computes softmax(scale * Q K^T [causal]) V, tiled: there is no (time, time) matrix. q, out (batch, q_time, heads, D);
 * k, v (batch, kv_time, kv_heads, D); heads is a multiple of kv_heads, query head h uses key head h / (heads /
 * kv_heads). Causal: query t sees keys up to t + kv_time - q_time + lead. `lse` (batch, heads, q_time): the logarithm
 * of the softmax's sum, for the backward, or NULL. With a softcap, softcap * tanh(x / softcap) takes the place of each
 * score x (which is scaled) before the softmax.
 *
 * A causal query may see less: with a window only the last `window` of those keys, its own included; with positions
 * only those of its document, which begins positions[t] keys before it. Nothing is computed for tiles that nobody
 * sees. Positions are 0 or one more than the one before; others give wrong numbers, but touch no other memory.
 *
 * With a lead the keys are only some of those that a causal query may see: the last of them lies so many places before
 * the last query's. A query that sees none gives zeros, and an lse of -inf. */
typedef struct fsdp__attention_forward_args {
    const void *q, *k, *v;
    void *out;
    float *lse;
    int64_t batch, q_time, kv_time, heads, kv_heads, head_dim;
    int64_t q_batch, q_stride_time, q_head;       /* strides of q */
    int64_t k_batch, k_stride_time, k_head;       /* of k */
    int64_t v_batch, v_stride_time, v_head;       /* of v */
    int64_t out_batch, out_stride_time, out_head; /* of out */
    float scale;
    bool causal;
    fsdp_dtype dtype;
    float softcap;            /* 0: none */
    int64_t window;           /* 0: none */
    const int32_t *positions; /* (batch, q_time), and kv_time is q_time; NULL: none */
    int64_t pairs;            /* with positions: how many pairs of query and key meet, in all; 0: not known */
    int64_t lead;             /* at least 0; with positions kv_time is q_time all the same */
} fsdp__attention_forward_args;

/* Describes the heads that cuDNN is asked for (fsdp_attention_kernels): of at most so many elements, a multiple of 16
 * bytes. */
#define FSDP__FAST_HEAD_DIM 128
#define FSDP__FAST_HEAD_MULTIPLE 8

typedef struct fsdp__attention_backward_args {
    fsdp__attention_forward_args forward; /* out and lse as the forward left them */
    const void *dout;                     /* with the strides of out */
    void *dq, *dk, *dv;                   /* with the strides of q, k, v, or with those below when dq_batch is not 0 */
    int64_t dq_batch, dq_stride_time, dq_head;
    int64_t dk_batch, dk_stride_time, dk_head;
    int64_t dv_batch, dv_stride_time, dv_head;
} fsdp__attention_backward_args;

/* Works over the last dimension: y = exp(x - max) / sum, or the logarithm of that. In place when y == x. */
typedef struct fsdp__softmax_forward_args {
    const void *x;
    void *y;
    int64_t rows, cols;
    bool log;
    fsdp_dtype dtype;
} fsdp__softmax_forward_args;

typedef struct fsdp__softmax_backward_args {
    const void *y, *dy;
    void *dx;
    int64_t rows, cols;
    bool log;
    fsdp_dtype dtype;
} fsdp__softmax_backward_args;

/* loss [+]= loss_scale * sum over rows of (log sum exp(logits) - logits[target]); rows whose target is ignore_index add
 * nothing. dlogits = loss_scale * (softmax - one hot), when not NULL; in place when dlogits == logits. A target outside
 * [0, cols) that is not ignore_index sets *bad_row to its row (the lowest such row), if bad_row is not NULL. With a
 * softcap, softcap * tanh(logits / softcap) takes the place of the logits; dlogits is that of the logits themselves.
 * Each row of both takes logits_row elements, of which those behind cols are not changed. */
typedef struct fsdp__cross_entropy_args {
    const void *logits;
    const int32_t *targets;
    void *dlogits;
    float *loss;
    int64_t *bad_row;
    int64_t rows, cols;
    int64_t logits_row; /* 0: cols */
    float loss_scale;
    int32_t ignore_index;
    fsdp_dtype dtype, dlogits_dtype;
    bool accumulate_loss;
    float softcap; /* 0: none */
    /* Of columns that are a part of whole rows, from column first_col of these on: the largest logit of each whole row,
     * (rows), with the softcap; otherwise NULL. Then loss and bad_row are left alone. Without dlogits the call writes
     * the sum of e^(logit - largest) over its columns, and the target's logit, 0 where that is not among them; of rows
     * whose target is ignore_index 1 and 0. With dlogits it reads the sums, which are then those of whole rows. */
    const float *largest;
    float *sums, *at_targets; /* (rows) */
    int64_t first_col;
} fsdp__cross_entropy_args;

/* y (rows,cols) = table[ids]. An id outside [0, table_rows) gives zeros and sets *bad_row (the lowest such row). */
typedef struct fsdp__embedding_forward_args {
    const void *table;
    const int32_t *ids;
    void *y;
    int64_t *bad_row;
    int64_t rows, cols, table_rows;
    fsdp_dtype dtype;
} fsdp__embedding_forward_args;

/* Computes dtable (table_rows,cols) [+]= dy, scattered, added in row order, by a GPU in chunks of rows. Without
 * accumulate all of dtable is written. */
typedef struct fsdp__embedding_backward_args {
    const int32_t *ids;
    const void *dy;
    void *dtable;
    int64_t rows, cols, table_rows;
    fsdp_dtype dtype, dtable_dtype;
    bool accumulate;
} fsdp__embedding_backward_args;

/* Describes an index into the middle dimension of a tensor (outer,size,inner): element (o,j,i) of another tensor,
 * (outer,count,inner), belongs to its element (o,index[o,j,i],i). Strides of the index may be 0. Indices lie in [0,
 * size). */
typedef struct fsdp__index_map {
    const int32_t *index;
    int64_t outer, size, inner, count;
    int64_t index_outer, index_along, index_inner;
} fsdp__index_map;

/* y (outer,count,inner) = x (outer,size,inner) at the index. Any dtype. */
typedef struct fsdp__gather_args {
    const void *x;
    void *y;
    fsdp__index_map map;
    fsdp_dtype dtype;
} fsdp__gather_args;

/* y (outer,size,inner) at the index = x (outer,count,inner); of several x for one place the last one is stored. With
 * `add`, y at the index = the sum of what is there and of all of x for that place, in order of the index (by a GPU in
 * chunks), in f32, rounded once (floating dtypes). Without `keep` y is set to 0 first. */
typedef struct fsdp__scatter_args {
    const void *x;
    void *y;
    fsdp__index_map map;
    fsdp_dtype dtype;
    bool add, keep;
} fsdp__scatter_args;

/* indices (rows,k) = those of the k largest, or smallest, of each row of x (rows,cols), in order; of equal values the
 * first comes first, -0 is 0, and NaN is larger than all. k is at most cols. */
typedef struct fsdp__topk_args {
    const void *x;
    int32_t *indices;
    int64_t rows, cols, k;
    bool largest;
    fsdp_dtype dtype;
} fsdp__topk_args;

/* y = x / (1 - p) where uniform(key, offset + i) >= p, otherwise 0. The backward is the same call on dy. In place. */
typedef struct fsdp__dropout_args {
    const void *x;
    void *y;
    int64_t numel;
    uint64_t key, offset;
    float p;
    fsdp_dtype dtype;
} fsdp__dropout_args;

typedef enum fsdp__distribution {
    FSDP__NORMAL,
    FSDP__UNIFORM
} fsdp__distribution;

/* dst[i] = a + b * draw(key, offset + i): normal has mean a, deviation b; uniform lies in [a, a + b). See
 * base/rng.h. */
typedef struct fsdp__random_args {
    void *dst;
    int64_t numel;
    uint64_t key, offset;
    float a, b;
    fsdp__distribution distribution;
    fsdp_dtype dtype;
} fsdp__random_args;
