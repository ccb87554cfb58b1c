/* finite.h - whether weights on disk are finite. */
#ifndef CLI_FINITE_H
#define CLI_FINITE_H

#include "cli/tensor_source.h"

/* Lists and reads all weights, a few MiB at a time: the first value that is NaN or infinite is an error that names
 * file, tensor and element; those of dtypes that cannot be read are passed over. Of a checkpoint those of the model.
 * `progress` is told of the bytes that have been read. */
fsdp_status fsdp__check_finite_weights(fsdp__tensor_source *source,
                                       void (*progress)(void *arg, uint64_t done, uint64_t all), void *arg);

#endif
