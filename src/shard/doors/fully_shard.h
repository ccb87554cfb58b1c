/* fully_shard.h - what the front doors share of choosing parameters: fully_shard and FSDP1 take them alike. */
#pragma once

#include "shard/state/module_state.h"

extern const fsdp__door fsdp__door_fully_shard;

/* Does what fsdp_fully_shard_modules does, for a front door. If `flat` is given (with `on` set), the parameters, which
 * must be of one dtype, lie in one vector; then there must be no placement, no extension and no slices. [collective] */
fsdp_status fsdp__fully_shard(const fsdp__door *door, fsdp_module *const *modules, int count,
                              const fsdp_shard_options *options, const fsdp__flat *flat);
/* Checks whether a group may take the plain parameter next to `first` (NULL: it is the first). `what` names the action
 * in the error: "shard". */
fsdp_status fsdp__check_parameter(const char *what, const char *name, const fsdp_tensor *parameter,
                                  const fsdp_tensor *first);
/* Checks that the value is one of the enum's. */
fsdp_status fsdp__check_overlap(fsdp_overlap overlap);
