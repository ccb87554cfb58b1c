/* merged.h - tensors of adapters for `fsdp convert`: in those of a model, and by themselves. */
#pragma once

#include "fsdp/fsdp.h"

/* Merges the adapter of a folder into a state of the whole model, which one rank holds. Weights that change are copies
 * in memory. The caller frees `*out`. */
fsdp_status fsdp__merge_adapter(fsdp_context *context, const fsdp_model_config *config, const fsdp_state_dict *base,
                                const char *folder, fsdp_state_dict **out);

/* Makes a state dict of an adapter with the names that peft writes, of that of a checkpoint of it. */
fsdp_status fsdp__name_adapter(fsdp_context *context, const fsdp_model_config *config, const fsdp_state_dict *state,
                               const char *checkpoint, fsdp_state_dict **out);
