/* fsdp/hub.h - Hugging Face model folders: config.json and weights, loaded into shards and saved from them.
 *
 * Readers check everything they read (sizes, offsets, names, dtypes), and name file, tensor and key in errors. */
#ifndef FSDP_HUB_H
#define FSDP_HUB_H

#include "fsdp/models.h"
#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the folder's config.json. */
FSDP_API fsdp_status fsdp_hub_read_config(const char *folder, fsdp_model_config *out);

/* Loads every entry of the state from the folder's weights (fsdp_weights_open: safetensors or pytorch_model.bin). Each
 * rank reads only its own rows, a few MiB at a time, and converts dtypes (F32, BF16, F16; integers and booleans are
 * read unchanged). Missing, surplus or misshapen tensors are errors that name tensors, shapes and file, and the usual
 * cause; known aliases of tied weights, buffers that HF may store, in any dtype, and tensors that the index does not
 * list are not surplus. These errors, and shards that cannot be written now, are found before anything is changed.
 * Ranks read only their own rows, so one may fail alone: call fsdp_agree on the result. `config` is NULL for your own
 * model, whose names are used unchanged. */
FSDP_API fsdp_status fsdp_hub_load(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config);

/* Saves model.safetensors (or numbered files of at most 5 GB with an index), config.json and generation_config.json, as
 * transformers loads them. If `config` is NULL, only the weights are saved, of any module. Every rank writes its own
 * rows into files that are put in place once all of them are on disk. `group` has all ranks that share the state; a
 * part of them is refused, and so is a state without values.
 *
 * The folder may be new; then missing parent folders are created. It may be empty, or contain what fsdp_hub_save wrote
 * before, unchanged: the call leaves a list of its files (.fsdp-files.json), and those are replaced together with the
 * list; files that are not in the list stay. Anything else is refused, and so is a folder that another process is
 * writing to. A link is followed, unless another user may have put it there. In a folder that others can write to, a
 * list, a journal or a temporary folder of theirs is refused by name (FSDP_INVALID).
 *
 * A failure on any rank is an error on all and leaves the folder as it was. A process that is killed while it replaces
 * the files of a folder (a few renames) leaves a journal in it, unfinished-save.json; every reader refuses the folder
 * until fsdp_hub_repair, or the next save, has finished the replacement. The next save also removes what a dead process
 * left beside or in the folder (`<folder>.saving`, `.saving`). `dtype` is F32, BF16 or F16; without a config it may be
 * NONE, which keeps each tensor's dtype, and integers and booleans are saved unchanged; with one they are
 * FSDP_UNSUPPORTED (weights in fewer bits: save the state of fsdp_adapter_merge). [collective] */
FSDP_API fsdp_status fsdp_hub_save(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                   fsdp_dtype dtype, fsdp_process_group *group);

/* ======== for experts: most programs need nothing below ======== */

/* Checks that the folder's weights contain the parameters of a model of this config, by names, shapes and dtypes in
 * their headers. Call it before the model gets memory, because a config.json may state any size. */
FSDP_API fsdp_status fsdp_hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config);

/* Does the same as fsdp_hub_load, but only rank 0 of the group reads the data and sends it to the others, which take
 * their rows of it: for storage that gets slower when all ranks read. The results are the same bits. All ranks of the
 * group must have the same names in the same order; an error on any rank is an error on all. [collective] */
FSDP_API fsdp_status fsdp_hub_load_by_leader(const char *folder, fsdp_state_dict *state,
                                             const fsdp_model_config *config, fsdp_process_group *group);

/* Does the same as fsdp_hub_load, but ignores names that only the state or only the folder has (PyTorch's
 * strict=False). It loads the common ones and lists the rest in `*out`, which the caller releases and which may be
 * NULL. */
FSDP_API fsdp_status fsdp_hub_load_partly(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                          fsdp_state_dict_keys *out);

/* Does the same as fsdp_hub_save, with files of at most `max_shard_bytes` of weights instead of 5 GB; a larger tensor
 * gets a file of its own. [collective] */
FSDP_API fsdp_status fsdp_hub_save_split(const char *folder, const fsdp_state_dict *state,
                                         const fsdp_model_config *config, fsdp_dtype dtype, fsdp_process_group *group,
                                         uint64_t max_shard_bytes);

/* Finishes a save into this folder that was interrupted while it replaced files; afterwards the folder contains the new
 * model. `*out_finished` (may be NULL) says whether there was one. One process calls it. It is refused while a save is
 * running there, and if another user may have left the journal; nothing is moved then. */
FSDP_API fsdp_status fsdp_hub_repair(const char *folder, bool *out_finished);

/* Reads the tokens that end a text: eos_token_id, a token or a list of them, of generation_config.json, or of
 * config.json if the first does not exist or names none. It is no error if neither names one. */
enum {
    FSDP_HUB_MAX_STOP_TOKENS = FSDP_MODEL_MAX_EOS_TOKENS
};
typedef struct fsdp_hub_stop_tokens {
    int64_t count;
    int32_t ids[FSDP_HUB_MAX_STOP_TOKENS];
} fsdp_hub_stop_tokens;
FSDP_API fsdp_status fsdp_hub_read_stop_tokens(const char *folder, fsdp_hub_stop_tokens *out);

/* Represents a folder held for a later save, as a training run holds its export.path: see fsdp_train_listener.holds. */
typedef struct fsdp_hub_hold fsdp_hub_hold;
/* Removes what the hold has put on disk and ends it; the save that it was for fails with FSDP_INTERRUPTED. For a
 * program that is about to end; a replacement of files that has begun is finished first. May be called on any thread;
 * NULL is allowed. [thread-safe] [blocks] */
FSDP_API void fsdp_hub_abandon(fsdp_hub_hold *hold);

#ifdef __cplusplus
}
#endif
#endif
