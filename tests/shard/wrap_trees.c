/* wrap_trees.c - module trees of shapes. */
#include "shard/wrap_trees.h"

static fsdp_tensor *forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)self;
    (void)count;
    return inputs[0];
}

typedef struct attention {
    fsdp_module base;
    fsdp_tensor *weight, *bias;
} attention;

static const fsdp_module_type my_model_type = {.name = "MyModel", .forward = forward};
static const fsdp_module_type my_sub_module_type = {.name = "MySubModule", .forward = forward};
static const fsdp_module_type enc_type = {.name = "Enc", .forward = forward};
static const fsdp_module_type layer_type = {.name = "TransformerEncoderLayer", .forward = forward};
static const fsdp_module_type attention_type = {.name = "MultiheadAttention", .forward = forward};
static const fsdp_module_type out_type = {.name = "NonDynamicallyQuantizableLinear", .forward = forward};

fsdp_module *wrap_tree_part(fsdp_context *context, const fsdp_module_type *type)
{
    fsdp_module *module = NULL;

    CHECK_OK(fsdp_module_create(context, type, sizeof(fsdp_module), &module));
    return module;
}

void wrap_tree_add(fsdp_module *parent, const char *name, fsdp_module *child)
{
    CHECK_OK(fsdp_module_add_child(parent, name, child));
}

static fsdp_module *linear(fsdp_context *context, int64_t in, int64_t out)
{
    return fsdp_linear_create(context, fsdp_meta(context), in, out, NULL);
}

static fsdp_module *my_sub_module(fsdp_context *context, int64_t in, int64_t out)
{
    fsdp_module *m = wrap_tree_part(context, &my_sub_module_type);

    wrap_tree_add(m, "linear", linear(context, in, out));
    wrap_tree_add(m, "relu", fsdp_relu_create(context));
    return m;
}

fsdp_module *my_model_create(fsdp_context *context)
{
    fsdp_module *m = wrap_tree_part(context, &my_model_type);
    fsdp_module *const block2[] = {linear(context, 20, 30), fsdp_relu_create(context), my_sub_module(context, 30, 40)};

    wrap_tree_add(m, "block1", my_sub_module(context, 10, 20));
    wrap_tree_add(m, "block2", fsdp_sequential_create(context, block2, 3));
    wrap_tree_add(m, "output_layer", linear(context, 40, 5));
    return m;
}

/* A module with a weight and a bias of its own. */
static fsdp_module *with_weights(fsdp_context *context, const fsdp_module_type *type, const char *weight,
                                 const char *bias, int64_t out, int64_t in)
{
    const int64_t shape[] = {out, in};
    attention *m = NULL;

    CHECK_OK(fsdp_module_create(context, type, sizeof *m, &m));
    CHECK_OK(fsdp_module_add_parameter(&m->base, weight, &m->weight, fsdp_meta(context), FSDP_F32, 2, shape,
                                       (fsdp_init){0}));
    CHECK_OK(
        fsdp_module_add_parameter(&m->base, bias, &m->bias, fsdp_meta(context), FSDP_F32, 1, shape, (fsdp_init){0}));
    return &m->base;
}

static fsdp_module *layer(fsdp_context *context)
{
    fsdp_module *m = wrap_tree_part(context, &layer_type);
    fsdp_module *self_attn = with_weights(context, &attention_type, "in_proj_weight", "in_proj_bias", 48, 16);

    wrap_tree_add(self_attn, "out_proj", with_weights(context, &out_type, "weight", "bias", 16, 16));
    wrap_tree_add(m, "self_attn", self_attn);
    wrap_tree_add(m, "linear1", linear(context, 16, 32));
    wrap_tree_add(m, "dropout", fsdp_dropout_create(context, 0.1F, 0));
    wrap_tree_add(m, "linear2", linear(context, 32, 16));
    wrap_tree_add(m, "norm1", fsdp_layernorm_create(context, fsdp_meta(context), 16, 1e-5F));
    wrap_tree_add(m, "norm2", fsdp_layernorm_create(context, fsdp_meta(context), 16, 1e-5F));
    wrap_tree_add(m, "dropout1", fsdp_dropout_create(context, 0.1F, 0));
    wrap_tree_add(m, "dropout2", fsdp_dropout_create(context, 0.1F, 0));
    return m;
}

fsdp_module *enc_create(fsdp_context *context)
{
    fsdp_module *m = wrap_tree_part(context, &enc_type), *layers = fsdp_module_list_create(context);
    fsdp_module *experts = fsdp_module_dict_create(context);

    wrap_tree_add(m, "emb", fsdp_embedding_create(context, fsdp_meta(context), 50, 16, NULL));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_module_list_append(layers, layer(context)));
    wrap_tree_add(m, "layers", layers);
    wrap_tree_add(experts, "a", linear(context, 16, 64));
    wrap_tree_add(experts, "b", linear(context, 16, 64));
    wrap_tree_add(m, "experts", experts);
    wrap_tree_add(m, "norm", fsdp_layernorm_create(context, fsdp_meta(context), 16, 1e-5F));
    wrap_tree_add(m, "head", linear(context, 16, 50));
    return m;
}
