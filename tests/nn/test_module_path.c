/* What messages call modules and their tensors.
 * Links: ops */
#include "autograd/tools.h"
#include "base/compiler.h"
#include "base/context.h"
#include "fsdp/layers.h"
#include "fsdp/ops.h"
#include "nn/module_path.h"
#include "support/scope.h"

#define SHAPE_OF(...) make_random(device, 1, FSDP_SHAPE(__VA_ARGS__))

/* net: "encoder" (ModuleList) of "0" (Sequential of Linear(4,6), ReLU, Linear(6,4)) */
typedef struct net {
    fsdp_module base;
    fsdp_module *encoder;
    fsdp_tensor *shift; /* buffer "shift" (4) */
    bool handles;       /* a failure below, and fails itself then */
    fsdp_module *guest; /* that it calls and is no part of it; or NULL */
} net;

static fsdp_module *child_of(const fsdp_module *module, int64_t index)
{
    return fsdp_module_child_at(module, index, NULL);
}

static fsdp_tensor *forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const net *n = (const net *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    if (n->guest)
        return fsdp_call(n->guest, x);
    x = fsdp_call(child_of(child_of(n->encoder, 0), 0), x);
    if (!x && n->handles)
        x = fsdp_square(inputs[0]);
    return fsdp_mul(x, n->shift);
}

static const fsdp_module_type net_type = {.name = "Net", .forward = forward};

static net *create(void)
{
    fsdp_module *layers[] = {fsdp_linear_create(context, device, 4, 6, NULL), fsdp_relu_create(context),
                             fsdp_linear_create(context, device, 6, 4, NULL)};
    net *n;

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof *n, &n));
    n->encoder = CHECK_PTR(fsdp_module_list_create(context));
    CHECK_OK(fsdp_module_list_append(n->encoder, fsdp_sequential_create(context, layers, 3)));
    CHECK_OK(fsdp_module_add_child(&n->base, "encoder", n->encoder));
    CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(6), FSDP_MEMORY_ACTIVATION, &n->shift));
    CHECK_OK(fsdp_tensor_fill_(n->shift, 2));
    CHECK_OK(fsdp_module_add_buffer(&n->base, "shift", &n->shift, true));
    CHECK_OK(fsdp_module_initialize(&n->base, 1));
    return n;
}

static fsdp_tensor *forward_of_second(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_call(child_of(self, 1), inputs[0]);
}

SCOPE_TEST(a_module_is_named_as_seen_from_the_outermost_call)
{
    net *n = create();
    fsdp_module *block = child_of(n->encoder, 0), *relu = CHECK_PTR(fsdp_relu_create(context));
    fsdp_module *outer[] = {relu, &n->base}, *model = CHECK_PTR(fsdp_sequential_create(context, outer, 2));
    fsdp_tensor *x = SHAPE_OF(8, 5);

    CHECK_NULL(fsdp_call(model, x));
    CHECK_STRING(fsdp_last_error(), "1.encoder.0.0 (Linear): input (8, 5) does not fit weight (6, 4)");
    CHECK_NULL(fsdp_call(&n->base, x));
    CHECK_STRING(fsdp_last_error(), "encoder.0.0 (Linear): input (8, 5) does not fit weight (6, 4)");
    CHECK_NULL(fsdp_call(block, x));
    CHECK_STRING(fsdp_last_error(), "0 (Linear): input (8, 5) does not fit weight (6, 4)");
    CHECK_NULL(fsdp_call(child_of(block, 0), x));
    CHECK_STRING(fsdp_last_error(), "Linear: input (8, 5) does not fit weight (6, 4)");
    CHECK_NULL(fsdp_call(model, fsdp_cast(SHAPE_OF(8, 4), FSDP_BF16)));
    CHECK_STRING(fsdp_last_error(), "1.encoder.0.0 (Linear): inputs are bfloat16 and float32: cast one");
    CHECK_NULL(fsdp_module_call_method(model, forward_of_second, &x, 1));
    CHECK_STRING(fsdp_last_error(), "1.encoder.0.0 (Linear): input (8, 5) does not fit weight (6, 4)");
    CHECK_PTR(fsdp_call(model, SHAPE_OF(8, 4)));
    fsdp_module_unref(model);
}

