/* entry.h - what a state dict says of one tensor, and which of two state dicts says it. */
#pragma once

#include "base/compiler.h"
#include "fsdp/state.h"

/* Sets the entry's box, shape and writer from what entry->tensor has now. */
fsdp_status fsdp__entry_describe(fsdp_state_dict_entry *entry);
/* Returns whether these are the same as when the tensor was added: it may have been sharded since. */
bool fsdp__entry_is_current(const fsdp_state_dict_entry *entry);
/* Returns whether this rank writes its part when the ranks of a group (NULL: the world) save together: of those that
 * hold the same part, in whichever slice of the mesh, only the first does. */
bool fsdp__entry_writes(const fsdp_state_dict_entry *entry, const fsdp_process_group *group);
/* Returns what a write to the tensor would return, without writing: FSDP_STATE while its module runs or is summoned.
 * Makes stale what was made from the old values. */
fsdp_status fsdp__entry_ask_to_write(const fsdp_state_dict_entry *entry);

/* Makes an empty state dict of the context's ranks, which they gather and load together even while it is empty. NULL:
 * that of the first tensor that is added. */
fsdp_status fsdp__state_dict_create_in(fsdp_context *context, fsdp_state_dict **out);
/* Returns the context, or NULL. */
fsdp_context *fsdp__state_dict_context(const fsdp_state_dict *state);

/* Makes a state dict of the entries of `base`, with the tensors of `over` in place of those of the same names. The
 * caller owns `*out`. */
fsdp_status fsdp__state_dict_with(const fsdp_state_dict *base, const fsdp_state_dict *over, fsdp_state_dict **out);

FSDP__SCOPED_POINTER(fsdp_state_dict, fsdp_state_dict_free)
