/* wrap_policy.h - what a wrap policy says of one module, and whether the policy did what it was for. wrap_units.c
 * decides which modules it is asked about. */
#pragma once

#include "fsdp/wrap.h"

/* Checks that the policy has what its kind needs. */
fsdp_status fsdp__wrap_policy_check(const fsdp_wrap_policy *policy);
/* Returns whether the module's children are to be looked at (`recurse`), or whether it is to be a unit. For all kinds
 * but CUSTOM. */
bool fsdp__wrap_policy_decide(const fsdp_wrap_policy *policy, const fsdp_module *module, const char *name, bool recurse,
                              int64_t nonwrapped_numel);
bool fsdp__wrap_is_of_class(const fsdp_module *module, const char *const *classes, int count);
/* Joins two lists of pointers: what a call ignores and what its policy ignores. The caller frees `*out`. */
fsdp_status fsdp__wrap_join(const char *what, const void *ours, int64_t our_count, const void *theirs,
                            int64_t their_count, void **out);
/* Returns the least number of elements of a unit, for a policy by size. */
int64_t fsdp__wrap_policy_size(const fsdp_wrap_policy *policy);
/* Checks the units before a front door makes the first one. These are errors that say so: a unit without a forward to
 * gather for, a class that no module of the tree has, a policy that makes no unit but the root. */
fsdp_status fsdp__wrap_units_check(const fsdp_wrap_units *units, const fsdp_wrap_policy *policy);
