/* hold.h - a folder held for a model, and what will be written into it. */
#ifndef HUB_HOLD_H
#define HUB_HOLD_H

#include "format/plan.h"
#include "format/publish.h"
#include "hub/hub.h"

struct fsdp_hub_hold {
    fsdp_context *context;
    fsdp__publication *publication;
    fsdp__hub_target target;
};

/* What an entry is stored as: `dtype`, but numbers that are not floating, and all where that is NONE, as they are. */
fsdp_dtype fsdp__hub_dtype(const fsdp_state_dict_entry *entry, fsdp_dtype dtype);
/* Where the tensors of a state go. Follows from names, global shapes, dtype and limit alone: the same on every rank. */
fsdp_status fsdp__hub_plan(const fsdp_state_dict *state, fsdp_dtype dtype, uint64_t limit_bytes, fsdp__save_plan *out);
/* Whether files of this plan, with what stands beside them, find their place. */
fsdp_status fsdp__hub_hold_check_plan(fsdp_hub_hold *hold, const fsdp__save_plan *plan, bool has_config);

/* The folder whose tokenizer is copied along; NULL: none is. */
const char *fsdp__hub_tokenizer_folder(const fsdp__hub_target *target);
/* Whether it has what fsdp_tokenizer_open reads, whatever is in that. */
bool fsdp__hub_has_tokenizer(const char *folder);
/* Adds the tokenizer files of a folder; fails when one of them cannot be copied. */
fsdp_status fsdp__hub_list_tokenizer(const char *folder, fsdp__file_list *list);

#endif
