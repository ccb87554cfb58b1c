/* state.c - which tensors of a model are the adapter's, and under which names. */
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/text.h"
#include "state/entry.h"

#define PEFT_PREFIX "base_model.model."
#define MAGNITUDE "lora_magnitude_vector.weight"

/* ---- names ---- */

static bool is_saved(const fsdp_adapter *adapter, const char *name)
{
    const char *rest;

    for (int64_t i = 0; i < adapter->saved_count; i++)
        if ((rest = fsdp__behind(name, adapter->saved[i])) && *rest == '.')
            return true;
    return false;
}

bool fsdp__adapter_is_low_rank(const char *name)
{
    return fsdp__ends_with(name, ".lora_A.weight") || fsdp__ends_with(name, ".lora_B.weight") ||
           fsdp__ends_with(name, "." MAGNITUDE);
}

bool fsdp__adapter_owns(const fsdp_adapter *adapter, const char *name)
{
    return fsdp__adapter_is_low_rank(name) || is_saved(adapter, name);
}

const fsdp__coded_layer *fsdp__adapter_coded(const fsdp_adapter *adapter, const char *name)
{
    for (int64_t i = 0; i < adapter->coded_count; i++)
        if (strcmp(adapter->coded[i].name, name) == 0)
            return &adapter->coded[i];
    return NULL;
}

/* ---- state dicts ---- */

typedef enum part {
    ADAPTER,
    BASE,
    PEFT
} part;

static fsdp_status add_peft(fsdp_state_dict *out, const fsdp_state_dict_entry *entry)
{
    size_t length = strlen(entry->name);
    size_t drop = fsdp__ends_with(entry->name, "." MAGNITUDE) ? strlen(".weight") : 0;
    FSDP__FREED char *name = fsdp__sprintf(PEFT_PREFIX "%.*s", (int)(length - drop), entry->name);

    FSDP__TRY_NEW(name);
    return fsdp_state_dict_add(out, name, entry->tensor);
}

static fsdp_status select_entries(const fsdp_adapter *adapter, const fsdp_state_dict *all, part wanted,
                                  fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp_state_dict_create(&state));
    for (int64_t i = 0; i < all->count; i++) {
        const fsdp_state_dict_entry *entry = &all->entries[i];

        if (wanted == BASE ? fsdp__adapter_is_low_rank(entry->name) || fsdp__adapter_coded(adapter, entry->name) != NULL
                           : !fsdp__adapter_owns(adapter, entry->name))
            continue;
        FSDP_TRY(wanted == PEFT ? add_peft(state, entry) : fsdp_state_dict_add(state, entry->name, entry->tensor));
    }
    *out = fsdp__take(&state);
    return FSDP_OK;
}

static fsdp_status select_from_model(const fsdp_adapter *adapter, part wanted, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *all = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "an adapter's state dict needs a place for the result");
    *out = NULL;
    FSDP_TRY(fsdp__adapter_check(adapter, "make a state dict"));
    FSDP_TRY(fsdp_state_dict_from_module(adapter->model, &all));
    return select_entries(adapter, all, wanted, out);
}

fsdp_status fsdp_adapter_state_dict(const fsdp_adapter *adapter, fsdp_state_dict **out)
{
    return select_from_model(adapter, ADAPTER, out);
}

fsdp_status fsdp_adapter_base_state_dict(const fsdp_adapter *adapter, fsdp_state_dict **out)
{
    return select_from_model(adapter, BASE, out);
}

fsdp_status fsdp__adapter_peft_state(const fsdp_adapter *adapter, const fsdp_state_dict *from, fsdp_state_dict **out)
{
    *out = NULL;
    return from ? select_entries(adapter, from, PEFT, out) : select_from_model(adapter, PEFT, out);
}
