/* program_save FOLDER VALUE FILES [OVERWRITE [SOURCE]] - saves a very small model, whose elements are VALUE, in FILES
 * files, as a run does: the folder is held, then written. */
#include <stdlib.h>

#include "hub/held_folder.h"
#include "support/test.h"

enum {
    TENSORS = 3
};

static fsdp_status add(fsdp_state_dict *state, fsdp_context *context, int index, float value)
{
    static const int64_t shape[] = {8, 4};
    char name[40];
    float values[32];
    fsdp_tensor *tensor = NULL;
    fsdp_status status = FSDP_OK;

    snprintf(name, sizeof name, "layers.%d.weight", index);
    for (int i = 0; i < 32; i++)
        values[i] = value + (float)i;
    FSDP_TRY(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shape, FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    FSDP_TRY_GOTO(status, fsdp_tensor_write(tensor, FSDP_F32, values), out);
    FSDP_TRY_GOTO(status, fsdp_state_dict_add(state, name, tensor), out);
out:
    fsdp_tensor_unref(tensor);
    return status;
}

static fsdp_status save(fsdp_context *context, char **argv, int argc)
{
    const fsdp__hub_target target = {
        .folder = argv[1], .overwrite = argc > 4 && atoi(argv[4]), .source = argc > 5 ? argv[5] : NULL};
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;
    fsdp_hub_hold *hold = fsdp__hub_hold_create(context, &target);
    fsdp_status status = hold ? FSDP_OK : fsdp_last_status();

    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, fsdp__hub_hold_begin(hold), out);
    FSDP_TRY_GOTO(status, fsdp_model_preset("llama-1m", &config), out);
    FSDP_TRY_GOTO(status, fsdp_state_dict_create(&state), out);
    for (int i = 0; i < TENSORS; i++)
        FSDP_TRY_GOTO(status, add(state, context, i, (float)atof(argv[2])), out);
    FSDP_TRY_GOTO(status, fsdp__hub_hold_check(hold, state, &config, FSDP_F32, FSDP__FILE_LIMIT_BYTES), out);
    status = fsdp__hub_save_held(hold, state, &config, FSDP_F32, fsdp_world(context),
                                 atoi(argv[3]) > 1 ? 200 : FSDP__FILE_LIMIT_BYTES);
out:
    fsdp_state_dict_free(state);
    fsdp__hub_hold_free(hold);
    return status;
}

int main(int argc, char **argv)
{
    const fsdp_context_options one = {.threads = 1};
    fsdp_context *context = NULL;
    fsdp_status status;

    if (argc < 4)
        return 2;
    status = fsdp_context_create(&one, &context);
    if (status == FSDP_OK)
        status = save(context, argv, argc);
    if (status != FSDP_OK)
        fprintf(stderr, "%s\n", fsdp_last_error());
    fsdp_context_free(context);
    return status == FSDP_OK ? 0 : 1;
}
