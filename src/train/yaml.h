/* yaml.h - a config file into a config, through libcyaml. */
#ifndef TRAIN_YAML_H
#define TRAIN_YAML_H

#include "fsdp/train.h"

/* Sets the keys that `text` names; `path` is for messages. */
fsdp_status fsdp__yaml_apply(fsdp_train_config *config, const char *path, const char *text, size_t bytes);

#endif
