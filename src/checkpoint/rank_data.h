/* rank_data.h - what one rank writes of a checkpoint: the parts that it is the writer of, one after the other, behind
 * the header of a safetensors file. */
#pragma once

#include "checkpoint/manifest.h"
#include "dist/dist.h"
#include "format/weights_plan.h"

/* A part of this rank: one box of an entry, or a run. */
typedef struct fsdp__own_part {
    const char *section;
    const fsdp_state_dict_entry *entry;
    int piece; /* of the entry's */
    int64_t numel;
    fsdp__piece_place place; /* in the entry's tensor */
    uint64_t begin, bytes;   /* in the rank's file */
} fsdp__own_part;

typedef struct fsdp__rank_data {
    fsdp__own_part *parts;
    int64_t count;
    fsdp__save_plan plan; /* of one file, if there are parts */
} fsdp__rank_data;

/* Makes the data of a save by a group (NULL: the world); content and its state dicts are borrowed. Release it, also
 * after a failure. */
fsdp_status fsdp__rank_data_create(const fsdp_checkpoint_content *content, const fsdp_process_group *group,
                                   fsdp__rank_data *out);
void fsdp__rank_data_release(fsdp__rank_data *data);
/* Returns the bytes of the parts alone. */
uint64_t fsdp__rank_data_bytes(const fsdp__rank_data *data);
/* Describes every entry of the content, with this rank's part where it writes one. */
fsdp_status fsdp__rank_data_describe(const fsdp_checkpoint_content *content, const fsdp__rank_data *data, int rank,
                                     fsdp__manifest *out);

/* Reads the parts as bytes, in order. */
typedef struct fsdp__data_cursor {
    const fsdp__rank_data *data;
    int64_t part, element; /* the next to be read */
    unsigned char rest[8]; /* the end of an element that was cut in two */
    size_t rest_bytes;
} fsdp__data_cursor;

/* Reads the next `bytes` of what is left. */
fsdp_status fsdp__data_cursor_read(fsdp__data_cursor *cursor, void *out, size_t bytes);
