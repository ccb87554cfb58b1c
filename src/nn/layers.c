/* layers.c - the standard layers. */
#include "nn/layers.h"

#include <math.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/text.h"
#include "device/device.h"
#include "fsdp/layers.h"

fsdp_module *fsdp__module_built(fsdp_module *module, fsdp_status status)
{
    if (status == FSDP_OK)
        return module;
    fsdp_module_unref(module);
    return NULL;
}

/* A layer whose sizes are those of the unsharded weight, since the field may hold a shard. */
typedef struct sized_layer {
    fsdp_layer layer;
    int64_t in, out;
    bool has_bias;
    fsdp__layer_code code; /* of a Linear, Conv1D */
} sized_layer;

/* Returns the layer's code. A layer of another maker may have the type of one of these, and only the fields of
 * fsdp_layer: its weight is plain. */
const fsdp__layer_code *fsdp__layer_code_of(const fsdp_module *layer)
{
    static const fsdp__layer_code plain = {.weight.code = FSDP__WEIGHT_PLAIN};
    const fsdp_tensor *weight = ((const fsdp_layer *)layer)->weight;

    return weight && weight->dtype == FSDP_U8 ? &((const sized_layer *)layer)->code : &plain;
}

/* ---- Linear ---- */

static fsdp_tensor *bias_of(const fsdp_layer *layer)
{
    return layer->bias ? layer->bias : FSDP_NO_BIAS;
}

/* Returns the product with a weight that may be in fewer bits. */
static fsdp_tensor *linear_product(const fsdp_module *self, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    const fsdp__coded_weight *coded = &fsdp__layer_code_of(self)->weight;

    return coded->code ? fsdp__coded_linear(x, coded, weight, bias, false) : fsdp_linear(x, weight, bias);
}

static fsdp_tensor *linear_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const fsdp_layer *layer = (const fsdp_layer *)self;

    (void)count;
    return linear_product(self, inputs[0], layer->weight, bias_of(layer));
}

static void linear_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const sized_layer *m = (const sized_layer *)self;

    snprintf(text, bytes, "in_features=%lld, out_features=%lld, bias=%s", (long long)m->in, (long long)m->out,
             m->has_bias ? "True" : "False");
}

static const fsdp_module_type linear_type = {.name = "Linear", .forward = linear_forward, .describe = linear_describe};

static fsdp_status linear_build(sized_layer *m, fsdp_device *device, const fsdp_linear_options *options)
{
    float bound = m->in > 0 ? 1.0f / sqrtf((float)m->in) : 0.0f;
    const fsdp_init uniform = {FSDP_INIT_UNIFORM, -bound, bound};
    const fsdp_init *weight = options && options->weight_init ? options->weight_init : &uniform;
    const fsdp_init *bias = options && options->bias_init ? options->bias_init : &uniform;

    FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32,
                                       FSDP_SHAPE(m->out, m->in), *weight));
    if (m->has_bias)
        FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "bias", &m->layer.bias, device, FSDP_F32, FSDP_SHAPE(m->out),
                                           *bias));
    return FSDP_OK;
}

fsdp_module *fsdp_linear_create(fsdp_context *context, fsdp_device *device, int64_t in_features, int64_t out_features,
                                const fsdp_linear_options *options)
{
    sized_layer *m = NULL;

    if (fsdp_module_create(context, &linear_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->in = in_features;
    m->out = out_features;
    m->has_bias = !(options && options->no_bias);
    return fsdp__module_built(&m->layer.base, linear_build(m, device, options));
}

/* Returns whether the module has neither hooks nor recomputation: then its parent may compute its result itself. */
static bool is_bare(const fsdp_module *module)
{
    return module->parts->hook_count == 0 && !module->parts->recompute;
}

/* Returns whether such a module is a product whose weight is not coded. */
static bool is_bare_product(const fsdp_module *module)
{
    return fsdp__layer_is_product(module) && is_bare(module) && !fsdp__layer_code_of(module)->weight.code;
}

bool fsdp__linears_joined(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs)
{
    fsdp_tensor *weights[FSDP__LINEARS_MOST], *biases[FSDP__LINEARS_MOST];

    if (!x || count > FSDP__LINEARS_MOST || !fsdp__device_joins_products(x->storage->device))
        return false;
    for (int i = 0; i < count; i++) {
        const fsdp_layer *layer = (const fsdp_layer *)modules[i];

        if (layer->base.type != &linear_type || !is_bare_product(&layer->base))
            return false;
        weights[i] = layer->weight;
        biases[i] = bias_of(layer);
    }
    if (!fsdp__linear_group_joins(x, count, weights, biases))
        return false;
    (void)fsdp_linear_group(x, count, weights, biases, outputs);
    return true;
}

bool fsdp__linears_together(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs)
{
    if (!x || count > FSDP__LINEARS_MOST)
        return false;
    for (int i = 0; i < count; i++) {
        const struct fsdp__module_parts *parts = modules[i]->parts;

        if (modules[i]->type != &linear_type || parts->hook_count != 1 || parts->recompute || !parts->hooks->together ||
            parts->hooks->together != modules[0]->parts->hooks->together)
            return false;
    }
    if (modules[0]->parts->hooks->together(modules, count, x, outputs) != FSDP_OK)
        memset(outputs, 0, (size_t)count * sizeof *outputs);
    return true;
}

/* ---- Conv1D ---- */

static fsdp_tensor *conv1d_product(const fsdp_module *self, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    const fsdp__coded_weight *coded = &fsdp__layer_code_of(self)->weight;

    return coded->code ? fsdp__coded_linear(x, coded, weight, bias, true) : fsdp_conv1d(x, weight, bias);
}

static fsdp_tensor *conv1d_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const fsdp_layer *layer = (const fsdp_layer *)self;

    (void)count;
    return conv1d_product(self, inputs[0], layer->weight, bias_of(layer));
}

static void conv1d_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const sized_layer *m = (const sized_layer *)self;

    snprintf(text, bytes, "nf=%lld, nx=%lld", (long long)m->out, (long long)m->in);
}

