/* fsdp/format.h - file formats: memory-mapped safetensors, and the weights of a model folder in any format.
 *
 * Readers check everything they read (sizes, offsets, names, dtypes), and name file, tensor and key in errors. */
#ifndef FSDP_FORMAT_H
#define FSDP_FORMAT_H

#include "fsdp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_safetensors fsdp_safetensors;

typedef struct fsdp_safetensors_entry {
    const char *name;
    fsdp_dtype dtype;       /* NONE: one that the library does not have, such as F64 */
    const char *dtype_name; /* as fsdp_dtype_name; for NONE the file's name for it: "F64" */
    bool unlisted;          /* it is in the file, but the index does not list it */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    const void *data; /* in the memory map */
    size_t bytes;
    const char *file; /* path of the file that contains it */
} fsdp_safetensors_entry;

/* Opens one file, all files of an index, or a folder with model.safetensors or model.safetensors.index.json. Headers
 * are checked completely (sizes, overlaps, gaps, ranges, duplicate names) before the call returns; the data is mapped
 * and not read. Names are as in the files, control characters included. A file that lacks a tensor which the index says
 * it has is an error; a file with additional tensors is not: see `unlisted`. */
FSDP_API fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **out);
FSDP_API void fsdp_safetensors_close(fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_file_count(const fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_count(const fsdp_safetensors *file);
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_at(const fsdp_safetensors *file,
                                                           int64_t index); /* in order of names; or NULL */
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_find(const fsdp_safetensors *file, const char *name);

/* ---- the weights of a model folder ---- */

typedef struct fsdp_weights fsdp_weights;

typedef struct fsdp_weights_entry {
    const char *name;
    fsdp_dtype dtype;       /* NONE: one that the library does not have; it cannot be read */
    const char *dtype_name; /* as fsdp_dtype_name; for NONE the file's name for it: "F64", "DoubleStorage" */
    bool unlisted;          /* it is in the file, but the index does not list it */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    size_t bytes;
    const char *file;    /* path of the file that contains it */
    uint64_t offset;     /* of its first byte in the file or, for a .bin, in the storage that it is a view of */
    int64_t part, index; /* for the reader's own use */
} fsdp_weights_entry;

/* Opens a folder with model.safetensors or its index, or with pytorch_model.bin (as written by torch.save since PyTorch
 * 1.6) or its index; or one such file or index. If a folder has both, the safetensors are read, as in transformers. The
 * tensors of a .bin may be any views of any storages. Its pickle is read as data, and nothing in it is executed: a name
 * that does not belong to a state dict of tensors is an error that says it. Headers are checked completely, as above;
 * no data is read. Names are as in the files. */
FSDP_API fsdp_status fsdp_weights_open(const char *path, fsdp_weights **out);
FSDP_API void fsdp_weights_close(fsdp_weights *weights);
FSDP_API int64_t fsdp_weights_file_count(const fsdp_weights *weights);
FSDP_API int64_t fsdp_weights_count(const fsdp_weights *weights);
FSDP_API const fsdp_weights_entry *fsdp_weights_at(const fsdp_weights *weights,
                                                   int64_t index); /* in order of names; or NULL */
FSDP_API const fsdp_weights_entry *fsdp_weights_find(const fsdp_weights *weights, const char *name);
/* Reads elements [first, first + numel) of a tensor, in row-major order and in its dtype, into `out`. Besides `out`
 * this takes no memory, except a few MiB if a .bin has the elements in another order. FSDP_STATE: a file was replaced
 * since it was opened; FSDP_UNSUPPORTED: a dtype of NONE. One thread at a time. */
FSDP_API fsdp_status fsdp_weights_read(fsdp_weights *weights, const fsdp_weights_entry *entry, int64_t first,
                                       int64_t numel, void *out);

#ifdef __cplusplus
}
#endif
#endif
