/* clique_group.h - a rank's view of a group whose devices NCCL joins (device/clique.h), as the carrier keeps it.
 *
 * [Note: two cliques]
 * Gathers and reductions may be on two streams, but a clique does its calls one after the other. So a group has a
 * clique for each kind, which the first call of that kind creates. */
#pragma once

#include "comm/transport_ops.h"
#include "device/clique.h"

typedef enum fsdp__clique_way {
    FSDP__CLIQUE_FOR_GATHERS,
    FSDP__CLIQUE_FOR_SUMS,
    FSDP__CLIQUE_WAYS
} fsdp__clique_way;

enum {
    FSDP__CLIQUE_PIECE_BYTES = 32 << 20 /* of what is packed, for all ranks together */
};

typedef struct fsdp__clique_group {
    const fsdp__clique_ops *ops;
    fsdp_device *device;
    int rank, size;
    int machines;    /* that the ranks are on */
    int first, here; /* of the ranks on this one, which follow each other: the first, and how many they are */
    int block;       /* number of ranks whose contributions are added first: see comm/transport/order.h */
    bool own_order;  /* NCCL reduces, in an order and with roundings of its own */
    fsdp__clique *cliques[FSDP__CLIQUE_WAYS]; /* NULL: not joined yet */
    /* Says where the pieces of packed calls lie ([Note: shown memory] in clique_memory.h); NULL: in a stream's
     * workspace. */
    struct fsdp__clique_memory *shown[FSDP__CLIQUE_WAYS];
    /* Who adds to what in the reduction that runs: `adds_count` flags for each rank; NULL: all add to all. Its buffer i
     * is number numbers[i] there; NULL: i. */
    const uint8_t *adds;
    int64_t adds_count;
    const int64_t *numbers;
} fsdp__clique_group;

/* ---- clique_gather.c ---- */

/* Issues calls as one to the stream of `traffic`, and returns when they are issued. */
fsdp_status fsdp__clique_issue(fsdp__clique_group *group, fsdp__clique_way way, const fsdp__clique_call *calls,
                               int count, fsdp__traffic *traffic);
/* Gathers rows of buffers of one run each, whose own rows are in their places. */
fsdp_status fsdp__clique_gather_rows(fsdp__clique_group *group, fsdp__clique_way way,
                                     const fsdp_sharded_buffer *buffers, int64_t count, fsdp__traffic *traffic);

/* Collectives whose ranks have been compared. */
fsdp_status fsdp__clique_all_gather(void *group, const fsdp__call *call, fsdp__traffic *traffic);
fsdp_status fsdp__clique_broadcast(void *group, const fsdp__call *call, fsdp__traffic *traffic);
fsdp_status fsdp__clique_all_to_all(void *group, const fsdp__call *call, fsdp__traffic *traffic);
fsdp_status fsdp__clique_all_gather_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic);

/* ---- clique_reduce.c ---- */

fsdp_status fsdp__clique_reduce_scatter(void *group, const fsdp__call *call, fsdp__traffic *traffic);
fsdp_status fsdp__clique_all_reduce(void *group, const fsdp__call *call, fsdp__traffic *traffic);
fsdp_status fsdp__clique_reduce_scatter_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic);
