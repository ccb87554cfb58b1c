/* param_groups.h - the options of an optimizer's groups as state of their parameters, and the keys of such state. */
#pragma once

#include "optim/optim.h"

/* Describes a key "<prefix><parameter>.<what>" */
typedef struct fsdp__optimizer_key {
    const char *prefix;    /* "state." or "param_groups." */
    const char *parameter; /* `length` characters */
    size_t length;
    const char *what;
} fsdp__optimizer_key;

bool fsdp__optimizer_split_key(const char *name, fsdp__optimizer_key *out);
bool fsdp__optimizer_has_option(const fsdp_optimizer *optimizer, const char *name);
/* Sets the options that `state` has. With `check` it only checks whether they can be set. */
fsdp_status fsdp__optimizer_load_groups(fsdp_optimizer *optimizer, const fsdp_state_dict *state, bool check);
