/* train/config.h - configs of runs for tests. */
#pragma once

#include "fsdp/train.h"

/* Returns a config without keys. It belongs to the running case. */
fsdp_train_config *test_empty_config(void);
/* Returns one with these keys: "key=value key=value", after printf. */
fsdp_train_config *test_config(const char *keys, ...) FSDP_PRINTF(1, 2);
/* Returns one of three steps of a small Llama on a file of its own, and these keys. */
fsdp_train_config *test_small_config(const char *keys);
/* Sets one key of a fixture's, or of anything that has a config. */
#define SET(f, key, value) CHECK_OK(fsdp_train_config_set((f)->config, (key), (value)))
/* Sets more of them. */
void test_set_keys(fsdp_train_config *config, const char *keys, ...) FSDP_PRINTF(2, 3);
