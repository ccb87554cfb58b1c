/* manifest.h - what is in a checkpoint: the tensors and which rank has written which part of them, values, files,
 * checksums.
 *
 * As text it is one JSON object whose last member is a digest of all bytes before it:
 *
 *     {"format": "fsdp checkpoint", "version": 1, "step": 20, "world_size": 2, "mesh": "dp=2",
 *      "values": {"seed": {"integer": 42}, "loss": {"number": "3ff8000000000000"}, "name": {"text": "a"}},
 *      "small": [{"name": "config.json", "bytes": 612, "checksum": "..."}],
 *      "files": [{"rank": 0, "bytes": 4096, "header_bytes": 96, "header": "...", "block_bytes": 1048576,
 *                 "blocks": "..."}],                               16 digits a block
 *      "tensors": {"model": {"up.weight": {"dtype": "F32", "shape": [4, 8],
 *                  "boxes": [[0, 96, 0, 0, 2, 8]],                 rank, first byte in its file, offset, size; a
 *                                                                  rank may have several
 *                  "runs": [[1, 96, 16, 16]]}}},                   of a flat vector: rank, first byte, first, count
 *      "digest": "..."}
 *
 * Each rank leaves a manifest of its own parts in staging, and the first rank makes one of all of them. */
#pragma once

#include "base/directory.h"
#include "fsdp/checkpoint.h"

#define FSDP__MANIFEST_NAME "manifest.json"

enum {
    FSDP__SECTION_BYTES = 64 /* of a section's name, at most */
};

/* Describes a rank's safetensors file. */
typedef struct fsdp__rank_file {
    char *name;
    int rank;
    uint64_t bytes, header_bytes, header_checksum;
    uint64_t block_bytes;
    int64_t block_count;
    uint64_t *blocks; /* checksums of what follows the header; all blocks but the last have block_bytes */
} fsdp__rank_file;

typedef struct fsdp__small_file {
    char *name;
    uint64_t bytes, checksum;
} fsdp__small_file;

/* The manifest owns everything, texts of tensors and values too, except `section` of a tensor and `file` of a part. */
typedef struct fsdp__manifest {
    int64_t step;
    int world_size;
    char *mesh; /* for people; never NULL once the manifest is read */
    char **sections;
    int64_t section_count, section_capacity;
    fsdp__rank_file *files; /* in rank order */
    int64_t file_count, file_capacity;
    fsdp__small_file *small;
    int64_t small_count, small_capacity;
    fsdp_checkpoint_value *values;
    int64_t value_count, value_capacity;
    fsdp_checkpoint_tensor *tensors; /* in the order of sections, then of names */
    int64_t tensor_count, tensor_capacity;
} fsdp__manifest;

void fsdp__manifest_release(fsdp__manifest *m);

/* Each of these takes copies. A section that is there already is not added again; `*out` lives as long as the
 * manifest. */
fsdp_status fsdp__manifest_add_section(fsdp__manifest *m, const char *name, const char **out);
fsdp_status fsdp__manifest_add_small(fsdp__manifest *m, const char *name, uint64_t bytes, uint64_t checksum);
fsdp_status fsdp__manifest_add_value(fsdp__manifest *m, const fsdp_checkpoint_value *value);
/* Adds a file. `file` has no name yet: it gets that of its rank. Its blocks are taken over. */
fsdp_status fsdp__manifest_add_file(fsdp__manifest *m, const fsdp__rank_file *file);
/* Adds a tensor with its name and at most `part_count` parts. */
fsdp_status fsdp__manifest_add_tensor(fsdp__manifest *m, const fsdp_checkpoint_tensor *tensor);

/* Returns NULL when that rank has written nothing. */
const fsdp__rank_file *fsdp__manifest_file(const fsdp__manifest *m, int rank);
/* Return where the section, or the tensor, is in the list; -1: it is not there. */
int64_t fsdp__manifest_section(const fsdp__manifest *m, const char *section);
int64_t fsdp__manifest_find(const fsdp__manifest *m, const char *section, const char *name);
/* Sorts the tensors by section, in the sections' order, then by name. */
void fsdp__manifest_sort(fsdp__manifest *m);
/* Writes "rank-00000-of-00004.safetensors" into `name`; returns it. */
#define FSDP__RANK_FILE_NAME 64
const char *fsdp__rank_file_name(int rank, int world_size, char name[FSDP__RANK_FILE_NAME]);
/* Returns whether a small file may have this name: a plain name, and none of the checkpoint's own files. */
bool fsdp__is_small_name(const char *name);

/* Makes the text above; fsdp__free it. */
fsdp_status fsdp__manifest_text(const fsdp__manifest *m, char **out);
/* Parses the text; `path` is for messages. Refuses what is not the text above, and a wrong digest. fsdp__manifest_check
 * checks whether tensors, parts and files fit each other. Release `*out`. */
fsdp_status fsdp__manifest_parse(const char *path, const char *text, size_t bytes, fsdp__manifest *out);
/* Read a file and parse it: at a path, or in a directory that is held open. */
fsdp_status fsdp__manifest_load(const char *path, fsdp__manifest *out);
fsdp_status fsdp__manifest_load_in(const fsdp__directory *in, const char *name, fsdp__manifest *out);
/* Fails with FSDP_FORMAT: the manifest at `path` says `what` of a tensor, which cannot be. */
fsdp_status fsdp__manifest_wrong(const char *path, const fsdp_checkpoint_tensor *tensor, const char *what);

/* ---- how 64-bit numbers, and the end of a manifest, are written ---- */

#define FSDP__MANIFEST_FORMAT "fsdp checkpoint"

enum {
    FSDP__MANIFEST_VERSION = 1,
    FSDP__HEX_DIGITS = 16,
    FSDP__DIGEST_BYTES = sizeof ",\"digest\":\"0123456789abcdef\"}\n" - 1
};

/* Writes the value in lower case, with a NUL; returns `out`. */
const char *fsdp__hex(uint64_t value, char out[FSDP__HEX_DIGITS + 1]);
/* Reads FSDP__HEX_DIGITS characters, only as fsdp__hex writes them. */
bool fsdp__hex_read(const char *digits, uint64_t *out);

/* Writes the end of a manifest whose bytes before it have this checksum, with a NUL. */
void fsdp__digest_text(uint64_t checksum, char out[FSDP__DIGEST_BYTES + 1]);
