/* merged.h - a model's tensors with an adapter in them, for `fsdp convert --adapter`. */
#ifndef CLI_MERGED_H
#define CLI_MERGED_H

#include "fsdp/fsdp.h"

/* Merges the adapter of a folder into a state of the whole model, which one rank holds. Weights that change are copies
 * in memory. The caller frees `*out`. */
fsdp_status fsdp__merge_adapter(fsdp_context *context, const fsdp_model_config *config, const fsdp_state_dict *base,
                                const char *folder, fsdp_state_dict **out);

#endif
