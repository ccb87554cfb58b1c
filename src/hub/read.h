/* read.h - elements of a folder's weights into the parts that this rank has of them, a window at a time: beside the
 * parts themselves no more than a window or two is in memory. */
#ifndef HUB_READ_H
#define HUB_READ_H

#include "fsdp/format.h"
#include "fsdp/state.h"

enum {
    FSDP__READ_WINDOW_BYTES = 1 << 22
};

typedef struct fsdp__hub_reader {
    fsdp_weights *files;
    fsdp_process_group *group; /* its rank 0 reads, and sends to the others; NULL: each rank reads for itself */
    bool ended;                /* the leader could not read, or nobody can send: no rank goes on */
    char *window, *other;      /* FSDP__READ_WINDOW_BYTES each, and room for a word */
} fsdp__hub_reader;

/* The windows; fsdp__hub_reader_release also after a failure. */
fsdp_status fsdp__hub_reader_init(fsdp__hub_reader *reader, fsdp_weights *files, fsdp_process_group *group);
void fsdp__hub_reader_release(fsdp__hub_reader *reader);

/* Fills this rank's part of an entry, with conversion between floating dtypes. With a group all its ranks call it for
 * the same tensors, until it has ended, also after a failure on this rank alone: the others learn of that when they
 * agree. [collective with a group] */
fsdp_status fsdp__hub_read_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                const fsdp_weights_entry *source);
/* Whether two tensors of the files, of one shape and dtype, are the same in this rank's part of the entry; with a group
 * its rank 0 looks at all of them. */
fsdp_status fsdp__hub_compare_part(fsdp__hub_reader *reader, const fsdp_state_dict_entry *entry,
                                   const fsdp_weights_entry *a, const fsdp_weights_entry *b, bool *out_same);

#endif
