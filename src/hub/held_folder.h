/* held_folder.h - a folder that is held for a model, and what will be written into it. */
#pragma once

#include "base/compiler.h"
#include "format/publish.h"
#include "format/weights_plan.h"
#include "hub/hub.h"

#define FSDP__HUB_ADAPTER_CONFIG "adapter_config.json"
#define FSDP__HUB_CHAT_TEMPLATE "chat_template.jinja"

struct fsdp_hub_hold {
    fsdp_context *context;
    fsdp__publication *publication;
    fsdp__hub_target target;
    uint64_t bytes;             /* of its files, once they are planned */
    const char *adapter_config; /* its text; NULL until it is known, and for a model's folder */
};

/* Returns the dtype that an entry is stored in: `dtype`, but the entry's own if it is not floating or if `dtype` is
 * NONE. */
fsdp_dtype fsdp__hub_dtype(const fsdp_state_dict_entry *entry, fsdp_dtype dtype);
/* Plans which file each tensor of a state goes to. The plan follows from names, global shapes, dtype and limit alone,
 * so it is the same on every rank. */
fsdp_status fsdp__hub_plan(const fsdp_state_dict *state, fsdp_dtype dtype, uint64_t limit_bytes, fsdp__save_plan *out);
/* Checks that there is a place for the files of this plan and for those beside them. */
fsdp_status fsdp__hub_hold_check_plan(fsdp_hub_hold *hold, const fsdp__save_plan *plan, bool has_config);

/* Returns the folder whose tokenizer is copied along; NULL: none is. */
const char *fsdp__hub_tokenizer_folder(const fsdp__hub_target *target);
/* Returns whether the folder has the files that fsdp_tokenizer_open reads, whatever is in them. */
bool fsdp__hub_has_tokenizer(const char *folder);
/* Adds the tokenizer files of a folder to the list. Fails if one of them cannot be copied. */
fsdp_status fsdp__hub_list_tokenizer(const char *folder, fsdp__file_list *list);

FSDP__SCOPED_POINTER(fsdp_hub_hold, fsdp__hub_hold_free)
