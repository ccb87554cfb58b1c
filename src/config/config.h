/* config.h - a whole config by its table of keys: `config` is the struct that the table's offsets are in. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include <stdio.h>

#include "config/keys.h"

/* Every key of a zeroed config at its default. On failure the config may be released. */
fsdp_status fsdp__config_default(const fsdp__key_table *table, void *config);
/* Frees the texts and lists in it, not the struct. */
void fsdp__config_release(const fsdp__key_table *table, void *config);

/* Every key's value of `from` in place of what `to` has. On a failure some may be. */
fsdp_status fsdp__config_copy(const fsdp__key_table *table, const void *from, void *to);

/* Sets the keys that the YAML file names. */
fsdp_status fsdp__config_load(const fsdp__key_table *table, void *config, const char *path);
/* `key` is "section.name"; `value` as it would stand in the file. */
fsdp_status fsdp__config_set(const fsdp__key_table *table, void *config, const char *key, const char *value);
/* The same, but a list gets what `value` names behind what it has. */
fsdp_status fsdp__config_add(const fsdp__key_table *table, void *config, const char *key, const char *value);

/* As YAML that fsdp__config_load reads; keys that are not set stand as comments. */
fsdp_status fsdp__config_print(const fsdp__key_table *table, const void *config, FILE *stream);
/* Every key, or those of the section `only`, with what is allowed, its default and its meaning. */
fsdp_status fsdp__config_help(const fsdp__key_table *table, const char *only, FILE *stream);

#endif
