/* state.c - which tensors of a model are the adapter's, under which names, and their first values. */
#include <math.h>
#include <string.h>

#include "adapter/adapter.h"
#include "adapter/merge.h"
#include "base/alloc.h"
#include "base/text.h"
#include "state/entry.h"

#define PEFT_PREFIX "base_model.model."
#define MAGNITUDE "lora_magnitude_vector.weight"

/* ---- names ---- */

/* Returns what follows "NAME." in a tensor's name; NULL: the name does not begin so. */
static const char *behind(const char *tensor, const char *name)
{
    size_t length = strlen(name);

    return strncmp(tensor, name, length) == 0 && tensor[length] == '.' ? tensor + length + 1 : NULL;
}

static bool is_saved(const fsdp_adapter *adapter, const char *name)
{
    for (int64_t i = 0; i < adapter->saved_count; i++)
        if (behind(name, adapter->saved[i]))
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

        if (wanted == BASE ? fsdp__adapter_is_low_rank(entry->name) : !fsdp__adapter_owns(adapter, entry->name))
            continue;
        FSDP_TRY(wanted == PEFT ? add_peft(state, entry) : fsdp_state_dict_add(state, entry->name, entry->tensor));
    }
    *out = fsdp__take(&state);
    return FSDP_OK;
}

static fsdp_status select_from_model(const fsdp_adapter *adapter, part wanted, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *all = NULL;

    *out = NULL;
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

/* ---- first values ---- */

typedef struct filler {
    const fsdp_state_dict_entry *entry;
    fsdp_init init;
    uint64_t seed;
} filler;

static fsdp_status fill_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const filler *f = arg;
    fsdp_tensor *t = f->entry->tensor;
    fsdp_dtype dtype = fsdp_tensor_dtype(t);
    char *data = fsdp_tensor_data(t);

    return fsdp__init_fill(fsdp_tensor_device(t), data + (size_t)local * fsdp_dtype_size(dtype), dtype, numel, f->init,
                           f->seed, f->entry->name, global);
}

static fsdp_status fill(const fsdp_state_dict_entry *entry, fsdp_init init, uint64_t seed)
{
    filler f = {entry, init, seed};

    FSDP_TRY(fsdp_tensor_begin_write(entry->tensor));
    return fsdp_state_dict_entry_runs(entry, fill_run, &f);
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

fsdp_status fsdp_adapter_initialize(fsdp_adapter *adapter, uint64_t seed)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp_state_dict_from_module(adapter->model, &state));
    FSDP_TRY(fill_entries(state, seed));
    return adapter->options->dora ? fsdp__adapter_set_magnitudes(adapter, state) : FSDP_OK;
}
