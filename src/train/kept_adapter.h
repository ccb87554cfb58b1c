/* kept_adapter.h - adapters on disk: folders of peft, and checkpoints of runs that have trained one. Such a checkpoint
 * has the adapter alone, and says what it is (adapter_config.json) and what model it is beside (config.yaml). */
#pragma once

#include "fsdp/adapter.h"

/* Holds what a checkpoint says of its adapter, and of the model that the run held still. */
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
