/* Layers of fsdp/layers.h against torch.nn (tests/numbers/layers.py): names and shapes of the state, outputs,
 * gradients, buffers after two steps, evaluation. Links: data */
#include "fsdp/layers.h"

#include <math.h>

#include "autograd/tools.h"
#include "nn/module.h"
#include "support/numbers.h"

enum {
    MOST = 512,
    MOST_INPUTS = 3
};

/* ---- one case ---- */

typedef struct layer_case {
    fsdp_device *device;
    const char *name;
    fsdp_module *module;
    fsdp_attention_masks masks;
    int states; /* found in the numbers */
} layer_case;

static fsdp_tensor *load(const layer_case *c, const char *part)
{
    const number_tensor *n = number_get("layers", c->name, part);

    return CHECK_PTR(fsdp_from_data(c->device, FSDP_F32, n->ndim, n->shape, n->data));
}

static void compare(const layer_case *c, const char *part, const fsdp_tensor *tensor)
{
    const number_tensor *n = number_get("layers", c->name, part);
    float values[MOST];

    CHECK(fsdp_tensor_numel(CHECK_PTR(tensor)) <= MOST);
    CHECK_EQ(fsdp_tensor_ndim(tensor), n->ndim);
    for (int i = 0; i < n->ndim; i++)
        CHECK_EQ(fsdp_tensor_shape(tensor)[i], n->shape[i]);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    CHECK_CLOSE(values, n->data, fsdp_tensor_numel(tensor), 3e-5, 1e-5);
}

static const char *part_of(char text[96], const char *what, const char *module, const char *name)
{
    snprintf(text, 96, "%s.%s%s%s", what, module, *module ? "." : "", name);
    return text;
}

/* Gives a parameter or buffer its value. */
static fsdp_status set(layer_case *c, const char *module, const char *name, fsdp_tensor *tensor)
{
    char part[96];
    fsdp_tensor *values = load(c, part_of(part, "state", module, name));
    const number_tensor *n = number_get("layers", c->name, part);

    CHECK_EQ(fsdp_tensor_ndim(tensor), n->ndim);
    for (int i = 0; i < n->ndim; i++)
        CHECK_EQ(fsdp_tensor_shape(tensor)[i], n->shape[i]);
    CHECK_OK(fsdp_tensor_copy_(tensor, CHECK_PTR(fsdp_cast(values, fsdp_tensor_dtype(tensor)))));
    c->states++;
    return FSDP_OK;
}

static fsdp_status set_all(void *arg, fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        CHECK_OK(set(arg, name, module->parts->parameters[i].name, *module->parts->parameters[i].slot));
    for (int64_t i = 0; i < module->parts->buffer_count; i++)
        CHECK_OK(set(arg, name, module->parts->buffers[i].name, *module->parts->buffers[i].slot));
    return FSDP_OK;
}

static fsdp_status compare_gradients(void *arg, fsdp_module *module, const char *name)
{
    char part[96];

    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        compare(arg, part_of(part, "grad", name, module->parts->parameters[i].name),
                fsdp_tensor_grad(*module->parts->parameters[i].slot));
    return FSDP_OK;
}

static fsdp_status compare_buffers(void *arg, fsdp_module *module, const char *name)
{
    char part[96];

    for (int64_t i = 0; i < module->parts->buffer_count; i++)
        compare(arg, part_of(part, "after", name, module->parts->buffers[i].name), *module->parts->buffers[i].slot);
    return FSDP_OK;
}

static fsdp_tensor *call(const layer_case *c, fsdp_tensor *const *inputs, int count)
{
    if (!c->masks.key_padding && !c->masks.attention && !c->masks.causal)
        return fsdp_module_call(c->module, inputs, count);
    if (strcmp(c->module->type->name, "MultiheadAttention") == 0)
        return fsdp_multihead_attention(c->module, inputs[0], inputs[count == 3 ? 1 : 0], inputs[count == 3 ? 2 : 0],
                                        &c->masks);
    return fsdp_transformer_encoder(c->module, inputs[0], &c->masks);
}

static int states_of(const char *name)
{
    char prefix[96];

    snprintf(prefix, sizeof prefix, "%s.state.", name);
    return number_count("layers", prefix);
}

/* Takes the module over. */
static void run(layer_case *c)
{
    fsdp_tensor *inputs[MOST_INPUTS], *moved[MOST_INPUTS], *y, *w;
    char part[16];
    int count = 0;

    CHECK_OK(fsdp__module_walk(CHECK_PTR(c->module), set_all, c));
    CHECK_EQ(c->states, states_of(c->name));
    for (; count < MOST_INPUTS; count++) {
        snprintf(part, sizeof part, "x%d", count);
        if (!number_find("layers", c->name, part))
            break;
        inputs[count] = load(c, part);
        CHECK_OK(fsdp_tensor_set_requires_grad(inputs[count], true));
    }
    y = call(c, inputs, count);
    compare(c, "y", y);
    w = load(c, "w");
    CHECK_OK(fsdp_backward_from(&y, &w, 1, false));
    for (int i = 0; i < count; i++) {
        snprintf(part, sizeof part, "dx%d", i);
        compare(c, part, fsdp_tensor_grad(inputs[i]));
    }
    CHECK_OK(fsdp__module_walk(c->module, compare_gradients, c));
    fsdp_no_grad_begin(c->module->context);
    for (int i = 0; i < count; i++) {
        fsdp_tensor *ones =
            fsdp_full(c->device, FSDP_F32, fsdp_tensor_ndim(inputs[i]), fsdp_tensor_shape(inputs[i]), 1);

        moved[i] = CHECK_PTR(fsdp_add(fsdp_scale(inputs[i], 2.0), ones));
    }
    CHECK_PTR(call(c, moved, count));
    CHECK_OK(fsdp__module_walk(c->module, compare_buffers, c));
    fsdp_module_train(c->module, false);
    compare(c, "eval", call(c, inputs, count));
    fsdp_no_grad_end(c->module->context);
    fsdp_module_unref(c->module);
}

