/* difference.h - how far two tensors of the same shape are apart, a window of each in memory at a time. */
#ifndef CLI_DIFFERENCE_H
#define CLI_DIFFERENCE_H

#include "cli/tensor_source.h"

typedef struct fsdp__difference {
    int64_t count;   /* elements that are not the same number; NaN of the same bits are */
    double most;     /* |a - b|, infinite where one of them is no number */
    double a, b;     /* there */
    int64_t element; /* there */
} fsdp__difference;

/* Told of every window, in bytes of both. */
typedef void (*fsdp__difference_progress)(void *arg, uint64_t bytes);

/* Elements of dtypes that differ are compared as the numbers that they are. Runs on the context's CPU. */
fsdp_status fsdp__difference_find(fsdp_context *context, fsdp__tensor_source *const sources[2],
                                  const fsdp__source_tensor *const tensors[2], fsdp__difference_progress progress,
                                  void *arg, fsdp__difference *out);

#endif
