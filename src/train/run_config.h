/* run_config.h - the table of a run's keys, and what follows from them. */
#pragma once

#include "base/compiler.h"
#include "config/keys.h"
#include "fsdp/fsdp1.h"
#include "fsdp/train.h"

extern const fsdp__key_table fsdp__train_keys;
extern const fsdp__key_need fsdp__train_key_needs[]; /* key_needs.c */

/* Makes a config of its own with the same values; it belongs to no file. */
fsdp_status fsdp__train_config_copy(const fsdp_train_config *config, fsdp_train_config **out);

/* Hashes all keys as they are printed: equal hashes mean that two runs were asked for the same. */
fsdp_status fsdp__train_config_hash(const fsdp_train_config *config, uint64_t *out);

/* Writes the first of these keys (up to NULL; without a list, of all) whose values differ: "training.steps is 4 there,
 * and 5 here"; "": none does. */
fsdp_status fsdp__train_config_difference(const fsdp_train_config *there, const fsdp_train_config *here,
                                          const char *const *keys, char *text, size_t text_bytes);
/* Prints lines that make `after` of a config with the values of `before`: the keys whose values differ, and those of
 * `also` (up to NULL). What is to be unset is "null", or an empty list. None of the keys that differ may be within
 * another. */
fsdp_status fsdp__train_print_lines(const fsdp_train_config *before, const fsdp_train_config *after,
                                    const char *const *also, FILE *out);

/* Checks what parallelism.strategy excludes. The degrees fit the ranks already, except where nothing is sharded. */
fsdp_status fsdp__train_check_strategy(const fsdp_train_config *config, int world_size);
/* Returns whether every rank holds everything: nothing is sharded. */
bool fsdp__train_holds_all(const fsdp_train_config *config);
/* Returns whether the run is to be on GPUs, as training.device says. */
bool fsdp__train_on_gpu(const fsdp_train_config *config);
/* Returns how many ranks compute a microbatch together; and how many of such teams there are, whose data differ. Teams
 * are consecutive ranks. */
int fsdp__train_team(const fsdp_train_config *config);
/* Checks that the ranks make up whole teams, and what else teams exclude. */
fsdp_status fsdp__train_check_team(const fsdp_train_config *config, int world_size);
int fsdp__train_data_ranks(const fsdp_train_config *config, int world_size);
/* Returns the number of copies of the parameters. */
int fsdp__train_replicas(const fsdp_train_config *config, int world_size);
fsdp_sharding_strategy fsdp__train_fsdp1_strategy(const fsdp_train_config *config);
/* Returns the word of parallelism.strategy. */
const char *fsdp__train_strategy_name(const fsdp_train_config *config);
/* Returns whether the strategy lets each unit stay whole from its forward to its backward, or not. */
bool fsdp__train_chooses_stays(const fsdp_train_config *config);
/* Returns the config's options.zero_stage. */
int fsdp__train_zero_stage(const fsdp_train_config *config);

/* Reads the folder's config.json or the preset, applies the config's changes to it, and checks it. */
fsdp_status fsdp__train_model_config(const fsdp_train_config *config, fsdp_model_config *out);

/* Check parts of what fsdp_train_config_check checks: the model's keys; and those of a step, without data. */
fsdp_status fsdp__train_config_check_model(const fsdp_train_config *config);
fsdp_status fsdp__train_config_check_step(const fsdp_train_config *config, int world_size);
/* Checks that the model has what the config needs to train it (check_model.c). */
fsdp_status fsdp__train_check_model(const fsdp_train_config *config, const fsdp_model_config *model);
/* Reads the model's config, and checks it against teams of so many ranks, in words of keys. */
fsdp_status fsdp__train_check_on_paper(const fsdp_train_config *config, int world_size);
/* Checks all that is known before ranks are started, as fsdp_train_config_check does, and what a rank would find out
 * from the model: its message would name it, and its last calls would stay behind (dry_run.c). */
fsdp_status fsdp__train_check_start(const fsdp_train_config *config, int world_size);

/* Returns whether the model is evaluated between steps. */
bool fsdp__train_validates(const fsdp_train_config *config);
/* Returns whether the weights of the best validation are exported. */
bool fsdp__train_exports_best(const fsdp_train_config *config);
/* Checks whether a step of `global` sequences can be divided among the ranks; -1: whatever the ranks take. `what` names
 * them in the message. */
fsdp_status fsdp__train_check_batch(const fsdp_train_config *config, int data_ranks, int64_t global, const char *what);
/* Returns how many float32 numbers of optimizer state each parameter has, at least. */
double fsdp__train_moments(const fsdp_train_config *config);
/* Returns whether a step takes all parameters together: ranks communicate in it, and the host looks at sums. */
bool fsdp__train_steps_together(const fsdp_train_config *config);

/* Returns whether the ranks plan a schedule when they start (parallelism.schedule plan). */
bool fsdp__train_plans_schedule(const fsdp_train_config *config);
/* Checks what the keys of parallelism.wrap_policy and parallelism.schedule exclude and need. */
fsdp_status fsdp__train_check_units(const fsdp_train_config *config);

/* ---- adapter.c ---- */

/* Returns whether the run trains an adapter; and whether it exports that, not the model. */
bool fsdp__train_adapts(const fsdp_train_config *config);
bool fsdp__train_exports_adapter(const fsdp_train_config *config);
/* Checks what the keys of section adapter exclude and need. */
fsdp_status fsdp__train_check_adapter(const fsdp_train_config *config);

/* ---- dpo_keys.c ---- */

bool fsdp__train_is_dpo(const fsdp_train_config *config);
/* Return what dpo.beta and dpo.label_smoothing are, or stand for where they are not set. */
double fsdp__train_beta(const fsdp_train_config *config);
double fsdp__train_label_smoothing(const fsdp_train_config *config);
/* Checks the keys of training.objective: dpo. */
fsdp_status fsdp__train_check_dpo(const fsdp_train_config *config);

/* ---- create_optimizer.c ---- */

/* Checks what the keys of section optimizer exclude and need. */
fsdp_status fsdp__train_check_optimizer(const fsdp_train_config *config);

/* ---- checkpoint_keys.c ---- */

/* Lists what checkpoint.exclude_from_loading may name. */
#define FSDP__TRAIN_OPTIMIZER "optimizer"
#define FSDP__TRAIN_LR_SCHEDULER "lr_scheduler"
#define FSDP__TRAIN_DATALOADER "dataloader"

/* Returns whether the run keeps checkpoints, and goes on from one. */
bool fsdp__train_saves(const fsdp_train_config *config);
/* Returns whether a run that goes on loads this part. */
bool fsdp__train_loads(const fsdp_train_config *config, const char *part);
/* Checks what the keys of section checkpoint exclude and need. */
fsdp_status fsdp__train_check_checkpoint(const fsdp_train_config *config);

/* ---- step_ranges.c ---- */

/* Refuses what is no list of steps; `name` is that of the key. */
fsdp_status fsdp__step_ranges_check(const char *name, const char *text);
/* Returns whether a step is one of such a text's; `*last` is the last one of all. */
bool fsdp__step_ranges_have(const char *text, int64_t step, int64_t *last);
/* Returns whether a run that began behind step `resumed`, and has taken `step`, is among the steps of its trace: a part
 * is recorded, and the file is not written. */
bool fsdp__trace_is_open(const fsdp_train_config *config, int64_t resumed, int64_t step);

FSDP__SCOPED_POINTER(fsdp_train_config, fsdp_train_config_free)
