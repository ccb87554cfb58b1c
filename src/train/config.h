/* config.h - what follows from a config's keys. */
#ifndef TRAIN_CONFIG_H
#define TRAIN_CONFIG_H

#include "base/compiler.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"

/* The folder's config.json, or the preset with its overrides, checked. */
fsdp_status fsdp__train_model_config(const fsdp_train_config *config, fsdp_model_config *out);

#endif
