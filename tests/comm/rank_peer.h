/* comm/rank_peer.h - ranks whose GPUs are fake (tests/backend/fakecuda) and read each other's memory: what they are
 * opened with, calls whose bits are those of calls through the host, and ranks that are processes. */
#pragma once

#include "comm/group_calls.h"
#include "comm/health/board.h"
#include "comm/suite.h"
#include "support/test.h"

enum {
    RANK_PEER_MOST = 4,
    RANK_PEER_LONG = 1501,  /* elements of a rank */
    RANK_PEER_OUTBOX = 1024 /* for many pieces */
};

/* A rank with two groups: one by the carrier, one through the host. */
typedef struct rank_peer {
    fsdp_context *context;
    fsdp_process_group *peer, *staged;
    fsdp_device *device;
    fsdp_stream *stream, *other;
    int rank, size;
} rank_peer;

/* The groups of all ranks. `outbox`: bytes of half an outbox, or 0. */
fsdp_status rank_peer_open(fsdp_context *context, int64_t outbox, rank_peer *out);
/* The same for groups of two ranks of a world of 4. */
fsdp_status rank_peer_open_pair(fsdp_context *context, const int ranks[2], rank_peer *out);
/* Closes what has been opened. */
void rank_peer_close(rank_peer *g);

/* ---- calls ---- */

/* Memory of the device for three times `bytes`, with the host's in each third. */
typedef struct three {
    const rank_peer *g;
    char *device, *host;
    size_t bytes;
} three;

fsdp_status three_fill(const rank_peer *g, const plain_call *c, three *t);
void three_drop(three *t);

/* Makes the call by both groups, and returns whether the results are the same bytes. */
fsdp_status plain_compare(const rank_peer *g, const plain_call *c, bool *same);
/* Makes all calls; returns 0, or the number of the first that is wrong. */
fsdp_status plain_compare_all(const rank_peer *g, int *wrong);

/* A case whose ranks share one GPU: its setup, and its end. */
int rank_peer_one_gpu(void **state);
int rank_peer_any_gpus(void **state);

/* ---- ranks that are processes: while this process has no threads ---- */

typedef enum rank_fate {
    RANK_LIVES,
    RANK_DIES,
    RANK_STOPS /* it stops itself, and is killed in the end */
} rank_fate;

typedef struct rank_child {
    int fd, rank, world;
    rank_fate fate; /* of rank 1 */
    int number;     /* the test's own, as the next */
    bool holds;
    const char *fails;
} rank_child;

enum {
    RANK_RIGHT = 42 /* what a body returns */
};

/* Returns the board of the arena that the rank has joined. */
fsdp__board *rank_peer_board(fsdp_context *context);
void rank_children_run(rank_child c, int (*body)(const rank_child *, fsdp_context *));
