/* fsdp/layers.h - layers of torch.nn for images, norms over channels, and attention, with PyTorch's state names,
 * shapes, defaults and initial distributions.
 *
 * Each function returns a module that the caller owns, or NULL. Parameters are f32. NULL options mean all zeros, which
 * stand for PyTorch's defaults. Index 0 of a pair is the height, 1 the width.
 */
#ifndef FSDP_LAYERS_H
#define FSDP_LAYERS_H

#include "fsdp/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

FSDP_API fsdp_module *fsdp_sigmoid_create(fsdp_context *context);
FSDP_API fsdp_module *fsdp_tanh_create(fsdp_context *context);

/* ---- images: (N,C,H,W) ---- */
typedef struct fsdp_conv2d_layer_options {
    fsdp_conv2d_options conv; /* stride, padding, dilation, groups */
    bool no_bias;
} fsdp_conv2d_layer_options;
/* Has weight (out,in/groups,height,width) and bias (out): uniform(-b, b), b = 1/sqrt(in/groups height width). */
FSDP_API fsdp_module *fsdp_conv2d_create(fsdp_context *context, fsdp_device *device, int64_t in_channels,
                                         int64_t out_channels, int64_t kernel_height, int64_t kernel_width,
                                         const fsdp_conv2d_layer_options *options);
/* Take the options of fsdp_max_pool2d and fsdp_avg_pool2d; the kernel is required. */
FSDP_API fsdp_module *fsdp_max_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options);
FSDP_API fsdp_module *fsdp_avg_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options);
/* Takes the output size; 0: the input's. */
FSDP_API fsdp_module *fsdp_adaptive_avg_pool2d_create(fsdp_context *context, int64_t height, int64_t width);
/* Merges dimensions [start, end] into one; PyTorch's default is 1, -1. */
FSDP_API fsdp_module *fsdp_flatten_create(fsdp_context *context, int start, int end);

/* ---- norms over channels ---- */
typedef struct fsdp_batch_norm_layer_options {
    float eps;               /* 0: 1e-5 */
    double momentum;         /* 0: 0.1 */
    bool cumulative_average; /* momentum None: running statistics weight all batches equally */
    bool no_affine;          /* no weight and bias */
    bool no_running_stats;   /* evaluation, too, uses the statistics of its batch */
} fsdp_batch_norm_layer_options;
/* Take (N,C) or (N,C,L) (1d), and (N,C,H,W) (2d). The weight is ones, the bias zeros. A forward in training, with or
 * without gradients, writes the buffers running_mean (initially zeros), running_var (ones) and num_batches_tracked
 * (int64); of the two runs of a recomputed forward only the first does (fsdp_batch_norm). If the module is sharded
 * (FSDP2, FSDP1), each rank has its own buffers, from its own batches; DDP (fsdp/replicate.h) gives all ranks those of
 * rank 0 before each forward. */
FSDP_API fsdp_module *fsdp_batch_norm1d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                               const fsdp_batch_norm_layer_options *options);
FSDP_API fsdp_module *fsdp_batch_norm2d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                               const fsdp_batch_norm_layer_options *options);
/* Takes (N,C,...). eps 0: 1e-5. */
FSDP_API fsdp_module *fsdp_group_norm_create(fsdp_context *context, fsdp_device *device, int64_t groups,
                                             int64_t channels, float eps, bool no_affine);

/* ---- attention: (N,L,E) with batch_first, otherwise (L,N,E), as in torch.nn ---- */
typedef struct fsdp_multihead_attention_options {
    bool batch_first, no_bias;
    float dropout; /* of attention weights, in training */
    uint64_t seed; /* of the dropout */
} fsdp_multihead_attention_options;
/* Has in_proj_weight (3E,E), Xavier uniform; in_proj_bias (3E) and out_proj.bias, zeros; and out_proj.weight (E,E).
 * Keys and values also have E features (no kdim, vdim), and no extra rows are added to them (no add_bias_kv,
 * add_zero_attn). It returns only the output, not the attention weights. */
FSDP_API fsdp_module *fsdp_multihead_attention_create(fsdp_context *context, fsdp_device *device, int64_t embed_dim,
                                                      int64_t heads, const fsdp_multihead_attention_options *options);
typedef struct fsdp_attention_masks {
    /* FSDP_BOOL masks: true positions are hidden. Floating masks are added to the scores. NULL: none. Masks have no
     * gradient. */
    fsdp_tensor *key_padding; /* (N,S) */
    fsdp_tensor *attention;   /* (L,S) or (N heads,L,S) */
    bool causal;              /* requires L = S and no other mask */
} fsdp_attention_masks;
/* Computes attention of queries (L) over keys and values (S). NULL masks: none. fsdp_call(module, x) is self-attention
 * without masks, fsdp_call(module, query, key, value) this without masks. Without masks and dropout no (L,S) matrix is
 * made. A query that may see no key sees all equally (in PyTorch its result is NaN). */
FSDP_API fsdp_tensor *fsdp_multihead_attention(fsdp_module *module, fsdp_tensor *query, fsdp_tensor *key,
                                               fsdp_tensor *value, const fsdp_attention_masks *masks);

typedef struct fsdp_transformer_encoder_layer_options {
    int64_t dim_feedforward; /* 0: 2048 */
    float dropout;           /* 0: none (PyTorch's default is 0.1) */
    uint64_t seed;           /* of all its dropouts */
    bool gelu;               /* otherwise relu */
    float layer_norm_eps;    /* 0: 1e-5 */
    bool batch_first, norm_first;
} fsdp_transformer_encoder_layer_options;
/* Has self_attn, linear1, linear2, norm1, norm2. */
FSDP_API fsdp_module *fsdp_transformer_encoder_layer_create(fsdp_context *context, fsdp_device *device, int64_t d_model,
                                                            int64_t heads,
                                                            const fsdp_transformer_encoder_layer_options *options);
/* Makes `count` such layers, named layers.0, layers.1, ..., each with its own initial values. `final_norm` adds a
 * LayerNorm, named norm, after the last. */
FSDP_API fsdp_module *fsdp_transformer_encoder_create(fsdp_context *context, fsdp_device *device, int64_t d_model,
                                                      int64_t heads, int64_t count, bool final_norm,
                                                      const fsdp_transformer_encoder_layer_options *options);
/* Calls an encoder layer or an encoder. NULL masks: none, as in fsdp_call(module, x). */
FSDP_API fsdp_tensor *fsdp_transformer_encoder(fsdp_module *module, fsdp_tensor *x, const fsdp_attention_masks *masks);

#ifdef __cplusplus
}
#endif
#endif
