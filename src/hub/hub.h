/* hub.h - parts of model folders that the layer's files and its tests share. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "fsdp/hub.h"

/* config.json from its text; `path` is for messages. The result is checked. */
fsdp_status fsdp__config_parse(const char *path, const void *text, size_t bytes, fsdp_model_config *out);
/* Texts of config.json and generation_config.json; free() them. `dtype` is what the weights are stored as. */
fsdp_status fsdp__config_text(const fsdp_model_config *config, fsdp_dtype dtype, char **out);
fsdp_status fsdp__generation_config_text(const fsdp_model_config *config, char **out);

/* The embedding's parameter: what a tied head is another name of. */
const char *fsdp__embedding_name(fsdp_architecture architecture);
#define FSDP__HEAD_NAME "lm_head.weight"

/* ---- where each tensor goes in the files to be written ---- */

typedef struct fsdp__save_file {
    char *name;   /* in the folder */
    char *header; /* length, JSON and padding */
    size_t header_bytes;
    uint64_t total_bytes;
    int64_t first, count; /* entries of the state, in order */
} fsdp__save_file;

typedef struct fsdp__save_plan {
    fsdp__save_file *files;
    int64_t file_count, file_capacity;
    uint64_t *offsets; /* per entry of the state: of its first element in its file */
    char *index;       /* text of the index, NULL for one file; free() it */
} fsdp__save_plan;

/* The same on every rank: follows from names, global shapes, dtype and limit alone. Files hold at most `limit_bytes`
 * of data, or one tensor. */
fsdp_status fsdp__save_plan_create(const fsdp_state *state, fsdp_dtype dtype, uint64_t limit_bytes,
                                   fsdp__save_plan *out);
void fsdp__save_plan_release(fsdp__save_plan *plan);

/* fsdp_hub_save with another limit per file. [collective] */
fsdp_status fsdp__hub_save_split(const char *folder, const fsdp_state *state, const fsdp_model_config *config,
                                 fsdp_dtype dtype, fsdp_group *group, uint64_t limit_bytes);

/* ---- publishing ---- */

/* FSDP_OK when a model may be written to `folder`: it does not exist, is empty, or holds a model. */
fsdp_status fsdp__publish_check(const char *folder);
/* A new, empty folder beside `folder`; fsdp__free its name. */
fsdp_status fsdp__publish_begin(const char *folder, char **out);
/* `temporary` takes the name `folder`; what had that name is under `temporary` now, if it was there. On failure
 * everything is as it was. */
fsdp_status fsdp__publish(const char *temporary, const char *folder, bool *out_replaced);
/* Takes it back. */
fsdp_status fsdp__publish_undo(const char *temporary, const char *folder, bool replaced);
/* Removes what was replaced. */
void fsdp__publish_finish(fsdp_context *context, const char *temporary);

/* ---- sampling ---- */

/* A token from `logits`; `draw` in [0, 1) decides. `scratch` holds vocab_size entries. */
typedef struct fsdp__candidate {
    float logit;
    int32_t token;
} fsdp__candidate;
fsdp_status fsdp__sample(const float *logits, int64_t vocab_size, float temperature, int64_t top_k, float draw,
                         fsdp__candidate *scratch, int32_t *out);

#endif
