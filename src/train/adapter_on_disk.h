/* adapter_on_disk.h - adapters on disk: folders of peft, and checkpoints of runs that have trained one. */
#pragma once

#include <stdio.h>

#include "fsdp/adapter.h"

/* Refuses a checkpoint of an adapter where a whole model is expected. */
fsdp_status fsdp__adapter_on_disk_refuse(const char *checkpoint);

/* Reads the options of a folder of peft or of a checkpoint; free them with fsdp_lora_options_free. */
fsdp_status fsdp__adapter_on_disk_options(const char *folder, fsdp_lora_options **out);
/* Does what fsdp__adapter_load_state does with either. Call fsdp_agree on the result. */
fsdp_status fsdp__adapter_on_disk_load(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *folder);
/* Writes what it has, which must be the same on all ranks (train/same_facts.h). */
void fsdp__adapter_on_disk_facts(const char *folder, const char *key, FILE *out);
