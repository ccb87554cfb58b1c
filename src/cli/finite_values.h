/* finite_values.h - checks whether weights on disk are finite. */
#pragma once

#include "cli/folder_model.h"
#include "cli/tensor_source.h"

/* Lists and reads all weights, a few MiB at a time; of a checkpoint those of the model. The first value that is NaN or
 * infinite is an error that names file, tensor and element. Weights of dtypes that cannot be read are skipped.
 * `progress` (NULL: none) gets the number of bytes read so far. */
fsdp_status fsdp__check_finite_weights(fsdp__tensor_source *source,
                                       void (*progress)(void *arg, uint64_t done, uint64_t all), void *arg);
/* Does the same with what a path has: a model folder, a checkpoint, or the folder of an adapter. */
fsdp_status fsdp__check_finite_path(const char *path);
/* Returns the index of the first of `count` values that is NaN or infinite; `count` if there is none. */
int64_t fsdp__first_not_finite(const void *values, int64_t count, fsdp_dtype dtype);
/* Fails because a model computes NaN or infinite values. The message says which of the folder's weights, or of those of
 * its adapters, are not finite, or that all are finite. Rank 0 looks at them, and all ranks of the context get its
 * message. `what`: "the loss is nan". [collective] */
fsdp_status fsdp__fail_not_finite(fsdp_context *context, const char *path, const fsdp__adapters *adapters,
                                  const char *what);
