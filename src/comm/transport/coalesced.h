/* coalesced.h - the coalesced collectives by plain ones: packed.h on top of all_gather and all_to_all. */
#pragma once

#include "comm/transport_ops.h"

/* Lists the plain collectives that carry the pieces. */
typedef struct fsdp__plain_way {
    void *group;
    int rank, size;
    int block;     /* see order.h */
    bool on_paper; /* [Note: a world on paper] */
    /* Most bytes of a piece, of all ranks together; 0: 4 MiB. */
    int64_t piece_bytes;
    /* Where pieces lie, at the same place on all ranks. If it is NULL or too small: in the stream's workspace. */
    char *memory;
    int64_t memory_bytes;
    bool zeroes; /* what a rank has nothing to add to is packed as zeros, which somebody else adds */
    /* Returns whether a rank adds to buffer i of a reduction; NULL: that travels in front of the first piece. */
    bool (*adds)(void *group, int rank, int64_t i);
    fsdp__collective all_gather, all_to_all;
} fsdp__plain_way;

/* Runs the coalesced call. In the stream's workspace pieces take a few MiB, however many bytes are exchanged. The plain
 * collectives get the coalesced call (its name, buffers and label, for the signature) with send, recv, count and dtype
 * of a piece, several times with one sequence number. */
fsdp_status fsdp__coalesced_by(const fsdp__plain_way *way, const fsdp__call *call, fsdp__traffic *traffic);
