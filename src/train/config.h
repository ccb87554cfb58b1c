/* config.h - the table of a run's keys, and what follows from them. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "base/compiler.h"
#include "config/keys.h"
#include "fsdp/fsdp1.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"

extern const fsdp__key_table fsdp__train_keys;

/* A config of its own with the same values; of no file. */
fsdp_status fsdp__train_config_copy(const fsdp_train_config *config, fsdp_train_config **out);

/* Of all keys as they are printed: whether two runs were asked for the same. */
fsdp_status fsdp__train_config_hash(const fsdp_train_config *config, uint64_t *out);

/* What parallelism.strategy excludes; the degrees fit the ranks already, but where nothing is
 * sharded. */
fsdp_status fsdp__train_check_strategy(const fsdp_train_config *config, int world_size);
/* Every rank has all: nothing is sharded. */
bool fsdp__train_holds_all(const fsdp_train_config *config);
/* Copies of the parameters that there are. */
int fsdp__train_replicas(const fsdp_train_config *config, int world_size);
fsdp_sharding_strategy fsdp__train_fsdp1_strategy(const fsdp_train_config *config);
/* options.zero_stage of it. */
int fsdp__train_zero_stage(const fsdp_train_config *config);

/* The folder's config.json or the preset, with what the config changes of it, checked. */
fsdp_status fsdp__train_model_config(const fsdp_train_config *config, fsdp_model_config *out);

/* fsdp_train_config_check in parts: what is said of the model; of a step, without data. */
fsdp_status fsdp__train_config_check_model(const fsdp_train_config *config);
fsdp_status fsdp__train_config_check_step(const fsdp_train_config *config, int world_size);

/* What the keys of parallelism.wrap_policy exclude and need. */
fsdp_status fsdp__train_check_units(const fsdp_train_config *config);

#endif
