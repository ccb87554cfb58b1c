/* safetensors.h - the parts of the safetensors reader, for those who have the bytes in memory already.
 *
 * A file is 8 bytes of little-endian header length, a JSON object {"name": {"dtype", "shape", "data_offsets"}}, and
 * data that the tensors cover without gap or overlap. */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "fsdp/format.h"

/* Tensors of one or many files; names are owned, `file` and `data` borrowed. */
typedef struct fsdp__tensor_list {
    fsdp_safetensors_entry *entries;
    int64_t count, capacity;
} fsdp__tensor_list;

void fsdp__tensor_list_release(fsdp__tensor_list *list);

/* Adds the tensors of a file whose `bytes` are at `data` (may be NULL when empty), in the order of their names.
 * `path` is kept as `file`. On failure some may have been added. */
fsdp_status fsdp__safetensors_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__tensor_list *list);

/* What the format calls a dtype. */
const char *fsdp__safetensors_dtype_name(fsdp_dtype dtype);

/* model.safetensors.index.json: which tensor is in which file, by file and then by name. */
typedef struct fsdp__index_entry {
    char *file, *tensor;
} fsdp__index_entry;
typedef struct fsdp__index {
    fsdp__index_entry *entries;
    int64_t count, capacity;
} fsdp__index;

fsdp_status fsdp__index_parse(const char *path, const void *text, size_t bytes, fsdp__index *out);
void fsdp__index_release(fsdp__index *index);

#endif
