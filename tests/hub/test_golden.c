/* Logits, losses and gradients of Hugging Face folders, held to those of PyTorch and transformers. */
#include <math.h>

#include "fsdp/format.h"
#include "fsdp/hub.h"
#include "support/test.h"

#define MODELS TEST_SOURCE_DIR "/tests/reference/models/"

typedef struct fixture {
    fsdp_context *context;
    fsdp_model_config config;
    fsdp_module *model;
    fsdp_safetensors *golden;
} fixture;

/* The model as it is trained: shapes first, then bytes, then the folder's values. */
static fixture load(const char *folder)
{
    fixture f = {.context = test_context()};
    fsdp_state_dict *parameters = NULL;
    char golden[320];

    snprintf(golden, sizeof golden, "%s/golden.safetensors", folder);
    CHECK_OK(fsdp_hub_read_config(folder, &f.config));
    CHECK_OK(fsdp_hub_check(f.context, folder, &f.config));
    f.model = CHECK_PTR(fsdp_model_create(f.context, fsdp_meta(f.context), &f.config));
    CHECK_OK(fsdp_module_materialize(f.model, test_device(f.context)));
    CHECK_OK(fsdp_state_dict_from_module(f.model, &parameters));
    CHECK_OK(fsdp_hub_load(folder, parameters, &f.config));
    fsdp_state_dict_free(parameters);
    CHECK_OK(fsdp_safetensors_open(golden, &f.golden));
    return f;
}

static void unload(fixture *f)
{
    fsdp_safetensors_close(f->golden);
    fsdp_module_unref(f->model);
    fsdp_context_free(f->context);
}

static const fsdp_safetensors_entry *golden(const fixture *f, const char *name)
{
    return CHECK_PTR(fsdp_safetensors_find(f->golden, name));
}

static fsdp_tensor *golden_ids(const fixture *f, const char *name)
{
    const fsdp_safetensors_entry *entry = golden(f, name);

    return CHECK_PTR(fsdp_from_data(test_device(f->context), FSDP_I32, entry->ndim, entry->shape, entry->data));
}

static void check_tensor(const fixture *f, const char *name, fsdp_tensor *tensor)
{
    const fsdp_safetensors_entry *expected = golden(f, name);
    int64_t numel = fsdp_tensor_numel(tensor);
    float *actual = malloc((size_t)numel * sizeof(float)), *aligned = malloc(expected->bytes);

    CHECK_EQ((size_t)numel * sizeof(float), expected->bytes);
    memcpy(aligned, expected->data, expected->bytes);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, actual));
    CHECK_CLOSE(actual, aligned, numel, 1e-4, 1e-5);
    free(aligned);
    free(actual);
}

static void check_gradients(const fixture *f)
{
    fsdp_parameters parameters = {0};

    CHECK_OK(fsdp_module_parameters(f->model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        char name[256];

        snprintf(name, sizeof name, "grad.%s", parameters.items[i].name);
        check_tensor(f, name, CHECK_PTR(fsdp_tensor_grad(parameters.items[i].tensor)));
    }
    CHECK_EQ(parameters.count + 4, fsdp_safetensors_count(f->golden)); /* and ids, targets, logits, loss */
    fsdp_parameters_release(&parameters);
}

static void check_model(const char *folder)
{
    fixture f = load(folder);
    fsdp_tensor *ids, *targets, *loss;
    double value = 0;
    float expected;

    CHECK_OK(fsdp_scope_begin(f.context));
    ids = golden_ids(&f, "input_ids");
    targets = golden_ids(&f, "targets");
    check_tensor(&f, "logits", CHECK_PTR(fsdp_call(f.model, ids)));
    loss = CHECK_PTR(fsdp_call(f.model, ids, targets));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    memcpy(&expected, golden(&f, "loss")->data, sizeof expected);
    CHECK_NEAR(value, expected, 1e-5 + 1e-4 * fabs((double)expected));
    CHECK_OK(fsdp_backward(loss));
    check_gradients(&f);
    fsdp_scope_end(f.context, NULL);
    unload(&f);
}

CALL_TEST(gpt2_equals_pytorch, check_model(MODELS "tiny-gpt2"))
CALL_TEST(llama_with_grouped_heads_from_many_files_equals_pytorch, check_model(MODELS "tiny-llama"))
CALL_TEST(llama_with_a_tied_head_equals_pytorch, check_model(MODELS "tiny-llama-tied-st"))

/* The same model as before, in two files of torch.save. */
TEST(llama_of_pytorchs_own_files_equals_pytorch)
{
    const char *reference = getenv("FSDP_REFERENCE");
    char folder[300];

    if (!reference)
        skip(); /* FSDP_REFERENCE has it */
    snprintf(folder, sizeof folder, "%s/models/tiny-llama-tied", reference);
    check_model(folder);
}
