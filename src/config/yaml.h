/* yaml.h - reads a config file into a config, from libyaml's events. */
#pragma once

#include "config/keys.h"

/* Sets the keys that `text` names; `path` is for messages. */
fsdp_status fsdp__yaml_apply(const fsdp__key_table *table, void *config, const char *path, const char *text,
                             size_t bytes);
/* Sets a key of maps from `text`, a list in YAML or one map; with `add` they go behind those that it has. */
fsdp_status fsdp__yaml_maps(void *config, const fsdp__key *key, const char *text, bool add);
