/* managers.h - the hooks of a tree that manage parameters: their bytes, first values and dtype are not nn's business.
 */
#ifndef NN_MANAGERS_H
#define NN_MANAGERS_H

#include "fsdp/nn.h"

/* All hooks of the tree that say what they manage. `hooks` is to be freed. */
typedef struct fsdp__managers {
    struct fsdp__module_hooks *hooks;
    int64_t count, capacity;
} fsdp__managers;

/* A visit of fsdp__module_walk: adds those of the module; `arg` is the fsdp__managers. */
fsdp_status fsdp__add_managers(void *arg, fsdp_module *module, const char *name);
bool fsdp__is_managed(const fsdp__managers *managers, const fsdp_tensor *parameter);
/* Of a parameter that none of them manages: FSDP_STATE when it is a part of a sharded group, of which only the module
 * that was sharded knows which rows these are. `what` is to be done to it. */
fsdp_status fsdp__check_not_elsewhere(const fsdp_tensor *parameter, const char *what, const char *module,
                                      const char *name);

#endif
