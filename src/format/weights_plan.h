/* weights_plan.h - where each tensor goes in the safetensors files that are to be written. */
#pragma once

#include "fsdp/format.h"

typedef struct fsdp__save_file {
    char *name;   /* in the folder */
    char *header; /* length, JSON and padding */
    size_t header_bytes;
    uint64_t total_bytes;
    int64_t first, count; /* entries, in order */
} fsdp__save_file;

typedef struct fsdp__save_plan {
    fsdp__save_file *files;
    int64_t file_count, file_capacity;
    uint64_t *offsets; /* per entry: where its first element lies in its file */
    char *index;       /* text of the index, NULL for a single file; free() it */
} fsdp__save_plan;

/* Plans for `count` tensors, by their name, dtype, shape and bytes alone: ranks that give the same get the same. A file
 * has at most `limit_bytes` of data, or one tensor. */
fsdp_status fsdp__save_plan_create(const fsdp_safetensors_entry *entries, int64_t count, uint64_t limit_bytes,
                                   fsdp__save_plan *out);
void fsdp__save_plan_release(fsdp__save_plan *plan);
