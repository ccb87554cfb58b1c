/* torch_file.h - reads a state dict that torch.save wrote: a zip archive with a pickle (pickle.h) that says what the
 * tensors are, and a member with the bytes of each storage.
 *
 *     <name>/data.pkl     {"weight": a view of storage "0", ...}
 *     <name>/byteorder    "little"
 *     <name>/data/0       elements
 *
 * Tensors may be any views: several of one storage, transposed, with elements left out. It does not read archives of
 * TorchScript, the format before PyTorch 1.6 (a pickle without an archive), and tar files. */
#pragma once

#include "fsdp/tensor.h"

typedef struct fsdp__torch_file fsdp__torch_file;

typedef struct fsdp__torch_tensor {
    char *name;
    fsdp_dtype dtype;       /* NONE: PyTorch has this dtype and this library has not, so the tensor cannot be read */
    const char *dtype_name; /* as fsdp_dtype_name; for NONE the kind of storage: "DoubleStorage" */
    size_t element_bytes;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS]; /* strides in elements, not negative */
    int64_t offset;                                       /* of its first element in the storage */
    int64_t storage;                                      /* a member of the archive */
} fsdp__torch_tensor;

/* Opens a file and checks every tensor: its view lies in its storage, and that has as many bytes as the pickle says. */
fsdp_status fsdp__torch_file_open(const char *path, fsdp__torch_file **out);
void fsdp__torch_file_close(fsdp__torch_file *file); /* NULL is allowed */

int64_t fsdp__torch_file_count(const fsdp__torch_file *file);
const fsdp__torch_tensor *fsdp__torch_file_at(const fsdp__torch_file *file, int64_t index); /* by name order */

/* Reads elements [first, first + numel) of the tensor, in row-major order, whatever its strides. Reads a few MiB at a
 * time where its elements do not lie in row-major order. */
fsdp_status fsdp__torch_file_read(fsdp__torch_file *file, const fsdp__torch_tensor *tensor, int64_t first,
                                  int64_t numel, void *out);
