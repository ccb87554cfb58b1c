/* folder_model.h - loads the model of a folder on all ranks. */
#ifndef CLI_FOLDER_MODEL_H
#define CLI_FOLDER_MODEL_H

#include <stdio.h>

#include "fsdp/fsdp.h"

typedef struct fsdp__folder_model_options {
    fsdp_dtype dtype;    /* of parameters */
    fsdp_device *device; /* of parameters */
    const char *adapter; /* the folder of an adapter that the model computes with, in float32; NULL: none */
    int tp, cp;          /* ranks that compute each layer, or sequence, together (parallel/meshes.h); 0: 1 */
} fsdp__folder_model_options;

/* Loads the model of a Hugging Face folder or a checkpoint (model_folder.h), in evaluation mode. If there are several
 * ranks, each holds its part, block by block. `config` is the folder's. The caller owns `*out`, which is NULL on
 * failure. [collective] */
fsdp_status fsdp__folder_model_load(fsdp_context *context, const char *path, const fsdp_model_config *config,
                                    const fsdp__folder_model_options *options, fsdp_module **out);
/* Reads a number of ranks, such as --tensor-parallel; NULL: 1. */
fsdp_status fsdp__team_option(const char *option, const char *text, int *out);

/* The folders of --adapter A,B,C. */
typedef struct fsdp__adapters {
    char *folders; /* each with a NUL after it; NULL: there are none */
    int count;
} fsdp__adapters;

/* Splits the option's text; NULL: it was not given. */
fsdp_status fsdp__adapters_read(const char *text, fsdp__adapters *out);
void fsdp__adapters_release(fsdp__adapters *adapters);
/* Returns the folder of an adapter; NULL: there are none. */
const char *fsdp__adapters_at(const fsdp__adapters *adapters, int index);
/* Writes what their folders have, which must be the same on all ranks. */
void fsdp__facts_of_adapters(const fsdp__adapters *adapters, FILE *out);

#endif