SCOPE_TEST(an_operation_of_a_users_module_has_its_path)
{
    net *n = create();
    fsdp_module *outer[] = {&n->base}, *model = CHECK_PTR(fsdp_sequential_create(context, outer, 1));

    n->handles = true; /* what fails below is no failure; another one is */
    CHECK_NULL(fsdp_call(model, SHAPE_OF(8, 5)));
    CHECK_STRING(fsdp_last_error(), "0 (Net): mul: second (6,) does not fit first (8, 5)");
    n->guest = CHECK_PTR(fsdp_linear_create(context, device, 3, 2, NULL));
    CHECK_NULL(fsdp_call(model, SHAPE_OF(8, 5)));
    CHECK_STRING(fsdp_last_error(),
                 "Linear: input (8, 5) does not fit weight (2, 3)"); /* it has no place in the tree */
    fsdp_module_unref(n->guest);
    fsdp_module_unref(model);
}

/* The message begins with the path and the type, and does not name an operation that is called as the type is. */
SCOPE_TEST(every_layer_has_its_path)
{
    fsdp_tensor *flat = SHAPE_OF(2, 5), *image = SHAPE_OF(2, 5, 4, 4),
                *ids = fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2));
    const struct {
        fsdp_module *layer;
        fsdp_tensor *input;
        const char *says;
    } cases[] = {
        {fsdp_linear_create(context, device, 3, 4, NULL), flat, "0 (Linear): input (2, 5) does not fit weight (4, 3)"},
        {fsdp_conv1d_create(context, device, 3, 4, NULL), flat, "0 (Conv1D): input (2, 5) does not fit weight (3, 4)"},
        {fsdp_embedding_create(context, device, 3, 4, NULL), flat, "0 (Embedding): ids must be int32 of at most 5"},
        {fsdp_layernorm_create(context, device, 3, 1e-5f), flat,
         "0 (LayerNorm): input (2, 5) does not fit weight (3,)"},
        {fsdp_rmsnorm_create(context, device, 3, 1e-5f), flat, "0 (RMSNorm): input (2, 5) does not fit weight (3,)"},
        {fsdp_gelu_create(context, false), ids, "0 (GELU): input must be floating, not int32 (2,)"},
        {fsdp_silu_create(context), ids, "0 (SiLU): input must be floating, not int32 (2,)"},
        {fsdp_relu_create(context), ids, "0 (ReLU): input must be floating, not int32 (2,)"},
        {fsdp_sigmoid_create(context), ids, "0 (Sigmoid): input must be floating, not int32 (2,)"},
        {fsdp_tanh_create(context), ids, "0 (Tanh): input must be floating, not int32 (2,)"},
        {fsdp_dropout_create(context, 0.5f, 1), ids, "0 (Dropout): input must be floating, not int32 (2,)"},
        {fsdp_conv2d_create(context, device, 3, 4, 2, 2, NULL), image,
         "0 (Conv2d): input (2, 5, 4, 4) does not fit weight (4, 3, 2, 2)"},
        {fsdp_max_pool2d_create(context, &(fsdp_pool2d_options){.kernel = {2, 2}}), flat,
         "0 (MaxPool2d): input must be of dimensions (N,C,H,W)"},
        {fsdp_avg_pool2d_create(context, &(fsdp_pool2d_options){.kernel = {2, 2}}), flat,
         "0 (AvgPool2d): input must be of dimensions (N,C,H,W)"},
        {fsdp_adaptive_avg_pool2d_create(context, 1, 1), flat,
         "0 (AdaptiveAvgPool2d): input must be of dimensions (N,C,H,W)"},
        {fsdp_flatten_create(context, 3, -1), flat, "0 (Flatten): input (2, 5) has no dimension 3"},
        {fsdp_batch_norm1d_create(context, device, 3, NULL), flat, "0 (BatchNorm1d): input (2, 5) does not fit weight"},
        {fsdp_batch_norm2d_create(context, device, 3, NULL), image, "0 (BatchNorm2d): input (2, 5, 4, 4) does not fit"},
        {fsdp_group_norm_create(context, device, 1, 3, 1e-5f, false), flat, "0 (GroupNorm): input (2, 5) does not fit"},
        {fsdp_multihead_attention_create(context, device, 4, 2, NULL), flat, "0 (MultiheadAttention): "},
        {fsdp_transformer_encoder_layer_create(context, device, 4, 2, NULL), flat,
         "0.self_attn (MultiheadAttention): "},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_module *layers[] = {CHECK_PTR(cases[i].layer)}, *model = fsdp_sequential_create(context, layers, 1);

        CHECK_OK(fsdp_module_initialize(model, 1));
        CHECK_NULL(fsdp_call(model, cases[i].input));
        if (strncmp(fsdp_last_error(), cases[i].says, strlen(cases[i].says)) != 0)
            TEST_FAIL("'%s' does not begin with '%s'", fsdp_last_error(), cases[i].says);
        fsdp_module_unref(model);
    }
}