static const fsdp_module_type conv1d_type = {.name = "Conv1D", .forward = conv1d_forward, .describe = conv1d_describe};

static fsdp_status conv1d_build(sized_layer *m, fsdp_device *device, const fsdp_init *weight_init)
{
    const fsdp_init normal = {FSDP_INIT_NORMAL, 0.0f, 0.02f}, zeros = {FSDP_INIT_ZEROS, 0.0f, 0.0f};

    FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32,
                                       FSDP_SHAPE(m->in, m->out), weight_init ? *weight_init : normal));
    return fsdp_module_add_parameter(&m->layer.base, "bias", &m->layer.bias, device, FSDP_F32, FSDP_SHAPE(m->out),
                                     zeros);
}

fsdp_module *fsdp_conv1d_create(fsdp_context *context, fsdp_device *device, int64_t in_features, int64_t out_features,
                                const fsdp_init *weight_init)
{
    sized_layer *m = NULL;

    if (fsdp_module_create(context, &conv1d_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->in = in_features;
    m->out = out_features;
    return fsdp__module_built(&m->layer.base, conv1d_build(m, device, weight_init));
}

/* ---- a weight in fewer bits ---- */

fsdp_tensor *fsdp__layer_weight_field(const fsdp_module *layer)
{
    return ((const fsdp_layer *)layer)->weight;
}

fsdp_status fsdp__layer_code_weight(fsdp_module *layer, fsdp__weight_code code)
{
    sized_layer *m = (sized_layer *)layer;
    fsdp__parameter_slot *slot = &layer->parts->parameters[0];
    fsdp_tensor *weight = m->layer.weight, *bytes = NULL;
    fsdp__layer_code made = {
        .weight = {code, weight->shape[0], weight->shape[1]}, .init = slot->init, .dtype = weight->dtype};

    if (layer->parts->bytes < sizeof *m)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "the weight of a %s that fsdp_linear_create or fsdp_conv1d_create has not made cannot be held "
                         "in fewer bits",
                         layer->type->name);
    FSDP_TRY(fsdp_tensor_create(weight->storage->device, FSDP_U8,
                                FSDP_SHAPE(fsdp__coded_rows(&made.weight), fsdp__coded_row_bytes(&made.weight)),
                                FSDP_MEMORY_PARAMETER_SHARD, &bytes));
    slot->init = (fsdp_init){.kind = FSDP_INIT_ZEROS};
    slot->coded = true;
    fsdp_tensor_unref(weight);
    m->layer.weight = bytes;
    m->code = made;
    return FSDP_OK;
}

fsdp_tensor *fsdp__layer_weight(const fsdp_module *layer, fsdp_dtype dtype)
{
    const fsdp__coded_weight *coded = &fsdp__layer_code_of(layer)->weight;
    fsdp_tensor *weight = fsdp__layer_weight_field(layer), *decoded = NULL;

    if (!coded->code)
        return fsdp_cast(weight, dtype);
    if (fsdp__decode_weight(coded, weight, dtype, &decoded) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(decoded);
}

fsdp_tensor *fsdp__layer_product(const fsdp_module *layer, fsdp_tensor *x)
{
    fsdp_tensor *weight = ((const fsdp_layer *)layer)->weight;

    if (!fsdp__layer_code_of(layer)->weight.code)
        weight = fsdp_cast(weight, fsdp_tensor_dtype(x));
    return layer->type == &conv1d_type ? conv1d_product(layer, x, weight, FSDP_NO_BIAS)
                                       : linear_product(layer, x, weight, FSDP_NO_BIAS);
}

/* ---- what is beside a layer ---- */

fsdp__layer_beside *fsdp__layer_beside_of(const fsdp_module *layer)
{
    for (int64_t i = 0; i < layer->parts->hook_count; i++)
        if (layer->parts->hooks[i].beside)
            return layer->parts->hooks[i].beside;
    return NULL;
}

fsdp_tensor *fsdp__layer_add_beside(const fsdp_module *layer, fsdp_tensor *x, fsdp_tensor *y)
{
    fsdp__layer_beside *beside = fsdp__layer_beside_of(layer);

    return beside ? beside->add(beside, x, y) : y;
}

/* ---- Embedding ---- */

static fsdp_tensor *embedding_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_embedding(((const fsdp_layer *)self)->weight, inputs[0]);
}

static void embedding_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const sized_layer *m = (const sized_layer *)self;

    snprintf(text, bytes, "%lld, %lld", (long long)m->in, (long long)m->out);
}

