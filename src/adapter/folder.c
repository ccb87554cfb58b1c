/* folder.c - peft's folders: loads and saves adapter_model.safetensors beside adapter_config.json (config.c). */
#include <stdlib.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "hub/hub.h"
#include "state/entry.h"

fsdp_status fsdp_adapter_read_options(const char *folder, fsdp_lora_options **out)
{
    FSDP__FREED char *path = NULL, *text = NULL;
    size_t bytes = 0;

    if (!folder || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot read an adapter's config: folder and out are required");
    *out = NULL;
    if (!fsdp__path_exists(folder))
        return fsdp__hub_fail_missing(folder);
    FSDP__TRY_NEW(path = fsdp__path_join(folder, FSDP__ADAPTER_CONFIG));
    if (!fsdp__path_exists(path))
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "'%s' is not the folder of an adapter: it has no " FSDP__ADAPTER_CONFIG
                         " (a checkpoint of one is a folder step-N)",
                         folder);
    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    return fsdp__adapter_config_parse(path, text, bytes, out);
}

fsdp_status fsdp__adapter_load_state(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *folder)
{
    FSDP__FREED char *path = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP__TRY_NEW(path = fsdp__path_join(folder, FSDP__ADAPTER_WEIGHTS));
    if (!fsdp__path_exists(path))
        return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no " FSDP__ADAPTER_WEIGHTS ", an adapter's weights", folder);
    FSDP_TRY(fsdp__adapter_peft_state(adapter, to, &state));
    return fsdp_hub_load(path, state, NULL);
}

fsdp_status fsdp_adapter_load(fsdp_adapter *adapter, const char *folder)
{
    return adapter && folder ? fsdp__adapter_load_state(adapter, NULL, folder)
                             : FSDP_FAIL(FSDP_INVALID, "cannot load an adapter: adapter and folder are required");
}

/* Saves into a folder that this call holds. [collective] */
static fsdp_status save(const fsdp_adapter *adapter, const char *folder, const char *base, const fsdp_state_dict *state,
                        fsdp_process_group *group)
{
    FSDP__FREED char *config = NULL;
    fsdp_hub_hold *hold = NULL;
    fsdp_status status = fsdp__adapter_config_text(adapter, base, &config);
    const fsdp__hub_target target = {.folder = folder, .adapter = true, .no_tokenizer = true};

    if (status == FSDP_OK && fsdp_process_group_rank(group) == 0) {
        hold = fsdp__hub_hold_create(adapter->model->context, &target);
        fsdp__hub_hold_describe(hold, config);
        status = hold ? fsdp__hub_hold_begin(hold) : fsdp_last_status();
    }
    status = fsdp_agree(group, status);
    if (status == FSDP_OK)
        status = fsdp__hub_save_held(hold, state, NULL, FSDP_DTYPE_NONE, group, FSDP__HUB_ONE_FILE);
    fsdp__hub_hold_free(hold);
    return status;
}

fsdp_status fsdp_adapter_save(const fsdp_adapter *adapter, const char *folder, const char *base,
                              fsdp_process_group *group)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    fsdp_status status;

    if (!group)
        return FSDP_FAIL(FSDP_INVALID, "cannot save an adapter: adapter, folder and group are required");
    status = adapter && folder ? fsdp__adapter_peft_state(adapter, NULL, &state)
                               : FSDP_FAIL(FSDP_INVALID, "cannot save an adapter: adapter and folder are required");
    FSDP_TRY(fsdp_agree(group, status));
    return save(adapter, folder, base, state, group);
}
