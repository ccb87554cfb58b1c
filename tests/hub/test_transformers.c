/* What is written loads in transformers, unchanged. Skipped where there is none: FSDP_PYTHON names a python that has
 * it. */
#include <stdlib.h>

#include "hub/hub.h"
#include "support/ranks.h"

#define MODELS TEST_SOURCE_DIR "/tests/reference/models/"

static const char *python;

typedef struct job {
    const char *model;
    char *to;
    fsdp_dtype dtype;
    uint64_t limit_bytes;
} job;

static fsdp_status rewrite(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;
    fsdp_module *model;
    char from[256];

    snprintf(from, sizeof from, "%s%s", MODELS, j->model);
    FSDP_TRY(fsdp_hub_read_config(from, &config));
    model = fsdp_model_create(context, test_device(context), &config);
    FSDP_TRY(model ? FSDP_OK : fsdp_last_status());
    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    FSDP_TRY(fsdp_hub_load(from, state, &config));
    FSDP_TRY(fsdp_hub_save_split(j->to, state, &config, j->dtype, fsdp_world(context), j->limit_bytes));
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return FSDP_OK;
}

static void check(const char *model, fsdp_dtype dtype, uint64_t limit_bytes, double tolerance)
{
    char *directory = test_directory(), command[2048];
    job j = {.model = model, .to = test_path(directory, "model"), .dtype = dtype, .limit_bytes = limit_bytes};
    fsdp_context_options options = {.threads = 1};

    CHECK_OK(fsdp_run_threads(1, &options, rewrite, &j));
    snprintf(command, sizeof command, "'%s' '%s/tests/hub/check_transformers.py' '%s' '%s%s/golden.safetensors' %g",
             python, TEST_SOURCE_DIR, j.to, MODELS, model, tolerance);
    CHECK_EQ(system(command), 0);
    test_directory_free(directory);
}

CALL_TEST(gpt2_loads, check("tiny-gpt2", FSDP_F32, 1 << 30, 1e-4))
CALL_TEST(split_llama_loads, check("tiny-llama", FSDP_F32, 100000, 1e-4))
CALL_TEST(tied_llama_in_bfloat16_loads, check("tiny-llama-tied-st", FSDP_BF16, 1 << 30, 5e-2))

static int test_main(void)
{
    char command[1024];

    python = getenv("FSDP_PYTHON");
    if (!python)
        python = "python3";
    snprintf(command, sizeof command, "'%s' -c 'import torch, safetensors, transformers' 2>/dev/null", python);
    if (system(command) != 0)
        return 77;
    return test_run_cases(__FILE__);
}

TEST_FILE(test_main)