static const fsdp_module_type embedding_type = {
    .name = "Embedding", .forward = embedding_forward, .describe = embedding_describe};

fsdp_module *fsdp_embedding_create(fsdp_context *context, fsdp_device *device, int64_t count, int64_t dim,
                                   const fsdp_init *init)
{
    const fsdp_init normal = {FSDP_INIT_NORMAL, 0.0f, 1.0f};
    sized_layer *m = NULL;

    if (fsdp_module_create(context, &embedding_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->in = count;
    m->out = dim;
    return fsdp__module_built(&m->layer.base,
                              fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32,
                                                        FSDP_SHAPE(count, dim), init ? *init : normal));
}

/* ---- LayerNorm, RMSNorm ---- */

static fsdp_tensor *layernorm_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const fsdp_layer *layer = (const fsdp_layer *)self;

    (void)count;
    return fsdp_layernorm(inputs[0], layer->weight, bias_of(layer), layer->eps);
}

static fsdp_tensor *rmsnorm_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const fsdp_layer *layer = (const fsdp_layer *)self;

    (void)count;
    return fsdp_rmsnorm(inputs[0], layer->weight, layer->eps);
}

static fsdp_tensor *rmsnorm_plus_one_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const fsdp_layer *layer = (const fsdp_layer *)self;

    (void)count;
    return fsdp_rmsnorm_plus_one(inputs[0], layer->weight, layer->eps);
}

static void norm_describe(const fsdp_module *self, char *text, size_t bytes)
{
    const sized_layer *m = (const sized_layer *)self;
    char eps[32];

    snprintf(text, bytes, "(%lld,), eps=%s, elementwise_affine=True%s", (long long)m->out,
             fsdp__float_text(m->layer.eps, eps), m->has_bias ? ", bias=True" : "");
}

static const fsdp_module_type layernorm_type = {
    .name = "LayerNorm", .forward = layernorm_forward, .describe = norm_describe};
static const fsdp_module_type rmsnorm_type = {.name = "RMSNorm", .forward = rmsnorm_forward, .describe = norm_describe};

static const fsdp_module_type rmsnorm_plus_one_type = {
    .name = "RMSNorm", .forward = rmsnorm_plus_one_forward, .describe = norm_describe};

static fsdp_status norm_build(sized_layer *m, fsdp_device *device)
{
    const fsdp_init ones = {FSDP_INIT_ONES, 0.0f, 0.0f}, zeros = {FSDP_INIT_ZEROS, 0.0f, 0.0f};
    bool plus_one = m->layer.base.type == &rmsnorm_plus_one_type;

    FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "weight", &m->layer.weight, device, FSDP_F32, FSDP_SHAPE(m->out),
                                       plus_one ? zeros : ones));
    if (m->has_bias)
        FSDP_TRY(fsdp_module_add_parameter(&m->layer.base, "bias", &m->layer.bias, device, FSDP_F32, FSDP_SHAPE(m->out),
                                           zeros));
    return FSDP_OK;
}

static fsdp_module *norm_create(fsdp_context *context, const fsdp_module_type *type, fsdp_device *device, int64_t dim,
                                float eps, bool bias)
{
    sized_layer *m = NULL;

    if (fsdp_module_create(context, type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->out = dim;
    m->has_bias = bias;
    m->layer.eps = eps;
    return fsdp__module_built(&m->layer.base, norm_build(m, device));
}

fsdp_module *fsdp_layernorm_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps)
{
    return norm_create(context, &layernorm_type, device, dim, eps, true);
}

fsdp_module *fsdp_rmsnorm_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps)
{
    return norm_create(context, &rmsnorm_type, device, dim, eps, false);
}

fsdp_module *fsdp__rmsnorm_plus_one_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps)
{
    return norm_create(context, &rmsnorm_plus_one_type, device, dim, eps, false);
}

