/* spill.h - tensors of a source in a file without a name, mapped: they can be read as memory, and the kernel may take
 * that memory back at any time. */
#ifndef CLI_SPILL_H
#define CLI_SPILL_H

#include "cli/tensor_source.h"

typedef struct fsdp__spilled {
    const fsdp__source_tensor *tensor;
    fsdp_dtype dtype; /* that it is kept in */
    uint64_t offset;  /* of its first byte in the file */
} fsdp__spilled;

typedef struct fsdp__spill {
    fsdp__spilled *items; /* as the source lists them */
    int64_t count;
    const unsigned char *data; /* read only */
    size_t bytes;
    const fsdp__source_tensor *not_finite; /* the first with values that are NaN or infinite; NULL: there is none */
    int64_t not_finite_element;
} fsdp__spill;

/* Bytes written so far, of all. */
typedef void (*fsdp__spill_progress)(void *arg, uint64_t done, uint64_t total);

/* Copies every tensor that the source has listed, a window at a time, to a file in `folder`, which is made if need be;
 * it is gone when the process ends, however it does. Floating tensors become `dtype` (NONE: stay what they are), but of
 * a checkpoint only those of its model. A finite value that `dtype` cannot hold is an error. */
fsdp_status fsdp__spill_make(fsdp__tensor_source *source, const char *folder, fsdp_dtype dtype,
                             fsdp__spill_progress progress, void *arg, fsdp__spill *out);
void fsdp__spill_release(fsdp__spill *spill);

/* Rows [first, first + rows) of a tensor (of one without dimensions: all of it) as a tensor of this context's CPU; the
 * spill must stay. The caller owns `*out`. */
fsdp_status fsdp__spill_rows(const fsdp__spill *spill, int64_t index, fsdp_context *context, int64_t first,
                             int64_t rows, fsdp_tensor **out);

#endif
