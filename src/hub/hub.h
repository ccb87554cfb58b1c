/* hub.h - parts of model folders that the files of this layer and its tests share. */
#pragma once

#include <jansson.h>

#include "base/directory.h"
#include "fsdp/format.h"
#include "fsdp/hub.h"

/* A JSON file of settings larger than this is refused. Those of real models have a few KiB. */
#define FSDP__CONFIG_LIMIT_BYTES ((size_t)4 << 20)

/* Fails because nothing is at `path`. If the path might be a name on the hub, the message says how to get that. */
fsdp_status fsdp__hub_fail_missing(const char *path);
/* Does the same as fsdp_hub_check. `by_keys`: the config does not come from the folder's config.json, but from the keys
 * of a run. */
fsdp_status fsdp__hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config, bool by_keys);
/* Parses the text of a config.json; `path` is for messages. The result has been checked. */
fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out);
/* Returns what config.json calls the number of heads, or of key/value heads. */
const char *fsdp__hub_heads_key(fsdp_architecture architecture, bool kv);
/* Parses the stop tokens from the text of one of the two files. */
fsdp_status fsdp__stop_tokens_parse(const char *path, const void *text, size_t bytes, fsdp_hub_stop_tokens *out);
/* Gives the texts of config.json and generation_config.json; free() them. `dtype` is the dtype of the stored
 * weights. */
fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out);
/* Gives the config.json of a model that came from a folder: the text of that folder's config.json with only the changed
 * values replaced, so that all keys stay in their order. If the folder (which may be NULL) has no config.json, it gives
 * fsdp__config_text. It does the same, with a warning, if the file cannot be read or changed this way, or is of another
 * kind of model. free() it. */
fsdp_status fsdp__hub_keep_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                  fsdp_dtype dtype, char **out);
fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out);

/* Copies tokenizer.json and the other files of the tokenizer from a folder, as far as they exist. */
fsdp_status fsdp__hub_copy_tokenizer(const char *from, const fsdp__directory *to);
/* Puts the template of a folder's chat_template.jinja into its tokenizer_config.json, if that has another: transformers
 * takes the former, llama.cpp's converter the latter. */
fsdp_status fsdp__hub_agree_on_template(const fsdp__directory *folder);

/* Holds what a model has learned to talk by. */
typedef struct fsdp__hub_talk {
    const char *chat_template; /* its text, for chat_template.jinja; NULL: the tokenizer's folder has it */
    int32_t end_of_turn;       /* the token behind an answer, at which generation stops; -1: none is known */
} fsdp__hub_talk;

/* Gives the text of the folder's generation_config.json, with a NUL; fsdp__free it. If the folder has none, or one that
 * names tokens which are not in this config's vocabulary, it is that of the config. A file that cannot be read is left
 * behind, with a warning. The tokens that end a text have the end of turn of `talk` among them. `folder` and `talk` may
 * be NULL. */
fsdp_status fsdp__hub_generation_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                        const fsdp__hub_talk *talk, char **out);
/* Changes `text`, a JSON object, so that `key` is `value`; all else stays. fsdp__free `*out`. */
fsdp_status fsdp__hub_set_key(const char *text, const char *key, const json_t *value, char **out);

/* Hears of each entry of a state as soon as the entry has its values, before the next one gets any.
 */
typedef struct fsdp__hub_listener {
    fsdp_status (*arrived)(void *arg, const fsdp_state_dict_entry *entry);
    void *arg;
} fsdp__hub_listener;
/* Does the same as fsdp_hub_load, or with a group as fsdp_hub_load_by_leader, for a listener. [collective with a group]
 */
fsdp_status fsdp__hub_load_each(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_process_group *group, const fsdp__hub_listener *listener);

/* Returns the tensor of a folder's files for the parameter of this name, under any of the names that are known for it;
 * NULL: there is none. */
const fsdp_weights_entry *fsdp__hub_find(const fsdp_weights *files, const fsdp_model_config *config, const char *name);
/* Returns the name of the embedding's parameter, which a tied head shares. */
const char *fsdp__embedding_name(fsdp_architecture architecture);
#define FSDP__HEAD_NAME "lm_head.weight"

/* ---- a folder that a model will be saved to, held by rank 0 ---- */

#define FSDP__FILE_LIMIT_BYTES 5000000000u /* the size at which transformers splits */
/* This limit stands for one file, adapter_model.safetensors. (Public calls take only numbers below it.) */
#define FSDP__HUB_ONE_FILE UINT64_MAX

typedef struct fsdp__hub_target {
    const char *folder;
    const char *source;         /* the folder that the model came from: never written to, and its tokenizer and
                                 * generation_config.json are copied along; NULL: none */
    const char *tokenizer;      /* a folder whose tokenizer is copied along in place of the source's; NULL, or a file:
                                 * the source's */
    const fsdp__hub_talk *talk; /* NULL: it has not learned to */
    bool no_tokenizer;          /* none is copied along: the model's tokens are bytes */
    const char *overwrite_hint; /* see format/publish.h */
    bool overwrite;
    bool adapter; /* the folder is to be an adapter's: adapter_config.json beside one file of weights */
    bool rescue; /* saving the weights matters most: a tokenizer that cannot be copied is left behind, with a warning */
} fsdp__hub_target;

/* Creates an object that does not hold the folder yet. Strings are borrowed. Returns NULL when out of memory. */
fsdp_hub_hold *fsdp__hub_hold_create(fsdp_context *context, const fsdp__hub_target *target);
/* Holds the folder from here on until the hold is freed: see fsdp__publication_begin. */
fsdp_status fsdp__hub_hold_begin(fsdp_hub_hold *hold);
/* Checks that there is a place for what fsdp__hub_save_held will write: space, limits, names that are taken. */
fsdp_status fsdp__hub_hold_check(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, uint64_t limit_bytes);
/* Says what adapter_config.json will have, for an adapter's folder. Borrowed until the save; NULL holds are allowed. */
void fsdp__hub_hold_describe(fsdp_hub_hold *hold, const char *adapter_config);
void fsdp__hub_hold_free(fsdp_hub_hold *hold); /* NULL is allowed */

/* Does what fsdp_hub_save_split does, into the folder that rank 0 holds; the other ranks pass NULL. The hold ends with
 * it. [collective] */
fsdp_status fsdp__hub_save_held(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes);
