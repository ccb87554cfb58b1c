/* adapter_on_disk.c - what a folder of peft and a checkpoint have in common as an adapter. */
#include "train/adapter_on_disk.h"

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "fsdp/checkpoint.h"
#include "state/entry.h"
#include "train/checkpoint_values.h"
#include "train/same_facts.h"

static bool has(const char *folder, const char *name)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);

    return path && fsdp__path_exists(path);
}

static bool is_checkpoint(const char *folder)
{
    return has(folder, FSDP__MANIFEST_NAME);
}

fsdp_status fsdp__adapter_on_disk_refuse(const char *checkpoint)
{
    if (has(checkpoint, FSDP__ADAPTER_CONFIG))
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' is a checkpoint of an adapter (LoRA), not of a whole model: name the model, and the "
                         "checkpoint as its adapter (--adapter, or adapter.path of a run)",
                         checkpoint);
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s' is a checkpoint of an adapter (LoRA) that an older version of fsdp has written: it has "
                     "no " FSDP__ADAPTER_CONFIG ", which says what the adapter is: give the run's command again with "
                     "export.path, and with the checkpoint's step as training.steps, and name the folder that this "
                     "makes with --adapter",
                     checkpoint);
}

/* Returns the folder that a name stands for: of a folder of checkpoints its newest. NULL when out of memory. */
static char *folder_named(const char *name)
{
    FSDP__FREED char *newest = NULL;
    bool held = fsdp_hold_error(true);

    if (!has(name, FSDP__ADAPTER_CONFIG) && !is_checkpoint(name))
        (void)fsdp_checkpoint_find(name, -1, &newest);
    fsdp_release_error(held);
    return fsdp__strdup(newest ? newest : name);
}

fsdp_status fsdp__adapter_on_disk_options(const char *name, fsdp_lora_options **out)
{
    FSDP__FREED char *folder = folder_named(name);

    *out = NULL;
    FSDP__TRY_NEW(folder);
    if (is_checkpoint(folder) && !has(folder, FSDP__ADAPTER_CONFIG))
        return fsdp__adapter_on_disk_refuse(folder);
    return fsdp_adapter_read_options(folder, out);
}

/* Makes a state dict of those entries that are the adapter's. */
static fsdp_status select_own(const fsdp_adapter *adapter, const fsdp_state_dict *all, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *own = NULL;

    FSDP_TRY(fsdp_state_dict_create(&own));
    for (int64_t i = 0; i < all->count; i++)
        if (fsdp__adapter_owns(adapter, all->entries[i].name))
            FSDP_TRY(fsdp_state_dict_add(own, all->entries[i].name, all->entries[i].tensor));
    *out = fsdp__take(&own);
    return FSDP_OK;
}

static fsdp_status load_checkpoint(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *folder)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *own = NULL;

    FSDP_TRY(fsdp_checkpoint_open(folder, &reader));
    FSDP_TRY(to ? select_own(adapter, to, &own) : fsdp_adapter_state_dict(adapter, &own));
    return fsdp_checkpoint_load(reader, FSDP__SECTION_MODEL, own, NULL);
}

fsdp_status fsdp__adapter_on_disk_load(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *name)
{
    FSDP__FREED char *folder = folder_named(name);

    FSDP__TRY_NEW(folder);
    return is_checkpoint(folder) ? load_checkpoint(adapter, to, folder) : fsdp__adapter_load_state(adapter, to, folder);
}

void fsdp__adapter_on_disk_facts(const char *name, const char *key, FILE *out)
{
    FSDP__FREED char *folder = folder_named(name);
    FSDP__FREED char *weights = folder ? fsdp__path_join(folder, FSDP__ADAPTER_WEIGHTS) : NULL;

    if (folder && is_checkpoint(folder))
        fsdp__facts_of_weights(folder, true, key, out);
    else if (weights)
        fsdp__facts_of_weights(weights, false, key, out);
}
