/* merged.c - merges an adapter without the model in memory: the model is on the meta device, the base's tensors are
 * those of the state, and the adapter has tensors of its own. */
#include "cli/merged.h"

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "cli/finite_values.h"
#include "state/entry.h"
#include "train/adapter_on_disk.h"

/* Adds what the base keeps, and a tensor on the host for each of the adapter's. */
static fsdp_status add_entries(const fsdp_adapter *adapter, const fsdp_state_dict *base, fsdp_state_dict *out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *own = NULL;

    for (int64_t i = 0; i < base->count; i++)
        if (!fsdp__adapter_owns(adapter, base->entries[i].name))
            FSDP_TRY(fsdp_state_dict_add(out, base->entries[i].name, base->entries[i].tensor));
    FSDP_TRY(fsdp_adapter_state_dict(adapter, &own));
    for (int64_t i = 0; i < own->count; i++) {
        const fsdp_state_dict_entry *entry = &own->entries[i];
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *place = NULL;

        FSDP_TRY(fsdp_tensor_create(fsdp_cpu(adapter->model->context), FSDP_F32, entry->ndim, entry->global_shape,
                                    FSDP_MEMORY_WORKSPACE, &place));
        FSDP_TRY(fsdp_state_dict_add(out, entry->name, place));
    }
    return FSDP_OK;
}

static fsdp_status merge(const fsdp_adapter *adapter, const fsdp_state_dict *base, const char *folder,
                         fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *all = NULL;

    FSDP_TRY(fsdp_state_dict_create(&all));
    FSDP_TRY(add_entries(adapter, base, all));
    FSDP_TRY(fsdp__adapter_on_disk_load(adapter, all, folder));
    return fsdp_adapter_merge(adapter, all, out);
}

/* Makes a model without bytes that has the folder's adapter. */
static fsdp_status make_model(fsdp_context *context, const fsdp_model_config *config, const char *folder,
                              fsdp_module **model, fsdp_adapter **adapter)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *options = NULL;

    FSDP_TRY(fsdp__adapter_on_disk_options(folder, &options));
    *model = fsdp_model_create(context, fsdp_meta(context), config);
    return *model ? fsdp_adapter_add(*model, options, adapter) : fsdp_last_status();
}

fsdp_status fsdp__name_adapter(fsdp_context *context, const fsdp_model_config *config, const fsdp_state_dict *state,
                               const char *checkpoint, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    FSDP__SCOPED(fsdp_adapter_free_at) fsdp_adapter *adapter = NULL;

    FSDP_TRY(make_model(context, config, checkpoint, &model, &adapter));
    return fsdp__adapter_peft_state(adapter, state, out);
}

fsdp_status fsdp__merge_adapter(fsdp_context *context, const fsdp_model_config *config, const fsdp_state_dict *base,
                                const char *folder, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    FSDP__SCOPED(fsdp_adapter_free_at) fsdp_adapter *adapter = NULL;

    FSDP_TRY(make_model(context, config, folder, &model, &adapter));
    FSDP_TRY(fsdp__check_finite_path(folder)); /* the merged model would be NaN, and nothing say why */
    return merge(adapter, base, folder, out);
}
