/* entry.h - what a state dict says of one tensor. */
#ifndef STATE_ENTRY_H
#define STATE_ENTRY_H

#include "fsdp/state.h"

/* Box, shape, and who writes, as entry->tensor has them now. */
fsdp_status fsdp__entry_describe(fsdp_state_dict_entry *entry);
/* Whether they are what they were when the tensor was added: it may have been sharded since. */
bool fsdp__entry_is_current(const fsdp_state_dict_entry *entry);
/* What a write to the tensor would come to, without one: FSDP_STATE while its module runs or is summoned. What was made
 * from the old values is stale afterwards. */
fsdp_status fsdp__entry_ask_to_write(const fsdp_state_dict_entry *entry);

#endif
