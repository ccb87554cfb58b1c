/* The printed tree against PyTorch's own text (tests/numbers/nn_printed.txt). */
#include "fsdp/nn.h"

#include "support/test.h"

typedef struct mlp {
    fsdp_module base;
    int hidden;
} mlp;

static void describe_mlp(const fsdp_module *self, char *text, size_t bytes)
{
    snprintf(text, bytes, "hidden=%d", ((const mlp *)self)->hidden);
}

static const fsdp_module_type mlp_type = {.name = "MLP", .describe = describe_mlp};
static const fsdp_module_type model_type = {.name = "Model"};

static fsdp_module *make_mlp(fsdp_context *context, int hidden)
{
    mlp *m;

    CHECK_OK(fsdp_module_create(context, &mlp_type, sizeof *m, &m));
    m->hidden = hidden;
    CHECK_OK(fsdp_module_add_child(&m->base, "up", fsdp_linear_create(context, fsdp_meta(context), 3, hidden, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "act", fsdp_gelu_create(context, true)));
    CHECK_OK(fsdp_module_add_child(&m->base, "drop", fsdp_dropout_create(context, 0.1f, 0)));
    return &m->base;
}

static fsdp_module *sequential(fsdp_context *context, fsdp_module *a, fsdp_module *b)
{
    fsdp_module *modules[] = {a, b};

    return fsdp_sequential_create(context, modules, 2);
}

static fsdp_module *relus(fsdp_context *context, int count)
{
    fsdp_module *list = fsdp_module_list_create(context);

    for (int i = 0; i < count; i++)
        CHECK_OK(fsdp_module_list_append(list, fsdp_relu_create(context)));
    return list;
}

static fsdp_module *make_model(fsdp_context *context)
{
    fsdp_device *meta = fsdp_meta(context);
    fsdp_module *model, *layers = fsdp_module_list_create(context), *nested = fsdp_module_list_create(context);
    fsdp_module *named = fsdp_module_dict_create(context);
    const fsdp_linear_options no_bias = {.no_bias = true};

    CHECK_OK(fsdp_module_create(context, &model_type, sizeof *model, &model));
    CHECK_OK(fsdp_module_add_child(model, "embed", fsdp_embedding_create(context, meta, 10, 3, NULL)));
    CHECK_OK(fsdp_module_add_child(model, "attn", fsdp_conv1d_create(context, meta, 3, 9, NULL)));
    for (int i = 0; i < 6; i++)
        CHECK_OK(fsdp_module_list_append(
            layers, i == 3 ? sequential(context, fsdp_silu_create(context), fsdp_relu_create(context))
                           : make_mlp(context, i < 3 ? 4 : 5)));
    CHECK_OK(fsdp_module_add_child(model, "layers", layers));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_module_list_append(nested, relus(context, i < 2 ? 2 : 0)));
    CHECK_OK(fsdp_module_add_child(model, "nested", nested));
    CHECK_OK(fsdp_module_add_child(named, "norm", fsdp_layernorm_create(context, meta, 3, 1e-5f)));
    CHECK_OK(fsdp_module_add_child(named, "rms", fsdp_rmsnorm_create(context, meta, 3, 1e-6f)));
    CHECK_OK(fsdp_module_add_child(named, "gelu", fsdp_gelu_create(context, false)));
    CHECK_OK(fsdp_module_add_child(model, "named", named));
    CHECK_OK(fsdp_module_add_child(model, "same",
                                   sequential(context, fsdp_linear_create(context, meta, 3, 3, &no_bias),
                                              fsdp_linear_create(context, meta, 3, 3, &no_bias))));
    CHECK_OK(fsdp_module_add_child(model, "drop", fsdp_dropout_create(context, 0.0f, 0)));
    return model;
}

CONTEXT_TEST(a_tree_is_printed_as_pytorch_prints_it)
{
    fsdp_module *model = make_model(context);
    char *expected = test_read_file(TEST_SOURCE_DIR "/tests/numbers/nn_printed.txt", NULL);
    FILE *stream = test_begin_text();

    CHECK_OK(fsdp_module_print(model, stream));
    CHECK_STRING(test_end_text(stream), expected);
    fsdp_module_unref(model);
}
