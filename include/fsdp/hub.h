/* fsdp/hub.h - Hugging Face model folders: config.json and weights, read into shards and written from them.
 *
 * Every reader checks what it reads (sizes, offsets, names, dtypes) and names file, tensor and key in its error. */
#ifndef FSDP_HUB_H
#define FSDP_HUB_H

#include "fsdp/models.h"
#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

FSDP_API fsdp_status fsdp_hub_read_config(const char *folder, fsdp_model_config *out);

/* What ends a text: eos_token_id, a token or a list of them, of generation_config.json, or of config.json where that is
 * not there or names none. None in either is no error. */
enum {
    FSDP_HUB_MAX_STOP_TOKENS = FSDP_MODEL_MAX_EOS_TOKENS
};
typedef struct fsdp_hub_stop_tokens {
    int64_t count;
    int32_t ids[FSDP_HUB_MAX_STOP_TOKENS];
} fsdp_hub_stop_tokens;
FSDP_API fsdp_status fsdp_hub_read_stop_tokens(const char *folder, fsdp_hub_stop_tokens *out);

/* Whether the folder's weights hold the parameters of a model of this config: names, shapes and dtypes, from
 * the headers alone. Call it before the model gets memory: a config.json may say any size. */
FSDP_API fsdp_status fsdp_hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config);

/* Fills every entry of the state from the folder's weights (fsdp_weights_open: safetensors or pytorch_model.bin): each
 * rank reads only its own rows, a few MiB at a time, converting dtypes (F32, BF16, F16; whole numbers and booleans are
 * read as what they are). Missing, surplus (beyond known aliases of tied weights, buffers that HF may store, in any
 * dtype, and what the index does not list) or misshapen tensors are errors naming tensors, shapes and file, and the
 * usual cause, found before anything is changed, and so are shards that cannot be written now. Ranks look at their own
 * rows only, so one may fail alone: fsdp_agree on the result.
 * `config` is NULL for a model of one's own, in which names are what they are. */
FSDP_API fsdp_status fsdp_hub_load(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config);

/* The same, where rank 0 of the group alone reads the data, and sends it to the others, who take their rows of it: for
 * storage that gets slower when all ranks read. Same bits. All ranks of the group have the same names in the same
 * order; what is wrong on any rank is an error on all. [collective] */
FSDP_API fsdp_status fsdp_hub_load_by_leader(const char *folder, fsdp_state_dict *state,
                                             const fsdp_model_config *config, fsdp_process_group *group);

/* The same with names that only one of the two has passed over (PyTorch's strict=False): what both have is read, and
 * the rest is in `*out`, for the caller to release, who may give NULL. */
FSDP_API fsdp_status fsdp_hub_load_partly(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                          fsdp_state_dict_keys *out);

/* Writes model.safetensors (or numbered files of at most 5 GB with an index), config.json and generation_config.json,
 * as transformers loads them; without a config, which may be NULL, the weights alone, of whatever module the state is.
 * Every rank writes its own rows into files that take their place when all of them are on disk; `group` has all ranks
 * that share the state (one of them alone is refused, and so is a state without values).
 *
 * The folder may be new: then the folders above it are made. It may be empty, or hold what fsdp_hub_save wrote before
 * and nobody changed: it leaves a list of its files (.fsdp-files.json), which goes with them; files that are not in the
 * list stay. Anything else is refused, and so is a folder that another process is writing to. A link is followed, but
 * not one that another user may have put there; and where others may write, a list, a journal or a temporary folder of
 * theirs is refused by name (FSDP_INVALID).
 *
 * A failure on any rank is everybody's error, and leaves what was there. A process that is killed while it replaces the
 * files of a folder (a few renames) leaves a journal in it, unfinished-save.json: until fsdp_hub_repair, or the next
 * save, has finished what was begun, every reader refuses the folder. What a dead process left beside or in the folder
 * (`<folder>.saving`, `.saving`) is removed by the next save. `dtype` F32, BF16 or F16, or without a config NONE: each
 * tensor in its own. Whole numbers and booleans stay what they are. [collective] */
FSDP_API fsdp_status fsdp_hub_save(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                   fsdp_dtype dtype, fsdp_process_group *group);

/* The same with files of at most `max_shard_bytes` of weights, where fsdp_hub_save has 5 GB; a tensor that is larger
 * has a file of its own. [collective] */
FSDP_API fsdp_status fsdp_hub_save_split(const char *folder, const fsdp_state_dict *state,
                                         const fsdp_model_config *config, fsdp_dtype dtype, fsdp_process_group *group,
                                         uint64_t max_shard_bytes);

/* Finishes a save into this folder that was interrupted while its files were replaced: afterwards the folder holds the
 * new model. `*out_finished` (may be NULL) says whether there was one. One process calls it; refused while a save is
 * running there, and where another user may have left what tells of it: nothing is moved then. */
FSDP_API fsdp_status fsdp_hub_repair(const char *folder, bool *out_finished);

/* A folder held for a save to come, as a training run holds its export.path: see fsdp_train_listener.holds. */
typedef struct fsdp_hub_hold fsdp_hub_hold;
/* Removes what the hold has made on disk, and ends it: the save it was for fails with FSDP_INTERRUPTED. For a program
 * that is about to end; a replacement of files that has begun is finished first. From any thread; NULL is allowed.
 * [thread-safe] [blocks] */
FSDP_API void fsdp_hub_abandon(fsdp_hub_hold *hold);

/* Copies tokenizer.json and what else belongs to the tokenizer, as far as it is there. One rank calls it. */
FSDP_API fsdp_status fsdp_hub_copy_tokenizer(const char *from_folder, const char *to_folder);

#ifdef __cplusplus
}
#endif
#endif
