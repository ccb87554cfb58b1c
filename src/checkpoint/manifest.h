/* manifest.h - what is in a checkpoint: the tensors and who has written which part of them, values, files, checksums.
 *
 * As text it is one JSON object whose last member is a digest of all bytes before it:
 *
 *     {"format": "fsdp checkpoint", "version": 1, "step": 20, "world_size": 2, "mesh": "dp=2",
 *      "values": {"seed": {"integer": 42}, "loss": {"number": "3ff8000000000000"}, "name": {"text": "a"}},
 *      "small": [{"name": "config.json", "bytes": 612, "checksum": "..."}],
 *      "files": [{"rank": 0, "bytes": 4096, "header_bytes": 96, "header": "...", "block_bytes": 1048576,
 *                 "blocks": "..."}],                               16 digits a block
 *      "tensors": {"model": {"up.weight": {"dtype": "F32", "shape": [4, 8],
 *                  "boxes": [[0, 96, 0, 0, 2, 8]],                 rank, first byte in its file, offset, size
 *                  "runs": [[1, 96, 16, 16]]}}},                   of a flat vector: rank, first byte, first, count
 *      "digest": "..."}
 *
 * Each rank leaves one of its own parts in staging, and the first rank makes one of all of them. */
#ifndef CHECKPOINT_MANIFEST_H
#define CHECKPOINT_MANIFEST_H

#include "base/directory.h"
#include "fsdp/checkpoint.h"

#define FSDP__MANIFEST_NAME "manifest.json"

enum {
    FSDP__SECTION_BYTES = 64 /* of a section's name, at most */
};

/* A rank's safetensors file. */
typedef struct fsdp__rank_file {
    char *name;
    int rank;
    uint64_t bytes, header_bytes, header_checksum;
    uint64_t block_bytes;
    int64_t block_count;
    uint64_t *blocks; /* checksums of what follows the header, block_bytes each but the last */
} fsdp__rank_file;

typedef struct fsdp__small_file {
    char *name;
    uint64_t bytes, checksum;
} fsdp__small_file;

/* All is owned; texts of tensors and values too, but for `section` of a tensor and `file` of a part. */
typedef struct fsdp__manifest {
    int64_t step;
    int world_size;
    char *mesh; /* for people; never NULL once it is read */
    char **sections;
    int64_t section_count, section_capacity;
    fsdp__rank_file *files; /* by rank */
    int64_t file_count, file_capacity;
    fsdp__small_file *small;
    int64_t small_count, small_capacity;
    fsdp_checkpoint_value *values;
    int64_t value_count, value_capacity;
    fsdp_checkpoint_tensor *tensors; /* by section, then by name */
    int64_t tensor_count, tensor_capacity;
} fsdp__manifest;

void fsdp__manifest_release(fsdp__manifest *m);

/* Each takes copies. A section that is there already is that one; `*out` lives as long as the manifest. */
fsdp_status fsdp__manifest_add_section(fsdp__manifest *m, const char *name, const char **out);
fsdp_status fsdp__manifest_add_small(fsdp__manifest *m, const char *name, uint64_t bytes, uint64_t checksum);
fsdp_status fsdp__manifest_add_value(fsdp__manifest *m, const fsdp_checkpoint_value *value);
/* `file` has no name yet: it gets that of its rank. Its blocks are taken over. */
fsdp_status fsdp__manifest_add_file(fsdp__manifest *m, const fsdp__rank_file *file);
/* `tensor` with its name and at most `part_count` parts. */
fsdp_status fsdp__manifest_add_tensor(fsdp__manifest *m, const fsdp_checkpoint_tensor *tensor);

/* NULL when that rank has written nothing. */
const fsdp__rank_file *fsdp__manifest_file(const fsdp__manifest *m, int rank);
/* Where the tensor is in the list; -1. */
int64_t fsdp__manifest_find(const fsdp__manifest *m, const char *section, const char *name);
/* By section in their order, then by name. */
void fsdp__manifest_sort(fsdp__manifest *m);
/* "rank-00000-of-00004.safetensors" into `name`; returns it. */
#define FSDP__RANK_FILE_NAME 64
const char *fsdp__rank_file_name(int rank, int world_size, char name[FSDP__RANK_FILE_NAME]);
/* Whether a small file may have it: a plain name, and none of the checkpoint's own files. */
bool fsdp__is_small_name(const char *name);

/* The text above; fsdp__free it. */
fsdp_status fsdp__manifest_text(const fsdp__manifest *m, char **out);
/* `path` is for messages. Refused: what is not the text above, and another digest. Whether tensors, parts and files fit
 * each other is for fsdp__manifest_check. Release `*out`. */
fsdp_status fsdp__manifest_parse(const char *path, const char *text, size_t bytes, fsdp__manifest *out);
/* Reads a file and parses it: of a path, or in a directory that is held. */
fsdp_status fsdp__manifest_load(const char *path, fsdp__manifest *out);
fsdp_status fsdp__manifest_load_in(const fsdp__directory *in, const char *name, fsdp__manifest *out);

#endif
