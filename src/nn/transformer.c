/* transformer.c - TransformerEncoderLayer, TransformerEncoder. */
#include "nn/layers.h"
#include "nn/multihead_attention.h"

typedef struct encoder_layer {
    fsdp_module base;
    fsdp_module *self_attn, *linear1, *dropout, *linear2, *norm1, *norm2, *dropout1, *dropout2;
    bool gelu, norm_first;
} encoder_layer;

static fsdp_tensor *attend(const encoder_layer *m, fsdp_tensor *x, const fsdp_attention_masks *masks)
{
    return fsdp_call(m->dropout1, fsdp_multihead_attention(m->self_attn, x, x, x, masks));
}

static fsdp_tensor *feed_forward(const encoder_layer *m, fsdp_tensor *x)
{
    fsdp_tensor *up = fsdp_call(m->linear1, x), *active = m->gelu ? fsdp_gelu(up) : fsdp_relu(up);

    return fsdp_call(m->dropout2, fsdp_call(m->linear2, fsdp_call(m->dropout, active)));
}

static fsdp_status layer_forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    const encoder_layer *m = (const encoder_layer *)self;
    fsdp_tensor *x = inputs[0];
    fsdp_attention_masks masks;

    (void)output_count;
    (void)fsdp__masks_take(arg, inputs, count, &masks);
    if (m->norm_first) {
        x = fsdp_add(x, attend(m, fsdp_call(m->norm1, x), &masks));
        x = fsdp_add(x, feed_forward(m, fsdp_call(m->norm2, x)));
    } else {
        x = fsdp_call(m->norm1, fsdp_add(x, attend(m, x, &masks)));
        x = fsdp_call(m->norm2, fsdp_add(x, feed_forward(m, x)));
    }
    outputs[0] = x;
    return x ? FSDP_OK : fsdp_last_status();
}

static const fsdp_module_type layer_type = {.name = "TransformerEncoderLayer", .forward_many = layer_forward};

fsdp_tensor *fsdp_transformer_encoder(fsdp_module *module, fsdp_tensor *x, const fsdp_attention_masks *masks)
{
    fsdp_tensor *inputs[1 + FSDP__MOST_MASKS] = {x}, *out = NULL;
    int count;
    void *arg = fsdp__masks_put(masks, inputs + 1, &count);

    return fsdp_module_call_many(module, arg, inputs, 1 + count, &out, 1) == FSDP_OK ? out : NULL;
}

static fsdp_status layer_build(encoder_layer *m, fsdp_device *device, int64_t d, int64_t heads,
                               const fsdp_transformer_encoder_layer_options *o)
{
    fsdp_context *context = m->base.context;
    int64_t wide = o->dim_feedforward ? o->dim_feedforward : 2048;
    float eps = o->layer_norm_eps != 0.0f ? o->layer_norm_eps : 1e-5f;
    const fsdp_multihead_attention_options attention = {
        .batch_first = o->batch_first, .dropout = o->dropout, .seed = o->seed};

    m->self_attn = fsdp_multihead_attention_create(context, device, d, heads, &attention);
    FSDP_TRY(fsdp_module_add_child(&m->base, "self_attn", m->self_attn));
    m->linear1 = fsdp_linear_create(context, device, d, wide, NULL);
    FSDP_TRY(fsdp_module_add_child(&m->base, "linear1", m->linear1));
    m->dropout = fsdp_dropout_create(context, o->dropout, o->seed + 1);
    FSDP_TRY(fsdp_module_add_child(&m->base, "dropout", m->dropout));
    m->linear2 = fsdp_linear_create(context, device, wide, d, NULL);
    FSDP_TRY(fsdp_module_add_child(&m->base, "linear2", m->linear2));
    m->norm1 = fsdp_layernorm_create(context, device, d, eps);
    FSDP_TRY(fsdp_module_add_child(&m->base, "norm1", m->norm1));
    m->norm2 = fsdp_layernorm_create(context, device, d, eps);
    FSDP_TRY(fsdp_module_add_child(&m->base, "norm2", m->norm2));
    m->dropout1 = fsdp_dropout_create(context, o->dropout, o->seed + 2);
    FSDP_TRY(fsdp_module_add_child(&m->base, "dropout1", m->dropout1));
    m->dropout2 = fsdp_dropout_create(context, o->dropout, o->seed + 3);
    return fsdp_module_add_child(&m->base, "dropout2", m->dropout2);
}

fsdp_module *fsdp_transformer_encoder_layer_create(fsdp_context *context, fsdp_device *device, int64_t d_model,
                                                   int64_t heads, const fsdp_transformer_encoder_layer_options *options)
{
    const fsdp_transformer_encoder_layer_options o = options ? *options : (fsdp_transformer_encoder_layer_options){0};
    encoder_layer *m = NULL;

    if (fsdp_module_create(context, &layer_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->gelu = o.gelu;
    m->norm_first = o.norm_first;
    return fsdp__module_built(&m->base, layer_build(m, device, d_model, heads, &o));
}

/* ---- the encoder ---- */

typedef struct encoder {
    fsdp_module base;
    fsdp_module *layers, *norm; /* the norm is NULL if there is none */
} encoder;

enum {
    SEEDS = 4 /* number of seeds of one layer */
};

static fsdp_status encoder_forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                   fsdp_tensor **outputs, int output_count)
{
    const encoder *m = (const encoder *)self;
    fsdp_tensor *x = inputs[0];
    fsdp_attention_masks masks;

    (void)output_count;
    (void)fsdp__masks_take(arg, inputs, count, &masks);
    for (int64_t i = 0; x && i < fsdp_module_child_count(m->layers); i++)
        x = fsdp_transformer_encoder(fsdp_module_child_at(m->layers, i, NULL), x, &masks);
    outputs[0] = m->norm ? fsdp_call(m->norm, x) : x;
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}

static const fsdp_module_type encoder_type = {.name = "TransformerEncoder", .forward_many = encoder_forward};

static fsdp_status encoder_build(encoder *m, fsdp_device *device, int64_t d_model, int64_t heads, int64_t count,
                                 bool final_norm, fsdp_transformer_encoder_layer_options o)
{
    fsdp_context *context = m->base.context;

    m->layers = fsdp_module_list_create(context);
    FSDP_TRY(fsdp_module_add_child(&m->base, "layers", m->layers));
    for (int64_t i = 0; i < count; i++, o.seed += SEEDS)
        FSDP_TRY(fsdp_module_list_append(m->layers,
                                         fsdp_transformer_encoder_layer_create(context, device, d_model, heads, &o)));
    if (!final_norm)
        return FSDP_OK;
    m->norm = fsdp_layernorm_create(context, device, d_model, o.layer_norm_eps != 0.0f ? o.layer_norm_eps : 1e-5f);
    return fsdp_module_add_child(&m->base, "norm", m->norm);
}

fsdp_module *fsdp_transformer_encoder_create(fsdp_context *context, fsdp_device *device, int64_t d_model, int64_t heads,
                                             int64_t count, bool final_norm,
                                             const fsdp_transformer_encoder_layer_options *options)
{
    encoder *m = NULL;

    if (fsdp_module_create(context, &encoder_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    return fsdp__module_built(&m->base,
                              encoder_build(m, device, d_model, heads, count, final_norm,
                                            options ? *options : (fsdp_transformer_encoder_layer_options){0}));
}
