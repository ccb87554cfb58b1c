/* run_start.h - what a run does before its first step, in files of their own: it reads, checks, builds and shards. */
#pragma once

#include "train/run.h"

/* ---- build_run.c ---- */

/* Counts the microbatches, and allocates room for their losses. */
fsdp_status fsdp__train_count_batches(fsdp_train_run *run);
/* Counts data_ranks, once the config is known to fit the ranks. */
void fsdp__train_count_ranks(fsdp_train_run *run);
/* Sets the number of copies for hsdp on several machines, if none is given: one copy on each machine, since what is
 * gathered inside a machine crosses no network. */
void fsdp__train_resolve_replicas(fsdp_train_run *run);
/* Makes the model, shapes only, and its units. */
fsdp_status fsdp__train_make_model(fsdp_train_run *run);
/* Gives the model its first values, once it is sharded. */
fsdp_status fsdp__train_fill_model(fsdp_train_run *run);
fsdp_status fsdp__train_make_optimizer(fsdp_train_run *run);

/* ---- run_id.c ---- */

/* Gives the run its id: rank 0 draws it, from the system, so no number of the training is used up. [collective] */
fsdp_status fsdp__train_draw_id(fsdp_train_run *run);
/* Returns whether a text is such an id. */
bool fsdp__train_is_id(const char *text);

/* ---- same_data.c ---- */

enum {
    FSDP__DIGEST_TEXT = 33,        /* 128 bits, and a terminating zero */
    FSDP__DIGEST_AT_ONCE = 4 << 20 /* tokens that are hashed before the first step, which takes some milliseconds */
};
/* Begins to hash all of the data of a run that saves, once the data is open: on rank 0, and on one rank of each machine
 * where the run goes on from a checkpoint whose digest is compared. */
fsdp_status fsdp__digest_begin(fsdp_train_run *run);
/* Waits until the hash that this rank has begun is ready. Saves do not call it. */
void fsdp__digest_wait(fsdp_train_run *run);
/* Gets the hash, and an identity of the files that it is of (0: none is certain); NULL on a rank that has no hash, or
 * none yet. */
fsdp_status fsdp__digest_get(const fsdp_train_run *run, const char **out_text, int64_t *out_files);
/* Returns the digest in the checkpoint that the run goes on from, or NULL if there is none, and the state of the files
 * that it is of, 0 if that is not known. */
const char *fsdp__digest_of_checkpoint(const fsdp_train_run *run, int64_t *out_files);
void fsdp__digest_release(fsdp_train_run *run); /* before the data is closed */

/* ---- adapter.c ---- */

/* Finds out what adapter the config asks for, before anything large is read. */
fsdp_status fsdp__train_read_adapter(fsdp_train_run *run);
/* Writes what a run that goes on must have: the adapter's options, and what its base is. */
void fsdp__train_facts_of_adapter(const fsdp_train_run *run, FILE *out);
/* Adds the adapter to the model, which is on the meta device. */
fsdp_status fsdp__train_add_adapter(fsdp_train_run *run);
/* Makes a state dict of what checkpoints keep of the model: all of it, or the adapter. */
fsdp_status fsdp__train_state(const fsdp_train_run *run, fsdp_state_dict **out);
/* Makes what is exported, with an adapter: it alone, by peft's names, or the merged model. `trained` has its values.
 * [collective] */
fsdp_status fsdp__train_export_state(const fsdp_train_run *run, const fsdp_state_dict *trained, fsdp_state_dict **out);
/* Gives the text of adapter_config.json; free() it. */
fsdp_status fsdp__train_adapter_config(const fsdp_train_run *run, char **out);

/* ---- frozen.c ---- */

/* Freezes what model.frozen names, before the model is sharded, and counts the rest. Frozen parameters get no gradient
 * and no optimizer state, but keep the state that they have in the checkpoint that the run goes on from; this is
 * reported. A pattern that matches nothing is an error that names the parameter it comes nearest to. */
