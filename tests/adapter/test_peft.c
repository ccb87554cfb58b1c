/* The package peft loads what is written, and what it writes then is read. Skipped where there is none: FSDP_PYTHON
 * names a python that has it. */
#include <math.h>
#include <stdlib.h>

#include "adapter/adapter.h"
#include "fsdp/hub.h"
#include "support/test.h"

#define MODELS TEST_SOURCE_DIR "/tests/reference/models/"

enum {
    IDS = 16
};

typedef struct kind {
    const char *model;
    fsdp_lora_options options;
} kind;

static fsdp_adapter *load(fsdp_context *context, const char *folder, const fsdp_lora_options *options,
                          fsdp_model_config *config, fsdp_module **model)
{
    fsdp_adapter *adapter = NULL;
    fsdp_state_dict *base = NULL;

    CHECK_OK(fsdp_hub_read_config(folder, config));
    *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), config));
    CHECK_OK(fsdp_adapter_add(*model, options, &adapter));
    CHECK_OK(fsdp_module_materialize(*model, test_device(context)));
    CHECK_OK(fsdp_adapter_base_state_dict(adapter, &base));
    CHECK_OK(fsdp_hub_load(folder, base, config));
    fsdp_state_dict_free(base);
    CHECK_OK(fsdp_adapter_initialize(adapter, 5));
    fsdp_module_train(*model, false);
    return adapter;
}

/* Changes every tensor of the adapter a little, so that B and m do something. */
static void disturb(fsdp_adapter *adapter)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_adapter_state_dict(adapter, &state));
    for (int64_t i = 0; i < state->count; i++) {
        fsdp_tensor *t = state->entries[i].tensor;
        int64_t numel = fsdp_tensor_numel(t);
        float *values = malloc((size_t)numel * sizeof *values + 1);

        CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
        for (int64_t e = 0; e < numel; e++)
            values[e] += 0.05f * sinf((float)(e + 7 * i));
        CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
        free(values);
    }
    fsdp_state_dict_free(state);
}

static fsdp_tensor *logits_of(fsdp_context *context, fsdp_module *model, int32_t *ids)
{
    for (int i = 0; i < IDS; i++)
        ids[i] = i * 11 % 200;
    return CHECK_PTR(fsdp_call(model, fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, IDS), ids)));
}

/* Writes ids and logits as safetensors. */
static void write_logits(fsdp_context *context, fsdp_module *model, const char *folder)
{
    fsdp_state_dict *state = NULL;
    int32_t ids[IDS];

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_state_dict_add(state, "logits", logits_of(context, model, ids)));
    CHECK_OK(fsdp_state_dict_add(state, "input_ids",
                                 fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, IDS), ids)));
    CHECK_OK(fsdp_hub_save(folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_scope_end(context, NULL);
}

/* What peft has saved again: the same options, and the same logits. */
static void check_again(fsdp_context *context, const char *base, const char *folder, fsdp_module *before)
{
    fsdp_lora_options *options = NULL;
    fsdp_model_config config;
    fsdp_module *model = NULL;
    fsdp_adapter *adapter;
    int32_t ids[IDS];
    fsdp_tensor *first, *again;
    float *a, *b;

    CHECK_OK(fsdp_adapter_read_options(folder, &options));
    adapter = load(context, base, options, &config, &model);
    CHECK_OK(fsdp_adapter_load(adapter, folder));
    CHECK_OK(fsdp_scope_begin(context));
    first = logits_of(context, before, ids);
    again = logits_of(context, model, ids);
    a = malloc((size_t)fsdp_tensor_numel(first) * sizeof *a);
    b = malloc((size_t)fsdp_tensor_numel(first) * sizeof *b);
    CHECK_OK(fsdp_tensor_read(first, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(again, FSDP_F32, b));
    CHECK_CLOSE(b, a, fsdp_tensor_numel(first), 1e-6, 1e-6);
    free(a);
    free(b);
    fsdp_scope_end(context, NULL);
    fsdp_lora_options_free(options);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

static void check(const kind *k)
{
    fsdp_context *context = test_context();
    char *directory = test_directory(), *folder = test_path(directory, "adapter"), *out = test_path(directory, "again");
    char *logits = test_path(directory, "logits"), base[300], command[2048];
    fsdp_model_config config;
    fsdp_module *model = NULL;
    fsdp_adapter *adapter;

    snprintf(base, sizeof base, "%s%s", MODELS, k->model);
    adapter = load(context, base, &k->options, &config, &model);
    disturb(adapter);
    CHECK_OK(fsdp_adapter_save(adapter, folder, base, fsdp_world(context)));
    write_logits(context, model, logits);
    snprintf(command, sizeof command, "'%s' '%s/tests/adapter/check_peft.py' '%s' '%s' '%s/model.safetensors' '%s'",
             getenv("FSDP_PYTHON"), TEST_SOURCE_DIR, base, folder, logits, out);
    CHECK_EQ(system(command), 0);
    check_again(context, base, out, model);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    fsdp_context_free(context);
    test_directory_free(directory);
}

TEST(peft_computes_the_same_logits_and_its_folders_are_read)
{
    static const char *const all[] = {"all-linear"}, *const qv[] = {"q_proj", "v_proj"}, *const head[] = {"lm_head"};
    static const fsdp_lora_pattern ranks[] = {{"q_proj", 2}, {"mlp\\.down_proj", 6}}, alphas[] = {{"layers.1.*", 3}};
    const kind kinds[] = {
        {"tiny-llama", {.rank = 4, .alpha = 8, .targets = all, .target_count = 1}},
        {"tiny-llama",
         {.rank = 4, .alpha = 8, .rslora = true, .targets = qv, .target_count = 2, .saved = head, .saved_count = 1}},
        {"tiny-llama",
         {.rank = 3,
          .dora = true,
          .target_regex = ".*\\.(q|down)_proj",
          .exclude_regex = ".*layers\\.2.*",
          .rank_patterns = ranks,
          .rank_pattern_count = 2,
          .alpha_patterns = alphas,
          .alpha_pattern_count = 1}},
        {"tiny-gpt2", {.rank = 4, .alpha = 5, .targets = all, .target_count = 1}},
        {"tiny-gpt2", {.rank = 4, .dora = true, .targets = all, .target_count = 1}},
        {"tiny-llama-tied-st", {.targets = all, .target_count = 1}},
    };
    const char *python = getenv("FSDP_PYTHON");
    char command[600];

    snprintf(command, sizeof command, "'%s' -c 'import peft, transformers' 2>/dev/null", python ? python : "");
    if (!python || system(command) != 0)
        skip();
    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++)
        check(&kinds[i]);
}
