/* stage.h - what one rank does in the staging folder of a save: it writes its file and its manifest; the first rank
 * also writes the small files, and one manifest of all. */
#pragma once

#include <stdatomic.h>

#include "checkpoint/rank_data.h"

typedef struct fsdp__stage {
    const fsdp_context *context;
    int rank, world_size;
    fsdp__directory folder;  /* becomes the checkpoint */
    fsdp__directory scratch; /* for the manifests of the ranks */
    fsdp__rank_data data;
    fsdp__manifest manifest;     /* of this rank; at the end, on the first rank, of all */
    fsdp_checkpoint_file *files; /* on the first rank: copies */
    int file_count;
    const unsigned char *copy; /* of the parts, borrowed; NULL: they are written from the tensors */
    const _Atomic bool *stop;  /* becomes true when the writing is to be given up */
} fsdp__stage;

/* Makes all that is known before there is a folder; the content has been checked. Release it, also after a failure. */
fsdp_status fsdp__stage_create(const fsdp_checkpoint_content *content, const fsdp_process_group *group,
                               fsdp__stage *out);
void fsdp__stage_release(fsdp__stage *stage);
/* Writes this rank's files and syncs them. May be called on any thread. */
fsdp_status fsdp__stage_write(fsdp__stage *stage);
/* Makes the manifest of all on the first rank, when all ranks have written. */
fsdp_status fsdp__stage_collect(fsdp__stage *stage);
