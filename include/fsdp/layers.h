/* fsdp/layers.h - layers of torch.nn for images, norms over channels, attention: with its state names, shapes, defaults
 * and distributions of first values.
 *
 * Each function returns a module the caller owns, or NULL. Parameters are f32. NULL options: all zeros, which stands
 * for PyTorch's defaults; index 0 of a pair is of the height, 1 of the width.
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
/* weight (out,in/groups,height,width), bias (out): uniform(-b, b), b = 1/sqrt(in/groups height width). */
FSDP_API fsdp_module *fsdp_conv2d_create(fsdp_context *context, fsdp_device *device, int64_t in_channels,
                                         int64_t out_channels, int64_t kernel_height, int64_t kernel_width,
                                         const fsdp_conv2d_layer_options *options);
/* The kernel is required; options are those of fsdp_max_pool2d and fsdp_avg_pool2d. */
FSDP_API fsdp_module *fsdp_max_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options);
FSDP_API fsdp_module *fsdp_avg_pool2d_create(fsdp_context *context, const fsdp_pool2d_options *options);
/* 0: the input's. */
FSDP_API fsdp_module *fsdp_adaptive_avg_pool2d_create(fsdp_context *context, int64_t height, int64_t width);
/* Dimensions [start, end] become one; PyTorch's default is 1, -1. */
FSDP_API fsdp_module *fsdp_flatten_create(fsdp_context *context, int start, int end);

/* ---- norms over channels ---- */
typedef struct fsdp_batch_norm_layer_options {
    float eps;               /* 0: 1e-5 */
    double momentum;         /* 0: 0.1 */
    bool cumulative_average; /* momentum None: running statistics are of all batches alike */
    bool no_affine;          /* no weight and bias */
    bool no_running_stats;   /* evaluation, too, takes the statistics of its batch */
} fsdp_batch_norm_layer_options;
/* (N,C) or (N,C,L); and (N,C,H,W). weight: ones, bias: zeros. Buffers running_mean (zeros), running_var (ones) and
 * num_batches_tracked (int64) are written by a forward in training, with gradients or without, once of a checkpoint's
 * two (fsdp_batch_norm). They are each rank's own, of its own batches, where the module is sharded (FSDP2, FSDP1); DDP
 * (fsdp/replicate.h) gives all ranks those of rank 0 before each forward. */
FSDP_API fsdp_module *fsdp_batch_norm1d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                               const fsdp_batch_norm_layer_options *options);
FSDP_API fsdp_module *fsdp_batch_norm2d_create(fsdp_context *context, fsdp_device *device, int64_t channels,
                                               const fsdp_batch_norm_layer_options *options);
/* (N,C,...). eps 0: 1e-5. */
FSDP_API fsdp_module *fsdp_group_norm_create(fsdp_context *context, fsdp_device *device, int64_t groups,
                                             int64_t channels, float eps, bool no_affine);

/* ---- attention: (N,L,E) with batch_first, else (L,N,E), as in torch.nn ---- */
typedef struct fsdp_multihead_attention_options {
    bool batch_first, no_bias;
    float dropout; /* of attention weights, in training */
    uint64_t seed; /* of the dropout */
} fsdp_multihead_attention_options;
/* in_proj_weight (3E,E): uniform, Xavier's; in_proj_bias (3E) and out_proj.bias: zeros; out_proj.weight (E,E). Keys and
 * values have E features as well (no kdim, vdim), and no rows of its own are added to them (no add_bias_kv,
 * add_zero_attn). It gives the output alone, not the attention weights. */
FSDP_API fsdp_module *fsdp_multihead_attention_create(fsdp_context *context, fsdp_device *device, int64_t embed_dim,
                                                      int64_t heads, const fsdp_multihead_attention_options *options);
typedef struct fsdp_attention_masks {
    /* Of FSDP_BOOL: true may not be seen. Of floating numbers: added to the scores. NULL: none. They have no gradient.
     */
    fsdp_tensor *key_padding; /* (N,S) */
    fsdp_tensor *attention;   /* (L,S) or (N heads,L,S) */
    bool causal;              /* of L = S; with no other mask */
} fsdp_attention_masks;
/* Of queries (L), keys and values (S). NULL masks: none. fsdp_call(module, x) is self-attention, fsdp_call(module,
 * query, key, value) this without masks. Without masks and dropout no (L,S) matrix exists. A query that may see no key
 * sees all alike (in PyTorch it is not a number). */
FSDP_API fsdp_tensor *fsdp_multihead_attention(fsdp_module *module, fsdp_tensor *query, fsdp_tensor *key,
                                               fsdp_tensor *value, const fsdp_attention_masks *masks);

typedef struct fsdp_transformer_encoder_layer_options {
    int64_t dim_feedforward; /* 0: 2048 */
    float dropout;           /* 0: none, where PyTorch's default is 0.1 */
    uint64_t seed;           /* of dropouts */
    bool gelu;               /* else relu */
    float layer_norm_eps;    /* 0: 1e-5 */
    bool batch_first, norm_first;
} fsdp_transformer_encoder_layer_options;
/* self_attn, linear1, linear2, norm1, norm2. */
FSDP_API fsdp_module *fsdp_transformer_encoder_layer_create(fsdp_context *context, fsdp_device *device, int64_t d_model,
                                                            int64_t heads,
                                                            const fsdp_transformer_encoder_layer_options *options);
/* `count` such layers, named layers.0, layers.1, ..., each with first values of its own; `final_norm`: a LayerNorm,
 * named norm, behind the last. */
FSDP_API fsdp_module *fsdp_transformer_encoder_create(fsdp_context *context, fsdp_device *device, int64_t d_model,
                                                      int64_t heads, int64_t count, bool final_norm,
                                                      const fsdp_transformer_encoder_layer_options *options);
/* Of either. NULL masks: none, as fsdp_call(module, x). */
FSDP_API fsdp_tensor *fsdp_transformer_encoder(fsdp_module *module, fsdp_tensor *x, const fsdp_attention_masks *masks);

#ifdef __cplusplus
}
#endif
#endif
