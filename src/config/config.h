/* config.h - works on a whole config by its table of keys. `config` is the struct that the table's offsets refer to. */
#pragma once

#include <stdio.h>

#include "config/keys.h"

/* Sets every key of a zeroed config to its default. On failure the config may be released. */
fsdp_status fsdp__config_default(const fsdp__key_table *table, void *config);
/* Frees the texts and lists in the config, but not the struct. */
void fsdp__config_release(const fsdp__key_table *table, void *config);

/* Copies the value of every key from `from` to `to`. After a failure some may have been copied. */
fsdp_status fsdp__config_copy(const fsdp__key_table *table, const void *from, void *to);

/* Checks the value of every key, for fields that a program has written itself. */
fsdp_status fsdp__config_check(const fsdp__key_table *table, const void *config);

/* Sets the keys that the YAML file names. */
fsdp_status fsdp__config_load(const fsdp__key_table *table, void *config, const char *path);
/* Sets a key. `key` is "section.name"; `value` is written as in the file. */
fsdp_status fsdp__config_set(const fsdp__key_table *table, void *config, const char *key, const char *value);
/* Does the same, but appends what `value` names if the key is a list. */
fsdp_status fsdp__config_add(const fsdp__key_table *table, void *config, const char *key, const char *value);

/* Refuses a key that has no effect, because what it needs is absent (fsdp__key_need). */
fsdp_status fsdp__config_check_needs(const fsdp__key_table *table, const void *config);
/* Writes the keys that have no effect and are not refused, each with what it needs; "": there are none. */
void fsdp__config_idle(const fsdp__key_table *table, const void *config, char *text, size_t text_bytes);
/* Gives the keys of a section (NULL: of all) that would be refused their defaults. */
void fsdp__config_drop_refused(const fsdp__key_table *table, void *config, const char *section);

/* Prints the config as YAML that fsdp__config_load reads. Keys that are not set are printed as comments. */
fsdp_status fsdp__config_print(const fsdp__key_table *table, const void *config, FILE *stream);
/* Prints every key, or those of the section `only`, with what is allowed, its default and its meaning. */
fsdp_status fsdp__config_help(const fsdp__key_table *table, const char *only, FILE *stream);
