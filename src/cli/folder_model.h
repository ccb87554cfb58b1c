/* folder_model.h - loads the model of a folder on all ranks. */
#pragma once

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "train/model_folder.h"

typedef struct fsdp__folder_model_options {
    fsdp_dtype dtype;    /* of parameters; FSDP_DTYPE_NONE: float32, or what the run of an adapter's checkpoint had */
    fsdp_device *device; /* of parameters */
    const char *adapter; /* the folder of an adapter that the model computes with, in float32; NULL: none */
    bool bare;           /* of an adapter's checkpoint: the model without the adapter, as its run held it */
    int tp, cp;          /* ranks that compute each layer, or sequence, together (parallel/meshes.h); 0: 1 */
} fsdp__folder_model_options;

/* The lines of a command's help that say how its ranks have the model. */
#define FSDP__FOLDER_MODEL_HELP                                                          \
    "  --dtype DTYPE           compute in float32 (the default), bfloat16 or float16\n"  \
    "  --device DEVICE         cpu (the default), cuda (a GPU for each rank), cuda:N,\n" \
    "                          or auto: a GPU if every rank has one;\n"                  \
    "                          'fsdp inspect --devices' lists what is here\n"            \
    "  -n, -np, --ranks RANKS  number of processes to start; each holds a part\n"        \
    "                          of the weights until they are used\n"                     \
    "  --nproc-per-node RANKS  the same; 'fsdp run --help' lists other options of\n"     \
    "                          torchrun that are accepted\n"                             \
    "  --tensor-parallel N     ranks that compute each layer together; default 1\n"

/* Holds the folders of --adapter A,B,C. */
typedef struct fsdp__adapters {
    char *folders; /* each with a NUL after it; NULL: there are none */
    int count;
} fsdp__adapters;

/* Loads the model of a Hugging Face folder or a checkpoint (model_folder.h), in evaluation mode; of a checkpoint of an
 * adapter the base of its run, with the adapter. If there are several
 * ranks, each holds its part, block by block. `config` is the folder's. The caller owns `*out`, which is NULL on
 * failure. [collective] */
fsdp_status fsdp__folder_model_load(fsdp_context *context, const char *path, const fsdp_model_config *config,
                                    const fsdp__folder_model_options *options, fsdp_module **out);
/* Checks that `ranks` (0: not known yet) can be such teams, and that they can share the heads of such a model. */
fsdp_status fsdp__folder_model_check(const fsdp_model_config *config, int64_t ranks, int tp, int cp);
/* Checks that a checkpoint of an adapter finds its base, and that no other adapter is named beside it. */
fsdp_status fsdp__folder_adapter_check(const fsdp__model_folder *folder, const fsdp__adapters *adapters);
/* Writes what a checkpoint of an adapter computes with: "adapter of 'step-4' beside the base 'model'"; "": it is none.
 */
fsdp_status fsdp__folder_adapter_text(const fsdp__model_folder *folder, char *text, size_t text_bytes);
/* Reads a number of ranks, such as --tensor-parallel; NULL: 1. */
fsdp_status fsdp__team_option(const char *option, const char *text, int *out);

/* Splits the option's text, in which each is a folder of peft or a checkpoint; NULL: it was not given. */
fsdp_status fsdp__adapters_read(const char *text, fsdp__adapters *out);
/* Checks that all are folders of adapters, before work is done for the first. */
fsdp_status fsdp__adapters_check(const fsdp__adapters *adapters);
void fsdp__adapters_release(fsdp__adapters *adapters);
/* Returns the folder of an adapter; NULL: there are none. */
const char *fsdp__adapters_at(const fsdp__adapters *adapters, int index);
/* Writes what their folders have, which must be the same on all ranks. */
void fsdp__facts_of_adapters(const fsdp__adapters *adapters, FILE *out);
