/* batches.h - cuts the rows of a reduction over machines into batches, in the same way on every rank. */
#pragma once

#include "comm/transport_ops.h"

enum {
    FSDP__BATCH_PIECES = 256,
    FSDP__BATCH_ALIGN = 64
};

/* Rows [at, at + numel) of every rank's part of a buffer; they lie at byte `offset` of every area. */
typedef struct fsdp__batch_piece {
    int64_t buffer, at, numel, offset;
} fsdp__batch_piece;

typedef struct fsdp__batches {
    const fsdp__call *call;
    const uint8_t *used;          /* per buffer: whether any rank contributes */
    int64_t room;                 /* bytes of a batch for one rank */
    int64_t next_buffer, next_at; /* where the next batch begins */
} fsdp__batches;

/* Returns the room of a batch, for a group with `columns` columns and `locals` ranks on a machine. */
int64_t fsdp__batches_room(int columns, int locals);
/* Fills `out` with the pieces of the next batch, as many as there is room for. Returns how many, at most
 * FSDP__BATCH_PIECES; 0: nothing is left. */
int fsdp__batches_next(fsdp__batches *batches, fsdp__batch_piece *out);
/* Returns how many of the piece's rows group rank `member` has. */
int64_t fsdp__batch_rows(const fsdp__call *call, const fsdp__batch_piece *piece, int member);
