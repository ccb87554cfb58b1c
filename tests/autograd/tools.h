/* tools.h - small things the tests of autograd, ops and nn share. */
#pragma once

#include "base/rng.h"
#include "fsdp/autograd.h"
#include "support/test.h"

/* Live bytes of tensors. The scratch that kernels keep with their stream stays until the context dies. */
int64_t tensor_bytes(fsdp_context *context);
/* Normal values in the scope, the same on every run. */
fsdp_tensor *make_random(fsdp_device *device, uint64_t key, int ndim, const int64_t *shape);
fsdp_tensor *make_leaf(fsdp_device *device, uint64_t key, int ndim, const int64_t *shape);
fsdp_tensor *make_floats(fsdp_device *device, int64_t count, const float *values);
fsdp_tensor *make_ids(fsdp_device *device, int ndim, const int64_t *shape, const int32_t *ids);
/* First element. */
double first_of(const fsdp_tensor *tensor);
