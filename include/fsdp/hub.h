/* fsdp/hub.h - Hugging Face model folders: config.json and safetensors, read and written from shards.
 *
 * Every reader checks what it reads (sizes, offsets, names, dtypes) and names file, tensor and key in its error. */
#ifndef FSDP_HUB_H
#define FSDP_HUB_H

#include "fsdp/models.h"
#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors files ---- */

typedef struct fsdp_safetensors fsdp_safetensors;

typedef struct fsdp_safetensors_entry {
    const char *name;
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    const void *data; /* in the memory map */
    size_t bytes;
    const char *file; /* path of the file it is in */
} fsdp_safetensors_entry;

/* One file, or all files of an index, or a folder with model.safetensors or model.safetensors.index.json. Headers are
 * checked whole (sizes, overlaps, gaps, ranges, duplicate names) before anything is returned. Nothing is read of the
 * data: it is mapped. */
FSDP_API fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **out);
FSDP_API void fsdp_safetensors_close(fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_count(const fsdp_safetensors *file);
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_at(const fsdp_safetensors *file,
                                                           int64_t index); /* by name order */
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_find(const fsdp_safetensors *file, const char *name);

/* ---- model folders ---- */

FSDP_API fsdp_status fsdp_hub_read_config(const char *folder, fsdp_model_config *out);

/* Fills every entry of the state from the folder's safetensors files: each rank reads only its own rows, converting
 * dtypes (F32, BF16, F16). Missing, surplus (beyond known aliases of tied weights and buffers that HF may store) or
 * misshapen tensors are errors naming the tensor and the file, found before anything is changed. Ranks look at their
 * own rows only, so one may fail alone: fsdp_agree on the result. */
FSDP_API fsdp_status fsdp_hub_load(const char *folder, fsdp_state *state, const fsdp_model_config *config);

/* Writes config.json, generation_config.json and model.safetensors (or numbered files of at most 5 GB with an index)
 * that transformers loads: every rank writes its own rows into a new folder beside the final name, which takes its
 * place when all is on disk. An existing folder is replaced only if it holds a model folder written before (has
 * config.json) or is empty; its tokenizer files are kept. A failure on any rank is everybody's error and leaves nothing
 * under the final name that was not there. `dtype` F32, BF16 or F16. [collective] */
FSDP_API fsdp_status fsdp_hub_save(const char *folder, const fsdp_state *state, const fsdp_model_config *config,
                                   fsdp_dtype dtype, fsdp_group *group);

/* Copies tokenizer.json and what else belongs to the tokenizer, as far as it is there. One rank calls it. */
FSDP_API fsdp_status fsdp_hub_copy_tokenizer(const char *from_folder, const char *to_folder);

/* ---- generation ---- */

typedef struct fsdp_generate_options {
    int64_t max_new_tokens;
    float temperature; /* 0: the most likely token */
    int64_t top_k;     /* 0: all */
    uint64_t seed;
} fsdp_generate_options;

/* Appends tokens to `tokens` (capacity count + max_new_tokens), one by one over the last max_seq_len of them; `each`
 * (may be NULL) sees every new token and ends the generation by returning false: rank 0's answer counts. Every rank of
 * a world calls it, with rank 0's arguments, and gets the same tokens. Same seed, same tokens. *count grows.
 * [collective] */
FSDP_API fsdp_status fsdp_generate(fsdp_module *model, int32_t *tokens, int64_t *count,
                                   const fsdp_generate_options *options, bool (*each)(void *arg, int32_t token),
                                   void *arg);

#ifdef __cplusplus
}
#endif
#endif
