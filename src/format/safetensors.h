/* safetensors.h - the parts of the safetensors reader, for callers that have the bytes in memory already.
 *
 * A file is 8 bytes of little-endian header length, a JSON object {"name": {"dtype", "shape", "data_offsets"}}, and
 * data that the tensors cover without gap or overlap. */
#pragma once

#include "base/compiler.h"
#include "fsdp/format.h"

/* Tensors of one or many files; names are owned, `file` and `data` borrowed. */
typedef struct fsdp__tensor_list {
    fsdp_safetensors_entry *entries;
    int64_t count, capacity;
} fsdp__tensor_list;

void fsdp__tensor_list_release(fsdp__tensor_list *list);

/* Adds the tensors of a file whose `bytes` are at `data` (which may be NULL when empty), in the order of their names.
 * `path` is kept as `file`. On failure some may have been added. */
fsdp_status fsdp__safetensors_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__tensor_list *list);

/* Returns the format's name of a dtype. */
const char *fsdp__safetensors_dtype_name(fsdp_dtype dtype);

/* Returns where an entry begins in its file. */
uint64_t fsdp__safetensors_offset(const fsdp_safetensors *all, const fsdp_safetensors_entry *entry);
/* Returns whether a descriptor is that of the file whose header was read, and not of another that has its name by now.
 * `file` is an entry's. */
bool fsdp__safetensors_is_open(const fsdp_safetensors *all, const char *file, int fd);

/* Describes an entry of model.safetensors.index.json, or of that of pytorch_model.bin: which tensor is in which file,
 * ordered by file and then by name. */
typedef struct fsdp__index_entry {
    char *file, *tensor;
} fsdp__index_entry;
typedef struct fsdp__index {
    fsdp__index_entry *entries;
    int64_t count, capacity;
} fsdp__index;

fsdp_status fsdp__index_parse(const char *path, const void *text, size_t bytes, fsdp__index *out);
void fsdp__index_release(fsdp__index *index);
/* Returns how many entries from `at` on belong to one file. */
int64_t fsdp__index_run(const fsdp__index *index, int64_t at);
/* Checks whether the file at `path` holds the tensors that the index lists; `unlisted` is set for those that it holds
 * besides. Both lists are in the order of names; names and marks of the held tensors lie `stride` bytes apart. */
fsdp_status fsdp__index_compare(const char *index_path, const char *path, const fsdp__index_entry *listed,
                                int64_t listed_count, const char *const *held, bool *unlisted, size_t stride,
                                int64_t held_count);
/* Returns the path of the file that these entries are in, which must exist; fsdp__free it. */
fsdp_status fsdp__index_file(const char *index_path, const char *directory, const fsdp__index_entry *listed,
                             int64_t listed_count, char **out);
/* Checks that each name is there once, in whichever file. Names are in order, and lie `stride` bytes apart, as the
 * files' paths do. */
fsdp_status fsdp__index_check_names(const char *const *names, const char *const *files, size_t stride, int64_t count);

/* Returns, for a folder without weights that can be read, or a file in its place, what it has instead and what to do: a
 * text for the end of a message, from ": " on; "" where nothing is known of it. */
#define FSDP__HINT_TEXT 600
const char *fsdp__weights_hint(const char *folder, char *text, size_t text_bytes);

FSDP__SCOPED_POINTER(fsdp_safetensors, fsdp_safetensors_close)
FSDP__SCOPED_POINTER(fsdp_weights, fsdp_weights_close)
