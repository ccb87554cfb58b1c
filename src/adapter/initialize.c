/* initialize.c - first values of an adapter's tensors, and of a base in fewer bits. */
#include <math.h>

#include "adapter/adapter.h"
#include "adapter/quantize.h"
#include "base/text.h"
#include "nn/layers.h"
#include "state/entry.h"

static fsdp_status fill(const fsdp_state_dict_entry *entry, fsdp_init init, uint64_t seed)
{
    FSDP_TRY(fsdp_tensor_begin_write(entry->tensor));
    return fsdp__init_tensor(entry->tensor, init, seed, entry->name);
}

static fsdp_status fill_entries(const fsdp_state_dict *state, uint64_t seed)
{
    for (int64_t i = 0; i < state->count; i++) {
        const fsdp_state_dict_entry *entry = &state->entries[i];
        float bound =
            entry->global_shape[entry->ndim - 1] > 0 ? 1.0f / sqrtf((float)entry->global_shape[entry->ndim - 1]) : 0.0f;

        if (fsdp__ends_with(entry->name, ".lora_A.weight"))
            FSDP_TRY(fill(entry, (fsdp_init){FSDP_INIT_UNIFORM, -bound, bound}, seed));
        else if (fsdp__ends_with(entry->name, ".lora_B.weight"))
            FSDP_TRY(fill(entry, (fsdp_init){FSDP_INIT_ZEROS, 0.0f, 0.0f}, seed));
    }
    return FSDP_OK;
}

/* Checks that the adapter's tensors have memory. */
static fsdp_status check_values(const fsdp_adapter *adapter, const fsdp_state_dict *state)
{
    for (int64_t i = 0; i < state->count; i++)
        if (fsdp__adapter_owns(adapter, state->entries[i].name) &&
            fsdp_device_is_meta(fsdp_tensor_device(state->entries[i].tensor)))
            return FSDP_FAIL(FSDP_STATE,
                             "cannot initialize the adapter: '%s' is on the meta device: call fsdp_module_materialize "
                             "first",
                             state->entries[i].name);
    return FSDP_OK;
}

fsdp_status fsdp_adapter_initialize(fsdp_adapter *adapter, uint64_t seed)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp__adapter_check(adapter, "initialize it"));
    FSDP_TRY(fsdp_state_dict_from_module(adapter->model, &state));
    FSDP_TRY(check_values(adapter, state));
    FSDP_TRY(fill_entries(state, seed));
    return adapter->options->dora ? fsdp__adapter_set_magnitudes(adapter, state) : FSDP_OK;
}

/* What a weight in fewer bits would have got is made as any other's, and encoded. */
fsdp_status fsdp_adapter_initialize_base(fsdp_adapter *adapter, uint64_t seed)
{
    FSDP__SCOPED(fsdp__base_values_release) fsdp__base_values values = {0};

    FSDP_TRY(fsdp__adapter_check(adapter, "initialize its base"));
    FSDP_TRY(fsdp__base_values_begin(adapter, &values)); /* before anything is changed: it may refuse */
    FSDP_TRY(fsdp__module_initialize_coded(adapter->model, seed));
    for (int64_t i = 0; i < values.state->count; i++) {
        const fsdp_state_dict_entry *entry = &values.state->entries[i];
        const fsdp__coded_layer *layer = fsdp__adapter_coded(adapter, entry->name);

        if (layer)
            FSDP_TRY(fill(entry, fsdp__layer_code_of(layer->module)->init, seed));
        FSDP_TRY(fsdp__base_values_arrived(&values, entry));
    }
    return FSDP_OK;
}
