/* fsdp/hub.h - Hugging Face model folders: config.json and safetensors, read into shards and written from them.
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

/* Whether the folder's safetensors files hold the parameters of a model of this config: names, shapes and dtypes, from
 * the headers alone. Call it before the model gets memory: a config.json may say any size. */
FSDP_API fsdp_status fsdp_hub_check(fsdp_context *context, const char *folder, const fsdp_model_config *config);

/* Fills every entry of the state from the folder's safetensors files: each rank reads only its own rows, converting
 * dtypes (F32, BF16, F16). Missing, surplus (beyond known aliases of tied weights and buffers that HF may store) or
 * misshapen tensors are errors naming the tensor and the file, found before anything is changed. Ranks look at their
 * own rows only, so one may fail alone: fsdp_agree on the result. */
FSDP_API fsdp_status fsdp_hub_load(const char *folder, fsdp_state_dict *state, const fsdp_model_config *config);

/* Writes config.json, generation_config.json and model.safetensors (or numbered files of at most 5 GB with an index)
 * that transformers loads: every rank writes its own rows into a new folder beside the final name, which takes its
 * place when all is on disk. An existing folder is replaced only if it holds a model folder written before (has
 * config.json) or is empty; its tokenizer files are kept. A failure on any rank is everybody's error and leaves nothing
 * under the final name that was not there. `dtype` F32, BF16 or F16. [collective] */
FSDP_API fsdp_status fsdp_hub_save(const char *folder, const fsdp_state_dict *state, const fsdp_model_config *config,
                                   fsdp_dtype dtype, fsdp_process_group *group);

/* Copies tokenizer.json and what else belongs to the tokenizer, as far as it is there. One rank calls it. */
FSDP_API fsdp_status fsdp_hub_copy_tokenizer(const char *from_folder, const char *to_folder);

#ifdef __cplusplus
}
#endif
#endif
