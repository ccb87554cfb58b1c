/* spill.h - puts the tensors of a source into a file without a name and maps it: they can be read as memory, and the
 * kernel may take that memory back at any time. */
#pragma once

#include "base/directory.h"
#include "cli/tensor_source.h"

typedef struct fsdp__spilled {
    const fsdp__source_tensor *tensor;
    fsdp_dtype dtype; /* dtype in the file */
    uint64_t offset;  /* of its first byte in the file */
} fsdp__spilled;

typedef struct fsdp__spill {
    fsdp__spilled *items; /* in the order of the source's list */
    int64_t count;
    const unsigned char *data; /* read only */
    size_t bytes;
    /* the first tensor with values that are NaN or infinite; NULL: there is none */
    const fsdp__source_tensor *not_finite;
    int64_t not_finite_element;
    fsdp__directory folder; /* where the file is */
    int made;               /* number of folders that were made for it: the last ones of the folder's path */
} fsdp__spill;

/* Gets the bytes written so far, and the total. */
typedef void (*fsdp__spill_progress)(void *arg, uint64_t done, uint64_t total);

/* Copies every tensor that the source has listed, a window at a time, to a file in `folder`, which is made if need be.
 * The file is gone when the process ends, however it ends. Floating tensors are converted to `dtype` (NONE: they stay
 * as they are), but in a checkpoint only those of its model. A finite value that `dtype` cannot hold is an error. */
fsdp_status fsdp__spill_make(fsdp__tensor_source *source, const char *folder, fsdp_dtype dtype,
                             fsdp__spill_progress progress, void *arg, fsdp__spill *out);
/* Releases it, and removes the folders that were made for it, where nothing else has come into them. */
void fsdp__spill_release(fsdp__spill *spill);

/* Gives rows [first, first + rows) of a tensor (all of it if it has no dimensions) as a tensor of this context's CPU.
 * The spill must outlive it. The caller owns `*out`. */
fsdp_status fsdp__spill_rows(const fsdp__spill *spill, int64_t index, fsdp_context *context, int64_t first,
                             int64_t rows, fsdp_tensor **out);
