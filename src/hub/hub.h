/* hub.h - parts of model folders that the layer's files and its tests share. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "base/directory.h"
#include "fsdp/format.h"
#include "fsdp/hub.h"

/* A JSON file of settings above this size is refused: those of real models have a few KiB. */
#define FSDP__CONFIG_LIMIT_BYTES ((size_t)4 << 20)

/* The failure that nothing is there; where the path might be a name on the hub, with how to get that. */
fsdp_status fsdp__hub_fail_missing(const char *path);
/* As fsdp_hub_check; `by_keys`: the config is not that of the folder's config.json, but of a run's keys. */
fsdp_status fsdp__hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config, bool by_keys);
/* config.json from its text; `path` is for messages. The result is checked. */
fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out);
/* Those of one of the two files, from its text. */
fsdp_status fsdp__stop_tokens_parse(const char *path, const void *text, size_t bytes, fsdp_hub_stop_tokens *out);
/* Texts of config.json and generation_config.json; free() them. `dtype` is what the weights are stored as. */
fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out);
/* The same of a model that came from a folder: the text of its config.json, in which only what has changed is other, so
 * that all keys and their order stay. Where the folder (which may be NULL) has none that can be read, or not of this
 * kind of model, it is fsdp__config_text, with a warning. free() it. */
fsdp_status fsdp__hub_keep_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                  fsdp_dtype dtype, char **out);
fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out);

/* As fsdp_hub_copy_tokenizer. */
fsdp_status fsdp__hub_copy_tokenizer(const char *from, const fsdp__directory *to);

/* The text of the folder's generation_config.json, with a NUL; fsdp__free it. NULL where it has none, or one that names
 * tokens which this config's vocabulary does not have. What cannot be read stays behind, with a warning. `folder` may
 * be NULL. */
fsdp_status fsdp__hub_keep_generation_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                             char **out);

/* The tensor that a parameter of this name has in a folder's files, by any of the names that are known for it; NULL:
 * there is none. */
const fsdp_weights_entry *fsdp__hub_find(const fsdp_weights *files, const fsdp_model_config *config, const char *name);
/* The embedding's parameter: what a tied head is another name of. */
const char *fsdp__embedding_name(fsdp_architecture architecture);
#define FSDP__HEAD_NAME "lm_head.weight"

/* ---- a folder that a model will be saved to, held by rank 0 ---- */

#define FSDP__FILE_LIMIT_BYTES 5000000000u /* what transformers splits at */

typedef struct fsdp__hub_target {
    const char *folder;
    const char *source;         /* the folder that the model came from: never written to, and its tokenizer and
                                 * generation_config.json are copied along; NULL: none */
    const char *tokenizer;      /* a folder whose tokenizer is copied along in place of the source's; NULL, or a file:
                                 * the source's */
    bool no_tokenizer;          /* none is copied along: the model's tokens are bytes */
    const char *overwrite_hint; /* see format/publish.h */
    bool overwrite;
    bool rescue; /* the weights are what counts: a tokenizer that cannot be copied stays behind, with a warning */
} fsdp__hub_target;

/* Holds nothing yet; strings are borrowed. NULL when out of memory. */
fsdp_hub_hold *fsdp__hub_hold_create(fsdp_context *context, const fsdp__hub_target *target);
/* From here on until it is freed the folder is held: see fsdp__publication_begin. */
fsdp_status fsdp__hub_hold_begin(fsdp_hub_hold *hold);
/* Whether what fsdp__hub_save_held will write finds its place: space, limits, names that are taken. */
fsdp_status fsdp__hub_hold_check(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, uint64_t limit_bytes);
void fsdp__hub_hold_free(fsdp_hub_hold *hold); /* NULL is allowed */

/* fsdp_hub_save_split into what rank 0 holds; the others give NULL. The hold is at its end then. [collective] */
fsdp_status fsdp__hub_save_held(fsdp_hub_hold *hold, const fsdp_state_dict *state, const fsdp_model_config *config,
                                fsdp_dtype dtype, fsdp_process_group *group, uint64_t limit_bytes);

#endif
