/* What this library makes of a model folder, for interop.py to compare: FOLDER TO DTYPE LIMIT. Writes the folder again,
 * as TO, in files of at most LIMIT bytes, and prints logits of two sequences of eight tokens, a number a line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "fsdp/comm.h"
#include "fsdp/hub.h"

enum {
    SEQUENCES = 2,
    TOKENS = 8
};

static fsdp_status print_logits(fsdp_module *model, fsdp_device *device, int64_t vocab_size)
{
    size_t numel = (size_t)(SEQUENCES * TOKENS * vocab_size);
    float *values = fsdp__malloc(numel * sizeof *values);
    int32_t ids[SEQUENCES * TOKENS];
    fsdp_tensor *logits, *tokens;
    fsdp_status status;

    if (!values)
        return FSDP_NO_MEMORY;
    for (int i = 0; i < SEQUENCES * TOKENS; i++)
        ids[i] = (int32_t)((7 * i + 3) % vocab_size);
    tokens = fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(SEQUENCES, TOKENS), ids);
    logits = fsdp_call(model, tokens);
    status = logits ? fsdp_tensor_read(logits, FSDP_F32, values) : fsdp_last_status();
    for (size_t i = 0; i < numel && status == FSDP_OK; i++)
        printf("%.9g\n", (double)values[i]);
    fsdp__free(values);
    return status;
}

static fsdp_status run(fsdp_context *context, const char *from, const char *to, fsdp_dtype dtype, uint64_t limit_bytes)
{
    fsdp_device *device = fsdp_cpu(context);
    fsdp_state_dict *state = NULL;
    fsdp_module *model = NULL;
    fsdp_model_config config;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_hub_read_config(from, &config));
    FSDP_TRY(fsdp_hub_check(context, from, &config));
    model = fsdp_model_create(context, device, &config);
    FSDP_TRY(model ? FSDP_OK : fsdp_last_status());
    FSDP_TRY_GOTO(status, fsdp_state_dict_from_module(model, &state), out);
    FSDP_TRY_GOTO(status, fsdp_hub_load(from, state, &config), out);
    FSDP_TRY_GOTO(status, fsdp_hub_save_split(to, state, &config, dtype, fsdp_world(context), limit_bytes), out);
    fsdp_module_train(model, false);
    FSDP_TRY_GOTO(status, fsdp_scope_begin(context), out);
    status = print_logits(model, device, config.vocab_size);
    fsdp_scope_end(context, NULL);
out:
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return status;
}

int main(int argc, char **argv)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_dtype dtype = FSDP_DTYPE_NONE;
    fsdp_context *context = NULL;
    fsdp_status status;

    for (size_t i = 0; argc == 5 && i < FSDP__COUNT_OF(dtypes); i++)
        if (strcmp(argv[3], fsdp_dtype_name(dtypes[i])) == 0)
            dtype = dtypes[i];
    if (dtype == FSDP_DTYPE_NONE) {
        fprintf(stderr, "usage: program_interop FOLDER TO DTYPE LIMIT\n");
        return 2;
    }
    status = fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context);
    if (status == FSDP_OK)
        status = run(context, argv[1], argv[2], dtype, strtoull(argv[4], NULL, 10));
    if (status != FSDP_OK)
        fprintf(stderr, "%s\n", fsdp_last_error());
    fsdp_context_free(context);
    return status == FSDP_OK ? 0 : 1;
}
