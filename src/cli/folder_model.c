/* folder_model.c - loads the model of a folder. */
#include "cli/folder_model.h"

#include "base/compiler.h"
#include "fsdp/shard.h"
#include "train/model_folder.h"

static fsdp_status shard(fsdp_module *model)
{
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        FSDP_TRY(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    return fsdp_fully_shard(model, NULL);
}

static fsdp_status load_weights(const fsdp__model_folder *folder, const fsdp_model_config *config, fsdp_module *model)
{
    fsdp_state_dict *state;
    fsdp_status status;

    FSDP_TRY(fsdp_state_dict_from_module(model, &state));
    status = fsdp__model_folder_load(folder, state, config);
    fsdp_state_dict_free(state);
    return fsdp_context_world_size(model->context) > 1 ? fsdp_agree(fsdp_world(model->context), status) : status;
}

static fsdp_status fill(const fsdp__model_folder *folder, const fsdp_model_config *config, fsdp_dtype dtype,
                        fsdp_device *device, fsdp_module *model)
{
    if (dtype != FSDP_F32)
        FSDP_TRY(fsdp_module_to(model, dtype));
    if (fsdp_context_world_size(model->context) > 1)
        FSDP_TRY(shard(model));
    FSDP_TRY(fsdp_module_materialize(model, device));
    FSDP_TRY(load_weights(folder, config, model));
    fsdp_module_train(model, false);
    return FSDP_OK;
}

static fsdp_status make(fsdp_context *context, const fsdp__model_folder *folder, const fsdp_model_config *config,
                        fsdp_dtype dtype, fsdp_device *device, fsdp_module **out)
{
    fsdp_status status;

    FSDP_TRY(fsdp__model_folder_check(folder, context, config, false));
    *out = fsdp_model_create(context, fsdp_meta(context), config);
    if (!*out)
        return fsdp_last_status();
    status = fill(folder, config, dtype, device, *out);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_module_unref(*out);
    *out = NULL;
    return status;
}

fsdp_status fsdp__folder_model_load(fsdp_context *context, const char *path, const fsdp_model_config *config,
                                    fsdp_dtype dtype, fsdp_device *device, fsdp_module **out)
{
    FSDP__SCOPED(fsdp__model_folder_release) fsdp__model_folder folder = {0};

    *out = NULL;
    FSDP_TRY(fsdp__model_folder_find(path, &folder));
    return make(context, &folder, config, dtype, device, out);
}
