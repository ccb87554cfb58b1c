/* entry.h - what a state dict says of one tensor. */
#ifndef STATE_ENTRY_H
#define STATE_ENTRY_H

#include "base/compiler.h"
#include "fsdp/state.h"

/* Sets the entry's box, shape and writer from what entry->tensor has now. */
fsdp_status fsdp__entry_describe(fsdp_state_dict_entry *entry);
/* Returns whether these are the same as when the tensor was added: it may have been sharded since. */
bool fsdp__entry_is_current(const fsdp_state_dict_entry *entry);
/* Returns what a write to the tensor would return, without writing: FSDP_STATE while its module runs or is summoned.
 * Makes stale what was made from the old values. */
fsdp_status fsdp__entry_ask_to_write(const fsdp_state_dict_entry *entry);

FSDP__SCOPED_POINTER(fsdp_state_dict, fsdp_state_dict_free)

#endif
