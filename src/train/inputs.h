/* inputs.h - the files that a run reads: its config, its model's folder, its data. */
#ifndef TRAIN_INPUTS_H
#define TRAIN_INPUTS_H

#include "fsdp/data.h"
#include "fsdp/train.h"

/* As data.format and data.dtype ask. */
fsdp_token_format fsdp__inputs_token_format(const fsdp_train_config *config);

/* Fails when `path`, which `key` wants to write, is one of them, under whatever name. NULL is none. */
fsdp_status fsdp__inputs_spare(const fsdp_train_config *config, const char *key, const char *path);

#endif