/* ---- tensors ---- */

SCOPE_TEST(a_tensor_that_was_written_has_its_name)
{
    net *n = create();
    fsdp_module *outer[] = {&n->base}, *model = CHECK_PTR(fsdp_sequential_create(context, outer, 1));
    const struct {
        fsdp_tensor *tensor;
        const char *says;
    } cases[] = {
        {fsdp_module_parameter(model, "0.encoder.0.2.weight"),
         "backward of linear: input 1 (4, 6), parameter '0.encoder.0.2.weight', was written to after the forward"},
        {n->shift, "backward of mul: input 1 (6,), buffer '0.shift', was written to after the forward"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_tensor *y = i == 0 ? fsdp_call(child_of(n->encoder, 0), SHAPE_OF(2, 4)) : fsdp_call(model, SHAPE_OF(2, 4));

        CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(cases[i].tensor), 1));
        CHECK_ERROR(fsdp_backward(fsdp_sum(y)), FSDP_STATE, cases[i].says);
    }
    fsdp_module_unref(model);
}

/* Returns what stands for the module as an owner of memory. */
static const void *owner_of(fsdp_module *module)
{
    fsdp__taker before = fsdp__module_enter(module);
    const void *owner = fsdp__context_taker(module->context).owner;

    fsdp__context_set_taker(module->context, before);
    return owner;
}

TEST(a_module_that_takes_the_address_of_another_is_another_owner_of_memory)
{
    enum {
        COUNT = 20 /* so many that some take the addresses of some before */
    };
    fsdp_context *own = test_context();
    fsdp_module *modules[COUNT];
    const void *owners[COUNT];
    char name[64];

    for (int i = 0; i < COUNT; i++) {
        modules[i] = CHECK_PTR(fsdp_module_list_create(own));
        owners[i] = owner_of(modules[i]);
        CHECK_STRING(fsdp__context_owner_name(own, owners[i], name, sizeof name), "ModuleList");
    }
    for (int i = 0; i < COUNT; i++)
        fsdp_module_unref(modules[i]);
    for (int i = 0; i < COUNT; i++)
        modules[i] = CHECK_PTR(fsdp_module_list_create(own));
    for (int i = 0; i < COUNT; i++) /* of those that are gone */
        CHECK_STRING(fsdp__context_owner_name(own, owners[i], name, sizeof name), "");
    for (int i = 0; i < COUNT; i++)
        fsdp_module_unref(modules[i]);
    fsdp_context_free(own);
}
