/* wrap_policy.h - what a wrap policy says of one module, and whether it did what it was for. Who asks, and of which
 * modules, is wrap_units.c's business. */
#ifndef SHARD_WRAP_POLICY_H
#define SHARD_WRAP_POLICY_H

#include "fsdp/wrap.h"

/* It has what its kind needs. */
fsdp_status fsdp__wrap_policy_check(const fsdp_wrap_policy *policy);
/* Shall the module's children be looked at (`recurse`); shall it be a unit? Of all kinds but CUSTOM. */
bool fsdp__wrap_policy_decide(const fsdp_wrap_policy *policy, const fsdp_module *module, const char *name, bool recurse,
                              int64_t nonwrapped_numel);
bool fsdp__wrap_is_of_class(const fsdp_module *module, const char *const *classes, int count);
/* Two lists of pointers as one, of what is ignored by a call and by its policy. The caller frees `*out`. */
fsdp_status fsdp__wrap_join(const char *what, const void *ours, int64_t our_count, const void *theirs,
                            int64_t their_count, void **out);
/* Of a policy by size: elements that a unit has at least. */
int64_t fsdp__wrap_policy_size(const fsdp_wrap_policy *policy);
/* For front doors, before the first unit is made: a unit without a forward to gather for, a class that no module of the
 * tree has, a policy that makes no unit but the root, are errors that say so. */
fsdp_status fsdp__wrap_units_check(const fsdp_wrap_units *units, const fsdp_wrap_policy *policy);

#endif
