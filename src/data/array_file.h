/* array_file.h - reads what the headers of array files say. */
#pragma once

#include "fsdp/dataset.h"

typedef struct fsdp__array_header {
    fsdp_dtype dtype;
    int ndim; /* at least 1 */
    int64_t shape[FSDP_DATA_DIMS];
    size_t offset; /* of the first element; the rest of the file is elements */
    bool swap;     /* big-endian */
} fsdp__array_header;

/* Parses the header of either of the two formats, .npy or IDX. `path` is for messages. */
fsdp_status fsdp__array_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out);
bool fsdp__is_npy(const unsigned char *data, size_t bytes);
fsdp_status fsdp__npy_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__array_header *out);
