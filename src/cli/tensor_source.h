/* tensor_source.h - tensors of files by name, whatever the files are: a Hugging Face folder, one file of weights, a
 * checkpoint. Nothing is read but what is asked for. */
#ifndef CLI_TENSOR_SOURCE_H
#define CLI_TENSOR_SOURCE_H

#include "fsdp/format.h"
#include "train/model_folder.h"

typedef struct fsdp__source_tensor {
    char *name;             /* of a checkpoint "section.name", or the name alone (weights_only) */
    fsdp_dtype dtype;       /* NONE: of weights, one that cannot be read */
    const char *dtype_name; /* of these as the file calls it */
    int ndim;
    const int64_t *shape;
    int64_t numel;
    uint64_t bytes;
    const void *entry; /* the reader's */
} fsdp__source_tensor;

typedef struct fsdp__tensor_source {
    fsdp__model_folder folder;
    fsdp_weights *weights;          /* of a folder or file */
    fsdp_checkpoint_reader *reader; /* of a checkpoint; the other is NULL */
    fsdp__source_tensor *tensors;   /* by name */
    int64_t count;
} fsdp__tensor_source;

/* A folder, a file, a step-N, or a folder of these: its newest. The caller releases `*out`, also on failure. */
fsdp_status fsdp__tensor_source_open(const char *path, fsdp__tensor_source *out);
void fsdp__tensor_source_release(fsdp__tensor_source *source);
/* Lists the tensors: of a checkpoint all under "section.name", or with weights_only those of its model. */
fsdp_status fsdp__tensor_source_list(fsdp__tensor_source *source, bool weights_only);
/* The same of a Hugging Face folder that has passed fsdp_hub_check: the parameters of its model under their names in
 * that, and not what the files hold besides. */
fsdp_status fsdp__tensor_source_list_model(fsdp__tensor_source *source, fsdp_context *context,
                                           const fsdp_model_config *config);
/* Elements [first, first + numel), row-major, in the tensor's dtype; those of a checkpoint are checked. */
fsdp_status fsdp__tensor_source_read(fsdp__tensor_source *source, const fsdp__source_tensor *tensor, int64_t first,
                                     int64_t numel, void *out);

#endif
