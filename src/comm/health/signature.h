/* signature.h - what a rank says about a call, for comparison with the others. */
#pragma once

#include "base/hash.h"
#include "comm/transport_ops.h"

/* Holds what a rank says about a call; it must be equal on all ranks. */
typedef struct fsdp__signature {
    uint64_t sequence;
    int64_t bytes;   /* per rank */
    int64_t buffers; /* in coalesced calls */
    uint64_t hash;   /* of the buffers' sizes and dtypes, and of how many flags ride along */
    uint64_t places; /* of a gather: where in shared memory its buffers lie */
    int32_t root;
    uint8_t name, dtype, op, force_copy;
    float predivide, divisor;
    char label[FSDP__LABEL_BYTES]; /* what the call is for */
} fsdp__signature;

void fsdp__signature_fill(const fsdp__call *call, fsdp__signature *out);
/* Compares what `count` ranks of a group say about a call. Returns the first of them that differs from rank 0, so that
 * all ranks find the same two; 0: they agree. */
int fsdp__signatures_compare(const void *group, const fsdp__signature *(*said_by)(const void *group, int rank),
                             int count);
/* Writes into `text` what two ranks (global) say about a call of the group where they differ. */
void fsdp__signature_mismatch(const char *group, const fsdp__signature *first, int first_rank,
                              const fsdp__signature *other, int other_rank, char *text, size_t bytes);
