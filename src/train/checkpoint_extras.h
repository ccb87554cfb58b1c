/* checkpoint_extras.h - the small files that a run puts beside the tensors of its checkpoints. */
#pragma once

#include "fsdp/checkpoint.h"
#include "fsdp/train.h"

enum {
    FSDP__EXTRAS_MOST = 17
};

typedef struct fsdp__extras {
    fsdp_checkpoint_file files[FSDP__EXTRAS_MOST];
    int count;
} fsdp__extras;

/* Reads config.yaml of the run, config.json of the model, adapter_config.json of an adapter, generation_config.json and
 * the tokenizer's files of model.path. Release the result, also after a failure. */
fsdp_status fsdp__extras_read(const fsdp_train_run *run, fsdp__extras *out);
void fsdp__extras_release(fsdp__extras *extras);
