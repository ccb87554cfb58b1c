/* model_folder.h - where weights come from: a Hugging Face folder, or a checkpoint of a run. */
#ifndef TRAIN_MODEL_FOLDER_H
#define TRAIN_MODEL_FOLDER_H

#include "fsdp/checkpoint.h"
#include "fsdp/hub.h"

typedef struct fsdp__model_folder {
    char *path;         /* with config.json: as given, or the newest or best step-N */
    bool is_checkpoint; /* the weights are parts of several ranks */
    bool has_config;    /* without one it may be weights alone, or nothing that is known */
} fsdp__model_folder;

/* A folder with a manifest.json is a checkpoint; one without a config.json that has step-N in it, its newest;
 * <folder>/step-best is its best (fsdp_checkpoint_find). */
fsdp_status fsdp__model_folder_find(const char *path, fsdp__model_folder *out);
void fsdp__model_folder_release(fsdp__model_folder *folder);

/* Whether it has a model of this config, before that gets memory. `by_keys`: the config is not that of the folder's
 * config.json, but of a run's keys, which messages name. */
fsdp_status fsdp__model_folder_check(const fsdp__model_folder *folder, fsdp_context *context,
                                     const fsdp_model_config *config, bool by_keys);
/* As fsdp_hub_load. */
fsdp_status fsdp__model_folder_load(const fsdp__model_folder *folder, fsdp_state_dict *state,
                                    const fsdp_model_config *config);

#endif
