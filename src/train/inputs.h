/* inputs.h - the files that a run reads: its config, its model's folder, its data. */
#ifndef TRAIN_INPUTS_H
#define TRAIN_INPUTS_H

#include "fsdp/data.h"
#include "fsdp/train.h"

/* The tokenizer's folder or file that data.tokenizer names; NULL: it is not set, or bytes. */
const char *fsdp__inputs_named_tokenizer(const fsdp_train_config *config);
bool fsdp__inputs_are_bytes(const fsdp_train_config *config);
/* The one that reads text: that, or model.path's, or that of checkpoint.initial_load_path. NULL: bytes are tokens. The
 * caller fsdp__free's it. */
fsdp_status fsdp__inputs_tokenizer(const fsdp_train_config *config, char **out);

/* As data.format and data.dtype ask. */
fsdp_token_format fsdp__inputs_token_format(const fsdp_train_config *config);

/* Fails when `path`, which `key` wants to write, is one of them, under whatever name. NULL is none. */
fsdp_status fsdp__inputs_spare(const fsdp_train_config *config, const char *key, const char *path);

#endif
