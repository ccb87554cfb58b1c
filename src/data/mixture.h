/* mixture.h - which source of a mixture has the n-th window, and which of its own windows that is.
 *
 * The first n windows hold, for any n, as many of each source as its share of n says, up to one for each of the sources
 * before it. The two numbers are computed from n alone, so a run goes on anywhere. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__mixture {
    int count;        /* of sources */
    uint64_t *shares; /* of each: its share of what the sources before it leave, in 2^-32 */
} fsdp__mixture;

/* Prepares a mixture of sources with these weights, which are positive. The caller releases it. */
fsdp_status fsdp__mixture_init(fsdp__mixture *mixture, const double *weights, int count);
void fsdp__mixture_release(fsdp__mixture *mixture);
/* Finds the source that has the window at `position`, and how many windows of that source come before it. */
int fsdp__mixture_at(const fsdp__mixture *mixture, int64_t position, int64_t *index);
/* Returns how many of the first `count` windows belong to a source. */
int64_t fsdp__mixture_count(const fsdp__mixture *mixture, int source, int64_t count);
