/* plan.h - where each tensor goes in the safetensors files to be written. */
#ifndef FORMAT_PLAN_H
#define FORMAT_PLAN_H

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
    uint64_t *offsets; /* per entry: of its first element in its file */
    char *index;       /* text of the index, NULL for one file; free() it */
} fsdp__save_plan;

/* For `count` tensors of which name, dtype, shape and bytes are looked at: the same on every rank that gives the same.
 * Files hold at most `limit_bytes` of data, or one tensor. */
fsdp_status fsdp__save_plan_create(const fsdp_safetensors_entry *entries, int64_t count, uint64_t limit_bytes,
                                   fsdp__save_plan *out);
void fsdp__save_plan_release(fsdp__save_plan *plan);

#endif
