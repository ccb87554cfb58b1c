/* read.h - reads elements of a folder's weights into the parts that this rank holds, a window at a time: besides the
 * parts themselves no more than a window or two is in memory. */
#pragma once

#include "fsdp/format.h"
#include "fsdp/state.h"

enum {
    FSDP__READ_WINDOW_BYTES = 1 << 22
};

typedef struct fsdp__hub_reader {
    fsdp_weights *files;
    fsdp_process_group *group; /* its rank 0 reads and sends to the others; NULL: each rank reads for itself */
    bool ended;                /* the leader could not read, or nobody can send: no rank goes on */
    char *window, *other;      /* FSDP__READ_WINDOW_BYTES each, with room for a word */
} fsdp__hub_reader;

/* Allocates the windows. Call fsdp__hub_reader_release also after a failure. */
fsdp_status fsdp__hub_reader_init(fsdp__hub_reader *reader, fsdp_weights *files, fsdp_process_group *group);
void fsdp__hub_reader_release(fsdp__hub_reader *reader);

/* Fills this rank's part of an entry, converting between floating dtypes. With a group, all its ranks call it for the
 * same tensors until `ended` is set, even after a failure on this rank alone: the others learn of that when they agree.
 * [collective with a group] */
fsdp_status fsdp__hub_read_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                const fsdp_weights_entry *source);
/* Compares two tensors of the files, of the same shape and dtype, and says whether they are equal in this rank's part
 * of the entry. With a group, its rank 0 compares them as a whole. */
fsdp_status fsdp__hub_compare_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                   const fsdp_weights_entry *a, const fsdp_weights_entry *b, bool *out_same);