#define CASE(case_name, create, ...)                           \
    TEST(case_name##_is_as_in_pytorch)                         \
    {                                                          \
        fsdp_context *context = test_context();                \
        fsdp_device *device = test_device(context);            \
        layer_case c = {.device = device, .name = #case_name}; \
                                                               \
        CHECK_OK(fsdp_scope_begin(context));                   \
        c.module = (create);                                   \
        c.masks = (fsdp_attention_masks){__VA_ARGS__};         \
        run(&c);                                               \
        fsdp_scope_end(context, NULL);                         \
        CHECK_EQ(tensor_bytes(context), 0);                    \
        fsdp_context_free(context);                            \
    }

static fsdp_tensor *mask(fsdp_device *device, const char *name)
{
    const layer_case masks = {.device = device, .name = "masks"};
    fsdp_tensor *numbers_of_it = load(&masks, name);

    return strcmp(name, "added") == 0 ? numbers_of_it : CHECK_PTR(fsdp_cast(numbers_of_it, FSDP_BOOL));
}

#define OPTIONS(type, ...) (&(type){__VA_ARGS__})
#define POOL(...) OPTIONS(fsdp_pool2d_options, __VA_ARGS__)
#define NORM(...) OPTIONS(fsdp_batch_norm_layer_options, __VA_ARGS__)
#define ATTENTION(features, heads, ...)                               \
    fsdp_multihead_attention_create(context, device, features, heads, \
                                    OPTIONS(fsdp_multihead_attention_options, __VA_ARGS__))
#define ENCODER(...) OPTIONS(fsdp_transformer_encoder_layer_options, __VA_ARGS__)

CASE(conv2d, fsdp_conv2d_create(context, device, 3, 4, 3, 3, NULL))
CASE(conv2d_options,
     fsdp_conv2d_create(context, device, 4, 6, 3, 2,
                        OPTIONS(fsdp_conv2d_layer_options,
                                .conv = {.stride = {2}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2},
                                .no_bias = true)))
CASE(max_pool2d, fsdp_max_pool2d_create(context, POOL(.kernel = {2, 2})))
CASE(max_pool2d_options,
     fsdp_max_pool2d_create(context, POOL(.kernel = {3, 2}, .stride = {1, 2}, .padding = {1}, .dilation = {1, 2})))
CASE(avg_pool2d, fsdp_avg_pool2d_create(context, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1})))
CASE(avg_pool2d_options, fsdp_avg_pool2d_create(context, POOL(.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1},
                                                              .exclude_padding = true)))
CASE(adaptive_avg_pool2d, fsdp_adaptive_avg_pool2d_create(context, 2, 3))
CASE(flatten, fsdp_flatten_create(context, 1, -1))
CASE(group_norm, fsdp_group_norm_create(context, device, 2, 4, 0.0f, false))
CASE(batch_norm1d, fsdp_batch_norm1d_create(context, device, 3, NULL))
CASE(batch_norm1d_rows, fsdp_batch_norm1d_create(context, device, 3, NORM(.cumulative_average = true)))
CASE(batch_norm2d, fsdp_batch_norm2d_create(context, device, 3, NORM(.eps = 1e-3f, .momentum = 0.3)))
CASE(batch_norm2d_plain, fsdp_batch_norm2d_create(context, device, 3, NORM(.no_affine = true)))
CASE(batch_norm2d_batch, fsdp_batch_norm2d_create(context, device, 3, NORM(.no_running_stats = true)))
CASE(self_attention, ATTENTION(6, 2, .batch_first = true))
CASE(self_attention_causal, ATTENTION(6, 2, .batch_first = true), .causal = true)
CASE(self_attention_masked, ATTENTION(6, 2, .batch_first = true), .attention = mask(device, "later"),
     .key_padding = mask(device, "padding"))
CASE(self_attention_added, ATTENTION(6, 3, .no_bias = true), .attention = mask(device, "added"))
CASE(cross_attention, ATTENTION(6, 3, .no_bias = false))
CASE(cross_attention_padded, ATTENTION(6, 2, .batch_first = true), .key_padding = mask(device, "padding"))
CASE(encoder_layer,
     fsdp_transformer_encoder_layer_create(context, device, 6, 2, ENCODER(.dim_feedforward = 7, .batch_first = true)))
CASE(encoder_layer_first,
     fsdp_transformer_encoder_layer_create(context, device, 6, 3,
                                           ENCODER(.dim_feedforward = 5, .gelu = true, .norm_first = true)),
     .attention = mask(device, "later"))
CASE(encoder,
     fsdp_transformer_encoder_create(context, device, 6, 2, 2, true,
                                     ENCODER(.dim_feedforward = 5, .batch_first = true)),
     .key_padding = mask(device, "padding"))

CASE(sigmoid, fsdp_sigmoid_create(context))
CASE(tanh, fsdp_tanh_create(context))
