/* toy.h - a few operations of the tests' own, so that the tape is tested without ops/. */
#pragma once

#include "autograd/autograd.h"
#include "autograd/tools.h"
#include "device/device.h"
#include "device/kernels.h"

/* y = factor * x */
fsdp_tensor *toy_scaled(const fsdp_tensor *x, float factor);
/* Saves its input, to have something to let go. */
fsdp_tensor *toy_scale(fsdp_tensor *x, float factor);
fsdp_tensor *toy_add(fsdp_tensor *a, fsdp_tensor *b);
/* Fails in the backward, after writing, when factor is 13. */
fsdp_tensor *toy_target(fsdp_tensor *x, float factor);
fsdp_tensor *toy_split(fsdp_tensor *x, fsdp_tensor **twice);
/* A context with an open scope, and its end. */
fsdp_context *toy_begin(void);
void toy_end(fsdp_context *context);
fsdp_tensor *toy_leaf(fsdp_context *context, float value);
double toy_grad(const fsdp_tensor *leaf);
