/* fsdp/format.h - file formats: safetensors, read by memory map.
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
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    const void *data; /* in the memory map */
    size_t bytes;
    const char *file; /* path of the file it is in */
} fsdp_safetensors_entry;

/* One file, or all files of an index, or a folder with model.safetensors or model.safetensors.index.json. Headers are
 * checked whole (sizes, overlaps, gaps, ranges, duplicate names) before anything is returned. Nothing is read of the
 * data: it is mapped. Names are as the files have them, control characters included. */
FSDP_API fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **out);
FSDP_API void fsdp_safetensors_close(fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_file_count(const fsdp_safetensors *file);
FSDP_API int64_t fsdp_safetensors_count(const fsdp_safetensors *file);
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_at(const fsdp_safetensors *file,
                                                           int64_t index); /* by name order */
FSDP_API const fsdp_safetensors_entry *fsdp_safetensors_find(const fsdp_safetensors *file, const char *name);

#ifdef __cplusplus
}
#endif
#endif
