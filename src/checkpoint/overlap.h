/* overlap.h - the elements that two parts of a tensor share. */
#ifndef CHECKPOINT_OVERLAP_H
#define CHECKPOINT_OVERLAP_H

#include "fsdp/state.h"

/* What one side has of a tensor: a box, or a run of a flat vector (offset[0], size[0]). */
typedef struct fsdp__extent {
    bool flat;
    const int64_t *offset, *size;
} fsdp__extent;

/* Gets a run of elements that are contiguous on both sides: the position of its first element in each, row-major. */
typedef fsdp_status (*fsdp__overlap_run)(void *arg, int64_t in_a, int64_t in_b, int64_t numel);

/* Calls `run` for each such run, in the order of both. Stops at the first failure and returns it. */
fsdp_status fsdp__overlap_runs(int ndim, const int64_t *shape, const fsdp__extent *a, const fsdp__extent *b,
                               fsdp__overlap_run run, void *arg);

#endif
