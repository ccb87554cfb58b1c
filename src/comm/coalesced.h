/* coalesced.h - the coalesced collectives for transports that have none of their own: packed.h on top of the
 * transport's plain all_gather and all_to_all. */
#ifndef COMM_COALESCED_H
#define COMM_COALESCED_H

#include "comm/transport_ops.h"

/* The plain collectives that carry the pieces. */
typedef struct fsdp__plain_way {
    void *group;
    int rank, size;
    int block;     /* see order.h */
    bool on_paper; /* [Note: a world on paper] */
    fsdp__collective all_gather, all_to_all;
} fsdp__plain_way;

fsdp_status fsdp__coalesced_gather_by(const fsdp__plain_way *, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__coalesced_reduce_by(const fsdp__plain_way *, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

/* Run the coalesced call; `group` is the fsdp_process_group. Pieces lie in the stream's workspace, which takes a few
 * MiB however many bytes are exchanged. */
fsdp_status fsdp__coalesced_all_gather(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__coalesced_reduce_scatter(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

#endif
