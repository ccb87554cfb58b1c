/* joint_save.h - how ranks agree on a save that they make together, in folders that the first rank has made. */
#pragma once

#include "base/directory.h"
#include "fsdp/comm.h"

/* Holds what a rank brings to the save. */
typedef struct fsdp__joint_share {
    uint64_t fingerprint; /* of what all ranks must have alike */
    int64_t numel;        /* elements of all tensors that are shared */
    int64_t written;      /* those of them that this rank writes */
    uint64_t bytes;       /* of files that this rank makes by itself */
} fsdp__joint_share;

/* Holds the parts of its messages. */
typedef struct fsdp__joint_words {
    const char *failure;  /* "cannot write the model" */
    const char *compared; /* what the fingerprint is of: "names or shapes" */
    const char *together; /* what all ranks must do: "that share it must save it together" */
} fsdp__joint_words;

/* Compares the shares: all ranks must save the same, and all of it must be there, since the rows of a rank that is
 * missing would be lost. The others then open the first rank's folders, which the caller closes, also after a failure.
 * Gives the shares of all by rank, to be freed by fsdp__free; NULL on failure. A failure may be of some ranks only.
 * [collective] */
fsdp_status fsdp__joint_greet(fsdp_process_group *group, const fsdp__joint_words *words, const fsdp__joint_share *mine,
                              fsdp__directory *const *folders, int folder_count, fsdp__joint_share **out_shares);