fsdp_status fsdp__train_freeze(fsdp_train_run *run);
/* Thaw, before the optimizer is made, the frozen parameters that have state to keep, because it takes no frozen ones;
 * and freeze them again behind that. The model is sharded by then. `thawed` has a place for each parameter. */
fsdp_status fsdp__train_thaw_kept(const fsdp_train_run *run, const fsdp_parameters *parameters, bool *thawed);
fsdp_status fsdp__train_freeze_kept(const fsdp_parameters *parameters, const bool *thawed);

/* Returns the name of the parameter that matches the longest beginning of a pattern, for messages. */
const char *fsdp__train_nearest_parameter(const char *pattern, const fsdp_parameters *parameters);

/* ---- create_optimizer.c ---- */

/* Checks that each pattern of optimizer.groups is the first to match some parameter. */
fsdp_status fsdp__train_check_groups(const fsdp_train_run *run);
/* Makes the schedule of the learning rate, once it is known how many steps there are, and tokens in each. */
fsdp_status fsdp__train_make_schedule(fsdp_train_run *run);
/* Makes the optimizer of the config for those of the parameters that require a gradient, and the factors of its groups'
 * learning rates. */
fsdp_status fsdp__train_create_optimizer(fsdp_train_run *run, const fsdp_parameters *parameters);

/* ---- visible_files.c ---- */

/* Checks that all machines see what the config names; does nothing on one machine. A failure of one rank is
 * everybody's. [collective] */
fsdp_status fsdp__train_check_visible(fsdp_train_run *run);

/* ---- memory_needs.c ---- */

/* Refuses a run that cannot fit, before it takes memory: compares what all local ranks surely need with memory and swap
 * or the control group's limit, and what this rank needs with its own limits. Needing more than is free just now is
 * only a warning. */
fsdp_status fsdp__train_check_needs(const fsdp_train_run *run);

/* ---- units.c ---- */

/* Chooses which modules are sharded together, once the model exists. An error begins with the key. */
fsdp_status fsdp__train_choose_units(fsdp_train_run *run);
/* Applies parallelism.keep_last_unit, once the units are sharded. */
fsdp_status fsdp__train_keep_last_unit(const fsdp_train_run *run);
/* Applies parallelism.prefetch: every unit lists the next ones, and those before it, the nearest first. */
fsdp_status fsdp__train_set_prefetch(const fsdp_train_run *run);

/* ---- scheduled_units.c: parallelism.schedule ---- */

/* Gets the schedule of a dry run, or reads the config's file; does nothing if there is none, or if one will be planned.
 * Errors begin with the key. */
fsdp_status fsdp__train_read_schedule(fsdp_train_run *run);
/* These make the schedule of a config that says plan: rank 0 plans it, and then all ranks take it. */
fsdp_status fsdp__train_plan_schedule(fsdp_train_run *run);
fsdp_status fsdp__train_share_schedule(fsdp_train_run *run); /* [collective] */
void fsdp__train_release_schedule(fsdp_train_run *run);
/* Checks that the run's schedule is for its model. */
fsdp_status fsdp__train_check_scheduled(const fsdp_train_run *run);
/* Returns whether a schedule (`schedule`) names a module: a wrap policy's function. */
bool fsdp__train_is_scheduled(void *schedule, const fsdp_module *module, const char *name);
/* Shards the model by the run's schedule. [collective] */
fsdp_status fsdp__train_shard_scheduled(const fsdp_train_run *run, const fsdp_shard_options *options);

/* ---- initial_weights.c ---- */

/* Checks whether there are first weights that fit: those of checkpoint.initial_load_path, or else of model.path. */
fsdp_status fsdp__initial_check(fsdp_train_run *run);
/* Fills the model, which is sharded, with the weights of checkpoint.initial_load_path. */
fsdp_status fsdp__initial_fill_model(fsdp_train_run *run);

