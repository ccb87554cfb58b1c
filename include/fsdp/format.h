/* fsdp/format.h - file formats: safetensors, read by memory map; and the weights of a folder, whatever its files are.
 *
 * Every reader checks what it reads (sizes, offsets, names, dtypes) and names file, tensor and key in its error. */
#ifndef FSDP_FORMAT_H
#define FSDP_FORMAT_H

#include "fsdp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_safetensors fsdp_safetensors;

typedef struct fsdp_safetensors_entry {
    const char *name;
    fsdp_dtype dtype;       /* NONE: one that files may have and this library has not, as F64 */
    const char *dtype_name; /* as fsdp_dtype_name; of NONE as the file calls it: "F64" */
    bool unlisted;          /* the index does not list it, though its file holds it */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    const void *data; /* in the memory map */
    size_t bytes;
    const char *file; /* path of the file it is in */
} fsdp_safetensors_entry;

/* One file, or all files of an index, or a folder with model.safetensors or model.safetensors.index.json. Headers are
 * checked whole (sizes, overlaps, gaps, ranges, duplicate names) before anything is returned. Nothing is read of the
 * data: it is mapped. Names are as the files have them, control characters included. A file that lacks what the index
 * says is in it is an error; one that holds more is none: see `unlisted`. */
FSDP_API fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **out);
FSDP_API void fsdp_safetensors_close(fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_file_count(const fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_count(const fsdp_safetensors *file);
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_at(const fsdp_safetensors *file,
                                                           int64_t index); /* by name order */
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_find(const fsdp_safetensors *file, const char *name);

/* ---- the weights of a model folder ---- */

typedef struct fsdp_weights fsdp_weights;

typedef struct fsdp_weights_entry {
    const char *name;
    fsdp_dtype dtype;       /* NONE: one that files may have and this library has not: it cannot be read */
    const char *dtype_name; /* as fsdp_dtype_name; of NONE as the file calls it: "F64", "DoubleStorage" */
    bool unlisted;          /* the index does not list it, though its file holds it */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    size_t bytes;
    const char *file;    /* path of the file it is in */
    uint64_t offset;     /* of its first byte: in the file, or of a .bin in the storage that it is a view of */
    int64_t part, index; /* the reader's own */
} fsdp_weights_entry;

/* A folder with model.safetensors or its index, else with pytorch_model.bin (what torch.save wrote since PyTorch 1.6)
 * or its index; or one such file or index. Where there are both, safetensors are read, as transformers does. Of a .bin,
 * tensors may be any views of any storages; its pickle is read as data, and nothing in it is executed: a name beyond
 * those of a state dict's tensors is an error that says it. Headers are checked whole, as above; of the data nothing is
 * read. Names are as the files have them. */
FSDP_API fsdp_status fsdp_weights_open(const char *path, fsdp_weights **out);
FSDP_API void fsdp_weights_close(fsdp_weights *weights);
FSDP_API int64_t fsdp_weights_file_count(const fsdp_weights *weights);
FSDP_API int64_t fsdp_weights_count(const fsdp_weights *weights);
FSDP_API const fsdp_weights_entry *fsdp_weights_at(const fsdp_weights *weights, int64_t index); /* by name order */
FSDP_API const fsdp_weights_entry *fsdp_weights_find(const fsdp_weights *weights, const char *name);
/* Elements [first, first + numel) of a tensor in row-major order, as its dtype, into `out`. Nothing else of the file
 * comes into memory than `out`, and a few MiB where a .bin has the elements in another order. A file that was replaced
 * since it was opened is FSDP_STATE, and a dtype of NONE is FSDP_UNSUPPORTED. One thread at a time. */
FSDP_API fsdp_status fsdp_weights_read(fsdp_weights *weights, const fsdp_weights_entry *entry, int64_t first,
                                       int64_t numel, void *out);

#ifdef __cplusplus
}
#endif
#endif
