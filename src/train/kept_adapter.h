/* kept_adapter.h - adapters on disk: folders of peft, and checkpoints of runs that have trained one. Such a checkpoint
 * has the adapter alone, and says what it is (adapter_config.json) and what model it is beside (config.yaml). */
#ifndef TRAIN_KEPT_ADAPTER_H
#define TRAIN_KEPT_ADAPTER_H

#include <stdio.h>

#include "fsdp/adapter.h"

/* What a checkpoint says of its adapter, and of the model that the run held still. */
typedef struct fsdp__kept_adapter {
    fsdp_lora_options *options;
    char *base; /* the model's folder; NULL: its values were drawn from `seed` */
    uint64_t seed;
    fsdp_dtype dtype; /* of the base */
    fsdp_quantization quantize;
} fsdp__kept_adapter;

/* Reads that. FSDP_NOT_FOUND: the base is not there. FSDP_INVALID: it is not what it was, or an older version of fsdp
 * has written the checkpoint, which does not say what its adapter is. Release the result, also after a failure. */
fsdp_status fsdp__kept_adapter_read(const char *checkpoint, fsdp__kept_adapter *out);
void fsdp__kept_adapter_release(fsdp__kept_adapter *kept);
/* Fills the model, to which kept->options were added: the base, quantized or not. Call fsdp_agree on the result.
 * [collective] */
fsdp_status fsdp__kept_adapter_load_base(const fsdp__kept_adapter *kept, fsdp_adapter *adapter,
                                         const fsdp_model_config *config);

/* Refuses a checkpoint of an adapter where a whole model is expected. */
fsdp_status fsdp__kept_adapter_refuse(const char *checkpoint);

/* Reads the options of a folder of peft or of a checkpoint; free them with fsdp_lora_options_free. */
fsdp_status fsdp__adapter_on_disk_options(const char *folder, fsdp_lora_options **out);
/* Does what fsdp__adapter_load_state does with either. Call fsdp_agree on the result. */
fsdp_status fsdp__adapter_on_disk_load(const fsdp_adapter *adapter, const fsdp_state_dict *to, const char *folder);
/* Writes what it has, which must be the same on all ranks (train/facts.h). */
void fsdp__adapter_on_disk_facts(const char *folder, const char *key, FILE *out);

#endif
