/* difference.h - finds how far apart two tensors of the same shape are, with a window of each in memory at a time. */
#ifndef CLI_DIFFERENCE_H
#define CLI_DIFFERENCE_H

#include "cli/tensor_source.h"

typedef struct fsdp__difference {
    int64_t count;   /* elements that are not the same number; NaNs with the same bits are the same */
    double most;     /* largest |a - b|; infinite if one of them is not a number */
    double a, b;     /* at `element` */
    int64_t element; /* where `most` is */
} fsdp__difference;

/* Gets the bytes of every window, of both tensors together. */
typedef void (*fsdp__difference_progress)(void *arg, uint64_t bytes);

/* Compares two tensors. Elements of different dtypes are compared by their numeric values. Runs on the context's
 * CPU. */
fsdp_status fsdp__difference_find(fsdp_context *context, fsdp__tensor_source *const sources[2],
                                  const fsdp__source_tensor *const tensors[2], fsdp__difference_progress progress,
                                  void *arg, fsdp__difference *out);

#endif