/* ---- without parameters ---- */

/* Describes a type of layers that apply one operation to their input. */
typedef struct activation_type {
    fsdp_module_type base;
    fsdp_tensor *(*apply)(fsdp_tensor *x);
} activation_type;

static fsdp_tensor *activation_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return ((const activation_type *)self->type)->apply(inputs[0]);
}

static void gelu_describe(const fsdp_module *self, char *text, size_t bytes)
{
    bool tanh_form = ((const activation_type *)self->type)->apply == fsdp_gelu_tanh;

    snprintf(text, bytes, "approximate='%s'", tanh_form ? "tanh" : "none");
}

#define ACTIVATION(type, text, says, operation) \
    static const activation_type type = {{.name = text, .forward = activation_forward, .describe = says}, operation}

ACTIVATION(gelu_type, "GELU", gelu_describe, fsdp_gelu);
ACTIVATION(gelu_tanh_type, "GELU", gelu_describe, fsdp_gelu_tanh);
ACTIVATION(silu_type, "SiLU", NULL, fsdp_silu);
ACTIVATION(relu_type, "ReLU", NULL, fsdp_relu);
ACTIVATION(sigmoid_type, "Sigmoid", NULL, fsdp_sigmoid);
ACTIVATION(tanh_type, "Tanh", NULL, fsdp_tanh);

static fsdp_module *activation_create(fsdp_context *context, const activation_type *type)
{
    fsdp_module *m = NULL;

    return fsdp_module_create(context, &type->base, sizeof *m, &m) == FSDP_OK ? m : NULL;
}

bool fsdp__mlp_joined(fsdp_module *up, fsdp_module *act, fsdp_module *down, fsdp_tensor *x, fsdp_tensor **out)
{
    fsdp__gelu_mlp mlp = {.x = x, .conv1d = up->type == &conv1d_type};
    fsdp_module *const layers[] = {up, down};

    *out = NULL;
    if (act->type != &gelu_tanh_type.base || !is_bare(act) || up->type != down->type || !is_bare_product(up) ||
        !is_bare_product(down))
        return false;
    for (int i = 0; i < 2; i++) {
        mlp.weights[i] = ((const fsdp_layer *)layers[i])->weight;
        mlp.biases[i] = bias_of((const fsdp_layer *)layers[i]);
    }
    if (!fsdp__gelu_mlp_joins(&mlp))
        return false;
    *out = fsdp__gelu_mlp_apply(&mlp);
    return true;
}

bool fsdp__gated_joined(fsdp_module *down, bool gelu, fsdp_tensor *gate, fsdp_tensor *up, fsdp_tensor **out)
{
    const fsdp_layer *layer = (const fsdp_layer *)down;
    bool joins = down->type == &linear_type && is_bare_product(down);
    const fsdp__gated_linear m = {gate, up, joins ? layer->weight : NULL, joins ? bias_of(layer) : NULL, gelu};

    *out = (joins = joins && fsdp__gated_linear_joins(&m)) ? fsdp__gated_linear_apply(&m) : NULL;
    return joins;
}

fsdp_module *fsdp_gelu_create(fsdp_context *context, bool tanh_form)
{
    return activation_create(context, tanh_form ? &gelu_tanh_type : &gelu_type);
}

fsdp_module *fsdp_silu_create(fsdp_context *context)
{
    return activation_create(context, &silu_type);
}

fsdp_module *fsdp_relu_create(fsdp_context *context)
{
    return activation_create(context, &relu_type);
}

fsdp_module *fsdp_sigmoid_create(fsdp_context *context)
{
    return activation_create(context, &sigmoid_type);
}

fsdp_module *fsdp_tanh_create(fsdp_context *context)
{
    return activation_create(context, &tanh_type);
}

/* ---- which layer a module is ---- */

fsdp__layer_form fsdp__layer_form_of(const fsdp_module *module)
{
    static const struct {
        const fsdp_module_type *type;
        fsdp__layer_form form;
    } forms[] = {{&linear_type, FSDP__LAYER_LINEAR},       {&conv1d_type, FSDP__LAYER_CONV1D},
                 {&embedding_type, FSDP__LAYER_EMBEDDING}, {&layernorm_type, FSDP__LAYER_LAYERNORM},
                 {&rmsnorm_type, FSDP__LAYER_RMSNORM},     {&rmsnorm_plus_one_type, FSDP__LAYER_RMSNORM}};

    for (size_t i = 0; i < FSDP__COUNT_OF(forms); i++)
        if (module->type == forms[i].type)
            return forms[i].form;
    return fsdp__is_dropout(module) ? FSDP__LAYER_DROPOUT : FSDP__LAYER_OTHER;
}

bool fsdp__layer_is_product(const fsdp_module *module)
{
    return module->type == &linear_type || module->type == &conv1d_type;
}
