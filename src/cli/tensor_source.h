/* tensor_source.h - finds tensors of files by name, whatever the files are: a Hugging Face folder, one file of weights,
 * a checkpoint. It reads only what is asked for. */
#pragma once

#include "fsdp/format.h"
#include "train/model_folder.h"

typedef struct fsdp__source_tensor {
    char *name;             /* in a checkpoint "section.name", or the name alone (weights_only) */
    fsdp_dtype dtype;       /* NONE: a dtype of weights that cannot be read */
    const char *dtype_name; /* of weights: the name in the file */
    int ndim;
    const int64_t *shape;
    int64_t numel;
    uint64_t bytes;
    const void *entry; /* the reader's entry */
} fsdp__source_tensor;

typedef struct fsdp__tensor_source {
    fsdp__model_folder folder;
    fsdp_weights *weights;          /* of a folder or file; or NULL */
    fsdp_checkpoint_reader *reader; /* of a checkpoint; or NULL */
    fsdp__source_tensor *tensors;   /* sorted by name */
    int64_t count;
} fsdp__tensor_source;

/* Opens a folder, a file, a step-N folder, or the newest of a folder of these. The caller releases `*out`, also on
 * failure. */
fsdp_status fsdp__tensor_source_open(const char *path, fsdp__tensor_source *out);
/* Does the same, and opens the folder of an adapter, too. */
fsdp_status fsdp__tensor_source_open_any(const char *path, fsdp__tensor_source *out);
/* Gives the file of weights in the folder of an adapter; NULL: it is none, or has a model, too. fsdp__free it. */
fsdp_status fsdp__adapter_weights(const char *folder, char **out);
void fsdp__tensor_source_release(fsdp__tensor_source *source);
/* Lists the tensors. In a checkpoint that is all of them, as "section.name"; with weights_only those of its model. */
fsdp_status fsdp__tensor_source_list(fsdp__tensor_source *source, bool weights_only);
/* Does the same for a Hugging Face folder that has passed fsdp_hub_check: lists the parameters of its model, under
 * their names in the model, and nothing that the files hold besides. */
fsdp_status fsdp__tensor_source_list_model(fsdp__tensor_source *source, fsdp_context *context,
                                           const fsdp_model_config *config);
/* Reads elements [first, first + numel), row-major, in the tensor's dtype. Those of a checkpoint are checked. */
fsdp_status fsdp__tensor_source_read(fsdp__tensor_source *source, const fsdp__source_tensor *tensor, int64_t first,
                                     int64_t numel, void *out);
