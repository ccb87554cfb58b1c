/* stage.h - what one rank does in the staging folder of a save: its file, its manifest; on the first rank the small
 * files, and one manifest of all. */
#ifndef CHECKPOINT_STAGE_H
#define CHECKPOINT_STAGE_H

#include <stdatomic.h>

#include "checkpoint/rank_data.h"

typedef struct fsdp__stage {
    int rank, world_size;
    fsdp__directory folder;  /* that will be the checkpoint */
    fsdp__directory scratch; /* for the manifests of the ranks */
    fsdp__rank_data data;
    fsdp__manifest manifest;     /* of this rank; in the end, on the first, of all */
    fsdp_checkpoint_file *files; /* of the first rank: copies */
    int file_count;
    const unsigned char *copy; /* of the parts; NULL: they are written from the tensors. Borrowed */
    const _Atomic bool *stop;  /* becomes true: the writing is given up */
} fsdp__stage;

/* All that is known before there is a folder; the content is checked. Release it, also after a failure. */
fsdp_status fsdp__stage_create(const fsdp_checkpoint_content *content, int rank, int world_size, fsdp__stage *out);
void fsdp__stage_release(fsdp__stage *stage);
/* Writes this rank's files, synced. On any thread. */
fsdp_status fsdp__stage_write(fsdp__stage *stage);
/* On the first rank, when all have written: the manifest of all. */
fsdp_status fsdp__stage_collect(fsdp__stage *stage);

#endif
