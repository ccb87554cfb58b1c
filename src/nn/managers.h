/* managers.h - the hooks of a tree that manage parameters. Bytes, first values and dtype of a managed parameter are not
 * nn's business. */
#pragma once

#include "fsdp/nn.h"

/* Holds all hooks of the tree that manage parameters. `hooks` is to be freed. */
typedef struct fsdp__managers {
    struct fsdp__module_hooks *hooks;
    int64_t count, capacity;
} fsdp__managers;

/* Adds those of a module; a visit of fsdp__module_walk. `arg` is the fsdp__managers. */
fsdp_status fsdp__add_managers(void *arg, fsdp_module *module, const char *name);
bool fsdp__is_managed(const fsdp__managers *managers, const fsdp_tensor *parameter);
/* Checks a parameter that none of them manages: returns FSDP_STATE if it is a part of a sharded group, since only the
 * module that was sharded knows which rows these are. `what` names the action in the error. */
fsdp_status fsdp__check_not_elsewhere(const fsdp_tensor *parameter, const char *what, const char *module,
                                      const char *name);
/* Refuses (FSDP_STATE) a parameter that is gathered, or summoned: it is released in the end, and the shard takes its
 * place, which would not know what was done to it. */
fsdp_status fsdp__check_not_gathered(const fsdp_tensor *parameter, const char *what, const char *module,
                                     const char *name);
