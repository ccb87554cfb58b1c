/* shares.h - shares of a reduction over machines: some ranks of a group, its sharers, add up one share each.
 *
 * Shares travel in batches of bounded size. While one batch is on its way, what the next one sends is made. */
#pragma once

#include "comm/transport/network/batches.h"
#include "comm/transport/network/crossing.h"
#include "device/kernels.h"

/* The `count` ranks first, first + stride, ... of the group; this rank is the one at `place`. */
typedef struct fsdp__sharers {
    int first, stride, count, place;
} fsdp__sharers;

/* ---- rows of buffers ---- */

typedef struct fsdp__sharing fsdp__sharing;

/* Holds what differs from reduction to reduction. */
typedef struct fsdp__sharing_ops {
    /* Returns how many elements of a piece the sharer at a place adds up. */
    int64_t (*rows)(const fsdp__sharing *sharing, const fsdp__batch_piece *piece, int place);
    /* Finds what this rank has for the sharer at a place, or makes it in `area`. Not called for no elements, or where
     * this rank has nothing to add. */
    fsdp_status (*contribute)(const fsdp__sharing *sharing, const fsdp__batch_piece *piece, int place, char *area,
                              const void **out);
    /* Adds up sharing->srcs, one for each sharer (NULL: it has nothing to add), into this rank's `rows` elements. */
    fsdp_status (*add)(const fsdp__sharing *sharing, const fsdp__batch_piece *piece, int64_t rows);
} fsdp__sharing_ops;

typedef struct fsdp__shared_batch {
    int count;
    fsdp__batch_piece pieces[FSDP__BATCH_PIECES];
    const void *own[FSDP__BATCH_PIECES]; /* this rank's contributions to its own share */
    fsdp__exchange exchange;
} fsdp__shared_batch;

struct fsdp__sharing {
    fsdp__crossing *run;
    const fsdp__sharing_ops *ops;
    fsdp__sharers sharers;
    fsdp__batches cut;   /* the call, whose buffers are shared out, and what it cuts them by */
    const uint8_t *adds; /* [sharers][buffers]: whether that sharer contributes; NULL: all do to all */
    /* of fsdp__share_out */
    char *areas;             /* [2][2][sharers]: of what is made here, and of what has come; then those of its own */
    const void **srcs;       /* one for each sharer, or for each rank of the machine */
    int most;                /* segments of a leg */
    fsdp__segment *segments; /* [2][2][sharers][most] */
    fsdp__shared_batch *batches;
};

/* Runs the reduction. `areas` more areas of a batch's room are for `contribute`: fsdp__sharing_area(sharing, 2, false,
 * 0) and those behind it. A meeting that is due goes with the first batch, and the call's flags are exchanged. */
fsdp_status fsdp__share_out(fsdp__sharing *sharing, int areas);
char *fsdp__sharing_area(const fsdp__sharing *sharing, int half, bool received, int place);

/* ---- plain ones ---- */

/* Describes some elements of a buffer. */
typedef struct fsdp__share {
    char *data;
    int64_t count;
} fsdp__share;

/* Computes `dst`: the reduction `how` (op, divisor, block) of this rank's share over the sharers, in their order.
 * `shares` are this rank's contributions, by place. */
fsdp_status fsdp__shares_reduce(fsdp__crossing *run, const fsdp__sharers *sharers, const fsdp__share *shares,
                                fsdp__reduce_ranks_args how, void *dst);
/* Gathers the shares: each sharer has its own, and gets the others'. */
fsdp_status fsdp__shares_gather(fsdp__crossing *run, const fsdp__sharers *sharers, const fsdp__share *shares);
