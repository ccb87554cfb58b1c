/* finite.h - whether weights on disk are finite. */
#ifndef CLI_FINITE_H
#define CLI_FINITE_H

#include "cli/tensor_source.h"

/* Lists and reads all weights, a few MiB at a time: the first value that is NaN or infinite is an error that names
 * file, tensor and element; those of dtypes that cannot be read are passed over. Of a checkpoint those of the model.
 * `progress` (NULL: nobody) is told of the bytes that have been read. */
fsdp_status fsdp__check_finite_weights(fsdp__tensor_source *source,
                                       void (*progress)(void *arg, uint64_t done, uint64_t all), void *arg);
/* Index of the first of `count` values that is NaN or infinite; `count` where there is none. */
int64_t fsdp__first_not_finite(const void *values, int64_t count, fsdp_dtype dtype);
/* The error that a model computes NaN or infinite values: which of the folder's weights are, or that all are finite.
 * Rank 0 looks at them, and all ranks of the context have its words. `what`: "the loss is nan". [collective] */
fsdp_status fsdp__fail_not_finite(fsdp_context *context, const char *path, const char *what);

#endif
