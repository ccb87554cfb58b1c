/* hub.h - parts of model folders that the layer's files and its tests share. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "fsdp/hub.h"

/* config.json from its text; `path` is for messages. The result is checked. */
fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out);
/* Texts of config.json and generation_config.json; free() them. `dtype` is what the weights are stored as. */
fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out);
fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out);

/* The embedding's parameter: what a tied head is another name of. */
const char *fsdp__embedding_name(fsdp_architecture architecture);
#define FSDP__HEAD_NAME "lm_head.weight"

/* Whether a model can be saved as `folder`, as far as it can be known before; makes the folder it will stand in. */
fsdp_status fsdp__hub_check_folder(const char *folder);
/* fsdp_hub_save with another limit per file. [collective] */
fsdp_status fsdp__hub_save_split(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes);

#endif