/* ---- recompute_blocks.c ---- */

/* Returns the mode of the model's block with this index. */
fsdp_recompute_mode fsdp__train_recompute_of(const fsdp_train_config *config, int64_t block);
int64_t fsdp__train_recomputed(const fsdp_train_config *config, int64_t blocks); /* returns how many blocks recompute */
fsdp_status fsdp__train_set_recompute(const fsdp_train_config *config, fsdp_module *model);

/* ---- resume.c: does nothing where the run starts anew ---- */

/* Finds the checkpoint that the run goes on from, and where it stood. */
fsdp_status fsdp__resume_find(fsdp_train_run *run);
/* Check whether the checkpoint fits: the batch, the model's sizes, and the data, each once it is known. */
fsdp_status fsdp__resume_check_batch(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_model(const fsdp_train_run *run);
fsdp_status fsdp__resume_check_data(fsdp_train_run *run);
/* Fill the model, which is sharded, with its weights; and then load everything else. */
fsdp_status fsdp__resume_fill_model(fsdp_train_run *run);
fsdp_status fsdp__resume_optimizer(fsdp_train_run *run);
void fsdp__resume_release(fsdp_train_run *run);

/* ---- shard.c ---- */

/* Shards the model: from here on each rank has its own part of the parameters, with memory and without values.
 * [collective] */
fsdp_status fsdp__train_shard_model(fsdp_train_run *run);

/* ---- same_config.c ---- */

/* Compares what must be the same on all ranks: the keys, the model's sizes and the headers of its weights, the data's
 * tokens. A difference is FSDP_INVALID on all of them, with the same message. Needs the run's inputs. [collective] */
fsdp_status fsdp__same_config(const fsdp_train_run *run);

/* ---- run_data.c ---- */

/* Opens what the run is trained and validated on, and makes its loader. With training.epochs the number of steps is
 * known from here on. */
fsdp_status fsdp__train_open_data(fsdp_train_run *run);
void fsdp__train_close_data(fsdp_train_run *run);
/* Counts the tokens that are trained on; and those of the data that are held out. */
int64_t fsdp__train_tokens(const fsdp_train_run *run);
int64_t fsdp__train_held_out(const fsdp_train_run *run);
/* Returns whether bytes of text are tokens in some source. */
bool fsdp__train_has_bytes(const fsdp_train_run *run);
/* Writes what decides which rows are in which window, of data that has rows or is a mixture. */
void fsdp__train_facts_of_windows(const fsdp_train_run *run, FILE *out);

/* ---- pack_rows.c ---- */

/* Packs rows as the config says: `count` of them from `first` on; 0: all up to the end. */
fsdp_status fsdp__train_pack(const fsdp_train_run *run, const char *key, const fsdp__rows *rows, int64_t first,
                             int64_t count, fsdp__packed **out);
/* Logs on rank 0 how many rows, tokens, answers and windows there are, how full these are, and what became of rows that
 * are too long. */
void fsdp__train_tell_rows(const fsdp_train_run *run, const fsdp__run_source *source);

/* ---- text_data.c ---- */

/* Opens what `paths` hold, which `key` names: of token files their own tokens; of text that a tokenizer reads, those of
 * a file in the folder of data.cache, which is made when it is missing; of other text its bytes; of a file of rows its
 * rows. Only rank 0 logs warnings and news. */
fsdp_status fsdp__text_open(fsdp_train_run *run, const char *key, char *const *paths, int64_t count,
                            fsdp__open_data *out);
/* Returns whether a run would get rows from these files. Those that are not there, or cannot be read, have none. */
bool fsdp__text_is_rows(const fsdp_train_config *config, char *const *paths, int64_t count);
/* Returns the folder of the tokenizer that goes along with the model to checkpoints and exports; NULL: none does. */
const char *fsdp__text_tokenizer_folder(const fsdp_train_run *run);
