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

/* Whether the model is evaluated between steps. */
bool fsdp__train_validates(const fsdp_train_config *config);
/* Whether what is exported are the weights of the best validation. */
bool fsdp__train_exports_best(const fsdp_train_config *config);
/* Whether a step of so many sequences can be shared out; -1: whatever the ranks take. `what` they are, for the message.
 */
fsdp_status fsdp__train_check_batch(const fsdp_train_config *config, int world_size, int64_t global, const char *what);
/* Tensors of optimizer state for each parameter. */
int fsdp__train_moments(const fsdp_train_config *config);

/* What the keys of parallelism.wrap_policy exclude and need. */
fsdp_status fsdp__train_check_units(const fsdp_train_config *config);

/* ---- checkpoint_keys.c ---- */

/* What checkpoint.exclude_from_loading may name. */
#define FSDP__TRAIN_OPTIMIZER "optimizer"
#define FSDP__TRAIN_LR_SCHEDULER "lr_scheduler"
#define FSDP__TRAIN_DATALOADER "dataloader"

/* Whether the run keeps checkpoints, and goes on from one. */
bool fsdp__train_saves(const fsdp_train_config *config);
/* Whether a run that goes on loads this part. */
bool fsdp__train_loads(const fsdp_train_config *config, const char *part);
/* What the keys of section checkpoint exclude and need. */
fsdp_status fsdp__train_check_checkpoint(const fsdp_train_config *config);

#endif
