/* inputs.h - the files that a run reads: its config, its model's folder, its data. */
#pragma once

#include "fsdp/data.h"
#include "fsdp/train.h"

/* Returns the tokenizer's folder or file that data.tokenizer names; NULL: it is not set, or says bytes. */
const char *fsdp__inputs_named_tokenizer(const fsdp_train_config *config);
bool fsdp__inputs_are_bytes(const fsdp_train_config *config);
/* Finds the tokenizer that reads text: the one that data.tokenizer names, or that of model.path, or that of
 * checkpoint.initial_load_path. NULL: bytes are tokens. The caller fsdp__free's it. */
fsdp_status fsdp__inputs_tokenizer(const fsdp_train_config *config, char **out);

/* Returns the format that data.format and data.dtype ask for. */
fsdp_token_format fsdp__inputs_token_format(const fsdp_train_config *config);

/* Fails when `path`, to which `key` wants to write, is one of the inputs, under whatever name, or a folder of the
 * model, the data, the checkpoints or the export. NULL is none. */
fsdp_status fsdp__inputs_spare(const fsdp_train_config *config, const char *key, const char *path);
