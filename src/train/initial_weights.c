/* initial_weights.c - the weights that a run begins with, when they come from other files than those of model.path. */
#include "base/context.h"
#include "train/run_start.h"

static fsdp_status check(fsdp_train_run *run, const char *path)
{
    FSDP_TRY(fsdp__model_folder_find(path, &run->initial));
    return fsdp__model_folder_check(&run->initial, run->context, &run->model_config, true);
}

fsdp_status fsdp__initial_check(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    if (run->resume.from)
        return FSDP_OK;
    if (c->checkpoint.initial_load_path)
        return check(run, c->checkpoint.initial_load_path) == FSDP_OK
                   ? FSDP_OK
                   : fsdp_fail_prefix(fsdp_last_status(), "checkpoint.initial_load_path");
    if (c->model.path && c->model.pretrained != 0)
        return fsdp_hub_check(run->context, c->model.path, &run->model_config);
    return FSDP_OK;
}

fsdp_status fsdp__initial_fill_model(fsdp_train_run *run)
{
    fsdp__activity before = fsdp__context_set_activity(run->context, FSDP__READING);
    fsdp_state_dict *state = NULL;
    fsdp_status status = fsdp_state_dict_from_module(run->model, &state);

    if (status == FSDP_OK)
        status = fsdp__model_folder_load(&run->initial, state, &run->model_config);
    (void)fsdp__context_set_activity(run->context, before);
    fsdp_state_dict_free(state);
    return fsdp_fail_prefix(status, "checkpoint.initial_load_path");
}
