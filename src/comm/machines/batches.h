/* batches.h - the rows of a reduction over machines, in batches that every rank cuts alike. */
#ifndef COMM_MACHINES_BATCHES_H
#define COMM_MACHINES_BATCHES_H

#include "comm/comm_ops.h"

enum {
    FSDP__BATCH_PIECES = 256,
    FSDP__BATCH_ALIGN = 64
};

/* Rows [at, at + numel) of every rank's part of a buffer, at byte `offset` of every area. */
typedef struct fsdp__batch_piece {
    int64_t buffer, at, numel, offset;
} fsdp__batch_piece;

typedef struct fsdp__batches {
    const fsdp__call *call;
    const uint8_t *used;          /* by buffer: whether anyone contributes; NULL: if this rank does */
    int64_t room;                 /* bytes of a batch, for one rank */
    int64_t next_buffer, next_at; /* what the next batch begins with */
} fsdp__batches;

/* Of a group with so many columns, and ranks on a machine. */
int64_t fsdp__batches_room(int columns, int locals);
/* As much as there is room for: how many pieces, of at most FSDP__BATCH_PIECES; 0: nothing is left. */
int fsdp__batches_next(fsdp__batches *batches, fsdp__batch_piece *out);
/* How many of the piece's rows group rank `member` has, and their bytes as they travel. */
int64_t fsdp__batch_rows(const fsdp__call *call, const fsdp__batch_piece *piece, int member);
int64_t fsdp__batch_bytes(const fsdp__call *call, const fsdp__batch_piece *piece, int member);

#endif
