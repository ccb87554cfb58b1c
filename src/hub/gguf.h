/* gguf.h - models as files of llama.cpp: tensors, keys and tokenizers under the names that it knows.
 *
 * GPT-2, Llama, Mistral, Qwen2, Qwen3, OLMo 2, SmolLM3, Phi-3, Gemma 2 and Gemma 3. Rows of the query and key of Llama,
 * Mistral and SmolLM3 are in the file's order, where the two elements that rotate together lie side by side; GPT-2's
 * matrices are transposed; Gemma's norms are what they multiply by; a tied head is left out. Vectors and GPT-2's
 * positions are float32 whatever the type of the matrices. */
#pragma once

#include "format/gguf.h"
#include "fsdp/models.h"
#include "fsdp/state.h"

/* A model that is to be written: whole tensors of one rank. */
typedef struct fsdp__gguf_model {
    const fsdp_state_dict *state;
    const fsdp_model_config *config;
    const char *name;      /* general.name */
    const char *tokenizer; /* folder with tokenizer.json; NULL: none */
    fsdp__gguf_type type;  /* of matrices; those whose rows are no blocks of q8_0 are float16 then */
} fsdp__gguf_model;

/* Writes a new file, whole or not at all; one that exists is refused. */
fsdp_status fsdp__gguf_save(const char *path, const fsdp__gguf_model *model);

/* Reads the config from the keys and tensors of a file. The result has been checked. */
fsdp_status fsdp__gguf_config(const fsdp__gguf *file, fsdp_model_config *out);
/* Checks that the file has the tensors of the state, which may be on the meta device: one that is missing, has another
 * shape, or is none of the model's is an error that names it. */
fsdp_status fsdp__gguf_check(const fsdp__gguf *file, const fsdp_model_config *config, const fsdp_state_dict *state);
/* Reads all tensors of a state of such a model. */
fsdp_status fsdp__gguf_load(const fsdp__gguf *file, const fsdp_model_config *config, fsdp_state_dict *state);

/* ---- gguf_tokenizer.c, gguf_tokenizer_load.c ---- */

/* Puts the tokenizer of a folder into a header: byte-level BPE with a known way of splitting text, or SentencePiece's
 * BPE. What llama.cpp would cut otherwise is refused. */
fsdp_status fsdp__gguf_put_tokenizer(fsdp__gguf_header *header, const char *folder, const fsdp_model_config *config);
/* Gives tokenizer.json and tokenizer_config.json of a file; fsdp__free them. NULL if the file has no tokenizer. */
fsdp_status fsdp__gguf_tokenizer(const fsdp__gguf *file, char **json, char **config_json);
