/* fully_shard.h - a call of a front door that takes the parameters of modules as fully_shard does. */
#ifndef SHARD_FULLY_SHARD_H
#define SHARD_FULLY_SHARD_H

#include "shard/group.h"

/* fsdp_fully_shard_modules; where `flat` is given (on) the parameters, of one dtype, lie in one vector: without a
 * placement, an extension or slices then. [collective] */
fsdp_status fsdp__fully_shard(fsdp_module *const *modules, int count, const fsdp_shard_options *options,
                              const fsdp__flat *flat);
/* Whether a group may have the plain parameter, beside `first` (NULL: it is the first); `what` is not done to it else:
 * "shard". */
fsdp_status fsdp__check_parameter(const char *what, const char *name, const fsdp_tensor *parameter,
                                  const fsdp_tensor *first);

#endif
