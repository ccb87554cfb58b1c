/* model_folder.h - where weights come from: a Hugging Face folder, or a checkpoint of a run. */
#pragma once

#include "fsdp/checkpoint.h"
#include "fsdp/hub.h"

typedef struct fsdp__model_folder {
    char *path;         /* of the folder with config.json: as given, or the newest or best step-N */
    bool is_checkpoint; /* the weights are parts of several ranks */
    bool is_adapter;    /* a checkpoint that has an adapter, and no whole model (train/kept_adapter.h) */
    bool has_config;    /* without one it may have only weights, or nothing that is known */
} fsdp__model_folder;

/* Finds the folder. One with a manifest.json is a checkpoint; for one without a config.json that contains step-N it is
 * its newest step, for <folder>/step-best its best (fsdp_checkpoint_find). */
fsdp_status fsdp__model_folder_find(const char *path, fsdp__model_folder *out);
void fsdp__model_folder_release(fsdp__model_folder *folder);

/* Checks that the folder has a model of this config, before the model gets memory. `by_keys`: the config does not come
 * from the folder's config.json but from a run's keys, which messages name. */
fsdp_status fsdp__model_folder_check(const fsdp__model_folder *folder, fsdp_context *context,
                                     const fsdp_model_config *config, bool by_keys);
/* Returns whether a checkpoint has the weights of an adapter, whether it says what that is or not. */
bool fsdp__checkpoint_has_adapter(const fsdp_checkpoint_reader *reader);
/* Loads the weights, as fsdp_hub_load does. */
fsdp_status fsdp__model_folder_load(const fsdp__model_folder *folder, fsdp_state_dict *state,
                                    const fsdp_model_config *config);
