/* overrides.h - what a command line sets in place of a config file: --section.key=value. */
#pragma once

#include <stdbool.h>

#include "fsdp/train.h"

typedef struct fsdp__overrides {
    fsdp_train_config *config;
    bool has_lists[11]; /* the command line has named these lists */
} fsdp__overrides;

/* Do the two passes of fsdp__args.dotted, whose arg is an fsdp__overrides. Options may stand before the file and win
 * over it, so the file is read between the passes. */
fsdp_status fsdp__override_skip(void *arg, const char *key, const char *value);
fsdp_status fsdp__override_set(void *arg, const char *key, const char *value);

/* Returns whether the command line gives the key. */
bool fsdp__override_is_given(int argc, char **argv, const char *key);
/* Refuses a key that the command line gives though another one, which is set, takes its place. */
fsdp_status fsdp__override_check(const fsdp_train_config *config, int argc, char **argv);
